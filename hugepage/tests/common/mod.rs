//! Makes system calls fail for one thread, to stand for kernels and shortages that are not at hand.

use std::{ffi::c_long, io};

/// When a call is to fail: all conditions have to hold.
pub struct Rule<'a> {
    pub call: c_long,
    pub when: &'a [When],
    pub errno: i32,
}

/// A condition on the low half of an argument.
#[derive(Clone, Copy)]
pub enum When {
    Equals { arg: u32, value: u32 },
    HasBit { arg: u32, bit: u32 },
}

/// A kernel from before 5.1: no `MADV_POPULATE_WRITE` (5.14), `F_SEAL_FUTURE_WRITE` (5.1), or
/// `MFD_NOEXEC_SEAL` (6.3).
pub const OLD_KERNEL: &[Rule<'static>] = &[
    Rule {
        call: libc::SYS_madvise,
        when: &[When::Equals {
            arg: 2,
            value: libc::MADV_POPULATE_WRITE as u32,
        }],
        errno: libc::EINVAL,
    },
    Rule {
        call: libc::SYS_fcntl,
        when: &[
            When::Equals {
                arg: 1,
                value: libc::F_ADD_SEALS as u32,
            },
            When::HasBit {
                arg: 2,
                bit: libc::F_SEAL_FUTURE_WRITE as u32,
            },
        ],
        errno: libc::EINVAL,
    },
    Rule {
        call: libc::SYS_memfd_create,
        when: &[When::HasBit {
            arg: 1,
            bit: libc::MFD_NOEXEC_SEAL,
        }],
        errno: libc::EINVAL,
    },
];

/// Installs the rules for the calling thread, until it ends.
pub fn fail_calls(rules: &[Rule<'_>]) -> io::Result<()> {
    let mut program = program(rules);
    let filter = libc::sock_fprog {
        len: program.len() as u16,
        filter: program.as_mut_ptr(),
    };
    // SAFETY: takes plain numbers.
    let result = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel copies the program, which lives through the call.
    let result = unsafe {
        libc::prctl(
            libc::PR_SET_SECCOMP,
            libc::SECCOMP_MODE_FILTER,
            &raw const filter,
        )
    };
    if result == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Runs `test` in a thread of its own with the rules in force. `false`, with a word on the output,
/// when this machine does not let us.
#[allow(dead_code, reason = "not every test file needs it")]
pub fn with_failing_calls(name: &str, rules: &[Rule<'_>], test: impl FnOnce() + Send) -> bool {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| match fail_calls(rules) {
            Ok(()) => {
                test();
                true
            }
            Err(error) => {
                println!("skipped: {name}: no seccomp filter: {error}");
                false
            }
        });
        thread.join().unwrap()
    })
}

fn program(rules: &[Rule<'_>]) -> Vec<libc::sock_filter> {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    const JUMP: u32 = libc::BPF_JMP | libc::BPF_K;
    /// Where the arguments are in `seccomp_data`, and the low half of one in its eight bytes.
    const ARGS: u32 = 16;
    const LOW_HALF: u32 = if cfg!(target_endian = "big") { 4 } else { 0 };
    let line = |code: u32, k: u32, jf: u8| libc::sock_filter {
        code: code as u16,
        jt: 0,
        jf,
        k,
    };

    let mut program = Vec::new();
    for rule in rules {
        // A condition that does not hold jumps over what is left of its rule.
        let mut left = 2 * rule.when.len() as u8 + 1;
        program.push(line(LOAD, 0, 0));
        program.push(line(JUMP | libc::BPF_JEQ, rule.call as u32, left));
        for &when in rule.when {
            left -= 2;
            let (test, arg, k) = match when {
                When::Equals { arg, value } => (libc::BPF_JEQ, arg, value),
                When::HasBit { arg, bit } => (libc::BPF_JSET, arg, bit),
            };
            program.push(line(LOAD, ARGS + 8 * arg + LOW_HALF, 0));
            program.push(line(JUMP | test, k, left));
        }
        program.push(line(RETURN, libc::SECCOMP_RET_ERRNO | rule.errno as u32, 0));
    }
    program.push(line(RETURN, libc::SECCOMP_RET_ALLOW, 0));
    program
}

//! A libibverbs that is none: devices, ports and GIDs are data, calls are noted, and any of them can be made to fail.
//!
//! - `Fake::new` makes one; `fake.host()` is what the back end takes for this machine.
//! - `fake.fail` makes calls fail; `fake.calls` and `fake.live` say what happened.
//! - A new verb is a function in `verbs.rs` and a line in its table `FUNCTIONS`. Each begins with `Shared::call`, which
//!   notes the call and says whether it is to fail.
//!
//! Its objects lead to it, so it works with any number of threads and of fakes. Only the list of devices is asked of no
//! object: it is that of the fake which this thread made, or entered, last. Nothing is freed: it is a test.

#![allow(
    clippy::multiple_unsafe_ops_per_block,
    clippy::unwrap_used,
    dead_code,
    reason = "tests, each of which takes what it needs"
)]

mod data;
pub mod net;
mod queues;
mod verbs;

use std::cell::Cell;
use std::fs;
use std::path::Path;
use std::sync::{Mutex, MutexGuard};

use rdma_core_sys::Verbs;
use scalerpc_driver::verbs::Host;

#[allow(unused_imports, reason = "as above")]
pub use data::{Device, Entry, Port, gid};

thread_local! {
    /// The fake whose devices this thread sees.
    static CURRENT: Cell<Option<&'static Shared>> = const { Cell::new(None) };
}

/// A verb that was called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its name.
    pub verb: &'static str,
    /// The device, where there is one.
    pub device: String,
    /// The port, where the verb names one.
    pub port: Option<u32>,
    /// What else is of interest, such as the index of a GID.
    pub detail: u64,
}

/// Which calls are to fail.
#[derive(Clone, Copy, Debug)]
pub enum Which {
    /// The k-th of all calls, from 1.
    Nth(usize),
    /// The k-th of this verb, from 1.
    NthOf(&'static str, usize),
    /// All of this verb.
    All(&'static str),
    /// All of this verb on this device.
    On(&'static str, &'static str),
}

/// What there is of each kind; all is zero when everything has been given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Live {
    pub lists: i32,
    pub contexts: i32,
    pub pds: i32,
    pub mrs: i32,
    pub cqs: i32,
    pub qps: i32,
    pub channels: i32,
    /// Events that were taken and not acknowledged.
    pub events: i32,
}

#[derive(Default)]
pub struct State {
    calls: Vec<Call>,
    failures: Vec<(Which, i32)>,
    pub live: Live,
}

/// What the objects of a fake lead to.
pub struct Shared {
    devices: Vec<verbs::DevicePtr>,
    state: Mutex<State>,
    net: Mutex<net::Net>,
}

impl Shared {
    pub fn net(&self) -> MutexGuard<'_, net::Net> {
        self.net.lock().unwrap()
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Notes a call, and says what it is to fail with.
    fn call(
        &self,
        verb: &'static str,
        device: &str,
        port: Option<u32>,
        detail: u64,
    ) -> Result<(), i32> {
        let mut state = self.state();
        state.calls.push(Call {
            verb,
            device: device.to_owned(),
            port,
            detail,
        });
        let all = state.calls.len();
        let of_verb = state.calls.iter().filter(|call| call.verb == verb).count();
        let failure = state.failures.iter().find(|(which, _)| match *which {
            Which::Nth(k) => k == all,
            Which::NthOf(name, k) => name == verb && k == of_verb,
            Which::All(name) => name == verb,
            Which::On(name, on) => name == verb && on == device,
        });
        failure.map_or(Ok(()), |&(_, errno)| Err(errno))
    }
}

/// See the module.
#[derive(Clone, Copy)]
pub struct Fake {
    shared: &'static Shared,
    verbs: &'static Verbs,
}

impl Fake {
    /// A fake with these devices, which this thread sees from now on.
    pub fn new(devices: Vec<Device>) -> Self {
        Self::with_library(devices, &[])
    }

    /// The same, without these functions.
    pub fn with_library(devices: Vec<Device>, missing: &[&str]) -> Self {
        let fake = Self {
            shared: verbs::install(devices),
            verbs: verbs::library(missing),
        };
        fake.enter();
        fake
    }

    /// Makes this thread see this fake's devices.
    pub fn enter(&self) {
        CURRENT.set(Some(self.shared));
    }

    pub fn verbs(&self) -> &'static Verbs {
        self.verbs
    }

    /// A machine with this library, and neither sysfs nor device files.
    pub fn host(&self) -> Host {
        self.host_at(Path::new("/nonexistent"))
    }

    /// A machine with this library, and `sys` and `dev` in this folder.
    pub fn host_at(&self, root: &Path) -> Host {
        Host::new(self.verbs, &root.join("sys"), &root.join("dev"))
    }

    /// From now on these calls fail. Verbs that return `int` return the number, and leave another one in `errno`.
    pub fn fail(&self, which: Which, errno: i32) {
        self.shared.state().failures.push((which, errno));
    }

    /// All calls succeed again.
    pub fn heal(&self) {
        self.shared.state().failures.clear();
    }

    /// What was called since the last time.
    pub fn calls(&self) -> Vec<Call> {
        std::mem::take(&mut self.shared.state().calls)
    }

    /// Queue pairs, registrations, and how unkind they are.
    pub fn net(&self) -> MutexGuard<'static, net::Net> {
        self.shared.net()
    }

    /// How many calls there have been.
    pub fn count(&self) -> usize {
        self.shared.state().calls.len()
    }

    /// A device says something.
    pub fn raise(&self, event: rdma_core_sys::ibv_async_event) {
        let mut net = self.net();
        net.events.push_back(event);
        for &fd in &net.contexts {
            // SAFETY: the descriptor is open while it is listed.
            unsafe { libc::write(fd, 1_u64.to_ne_bytes().as_ptr().cast(), 8) };
        }
    }

    /// What there is.
    pub fn live(&self) -> Live {
        self.shared.state().live
    }
}

/// Writes what sysfs says about these devices to `root/sys`.
pub fn write_sysfs(root: &Path, devices: &[Device]) {
    for device in devices {
        for (port, number) in device.ports.iter().zip(1..) {
            let types = format!(
                "sys/class/infiniband/{}/ports/{number}/gid_attrs/types",
                device.name
            );
            let types = root.join(types);
            fs::create_dir_all(&types).unwrap();
            for (index, entry) in port.gids.iter().enumerate() {
                if let Some(text) = entry.sysfs_type() {
                    fs::write(types.join(index.to_string()), format!("{text}\n")).unwrap();
                }
            }
        }
    }
}

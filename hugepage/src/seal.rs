//! The seals of a memfd.

use std::os::fd::AsFd;

use rustix::{
    fs::{SealFlags, fcntl_add_seals, fcntl_get_seals},
    io::Errno,
};

use crate::error::MemoryError;

/// The size can no longer change: nobody can truncate the file under a mapping.
const FIXED_SIZE: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW);
/// Seals that forbid punching holes.
const NO_HOLES: SealFlags = SealFlags::FUTURE_WRITE.union(SealFlags::WRITE);

/// How well [`seal_for_good`] could seal.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Sealing {
    /// Nobody can map the memory for writing any more, nor give pages of it back.
    Complete,
    /// The kernel is older than 5.1 and has no `F_SEAL_FUTURE_WRITE`: whoever has the descriptor
    /// can still punch holes.
    HolesPossible,
}

/// Seals a memfd for good, after everybody who writes to it has mapped it: nobody can map it for
/// writing any more, punch holes into it, or add other seals. Existing mappings stay writable.
/// Sealing twice does no harm.
///
/// # Errors
///
/// [`MemoryError::SealRefused`] when somebody else has locked the seals before, and holes can still
/// be punched; [`MemoryError::NotMemfd`] when the descriptor cannot be sealed at all.
pub fn seal_for_good(fd: impl AsFd) -> Result<Sealing, MemoryError> {
    let fd = fd.as_fd();
    match fcntl_add_seals(fd, SealFlags::FUTURE_WRITE | SealFlags::SEAL) {
        Ok(()) => Ok(Sealing::Complete),
        Err(Errno::PERM) => {
            if seals(fd)?.intersects(NO_HOLES) {
                Ok(Sealing::Complete)
            } else {
                Err(MemoryError::SealRefused)
            }
        }
        Err(Errno::INVAL) => {
            // Either the kernel does not know the new seal, or this is no memfd.
            let present = seals(fd)?;
            if !present.contains(SealFlags::SEAL) {
                fcntl_add_seals(fd, SealFlags::SEAL).map_err(|e| MemoryError::os(ADD, e))?;
            }
            Ok(Sealing::HolesPossible)
        }
        Err(errno) => Err(MemoryError::os(ADD, errno)),
    }
}

const ADD: &str = "adding seals to a memfd";

pub(crate) fn fix_size(fd: impl AsFd) -> Result<(), MemoryError> {
    fcntl_add_seals(fd, FIXED_SIZE).map_err(|errno| MemoryError::os(ADD, errno))
}

/// Refuses a memfd whose size could still change.
pub(crate) fn check_fixed_size(fd: impl AsFd) -> Result<(), MemoryError> {
    let seals = seals(fd)?;
    let missing = match (
        seals.contains(SealFlags::SHRINK),
        seals.contains(SealFlags::GROW),
    ) {
        (true, true) => return Ok(()),
        (false, true) => "F_SEAL_SHRINK",
        (true, false) => "F_SEAL_GROW",
        (false, false) => "F_SEAL_SHRINK | F_SEAL_GROW",
    };
    Err(MemoryError::NotSealed { missing })
}

fn seals(fd: impl AsFd) -> Result<SealFlags, MemoryError> {
    fcntl_get_seals(fd).map_err(|errno| match errno {
        Errno::INVAL => MemoryError::NotMemfd,
        other => MemoryError::os("reading the seals of a memfd", other),
    })
}

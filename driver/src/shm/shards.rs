//! The shards of a server: what each of its workers has for itself.
//!
//! ```text
//!  exposed memory | shard 0 | pad | shard 1 | pad | .. | shard n-1 |       one memfd, which clients map as a whole
//!                 |<-- stride --->|
//! ```
//!
//! Each shard is laid out by the same geometry, and has seats of its own, numbered from 0. A connection belongs to one
//! shard for life, and its client adds the shard's beginning to the addresses of all its WRITEs.

use std::sync::Arc;
use std::thread::JoinHandle;

use scalerpc_core::Geometry;
use scalerpc_core::wire::LINE;

use super::handshake::Grant;
use super::link::{self, Link, Order, Shared};
use super::path::Claim;
use crate::mapping::{Mapping, Part};

/// Shards that a server may have.
pub const SHARDS_MAX: u32 = 64;

/// Shards do not share pages.
const ALIGNMENT: usize = 4096;

/// Where the shards are in a server's exposed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Layout {
    shards: u32,
    stride: usize,
    /// Of each shard.
    len: usize,
}

impl Layout {
    /// `None` if there can be no such number of shards, or they do not fit the address space.
    pub(super) fn new(geometry: &Geometry, shards: u32) -> Option<Self> {
        let stride = geometry
            .server_exposed_bytes()
            .checked_next_multiple_of(ALIGNMENT)?;
        Self::with_stride(geometry, shards, stride)
    }

    /// As a server says it.
    pub(super) fn offered(
        geometry: &Geometry,
        shards: u32,
        stride: u64,
        bytes: u64,
    ) -> Option<Self> {
        let layout = Self::with_stride(geometry, shards, usize::try_from(stride).ok()?)?;
        (layout.bytes() as u64 == bytes).then_some(layout)
    }

    fn with_stride(geometry: &Geometry, shards: u32, stride: usize) -> Option<Self> {
        let len = geometry.server_exposed_bytes();
        if shards == 0 || shards > SHARDS_MAX || stride < len || stride % LINE != 0 {
            return None;
        }
        let bytes = stride.checked_mul(shards as usize)?;
        (bytes <= isize::MAX as usize).then_some(Self {
            shards,
            stride,
            len,
        })
    }

    pub(super) fn shards(&self) -> u32 {
        self.shards
    }

    pub(super) fn stride(&self) -> usize {
        self.stride
    }

    /// Bytes of one shard.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// Where a shard begins.
    pub(super) fn base(&self, shard: u32) -> usize {
        debug_assert!(shard < self.shards, "there is such a shard");
        self.stride * shard as usize
    }

    /// Bytes of all shards.
    pub(super) fn bytes(&self) -> usize {
        self.base(self.shards - 1) + self.len
    }
}

/// A shard, as its data thread and the control thread each hold it.
#[derive(Clone, Debug)]
pub(super) struct Shard {
    pub(super) exposed: Arc<Part>,
    pub(super) line: Arc<link::Shard>,
}

impl Shard {
    /// The shards of this memory, with all their seats free.
    pub(super) fn all(
        memory: &Arc<Mapping>,
        layout: &Layout,
        clients_max: u32,
    ) -> Option<Box<[Self]>> {
        let one = |number| {
            let exposed = Arc::new(Part::new(memory, layout.base(number), layout.len())?);
            let line = Arc::new(link::Shard::new(clients_max));
            Some(Self { exposed, line })
        };
        (0..layout.shards()).map(one).collect()
    }
}

/// Takes seats for the connections of a link, as evenly from the shards as they are free. The owners are left open.
/// Of shards that are alike, `turn` is the first; it moves on, so that clients that come one after the other are spread,
/// too.
///
/// Only the control thread takes seats, so what is free can only become more meanwhile.
///
/// # Errors
///
/// If there are fewer, how many.
pub(super) fn take_seats(
    shards: &[Shard],
    wanted: u32,
    turn: &mut usize,
) -> Result<Box<[Grant]>, u32> {
    let mut free: Vec<u32> = shards.iter().map(|shard| shard.line.free_seats()).collect();
    let all = free
        .iter()
        .fold(0, |sum: u32, &free| sum.saturating_add(free));
    if all < wanted {
        return Err(all);
    }
    let mut taken = vec![0; shards.len()];
    let mut grants = Vec::with_capacity(wanted as usize);
    for _ in 0..wanted {
        // One that has given few to this link, and of those one that has many left.
        let best = (0..shards.len()).filter(|&it| free[it] > 0);
        let after = |it: usize| (it + shards.len() - *turn % shards.len()) % shards.len();
        let best = best.min_by_key(|&it| (taken[it], u32::MAX - free[it], after(it)));
        let seat = best.and_then(|it| {
            *turn = it + 1;
            free[it] -= 1;
            taken[it] += 1;
            let seat = shards[it].line.take_seats(1).ok()?.pop()?;
            Some(Grant {
                shard: it as u32,
                seat,
                owner: 0,
            })
        });
        grants.extend(seat);
    }
    if grants.len() < wanted as usize {
        // A shard has been closed meanwhile.
        give_back(shards, &grants);
        return Err(grants.len() as u32);
    }
    Ok(grants.into())
}

/// Gives seats back that nobody has heard of.
pub(super) fn give_back(shards: &[Shard], grants: &[Grant]) {
    for grant in grants {
        if let Some(shard) = shards.get(grant.shard as usize) {
            shard.line.give_back([grant.seat]);
        }
    }
}

/// What all shards of a server hold together: the last one ends the control thread, and then frees the path.
#[derive(Debug)]
pub(super) struct Hub {
    pub(super) shared: Arc<Shared>,
    control: Option<JoinHandle<()>>,
    /// Dropped after the control thread has ended.
    _claim: Claim,
    /// The control thread is this process's; a fork of it has none.
    process: u32,
}

impl Hub {
    pub(super) fn new(shared: Arc<Shared>, control: JoinHandle<()>, claim: Claim) -> Self {
        Self {
            shared,
            control: Some(control),
            _claim: claim,
            process: std::process::id(),
        }
    }

    /// A shard ends a link, of which it has connections.
    pub(super) fn end(&self, link: &Link, shard: u32) {
        if link.end(shard) {
            self.shared.order(Order::Evict(link.id));
        }
    }

    /// False in a fork of the server's process.
    pub(super) fn is_ours(&self) -> bool {
        self.process == std::process::id()
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        if !self.is_ours() {
            return;
        }
        self.shared.stop();
        if let Some(control) = self.control.take() {
            // It has nothing to return; a panic of it has been reported already.
            let _ = control.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use scalerpc_core::GeometryConfig;

    use super::*;

    proptest! {
        #[test]
        fn what_a_server_lays_out_a_client_takes(clients_max in 1u32..500, shards in 1..=SHARDS_MAX) {
            let config = GeometryConfig { clients_max, ..GeometryConfig::default() };
            let geometry = Geometry::new(config).unwrap();
            let layout = Layout::new(&geometry, shards).unwrap();
            let (stride, bytes) = (layout.stride() as u64, layout.bytes() as u64);
            prop_assert_eq!(Layout::offered(&geometry, shards, stride, bytes), Some(layout));
            prop_assert_eq!(Layout::offered(&geometry, shards, stride, bytes + 1), None);
        }

        #[test]
        fn any_offer_is_refused_or_keeps_shards_apart(
            shards in prop_oneof![0u32..70, any::<u32>()],
            stride in prop_oneof![0u64..1 << 24, any::<u64>()],
        ) {
            let geometry = Geometry::new(GeometryConfig::default()).unwrap();
            let each = geometry.server_exposed_bytes();
            let bytes = u64::from(shards.saturating_sub(1)).wrapping_mul(stride).wrapping_add(each as u64);
            if let Some(layout) = Layout::offered(&geometry, shards, stride, bytes) {
                prop_assert!((1..=SHARDS_MAX).contains(&shards));
                for shard in 0..shards {
                    let base = layout.base(shard);
                    prop_assert!(base % LINE == 0 && base + each <= layout.bytes());
                    prop_assert!(shard == 0 || layout.base(shard - 1) + each <= base);
                }
            }
        }
    }
}

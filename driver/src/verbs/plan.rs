//! Sizes of queues, from the geometry and from what the device can do.

use scalerpc_core::Geometry;

use super::device::OpenDevice;
use super::qp::End;
use super::resources::Shape;

/// Bytes that are asked for inline: a response or request of three lines, and what common devices give.
pub(super) const INLINE_WANTED: u32 = 220;
/// Most elements of a scatter list that are asked for. Each makes all work requests of a queue larger, in memory and in
/// the device's cache.
const SGE_WANTED: u32 = 32;
/// Work requests of a connection besides those of a window: switch events, demand, entries.
const SENDS_BESIDES: u32 = 8;
/// Fewest work requests of a connection: half of them go between two completions.
const SENDS_MIN: u32 = 16;
/// After the engine's work requests comes one more, which shows that the queue has been flushed.
const BEACONS: u32 = 1;

/// WRITEs of demand that a connection of the server may have received before it looks. A client has one in a tenancy, which
/// takes a server several rounds; one more may be of the tenancy before.
pub(super) const RECEIVES: u32 = 2;

/// How queues are sized.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Plan {
    /// Work requests that the engine may have outstanding on a connection.
    pub(super) sq_depth: u32,
    pub(super) sge_max: u32,
    /// Receives of a connection: by these a server is woken.
    pub(super) receives: u32,
    /// Completion queues for what is sent. A server has as many for what is received.
    pub(super) queues: u32,
    /// Connections that share one.
    pub(super) per_queue: u32,
    /// Completions that one holds.
    pub(super) entries: u32,
}

/// What of a device bears on the sizes. Zero stands for "not known" where a device may leave that open.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    pub(super) max_qp_wr: u32,
    pub(super) max_sge: u32,
    pub(super) max_sge_read: u32,
    pub(super) max_cqe: u32,
    pub(super) max_message: u32,
}

impl Bounds {
    pub(super) fn of(device: &OpenDevice) -> Self {
        let can = device.capabilities();
        Self {
            max_qp_wr: can.max_qp_wr,
            max_sge: can.max_sge,
            max_sge_read: u32::try_from(device.attr().max_sge_rd).unwrap_or(0),
            max_cqe: can.max_cqe,
            max_message: device.port().attr().max_msg_sz,
        }
    }
}

/// The bound, or no bound if it is not known.
fn known(bound: u32) -> u32 {
    if bound == 0 { u32::MAX } else { bound }
}

impl Plan {
    /// For so many connections of that end.
    pub(super) fn new(geometry: &Geometry, connections: u32, end: End, bounds: Bounds) -> Self {
        let wanted = (geometry.window() + SENDS_BESIDES).max(SENDS_MIN);
        let most = known(bounds.max_qp_wr).min(known(bounds.max_cqe)) - BEACONS;
        let sq_depth = wanted.min(most);
        // A READ is one message, whatever its scatter list.
        let blocks = known(bounds.max_message) / geometry.request_block_bytes() as u32;
        let elements = match end {
            // A READ fetches a window at most.
            End::Server => geometry.window().min(SGE_WANTED),
            End::Client => 1,
        };
        let receives = match end {
            End::Server => RECEIVES.min(most),
            End::Client => 0,
        };
        let sge_max = elements
            .min(known(bounds.max_sge))
            .min(known(bounds.max_sge_read))
            .min(blocks)
            .max(1);
        // Every work request may end in the queue, signaled or not: when its connection fails.
        let each = sq_depth + BEACONS;
        let fit = (known(bounds.max_cqe) / each).max(1);
        let queues = connections.div_ceil(fit).max(1);
        let per_queue = connections.div_ceil(queues).max(1);
        let this = Self {
            sq_depth,
            sge_max,
            receives,
            queues,
            per_queue,
            entries: per_queue * each,
        };
        debug_assert!(this.queues as u64 * u64::from(this.per_queue) >= u64::from(connections));
        debug_assert!(this.entries <= known(bounds.max_cqe), "no queue overflows");
        this
    }

    /// What is asked of a queue pair, with so many bytes inline.
    pub(super) fn shape(&self, inline: u32) -> Shape {
        Shape {
            sends: self.sq_depth + BEACONS,
            sges: self.sge_max,
            inline,
            receives: self.receives,
        }
    }

    /// Completions of receives that a queue holds: no more than of sends.
    pub(super) fn entries_received(&self) -> u32 {
        self.per_queue * self.receives
    }

    /// The completion queue of a connection.
    pub(super) fn queue_of(&self, connection: u32) -> usize {
        (connection / self.per_queue) as usize
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use scalerpc_core::GeometryConfig;

    use super::*;

    const RXE: Bounds = Bounds {
        max_qp_wr: 1 << 20,
        max_sge: 32,
        max_sge_read: 32,
        max_cqe: 32_767,
        max_message: 1 << 23,
    };

    fn plan(window: u32, connections: u32, bounds: Bounds) -> Plan {
        let config = GeometryConfig {
            window,
            ..GeometryConfig::default()
        };
        Plan::new(
            &Geometry::new(config).unwrap(),
            connections,
            End::Server,
            bounds,
        )
    }

    #[test]
    fn all_work_requests_of_all_connections_fit_the_queues() {
        for window in [1, 2, 16, 256, 1024] {
            for connections in [1, 2, 63, 1024, 1311, 1312, 100_000] {
                for max_cqe in [16, 255, 32_767, 1 << 22, 0] {
                    let plan = plan(window, connections, Bounds { max_cqe, ..RXE });
                    let last = plan.queue_of(connections - 1);
                    assert!(last < plan.queues as usize);
                    assert!(plan.entries <= known(max_cqe));
                    assert_eq!(plan.entries, plan.per_queue * (plan.sq_depth + BEACONS));
                    assert_eq!(plan.entries_received(), plan.per_queue * plan.receives);
                    assert!((1..=plan.entries).contains(&plan.entries_received()));
                }
            }
        }
        let many = plan(16, 1310, RXE);
        assert_eq!((many.queues, many.sq_depth), (1, 24));
        assert_eq!(plan(16, 1311, RXE).queues, 2);
    }

    #[test]
    fn a_device_that_does_less_gets_less() {
        let small = Bounds {
            max_qp_wr: 9,
            max_sge: 3,
            max_sge_read: 2,
            max_cqe: 64,
            max_message: 4096,
        };
        let plan = plan(16, 4, small);
        assert_eq!((plan.sq_depth, plan.sge_max), (8, 1));
        assert_eq!((plan.queues, plan.per_queue), (1, 4));
        let no_bound = Bounds {
            max_sge_read: 0,
            max_message: 0,
            ..small
        };
        assert_eq!(self::plan(16, 4, no_bound).sge_max, 3);
    }

    #[test]
    fn scatter_lists_are_as_long_as_a_window_and_a_client_needs_none() {
        let lengths = [1, 4, 16, 64].map(|window| plan(window, 1, RXE).sge_max);
        assert_eq!(lengths, [1, 4, 16, 32]);
        let geometry = Geometry::new(GeometryConfig::default()).unwrap();
        assert_eq!(Plan::new(&geometry, 1, End::Client, RXE).sge_max, 1);
    }
}

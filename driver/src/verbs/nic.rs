//! An open device with a protection domain: where everything else of an end is made.

use std::ffi::c_uint;
use std::fmt::Display;
use std::net::IpAddr;
use std::sync::Arc;

use rdma_core_sys::{
    IBV_ACCESS_LOCAL_WRITE, IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_FORK_DISABLED,
    Verbs,
};
use scalerpc_core::Geometry;
use scalerpc_hugepage::{HugeMemory, MemoryError, PagePolicy};

use super::device::{Host, OpenDevice, Selection};
use super::errno::Errno;
use super::error::{Step, VerbsError};
use super::lanes::{Lanes, Reach, Remote};
use super::near;
use super::plan::{Bounds, INLINE_WANTED, Plan};
use super::qp::{self, End, Pairing, Patience, Route};
use super::resources::{Channel, CompletionQueue, Domain, QueuePair, Queues, Registration};
use super::setup::SetupError;
use crate::mapping::Mapping;

/// What the peer may do with exposed memory, per end. Private memory is only read, and only by this end's device. Never
/// `IBV_ACCESS_RELAXED_ORDERING`: the memory is polled.
const SERVER_EXPOSED: c_uint = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;
const CLIENT_EXPOSED: c_uint =
    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ;
const PRIVATE: c_uint = 0;

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Nic {
    device: OpenDevice,
    domain: Arc<Domain>,
    end: End,
    patience: Patience,
}

/// What the data path of an end stands on.
#[derive(Debug)]
pub(super) struct Ground {
    pub(super) plan: Plan,
    pub(super) queues: Box<[Queues]>,
    pub(super) inline: u32,
    pub(super) exposed: Registration,
    pub(super) private: Registration,
}

impl Ground {
    pub(super) fn lanes(self, geometry: Geometry, connections: u32) -> Lanes {
        let reach = Reach {
            connections,
            inline_max: self.inline as usize,
            sge_max: self.plan.sge_max,
        };
        let queues = self.queues.iter().map(|it| Arc::clone(&it.sends)).collect();
        Lanes::new(geometry, reach, queues, self.exposed, self.private)
    }

    /// Where the peer finds the exposed memory.
    pub(super) fn remote(&self, bytes: usize) -> Remote {
        Remote {
            address: self.exposed.address(),
            rkey: self.exposed.rkey(),
            bytes: bytes as u64,
        }
    }
}

/// Pages of an end's memory.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pages {
    pub(super) policy: PagePolicy,
    pub(super) node: Option<u32>,
}

impl Nic {
    /// `address` is this end's in the network over which it is set up.
    pub(super) fn open(
        host: &Host,
        selection: &Selection,
        address: IpAddr,
        end: End,
        patience: Patience,
    ) -> Result<Self, VerbsError> {
        let device = near::open(host, selection, address)?;
        survive_forks(device.context().verbs());
        let domain = Domain::new(device.context()).map_err(|errno| {
            let place = device.place();
            VerbsError::failed(Step::ProtectionDomain, "ibv_alloc_pd", place, errno)
        })?;
        Ok(Self {
            device,
            domain,
            end,
            patience,
        })
    }

    pub(super) fn device(&self) -> &OpenDevice {
        &self.device
    }

    /// Makes queues and memory for so many connections. A channel is told of completions, when that is asked for.
    pub(super) fn ground(
        &self,
        channel: Option<&Arc<Channel>>,
        geometry: &Geometry,
        connections: u32,
        (exposed_bytes, private_bytes): (usize, usize),
        pages: Pages,
    ) -> Result<Ground, SetupError> {
        let plan = Plan::new(geometry, connections, self.end, Bounds::of(&self.device));
        let queues = self.queues(&plan, channel)?;
        let inline = self.inline_max(&queues[0], &plan)?;
        let (exposed, private) = self.memory(exposed_bytes, private_bytes, pages)?;
        Ok(Ground {
            plan,
            queues,
            inline,
            exposed,
            private,
        })
    }

    /// Makes and registers the memory that the peer reaches, and the memory that it does not.
    fn memory(
        &self,
        exposed_bytes: usize,
        private_bytes: usize,
        pages: Pages,
    ) -> Result<(Registration, Registration), SetupError> {
        let (names, access) = match self.end {
            End::Server => (["scalerpc-pools", "scalerpc-send"], SERVER_EXPOSED),
            End::Client => (["scalerpc-client", "scalerpc-requests"], CLIENT_EXPOSED),
        };
        let exposed = map(names[0], exposed_bytes, pages)?;
        let private = map(names[1], private_bytes, pages)?;
        Ok((
            self.register(&exposed, access)?,
            self.register(&private, PRIVATE)?,
        ))
    }

    fn register(&self, mapping: &Arc<Mapping>, access: c_uint) -> Result<Registration, VerbsError> {
        let bytes = mapping.memory().len() as u64;
        let failed = |errno| {
            let place = self.device.place();
            VerbsError::failed_to_lock(Step::Register, "ibv_reg_mr", place, errno, bytes)
        };
        if bytes > self.device.capabilities().max_mr_size {
            return Err(failed(Errno(libc::E2BIG)));
        }
        Registration::new(&self.domain, mapping, access).map_err(failed)
    }

    pub(super) fn channel(&self) -> Result<Arc<Channel>, VerbsError> {
        Channel::new(self.device.context()).map_err(|errno| {
            let (step, place) = (Step::Channel, self.device.place());
            VerbsError::failed(step, "ibv_create_comp_channel", place, errno)
        })
    }

    fn queues(
        &self,
        plan: &Plan,
        channel: Option<&Arc<Channel>>,
    ) -> Result<Box<[Queues]>, VerbsError> {
        let queue = |entries| {
            CompletionQueue::new(self.device.context(), entries, channel).map_err(|errno| {
                let (step, place) = (Step::CompletionQueue, self.device.place());
                let bytes = u64::from(entries) * 64;
                VerbsError::failed_to_lock(step, "ibv_create_cq", place, errno, bytes)
            })
        };
        let both = |_| {
            let sends = queue(plan.entries)?;
            let receives = match self.end {
                End::Server => queue(plan.entries_received())?,
                // It receives nothing.
                End::Client => Arc::clone(&sends),
            };
            Ok(Queues { sends, receives })
        };
        (0..plan.queues).map(both).collect()
    }

    /// Makes a queue pair in INIT.
    pub(super) fn queue_pair(
        &self,
        queues: &Queues,
        plan: &Plan,
        inline: u32,
        peer: &dyn Display,
    ) -> Result<QueuePair, VerbsError> {
        let made = QueuePair::new(&self.domain, queues, plan.shape(inline));
        let (pair, _) = made.map_err(|errno| self.failed_pair(errno, peer))?;
        self.init(&pair, peer)?;
        Ok(pair)
    }

    /// Has a queue pair receive what wakes this end, as often as it can, before anybody can send it.
    pub(super) fn receive(
        &self,
        pair: &QueuePair,
        seat: u32,
        plan: &Plan,
        peer: &dyn Display,
    ) -> Result<(), VerbsError> {
        let posted = (0..plan.receives).try_for_each(|_| pair.receive(seat.into()));
        posted.map_err(|errno| {
            let place = self.device.place().with_peer(peer);
            VerbsError::failed(Step::QueuePair, "ibv_post_recv", place, errno)
        })
    }

    fn init(&self, pair: &QueuePair, peer: &dyn Display) -> Result<(), VerbsError> {
        qp::init(pair, &self.device, self.end).map_err(|(step, errno)| {
            let place = self.device.place().with_peer(peer);
            VerbsError::failed(step, "ibv_modify_qp", place, errno)
        })
    }

    fn failed_pair(&self, errno: Errno, peer: &dyn Display) -> VerbsError {
        let place = self.device.place().with_peer(peer);
        VerbsError::failed_to_lock(Step::QueuePair, "ibv_create_qp", place, errno, 1 << 16)
    }

    /// Takes a queue pair from INIT to RTS.
    pub(super) fn connect(
        &self,
        pair: &QueuePair,
        route: &Route,
        pairing: Pairing,
        peer: &dyn Display,
    ) -> Result<(), VerbsError> {
        qp::connect(pair, &self.device, self.end, route, pairing, self.patience).map_err(
            |(step, errno)| {
                let place = self.device.place().with_peer(peer);
                VerbsError::failed(step, "ibv_modify_qp", place, errno)
            },
        )
    }

    /// Finds out how many bytes the device takes inline: no interface says. Devices refuse what is too much.
    fn inline_max(&self, queues: &Queues, plan: &Plan) -> Result<u32, VerbsError> {
        let mut wanted = INLINE_WANTED;
        loop {
            match QueuePair::new(&self.domain, queues, plan.shape(wanted)) {
                Ok((_, inline)) => return Ok(inline),
                Err(Errno(libc::EINVAL | libc::ENOMEM)) if wanted > 0 => wanted /= 2,
                Err(errno) => return Err(self.failed_pair(errno, &"none yet")),
            }
        }
    }

    /// Finds out whether the device places the bytes of a WRITE in increasing address order. It answers for a queue
    /// pair in RTS, so one is connected to itself.
    pub(super) fn places_in_order(&self, ground: &Ground) -> Result<bool, VerbsError> {
        let pair = self.queue_pair(&ground.queues[0], &ground.plan, 0, &"itself")?;
        let port = self.device.port();
        let route = Route {
            lid: port.lid(),
            gid: self.device.gid().bytes,
            mtu: self.device.mtu(),
            reads: 1,
        };
        let pairing = Pairing {
            peer: pair.number(),
            own_psn: 0,
            peer_psn: 0,
        };
        // A device that does not connect to itself has not promised anything.
        let connected = self.connect(&pair, &route, pairing, &"itself");
        Ok(connected.is_ok() && pair.places_in_order())
    }
}

fn map(name: &str, bytes: usize, pages: Pages) -> Result<Arc<Mapping>, SetupError> {
    let memory = HugeMemory::builder(name, bytes).policy(pages.policy);
    let memory = memory.numa_node(pages.node).build()?;
    // The builder rounds up, so the view always fits.
    let mapping = Mapping::new(memory, bytes, bytes);
    Ok(Arc::new(mapping.ok_or(MemoryError::ZeroBytes)?))
}

/// Sees to it that the device's queues survive a `fork` of this process on old kernels: they are private memory, of
/// which the parent would get a copy with its next write. (Registered memory is shared memory, to which that does not
/// happen.) If memory has been registered already it is too late; all works then, but for forks.
#[allow(unsafe_code)]
fn survive_forks(verbs: &Verbs) {
    if verbs.ibv_is_fork_initialized() == IBV_FORK_DISABLED {
        // SAFETY: it may be called at any time.
        let _ = unsafe { verbs.ibv_fork_init() };
    }
}

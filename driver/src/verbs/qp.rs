//! A queue pair's way to RTS, and to its end.

use rdma_core_sys::{
    IBV_ACCESS_REMOTE_READ, IBV_ACCESS_REMOTE_WRITE, IBV_QP_ACCESS_FLAGS, IBV_QP_AV,
    IBV_QP_DEST_QPN, IBV_QP_MAX_DEST_RD_ATOMIC, IBV_QP_MAX_QP_RD_ATOMIC, IBV_QP_MIN_RNR_TIMER,
    IBV_QP_PATH_MTU, IBV_QP_PKEY_INDEX, IBV_QP_PORT, IBV_QP_RETRY_CNT, IBV_QP_RNR_RETRY,
    IBV_QP_RQ_PSN, IBV_QP_SQ_PSN, IBV_QP_STATE, IBV_QP_TIMEOUT, IBV_QPS_ERR, IBV_QPS_INIT,
    IBV_QPS_RTR, IBV_QPS_RTS, ibv_qp_attr, ibv_qp_attr_mask,
};

use super::ReliabilityOptions;
use super::device::OpenDevice;
use super::errno::Errno;
use super::error::Step;
use super::mtu::Mtu;
use super::resources::QueuePair;
use super::setup::SetupError;

/// Numbers of queue pairs and of packets have 24 bits.
pub(super) const NUMBER_MAX: u32 = (1 << 24) - 1;

/// Which end a queue pair is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Its peer WRITEs; it READs and WRITEs.
    Server,
    /// Its peer READs and WRITEs; it WRITEs.
    Client,
}

impl End {
    fn access(self) -> u32 {
        match self {
            Self::Server => IBV_ACCESS_REMOTE_WRITE,
            Self::Client => IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ,
        }
    }
}

/// How long a queue pair waits for its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Patience {
    /// Time for an acknowledgement: 4.096 us times 2 to this.
    pub(super) timeout: u8,
    /// How often a packet is sent again; 7 means for ever on some devices, and is not used.
    pub(super) retries: u8,
}

impl Patience {
    pub(super) fn of(options: &ReliabilityOptions) -> Result<Self, SetupError> {
        let ReliabilityOptions { timeout, retries } = *options;
        if !(1..=31).contains(&timeout) || retries > 6 {
            let what = "reliability: timeout must be from 1 to 31, and retries from 0 to 6";
            return Err(SetupError::BadRequest { what });
        }
        Ok(Self { timeout, retries })
    }
}

/// What both ends have agreed on, and where the peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
    pub(super) mtu: Mtu,
    /// READs that the server may have outstanding.
    pub(super) reads: u8,
}

/// The peer's queue pair, and the packet that each side begins with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pairing {
    pub(super) peer: u32,
    pub(super) own_psn: u32,
    pub(super) peer_psn: u32,
}

/// The attributes of each transition; in its own place, so that it can be compared with the manual.
pub(super) const INIT_MASK: ibv_qp_attr_mask =
    IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
pub(super) const RTR_MASK: ibv_qp_attr_mask = IBV_QP_STATE
    | IBV_QP_AV
    | IBV_QP_PATH_MTU
    | IBV_QP_DEST_QPN
    | IBV_QP_RQ_PSN
    | IBV_QP_MAX_DEST_RD_ATOMIC
    | IBV_QP_MIN_RNR_TIMER;
pub(super) const RTS_MASK: ibv_qp_attr_mask = IBV_QP_STATE
    | IBV_QP_TIMEOUT
    | IBV_QP_RETRY_CNT
    | IBV_QP_RNR_RETRY
    | IBV_QP_SQ_PSN
    | IBV_QP_MAX_QP_RD_ATOMIC;

/// Time until a sender that found nothing to receive it tries again: 0.64 ms. (0 would be 655 ms.)
const RNR_TIMER: u8 = 12;

impl End {
    /// How often it tries again. A client does so for ever, so that none is lost because a server is busy: one that is dead
    /// acknowledges nothing, and ends the stream. (soft-RoCE takes time without progress for silence all the same, which is
    /// why a server has receives for all that an honest client sends.) A server sends nothing that has to be received.
    fn rnr_retries(self) -> u8 {
        match self {
            Self::Server => 6,
            Self::Client => 7,
        }
    }
}

/// To INIT: it has a port, and its peer's rights.
pub(super) fn init(qp: &QueuePair, device: &OpenDevice, end: End) -> Result<(), (Step, Errno)> {
    let mut attr = ibv_qp_attr {
        qp_state: IBV_QPS_INIT,
        pkey_index: 0,
        port_num: device.port().number(),
        qp_access_flags: end.access(),
        ..Default::default()
    };
    qp.modify(&mut attr, INIT_MASK)
        .map_err(|errno| (Step::Init, errno))
}

/// From INIT to RTS.
pub(super) fn connect(
    qp: &QueuePair,
    device: &OpenDevice,
    end: End,
    route: &Route,
    pairing: Pairing,
    patience: Patience,
) -> Result<(), (Step, Errno)> {
    // Only the server READs; but some drivers take no zero.
    let (answers, asks) = match end {
        End::Server => (1, route.reads),
        End::Client => (route.reads, 1),
    };
    let mut rtr = ibv_qp_attr {
        qp_state: IBV_QPS_RTR,
        ah_attr: device.route_to(route.lid, route.gid),
        path_mtu: route.mtu.to_verbs(),
        dest_qp_num: pairing.peer,
        rq_psn: pairing.peer_psn,
        max_dest_rd_atomic: answers,
        min_rnr_timer: RNR_TIMER,
        ..Default::default()
    };
    qp.modify(&mut rtr, RTR_MASK)
        .map_err(|errno| (Step::Rtr, errno))?;
    let mut rts = ibv_qp_attr {
        qp_state: IBV_QPS_RTS,
        timeout: patience.timeout,
        retry_cnt: patience.retries,
        rnr_retry: end.rnr_retries(),
        sq_psn: pairing.own_psn,
        max_rd_atomic: asks,
        ..Default::default()
    };
    qp.modify(&mut rts, RTS_MASK)
        .map_err(|errno| (Step::Rts, errno))
}

/// To ERR: the peer can neither read nor write any more, and what is outstanding is flushed.
pub(super) fn fail(qp: &QueuePair) -> Result<(), Errno> {
    let mut attr = ibv_qp_attr {
        qp_state: IBV_QPS_ERR,
        ..Default::default()
    };
    qp.modify(&mut attr, IBV_QP_STATE)
}

/// A number for a first packet. Random, so that what is still under way to a former queue pair of the same number is
/// not taken for this one's.
pub(super) fn random_psn() -> Result<u32, getrandom::Error> {
    Ok(getrandom::u32()? & NUMBER_MAX)
}

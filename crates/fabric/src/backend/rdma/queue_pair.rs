//! Queue pairs: the ends of reliable connections.
//!
//! One is made, the two sides tell each other its [`QueuePairInfo`], it is connected, and work is posted to it. After an error
//! it never works again.

#![allow(unsafe_code)]

use super::device::{Device, DeviceError};
use super::ffi as ib;
use super::verbs::{CompletionQueue, ProtectionDomain, SharedReceiveQueue};
use super::work::{Work, request};
use std::io;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

/// What the other side needs to know of a queue pair.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct QueuePairInfo {
    pub(super) number: u32,
    /// The first packet's number: random, so that it cannot be guessed.
    pub(super) psn: u32,
    pub(super) lid: u16,
    pub(super) gid: [u8; 16],
}

/// What a queue pair is made on.
#[derive(Clone, Debug)]
pub(super) struct Base {
    pub(super) domain: Arc<ProtectionDomain>,
    pub(super) queue: Arc<CompletionQueue>,
    pub(super) shared: Arc<SharedReceiveQueue>,
}

impl Base {
    pub(super) fn device(&self) -> &Device {
        &self.domain.device
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct QueuePair {
    qp: NonNull<ib::ibv_qp>,
    base: Base,
    pub(super) info: QueuePairInfo,
    /// The other side may reach registered memory of this domain.
    lends: bool,
}

// SAFETY: libibverbs lets any thread use its objects, and locks where that is needed.
unsafe impl Send for QueuePair {}
// SAFETY: as above.
unsafe impl Sync for QueuePair {}

impl QueuePair {
    /// One with `sends` requests under way at most. `lends`: the other side may reach registered memory of its domain.
    pub(super) fn new(base: &Base, sends: u32, lends: bool) -> Result<Self, DeviceError> {
        let device = base.device();
        // SAFETY: numbers and pointers that may be null.
        let mut init: ib::ibv_qp_init_attr = unsafe { std::mem::zeroed() };
        init.send_cq = base.queue.cq.as_ptr();
        init.recv_cq = base.queue.cq.as_ptr();
        init.srq = base.shared.srq.as_ptr();
        init.qp_type = ib::IBV_QPT_RC;
        init.cap.max_send_wr = sends.min(device.max_wr);
        init.cap.max_send_sge = 1;
        // SAFETY: a live domain, queues that are kept, and what to make.
        let qp = unsafe { (device.verbs.ibv_create_qp)(base.domain.pd.as_ptr(), &raw mut init) };
        let qp = NonNull::new(qp).ok_or_else(|| device.failed("making a queue pair"))?;
        // SAFETY: made just now.
        let number = unsafe { qp.as_ref() }.qp_num;
        let info = QueuePairInfo { number, psn: random_psn(), lid: device.lid, gid: device.gid };
        Ok(Self { qp, base: base.clone(), info, lends })
    }

    /// Connects to `other`.
    pub(super) fn connect(&self, other: &QueuePairInfo) -> Result<(), DeviceError> {
        let device = self.base.device();
        // SAFETY: numbers only, for which zero is a value.
        let mut attr: ib::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = ib::IBV_QPS_INIT;
        attr.port_num = device.port;
        if self.lends {
            attr.qp_access_flags =
                ib::IBV_ACCESS_REMOTE_READ | ib::IBV_ACCESS_REMOTE_WRITE | ib::IBV_ACCESS_REMOTE_ATOMIC;
        }
        let init = ib::IBV_QP_STATE | ib::IBV_QP_PKEY_INDEX | ib::IBV_QP_PORT | ib::IBV_QP_ACCESS_FLAGS;
        self.modify(&mut attr, init, "preparing a queue pair")?;

        attr.qp_state = ib::IBV_QPS_RTR;
        attr.path_mtu = device.mtu;
        attr.dest_qp_num = other.number;
        attr.rq_psn = other.psn;
        attr.max_dest_rd_atomic = device.depth;
        // 0.64 ms until a sender that found no receive posted tries again.
        attr.min_rnr_timer = 12;
        attr.ah_attr.is_global = 1;
        attr.ah_attr.grh.dgid.raw = other.gid;
        attr.ah_attr.grh.sgid_index = device.gid_index;
        attr.ah_attr.grh.hop_limit = 64;
        attr.ah_attr.dlid = other.lid;
        attr.ah_attr.port_num = device.port;
        let ready = ib::IBV_QP_STATE
            | ib::IBV_QP_AV
            | ib::IBV_QP_PATH_MTU
            | ib::IBV_QP_DEST_QPN
            | ib::IBV_QP_RQ_PSN
            | ib::IBV_QP_MAX_DEST_RD_ATOMIC
            | ib::IBV_QP_MIN_RNR_TIMER;
        self.modify(&mut attr, ready, "connecting a queue pair (is the peer's address reachable?)")?;

        // Packets are sent again after about half a second, six times (soft-RoCE takes seven for ever); a receiver without
        // receives is waited for.
        attr.qp_state = ib::IBV_QPS_RTS;
        attr.sq_psn = self.info.psn;
        attr.timeout = 17;
        attr.retry_cnt = 6;
        attr.rnr_retry = 7;
        attr.max_rd_atomic = device.depth;
        let go = ib::IBV_QP_STATE
            | ib::IBV_QP_SQ_PSN
            | ib::IBV_QP_TIMEOUT
            | ib::IBV_QP_RETRY_CNT
            | ib::IBV_QP_RNR_RETRY
            | ib::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(&mut attr, go, "starting a queue pair")
    }

    /// Stops everything: what is under way fails, what comes later is not executed.
    pub(super) fn stop(&self) {
        // SAFETY: numbers only, for which zero is a value.
        let mut attr: ib::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = ib::IBV_QPS_ERR;
        let _ = self.modify(&mut attr, ib::IBV_QP_STATE, "stopping a queue pair");
    }

    /// Changes it as `attr` says, in the fields of `mask`.
    fn modify(&self, attr: &mut ib::ibv_qp_attr, mask: u32, what: &'static str) -> Result<(), DeviceError> {
        let device = self.base.device();
        // SAFETY: a live queue pair, and attributes as the mask says.
        let error = unsafe { (device.verbs.ibv_modify_qp)(self.qp.as_ptr(), attr, mask as i32) };
        if error == 0 {
            return Ok(());
        }
        let error = io::Error::from_raw_os_error(error);
        Err(DeviceError::System { what, device: device.name.clone(), error })
    }

    /// Posts `works` with one ring of the doorbell. `false` if the queue pair takes them no more.
    pub(super) fn post(&self, works: &[Work]) -> bool {
        let mut pieces: Vec<_> = works.iter().map(|work| work.piece).collect();
        let mut requests: Vec<_> =
            works.iter().zip(&mut pieces).map(|(work, piece)| request(work, piece)).collect();
        for index in 1..requests.len() {
            let next = &raw mut requests[index];
            requests[index - 1].next = next;
        }
        let mut bad = null_mut();
        let post = self.base.device().ops().post_send;
        // SAFETY: a live queue pair of the device whose table it is, and a list of requests that lives until the library has
        // copied it. Whatever the pieces say, the NIC reaches registered memory only, and that is atomics.
        unsafe { post(self.qp.as_ptr(), requests.as_mut_ptr(), &raw mut bad) == 0 }
    }
}

impl Drop for QueuePair {
    fn drop(&mut self) {
        // SAFETY: made in `new`; nobody posts to it any more, and what it was made on is still there.
        unsafe { (self.base.device().verbs.ibv_destroy_qp)(self.qp.as_ptr()) };
    }
}

/// 24 random bits. Without randomness they are merely guessable; connections work all the same.
fn random_psn() -> u32 {
    let mut bytes = [0; 4];
    let _ = getrandom::getrandom(&mut bytes);
    u32::from_le_bytes(bytes) & 0xff_ffff
}

//! Work requests: what a queue pair is asked to do, and how libibverbs wants to be told.

#![allow(unsafe_code)]

use super::mlx5::{Extended, Size};
use rdma_mummy_sys as ib;

/// One work request of a list.
#[derive(Clone, Copy)]
pub(super) struct Work {
    pub(super) id: u64,
    pub(super) kind: WorkKind,
    pub(super) piece: ib::ibv_sge,
    /// A completion is wanted.
    pub(super) signal: bool,
    /// Wait for READs and atomics posted before.
    pub(super) fence: bool,
}

/// What a work request does.
#[derive(Clone, Copy, Debug)]
pub(super) enum WorkKind {
    Send,
    Read {
        addr: u64,
        key: u32,
    },
    Write {
        addr: u64,
        key: u32,
        value: u64,
    },
    CompareSwap {
        addr: u64,
        key: u32,
        expect: u64,
        new: u64,
    },
    FetchAdd {
        addr: u64,
        key: u32,
        add: u64,
    },
    /// Only for queue pairs that take raw entries.
    Extended {
        addr: u64,
        key: u32,
        size: Size,
        what: Extended,
    },
}

impl WorkKind {
    /// Bytes of its result, or of what is written.
    pub(super) const fn bytes(&self) -> usize {
        match self {
            Self::Extended { size: Size::Sixteen, .. } => 16,
            _ => 8,
        }
    }
}

impl Work {
    pub(super) const fn flags(&self) -> u32 {
        use ib::ibv_send_flags as flag;
        let signal = if self.signal { flag::IBV_SEND_SIGNALED.0 } else { 0 };
        signal | if self.fence { flag::IBV_SEND_FENCE.0 } else { 0 }
    }
}

/// The request as the library's own, with `piece` as its only piece of memory.
pub(super) fn request(work: &Work, piece: &mut ib::ibv_sge) -> ib::ibv_send_wr {
    use ib::ibv_wr_opcode as op;
    // SAFETY: numbers, and pointers that may be null.
    let mut wr: ib::ibv_send_wr = unsafe { std::mem::zeroed() };
    wr.wr_id = work.id;
    wr.sg_list = piece;
    wr.num_sge = 1;
    wr.send_flags = work.flags();
    let (opcode, target) = match work.kind {
        WorkKind::Send => (op::IBV_WR_SEND, None),
        WorkKind::Read { addr, key } => {
            (op::IBV_WR_RDMA_READ, Some(ib::wr_t { rdma: ib::rdma_t { remote_addr: addr, rkey: key } }))
        }
        WorkKind::Write { addr, key, .. } => {
            (op::IBV_WR_RDMA_WRITE, Some(ib::wr_t { rdma: ib::rdma_t { remote_addr: addr, rkey: key } }))
        }
        WorkKind::CompareSwap { addr, key, expect, new } => {
            let atomic = ib::atomic_t { remote_addr: addr, compare_add: expect, swap: new, rkey: key };
            (op::IBV_WR_ATOMIC_CMP_AND_SWP, Some(ib::wr_t { atomic }))
        }
        WorkKind::FetchAdd { addr, key, add } => {
            let atomic = ib::atomic_t { remote_addr: addr, compare_add: add, swap: 0, rkey: key };
            (op::IBV_WR_ATOMIC_FETCH_AND_ADD, Some(ib::wr_t { atomic }))
        }
        WorkKind::Extended { .. } => unreachable!("extended atomics go to queue pairs that take raw entries"),
    };
    wr.opcode = opcode;
    if let Some(target) = target {
        wr.wr = target;
    }
    wr
}

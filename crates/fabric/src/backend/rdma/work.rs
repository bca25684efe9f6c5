//! Work requests: what a queue pair is asked to do, and how libibverbs wants to be told.

#![allow(unsafe_code)]

use super::ffi as ib;

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
    Read { addr: u64, key: u32 },
    Write { addr: u64, key: u32, value: u64 },
    CompareSwap { addr: u64, key: u32, expect: u64, new: u64 },
    FetchAdd { addr: u64, key: u32, add: u64 },
}

/// Bytes of a verb's result, or of what is written.
pub(super) const WORD: usize = 8;

impl Work {
    const fn flags(&self) -> u32 {
        let signal = if self.signal { ib::IBV_SEND_SIGNALED } else { 0 };
        signal | if self.fence { ib::IBV_SEND_FENCE } else { 0 }
    }
}

/// The request as the library's own, with `piece` as its only piece of memory.
pub(super) fn request(work: &Work, piece: &mut ib::ibv_sge) -> ib::ibv_send_wr {
    // SAFETY: numbers, and pointers that may be null.
    let mut wr: ib::ibv_send_wr = unsafe { std::mem::zeroed() };
    wr.wr_id = work.id;
    wr.sg_list = piece;
    wr.num_sge = 1;
    wr.send_flags = work.flags();
    let (opcode, target) = match work.kind {
        WorkKind::Send => (ib::IBV_WR_SEND, None),
        WorkKind::Read { addr, key } => {
            (ib::IBV_WR_RDMA_READ, Some(ib::Target { rdma: ib::Rdma { remote_addr: addr, rkey: key } }))
        }
        WorkKind::Write { addr, key, .. } => {
            (ib::IBV_WR_RDMA_WRITE, Some(ib::Target { rdma: ib::Rdma { remote_addr: addr, rkey: key } }))
        }
        WorkKind::CompareSwap { addr, key, expect, new } => {
            let atomic = ib::Atomic { remote_addr: addr, compare_add: expect, swap: new, rkey: key };
            (ib::IBV_WR_ATOMIC_CMP_AND_SWP, Some(ib::Target { atomic }))
        }
        WorkKind::FetchAdd { addr, key, add } => {
            let atomic = ib::Atomic { remote_addr: addr, compare_add: add, swap: 0, rkey: key };
            (ib::IBV_WR_ATOMIC_FETCH_AND_ADD, Some(ib::Target { atomic }))
        }
    };
    wr.opcode = opcode;
    if let Some(target) = target {
        wr.wr = target;
    }
    wr
}

//! Queue pairs of mlx5 NICs that take entries which we encode ourselves ([`mlx5`](super::mlx5) says how): the extended atomics.
//!
//! **Not yet run on hardware**, and used only where it is asked for. What is posted in one list goes through libibverbs' newer
//! calls (`ibv_wr_*`), among which a raw entry can stand.

#![allow(unsafe_code)]

use super::mlx5::{self, Manner, Places};
use super::provider::{Faces, Ground, Refused, operations};
use super::work::{Work, WorkKind};
use rdma_mummy_sys as ib;
use std::ptr::NonNull;

/// Such a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw(Faces);

/// Makes a queue pair that takes raw entries, `sends` of them at a time.
pub(super) fn create(ground: &Ground, sends: u32) -> Result<(NonNull<ib::ibv_qp>, Raw), Refused> {
    // SAFETY: numbers and pointers that may be null.
    let mut attr: ib::ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    attr.srq = ground.srq.as_ptr();
    attr.qp_type = ib::ibv_qp_type::IBV_QPT_RC;
    attr.cap.max_send_wr = sends;
    attr.cap.max_send_sge = 1;
    attr.comp_mask = ib::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
    attr.send_ops_flags = operations();
    // SAFETY: numbers only.
    let mut own: ib::mlx5dv_qp_init_attr = unsafe { std::mem::zeroed() };
    own.comp_mask = u64::from(ib::mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS.0);
    own.send_ops_flags = u64::from(ib::mlx5dv_qp_create_send_ops_flags::MLX5DV_QP_EX_WITH_RAW_WQE.0);
    let qp = ground.create(&mut attr, &mut own, "making a queue pair for raw entries")?;
    let faces = ground.faces(qp, "getting at a queue pair for raw entries")?;
    Ok((qp, Raw(faces)))
}

impl Raw {
    /// Posts `works` with one ring of the doorbell. `false` if the queue pair takes them no more.
    pub(super) fn post(self, works: &[Work]) -> bool {
        // SAFETY: between start and complete.
        self.0.post(works, |work| unsafe {
            let WorkKind::Extended { addr, key, size, what } = work.kind else {
                self.0.build(work);
                return self.0.set_piece(work);
            };
            let (local, local_key) = (work.piece.addr, work.piece.lkey);
            let at = Places { remote: addr, remote_key: key, local, local_key };
            let pair = self.0.qp.as_ref().qp_base.qp_num;
            let manner = Manner { pair, signal: work.signal, fence: work.fence };
            let entry = mlx5::encode(size, what, &at, manner);
            ib::mlx5dv_wr_raw_wqe(self.0.mlx5.as_ptr(), entry.bytes().as_ptr().cast());
        })
    }
}

impl Faces {
    /// Posts `works` with one ring of the doorbell; `add` adds each to the list. `false` if the queue pair takes them no more.
    pub(super) fn post(self, works: &[Work], add: impl Fn(&Work)) -> bool {
        let qp = self.qp.as_ptr();
        // SAFETY: a live queue pair; the library locks it from start to complete, and copies what it is given.
        unsafe {
            ib::ibv_wr_start(qp);
            for work in works {
                (*qp).wr_id = work.id;
                (*qp).wr_flags = work.flags();
                add(work);
            }
            ib::ibv_wr_complete(qp) == 0
        }
    }

    /// Begins a request of the list; where it goes and what memory it has follow.
    ///
    /// # Safety
    /// Between start and complete.
    pub(super) unsafe fn build(self, work: &Work) {
        let qp = self.qp.as_ptr();
        // SAFETY: the caller has started a list.
        unsafe {
            match work.kind {
                WorkKind::Send => ib::ibv_wr_send(qp),
                WorkKind::Read { addr, key } => ib::ibv_wr_rdma_read(qp, key, addr),
                WorkKind::Write { addr, key, .. } => ib::ibv_wr_rdma_write(qp, key, addr),
                WorkKind::CompareSwap { addr, key, expect, new } => {
                    ib::ibv_wr_atomic_cmp_swp(qp, key, addr, expect, new);
                }
                WorkKind::FetchAdd { addr, key, add } => ib::ibv_wr_atomic_fetch_add(qp, key, addr, add),
                WorkKind::Extended { .. } => {
                    unreachable!("extended atomics go to queue pairs that take raw entries")
                }
            }
        }
    }

    /// The request's piece of memory.
    ///
    /// # Safety
    /// Between start and complete, after [`build`](Self::build).
    pub(super) unsafe fn set_piece(self, work: &Work) {
        let piece = work.piece;
        // SAFETY: the caller has begun a request; pieces are registered and live until their completion.
        unsafe { ib::ibv_wr_set_sge(self.qp.as_ptr(), piece.lkey, piece.addr, piece.length) };
    }
}

#[cfg(test)]
mod tests {
    use super::super::mlx5::{Extended, Size};
    use super::super::stand_in::{self, hex, notes};
    use super::*;
    use crate::verb::Fields;

    #[test]
    fn an_entry_of_our_own_stands_among_plain_requests_of_one_list() {
        let ground = stand_in::ground();
        let (qp, raw) = create(&ground, 40).unwrap();
        // SEND, READ, WRITE and plain atomics; and, of mlx5's own, raw entries (8).
        assert_eq!(notes(), ["create RC: shared receives, 40 sends, operations 0x75 0x8, key 0x0"]);
        let piece = ib::ibv_sge { addr: 0x1000, length: 8, lkey: 5 };
        let (addr, key, size) = (0x4000, 6, Size::Eight);
        let what = Extended::FetchAdd(Fields { add: 1, boundaries: 1 << 63 });
        let works = [
            Work { id: 1, kind: WorkKind::Read { addr, key }, piece, signal: false, fence: false },
            Work {
                id: 2,
                kind: WorkKind::Extended { addr, key, size, what },
                piece,
                signal: true,
                fence: true,
            },
        ];
        assert!(raw.post(&works));
        let at = Places { remote: addr, remote_key: key, local: 0x1000, local_key: 5 };
        let entry = mlx5::encode(size, what, &at, Manner { pair: 77, signal: true, fence: true });
        let entry = format!("2: entry {}", hex(entry.bytes()));
        assert_eq!(notes(), ["start", "1 flags 0x0: READ 0x4000 by 6 [0x1000 8 by 5]", &entry, "complete"]);
        // SAFETY: made above.
        unsafe { (ground.library.destroy_qp)(qp.as_ptr()) };
    }
}

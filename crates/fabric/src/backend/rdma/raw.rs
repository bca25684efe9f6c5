//! Queue pairs of mlx5 NICs that take entries which we encode ourselves ([`mlx5`](super::mlx5) says how): the extended atomics.
//!
//! **Not yet run on hardware**, and used only where it is asked for. What is posted in one list goes through libibverbs' newer
//! calls (`ibv_wr_*`), among which a raw entry can stand.

#![allow(unsafe_code)]

use super::device::{Device, DeviceError};
use super::mlx5::{self, Manner, Places};
use super::work::{Work, WorkKind};
use rdma_mummy_sys as ib;
use std::ptr::NonNull;

/// The two faces of such a queue pair.
#[derive(Clone, Copy, Debug)]
pub(super) struct Raw {
    qp: NonNull<ib::ibv_qp_ex>,
    mlx5: NonNull<ib::mlx5dv_qp_ex>,
}

/// Whether the device is one that has them.
pub(super) fn is_mlx5(device: &Device) -> bool {
    // SAFETY: numbers and pointers that may be null.
    let mut attr: ib::mlx5dv_context = unsafe { std::mem::zeroed() };
    // SAFETY: an open context, and a place for what is asked for; other drivers' devices are refused.
    unsafe { ib::mlx5dv_query_device(device.context.as_ptr(), &raw mut attr) == 0 }
}

/// Makes a queue pair that takes raw entries.
pub(super) fn create(
    device: &Device,
    pd: NonNull<ib::ibv_pd>,
    init: &ib::ibv_qp_init_attr,
) -> Result<(NonNull<ib::ibv_qp>, Raw), DeviceError> {
    use ib::{ibv_qp_create_send_ops_flags as with, ibv_qp_init_attr_mask as has};
    // SAFETY: numbers and pointers that may be null.
    let mut attr: ib::ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
    (attr.send_cq, attr.recv_cq, attr.srq) = (init.send_cq, init.recv_cq, init.srq);
    (attr.cap, attr.qp_type) = (init.cap, init.qp_type);
    attr.pd = pd.as_ptr();
    attr.comp_mask = has::IBV_QP_INIT_ATTR_PD.0 | has::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
    let ops = with::IBV_QP_EX_WITH_SEND
        | with::IBV_QP_EX_WITH_RDMA_READ
        | with::IBV_QP_EX_WITH_RDMA_WRITE
        | with::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | with::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    attr.send_ops_flags = u64::from(ops.0);
    // SAFETY: numbers only.
    let mut own: ib::mlx5dv_qp_init_attr = unsafe { std::mem::zeroed() };
    own.comp_mask = u64::from(ib::mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_SEND_OPS_FLAGS.0);
    own.send_ops_flags = u64::from(ib::mlx5dv_qp_create_send_ops_flags::MLX5DV_QP_EX_WITH_RAW_WQE.0);
    // SAFETY: an open context, a live domain and queues, and what to make.
    let qp = unsafe { ib::mlx5dv_create_qp(device.context.as_ptr(), &raw mut attr, &raw mut own) };
    let qp = NonNull::new(qp).ok_or_else(|| device.failed("making a queue pair for raw entries"))?;
    // SAFETY: a queue pair made just now, with the operations that these faces are for.
    let faces = unsafe {
        let face = ib::ibv_qp_to_qp_ex(qp.as_ptr());
        NonNull::new(face).and_then(|face| {
            let mlx5 = NonNull::new(ib::mlx5dv_qp_ex_from_ibv_qp_ex(face.as_ptr()))?;
            Some(Raw { qp: face, mlx5 })
        })
    };
    let Some(raw) = faces else {
        let error = device.failed("getting at a queue pair for raw entries");
        // SAFETY: made just now, and nobody uses it.
        unsafe { ib::ibv_destroy_qp(qp.as_ptr()) };
        return Err(error);
    };
    Ok((qp, raw))
}

impl Raw {
    /// Posts `works` with one ring of the doorbell. `false` if the queue pair takes them no more.
    pub(super) fn post(self, works: &[Work]) -> bool {
        let qp = self.qp.as_ptr();
        // SAFETY: a live queue pair; the library locks it from start to complete, and copies what it is given.
        unsafe {
            ib::ibv_wr_start(qp);
            for work in works {
                (*qp).wr_id = work.id;
                (*qp).wr_flags = work.flags();
                self.add(work);
            }
            ib::ibv_wr_complete(qp) == 0
        }
    }

    /// Adds one request to the list.
    ///
    /// # Safety
    /// Between start and complete.
    unsafe fn add(self, work: &Work) {
        let qp = self.qp.as_ptr();
        let piece = work.piece;
        // SAFETY: the caller has started a list; pieces are registered and live until their completion.
        unsafe {
            match work.kind {
                WorkKind::Send => ib::ibv_wr_send(qp),
                WorkKind::Read { addr, key } => ib::ibv_wr_rdma_read(qp, key, addr),
                WorkKind::Write { addr, key, .. } => ib::ibv_wr_rdma_write(qp, key, addr),
                WorkKind::CompareSwap { addr, key, expect, new } => {
                    ib::ibv_wr_atomic_cmp_swp(qp, key, addr, expect, new);
                }
                WorkKind::FetchAdd { addr, key, add } => ib::ibv_wr_atomic_fetch_add(qp, key, addr, add),
                WorkKind::Extended { addr, key, size, what } => {
                    let at =
                        Places { remote: addr, remote_key: key, local: piece.addr, local_key: piece.lkey };
                    let pair = self.qp.as_ref().qp_base.qp_num;
                    let manner = Manner { pair, signal: work.signal, fence: work.fence };
                    let entry = mlx5::encode(size, what, &at, manner, None);
                    ib::mlx5dv_wr_raw_wqe(self.mlx5.as_ptr(), entry.bytes().as_ptr().cast());
                    return;
                }
            }
            ib::ibv_wr_set_sge(qp, piece.lkey, piece.addr, piece.length);
        }
    }
}

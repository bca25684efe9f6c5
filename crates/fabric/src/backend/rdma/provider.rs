//! What is called of libibverbs and libmlx5 for queue pairs that only mlx5 NICs have, as a table of functions.
//!
//! Both libraries are loaded at run time, by the bindings; where there is no libmlx5 every call of it is refused. It is a table so
//! that tests can put a stand-in there which notes what it is asked for: no machine of ours has such a NIC, and nothing of
//! this was **ever run on hardware**. What is posted goes through function pointers in the queue pair itself (`ibv_wr_*` and
//! `mlx5dv_wr_*` are inline functions over them), so that a stand-in sees that, too.
//!
//! Read of rdma-core: which attributes a queue pair of each kind may have (`providers/mlx5/verbs.c`), and which
//! fields each change of state needs (there, `tests/mlx5_base.py`, and UCX, `src/uct/ib/mlx5/dc/dc_mlx5.c`).

#![allow(unsafe_code)]

use rdma_mummy_sys as ib;
use std::io;
use std::ptr::NonNull;

type CreateQp = unsafe extern "C" fn(
    *mut ib::ibv_context,
    *mut ib::ibv_qp_init_attr_ex,
    *mut ib::mlx5dv_qp_init_attr,
) -> *mut ib::ibv_qp;

/// See the module.
#[derive(Debug)]
pub(super) struct Library {
    pub(super) create_qp: CreateQp,
    pub(super) qp_to_qp_ex: unsafe extern "C" fn(*mut ib::ibv_qp) -> *mut ib::ibv_qp_ex,
    pub(super) mlx5_from_qp_ex: unsafe extern "C" fn(*mut ib::ibv_qp_ex) -> *mut ib::mlx5dv_qp_ex,
    pub(super) modify_qp: unsafe extern "C" fn(*mut ib::ibv_qp, *mut ib::ibv_qp_attr, i32) -> i32,
    pub(super) destroy_qp: unsafe extern "C" fn(*mut ib::ibv_qp) -> i32,
    pub(super) create_ah: unsafe extern "C" fn(*mut ib::ibv_pd, *mut ib::ibv_ah_attr) -> *mut ib::ibv_ah,
    pub(super) destroy_ah: unsafe extern "C" fn(*mut ib::ibv_ah) -> i32,
}

/// The real ones.
pub(super) static LIBRARY: Library = Library {
    create_qp: ib::mlx5dv_create_qp,
    qp_to_qp_ex: ib::ibv_qp_to_qp_ex,
    mlx5_from_qp_ex: ib::mlx5dv_qp_ex_from_ibv_qp_ex,
    modify_qp: ib::ibv_modify_qp,
    destroy_qp: ib::ibv_destroy_qp,
    create_ah: ib::ibv_create_ah,
    destroy_ah: ib::ibv_destroy_ah,
};

/// How many READs and atomics may be under way on a DC queue pair of the device; `None` if it is no mlx5 device, or there is no
/// libmlx5.
pub(super) fn mlx5_depth(context: NonNull<ib::ibv_context>) -> Option<u8> {
    // SAFETY: numbers and pointers that may be null.
    let mut attr: ib::mlx5dv_context = unsafe { std::mem::zeroed() };
    let asked = u64::from(ib::mlx5dv_context_comp_mask::MLX5DV_CONTEXT_MASK_MAX_DC_RD_ATOM.0);
    attr.comp_mask = asked;
    // SAFETY: an open context, and a place for what is asked for; other drivers' devices are refused.
    if unsafe { ib::mlx5dv_query_device(context.as_ptr(), &raw mut attr) } != 0 {
        return None;
    }
    // A library that does not know the question leaves it out of its answer. One is always allowed.
    let known = attr.comp_mask & asked != 0;
    let most = attr.max_dc_rd_atom.min(attr.max_dc_init_rd_atom).clamp(1, 16);
    Some(if known { most as u8 } else { 1 })
}

/// The system said no.
#[derive(Debug)]
pub(super) struct Refused {
    /// What was tried.
    pub(super) what: &'static str,
    pub(super) error: io::Error,
}

impl Refused {
    fn last(what: &'static str) -> Self {
        Self { what, error: io::Error::last_os_error() }
    }
}

/// What queue pairs are made on, and over which port they go. All of it outlives them.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ground {
    pub(super) library: &'static Library,
    pub(super) context: NonNull<ib::ibv_context>,
    pub(super) pd: NonNull<ib::ibv_pd>,
    pub(super) cq: NonNull<ib::ibv_cq>,
    pub(super) srq: NonNull<ib::ibv_srq>,
    pub(super) port: u8,
    pub(super) gid_index: u8,
    pub(super) mtu: u32,
    /// READs and atomics that may be under way on one DC queue pair.
    pub(super) depth: u8,
}

/// The two faces of a queue pair of mlx5's: libibverbs' newer calls, and those that only libmlx5 has.
#[derive(Clone, Copy, Debug)]
pub(super) struct Faces {
    pub(super) qp: NonNull<ib::ibv_qp_ex>,
    pub(super) mlx5: NonNull<ib::mlx5dv_qp_ex>,
}

/// Everything that is posted over libibverbs' newer calls here.
pub(super) fn operations() -> u64 {
    use ib::ibv_qp_create_send_ops_flags as with;
    let ops = with::IBV_QP_EX_WITH_SEND
        | with::IBV_QP_EX_WITH_RDMA_READ
        | with::IBV_QP_EX_WITH_RDMA_WRITE
        | with::IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP
        | with::IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD;
    u64::from(ops.0)
}

impl Ground {
    /// Makes a queue pair with what `attr` and `own` say beyond the ground it is made on.
    pub(super) fn create(
        &self,
        attr: &mut ib::ibv_qp_init_attr_ex,
        own: &mut ib::mlx5dv_qp_init_attr,
        what: &'static str,
    ) -> Result<NonNull<ib::ibv_qp>, Refused> {
        (attr.send_cq, attr.recv_cq, attr.pd) = (self.cq.as_ptr(), self.cq.as_ptr(), self.pd.as_ptr());
        attr.comp_mask |= ib::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_PD.0;
        // SAFETY: an open context, a live domain and queues, and what to make.
        let qp = unsafe { (self.library.create_qp)(self.context.as_ptr(), attr, own) };
        NonNull::new(qp).ok_or_else(|| Refused::last(what))
    }

    /// The faces of a queue pair that was made for them just now; it is destroyed if it has none.
    pub(super) fn faces(&self, qp: NonNull<ib::ibv_qp>, what: &'static str) -> Result<Faces, Refused> {
        // SAFETY: a live queue pair, with the operations that these faces are for.
        let faces = unsafe {
            NonNull::new((self.library.qp_to_qp_ex)(qp.as_ptr())).and_then(|face| {
                let mlx5 = NonNull::new((self.library.mlx5_from_qp_ex)(face.as_ptr()))?;
                Some(Faces { qp: face, mlx5 })
            })
        };
        faces.ok_or_else(|| {
            let refused = Refused::last(what);
            // SAFETY: made just now, and nobody uses it.
            unsafe { (self.library.destroy_qp)(qp.as_ptr()) };
            refused
        })
    }
}

impl Library {
    /// Changes a queue pair as `attr` says, in the fields of `mask`.
    pub(super) fn modify(
        &self,
        qp: NonNull<ib::ibv_qp>,
        attr: &mut ib::ibv_qp_attr,
        mask: ib::ibv_qp_attr_mask,
        what: &'static str,
    ) -> Result<(), Refused> {
        // SAFETY: a live queue pair, and attributes as the mask says.
        let error = unsafe { (self.modify_qp)(qp.as_ptr(), attr, mask.0 as i32) };
        if error == 0 { Ok(()) } else { Err(Refused { what, error: io::Error::from_raw_os_error(error) }) }
    }

    /// The first step of every queue pair that receives: it is bound to its port. `lends`: the other side may reach
    /// registered memory. Returns the attributes for the steps that follow.
    pub(super) fn prepare(
        &self,
        qp: NonNull<ib::ibv_qp>,
        port: u8,
        lends: bool,
        what: &'static str,
    ) -> Result<ib::ibv_qp_attr, Refused> {
        use ib::{ibv_access_flags as may, ibv_qp_attr_mask as with};
        // SAFETY: numbers only, for which zero is a value.
        let mut attr: ib::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = ib::ibv_qp_state::IBV_QPS_INIT;
        attr.port_num = port;
        if lends {
            attr.qp_access_flags = may::IBV_ACCESS_REMOTE_READ.0
                | may::IBV_ACCESS_REMOTE_WRITE.0
                | may::IBV_ACCESS_REMOTE_ATOMIC.0;
        }
        let init =
            with::IBV_QP_STATE | with::IBV_QP_PKEY_INDEX | with::IBV_QP_PORT | with::IBV_QP_ACCESS_FLAGS;
        self.modify(qp, &mut attr, init, what)?;
        Ok(attr)
    }

    /// The last step of every queue pair that sends: from ready to receive to ready to send. Packets are sent again after
    /// about half a second, six times (soft-RoCE takes seven for ever); a receiver without receives is waited for.
    pub(super) fn start(
        &self,
        qp: NonNull<ib::ibv_qp>,
        attr: &mut ib::ibv_qp_attr,
        (psn, depth): (u32, u8),
        what: &'static str,
    ) -> Result<(), Refused> {
        use ib::ibv_qp_attr_mask as with;
        attr.qp_state = ib::ibv_qp_state::IBV_QPS_RTS;
        attr.sq_psn = psn;
        attr.timeout = 17;
        attr.retry_cnt = 6;
        attr.rnr_retry = 7;
        attr.max_rd_atomic = depth;
        let go = with::IBV_QP_STATE
            | with::IBV_QP_SQ_PSN
            | with::IBV_QP_TIMEOUT
            | with::IBV_QP_RETRY_CNT
            | with::IBV_QP_RNR_RETRY
            | with::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(qp, attr, go, what)
    }
}

//! Dynamically connected transport (DC), which only mlx5 NICs have: one queue pair sends to anybody, and one receives from anybody.
//!
//! An [`Initiator`] (DCI) sends; each request of it says where it goes (`mlx5dv_wr_set_dc_addr`): to the [`Target`] (DCT) of that
//! number on the port of that address, if the sender knows its key. The NIC connects them by itself for as long as it takes.
//!
//! **Never run on hardware.** Against a stand-in for libmlx5 the tests here see that the right calls are made in the right order.

#![allow(unsafe_code)]

use super::pair::PairInfo;
use super::provider::{Faces, Ground, Library, Refused, operations};
use super::work::Work;
use rdma_mummy_sys as ib;
use std::ptr::NonNull;

/// Hops that a packet may take.
const HOPS: u8 = 64;

/// Where requests of others arrive. Destroyed, nothing of theirs takes effect any more.
#[derive(Debug)]
pub(super) struct Target {
    library: &'static Library,
    qp: NonNull<ib::ibv_qp>,
    pub(super) number: u32,
    pub(super) key: u64,
}

impl Target {
    /// A target that whoever knows `key` can send to. `lends`: they may reach registered memory of its domain.
    pub(super) fn new(ground: &Ground, key: u64, lends: bool) -> Result<Self, Refused> {
        use ib::{ibv_qp_attr_mask as with, ibv_qp_state as state};
        // SAFETY: numbers and pointers that may be null.
        let mut attr: ib::ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        attr.qp_type = ib::ibv_qp_type::IBV_QPT_DRIVER;
        // It sends nothing, and is refused if it says what.
        attr.srq = ground.srq.as_ptr();
        let mut own = dc(ib::MLX5DV_DCTYPE_DCT);
        // SAFETY: of the union's fields this is a target's.
        unsafe { *own.dc_init_attr.__bindgen_anon_1.dct_access_key.as_mut() = key };
        let qp = ground.create(&mut attr, &mut own, "making a DC target")?;
        let mut target = Self { library: ground.library, qp, number: 0, key };

        let mut attr = ground.library.prepare(qp, ground.port, lends, "preparing a DC target")?;

        attr.qp_state = state::IBV_QPS_RTR;
        attr.path_mtu = ground.mtu;
        // As of a connected queue pair.
        attr.min_rnr_timer = 12;
        attr.ah_attr = route(ground, [0; 16], 0);
        let ready = with::IBV_QP_STATE | with::IBV_QP_PATH_MTU | with::IBV_QP_MIN_RNR_TIMER | with::IBV_QP_AV;
        ground.library.modify(qp, &mut attr, ready, "opening a DC target")?;
        // Only now does it have one: the NIC makes the target when it is opened.
        // SAFETY: a live queue pair.
        target.number = unsafe { qp.as_ref() }.qp_num;
        Ok(target)
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // SAFETY: made in `new`.
        unsafe { (self.library.destroy_qp)(self.qp.as_ptr()) };
    }
}

// SAFETY: libibverbs lets any thread destroy a queue pair; nothing else is done to it after `new`.
unsafe impl Send for Target {}
// SAFETY: as above.
unsafe impl Sync for Target {}

/// The way to a target of somebody else's.
#[derive(Debug)]
pub(super) struct Remote {
    library: &'static Library,
    ah: NonNull<ib::ibv_ah>,
    number: u32,
    key: u64,
}

// SAFETY: libibverbs lets any thread use an address; nothing of it changes after `new`.
unsafe impl Send for Remote {}
// SAFETY: as above.
unsafe impl Sync for Remote {}

impl Remote {
    pub(super) fn new(ground: &Ground, other: &PairInfo) -> Result<Self, Refused> {
        let mut attr = route(ground, other.gid, other.lid);
        // SAFETY: a live domain, and where to.
        let ah = unsafe { (ground.library.create_ah)(ground.pd.as_ptr(), &raw mut attr) };
        let what = "finding the way to a DC target (is the peer's address reachable?)";
        let ah = NonNull::new(ah).ok_or_else(|| Refused { what, error: std::io::Error::last_os_error() })?;
        Ok(Self { library: ground.library, ah, number: other.number, key: other.dc_key })
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        // SAFETY: made in `new`; requests that were posted have a copy of it.
        unsafe { (self.library.destroy_ah)(self.ah.as_ptr()) };
    }
}

/// What sends to any target.
#[derive(Debug)]
pub(super) struct Initiator {
    library: &'static Library,
    qp: NonNull<ib::ibv_qp>,
    faces: Faces,
}

impl Initiator {
    /// An initiator with `sends` requests under way at most.
    pub(super) fn new(ground: &Ground, sends: u32, psn: u32) -> Result<Self, Refused> {
        use ib::{ibv_qp_attr_mask as with, ibv_qp_state as state};
        // SAFETY: numbers and pointers that may be null.
        let mut attr: ib::ibv_qp_init_attr_ex = unsafe { std::mem::zeroed() };
        attr.qp_type = ib::ibv_qp_type::IBV_QPT_DRIVER;
        attr.cap.max_send_wr = sends;
        attr.cap.max_send_sge = 1;
        attr.comp_mask = ib::ibv_qp_init_attr_mask::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0;
        attr.send_ops_flags = operations();
        let qp = ground.create(&mut attr, &mut dc(ib::MLX5DV_DCTYPE_DCI), "making a DC initiator")?;
        let faces = ground.faces(qp, "getting at a DC initiator")?;
        let initiator = Self { library: ground.library, qp, faces };

        // SAFETY: numbers only, for which zero is a value.
        let mut attr: ib::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = state::IBV_QPS_INIT;
        attr.port_num = ground.port;
        let init = with::IBV_QP_STATE | with::IBV_QP_PKEY_INDEX | with::IBV_QP_PORT;
        ground.library.modify(qp, &mut attr, init, "preparing a DC initiator")?;

        attr.qp_state = state::IBV_QPS_RTR;
        attr.path_mtu = ground.mtu;
        attr.ah_attr = route(ground, [0; 16], 0);
        let ready = with::IBV_QP_STATE | with::IBV_QP_PATH_MTU | with::IBV_QP_AV;
        ground.library.modify(qp, &mut attr, ready, "readying a DC initiator")?;

        ground.library.start(qp, &mut attr, (psn, ground.depth), "starting a DC initiator")?;
        Ok(initiator)
    }

    pub(super) fn number(&self) -> u32 {
        // SAFETY: lives as long as `self`.
        unsafe { self.qp.as_ref() }.qp_num
    }

    /// Posts `works`, all to the same target, with one ring of the doorbell. `false` if it takes them no more.
    pub(super) fn post(&self, works: &[Work], to: &Remote) -> bool {
        let faces = self.faces;
        // SAFETY: between start and complete; the library copies the address into the request.
        faces.post(works, |work| unsafe {
            faces.build(work);
            ib::mlx5dv_wr_set_dc_addr(faces.mlx5.as_ptr(), to.ah.as_ptr(), to.number, to.key);
            faces.set_piece(work);
        })
    }

    /// Stops everything: what is under way fails.
    pub(super) fn stop(&self) {
        // SAFETY: numbers only, for which zero is a value.
        let mut attr: ib::ibv_qp_attr = unsafe { std::mem::zeroed() };
        attr.qp_state = ib::ibv_qp_state::IBV_QPS_ERR;
        let state = ib::ibv_qp_attr_mask::IBV_QP_STATE;
        let _ = self.library.modify(self.qp, &mut attr, state, "stopping a DC initiator");
    }
}

impl Drop for Initiator {
    fn drop(&mut self) {
        // SAFETY: made in `new`, and nobody posts to it any more.
        unsafe { (self.library.destroy_qp)(self.qp.as_ptr()) };
    }
}

/// What mlx5 is to make.
fn dc(which: ib::mlx5dv_dc_type) -> ib::mlx5dv_qp_init_attr {
    // SAFETY: numbers only, for which zero is a value.
    let mut own: ib::mlx5dv_qp_init_attr = unsafe { std::mem::zeroed() };
    own.comp_mask = u64::from(ib::mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_DC.0);
    own.dc_init_attr.dc_type = which;
    own
}

/// The way from this port to that address.
fn route(ground: &Ground, gid: [u8; 16], lid: u16) -> ib::ibv_ah_attr {
    // SAFETY: numbers only, for which zero is a value.
    let mut ah: ib::ibv_ah_attr = unsafe { std::mem::zeroed() };
    ah.is_global = 1;
    ah.grh.dgid.raw = gid;
    ah.grh.sgid_index = ground.gid_index;
    ah.grh.hop_limit = HOPS;
    ah.dlid = lid;
    ah.port_num = ground.port;
    ah
}

#[cfg(test)]
mod tests {
    use super::super::stand_in::{self, TARGET, notes};
    use super::super::work::WorkKind;
    use super::*;
    use std::mem::{offset_of, size_of};

    const KEY: u64 = 0x1122_3344_5566_7788;
    const THEIRS: PairInfo = PairInfo { number: 0x00ab_cdef, psn: 0, lid: 0x0708, gid: [9; 16], dc_key: KEY };

    fn work(id: u64, kind: WorkKind, signal: bool, fence: bool) -> Work {
        Work { id, kind, piece: ib::ibv_sge { addr: 0x1000 + 16 * id, length: 8, lkey: 5 }, signal, fence }
    }

    #[test]
    fn a_target_has_a_number_only_when_it_was_opened_and_is_destroyed_with_its_owner() {
        let target = Target::new(&stand_in::ground(), KEY, false).unwrap();
        assert_eq!((target.number, target.key), (TARGET, KEY));
        assert_eq!(
            notes(),
            [
                "create DCT: shared receives, 0 sends, operations 0x0 0x0, key 0x1122334455667788",
                "DCT to INIT: partition 0 port 1 access 0x0",
                "DCT to RTR: mtu 5 rnr timer 12 from port 1 address 3 hops 64",
            ]
        );
        drop(target);
        assert_eq!(notes(), ["destroy DCT"]);
    }

    #[test]
    fn only_a_target_that_lends_lets_others_reach_memory() {
        drop(Target::new(&stand_in::ground(), KEY, true).unwrap());
        // Remote write, read and atomics: 2, 4 and 8.
        assert_eq!(notes()[1], "DCT to INIT: partition 0 port 1 access 0xe");
    }

    #[test]
    fn every_request_of_an_initiator_says_where_it_goes_and_a_list_is_one_doorbell() {
        let ground = stand_in::ground();
        let initiator = Initiator::new(&ground, 40, 99).unwrap();
        assert_eq!(
            notes(),
            [
                // What may be posted: WRITE 1, SEND 4, READ 16, compare-and-swap 32, fetch-and-add 64.
                "create DCI: no receives, 40 sends, operations 0x75 0x0, key 0x0",
                "DCI to INIT: partition 0 port 1",
                "DCI to RTR: mtu 5 from port 1 address 3 hops 64",
                "DCI to RTS: psn 99 timeout 17 retries 6 rnr retries 7 depth 8",
            ]
        );
        let to = Remote::new(&ground, &THEIRS).unwrap();
        assert_eq!(notes(), ["create address: from port 1 address 3 hops 64"]);
        let (addr, key) = (0x4000, 6);
        let works = [
            work(1, WorkKind::Read { addr, key }, false, false),
            work(2, WorkKind::Write { addr, key, value: 3 }, false, true),
            work(3, WorkKind::CompareSwap { addr, key, expect: 3, new: 4 }, false, true),
            work(4, WorkKind::FetchAdd { addr, key, add: 5 }, true, true),
        ];
        assert!(initiator.post(&works, &to));
        // Key, target, LID; MAC (the driver's business), hops; address.
        let av = "112233445566778880abcdef00000708 00000000000000000000004000000000 09090909090909090909090909090909";
        assert_eq!(
            notes(),
            [
                "start",
                &format!("1 flags 0x0: READ 0x4000 by 6 to {av} [0x1010 8 by 5]"),
                &format!("2 flags 0x1: WRITE 0x4000 by 6 to {av} [0x1020 8 by 5]"),
                &format!("3 flags 0x1: CAS 0x4000 by 6 3 4 to {av} [0x1030 8 by 5]"),
                &format!("4 flags 0x3: FAA 0x4000 by 6 5 to {av} [0x1040 8 by 5]"),
                "complete",
            ]
        );
        // A letter to somebody else over the same initiator.
        let other = Remote::new(&ground, &PairInfo { number: 0x12, dc_key: 7, ..THEIRS }).unwrap();
        assert!(initiator.post(&[work(9, WorkKind::Send, true, false)], &other));
        let av = av.replace("112233445566778880abcdef", "000000000000000780000012");
        assert_eq!(notes()[2], format!("9 flags 0x2: SEND to {av} [0x1090 8 by 5]"));
        initiator.stop();
        drop((initiator, to, other));
        assert_eq!(notes(), ["DCI to ERR:", "destroy DCI", "destroy address", "destroy address"]);
    }

    /// The numbers are those that a C compiler gives for Debian's headers (libibverbs-dev 44.0, amd64); later versions of the
    /// library add fields at the ends.
    #[test]
    fn what_is_shared_with_the_library_lies_as_its_headers_say() {
        use ib::mlx5dv_qp_init_attr as Own;
        assert_eq!(size_of::<Own>(), 40);
        let at =
            [offset_of!(Own, create_flags), offset_of!(Own, dc_init_attr), offset_of!(Own, send_ops_flags)];
        assert_eq!(at, [8, 16, 32]);
        use ib::mlx5dv_dc_init_attr as Dc;
        assert_eq!([offset_of!(Dc, dc_type), offset_of!(Dc, __bindgen_anon_1)], [0, 8]);
        assert_eq!((ib::MLX5DV_DCTYPE_DCT, ib::MLX5DV_DCTYPE_DCI), (1, 2));
        assert_eq!(ib::ibv_qp_type::IBV_QPT_DRIVER, 255);
        assert_eq!(ib::mlx5dv_qp_init_attr_mask::MLX5DV_QP_INIT_ATTR_MASK_DC.0, 2);
        use ib::mlx5dv_qp_ex as Mlx5;
        assert_eq!([offset_of!(Mlx5, wr_set_dc_addr), offset_of!(Mlx5, wr_raw_wqe)], [8, 72]);
        assert!(size_of::<Mlx5>() >= 104);
        use ib::ibv_qp_ex as Ex;
        assert_eq!((size_of::<ib::ibv_qp>(), offset_of!(ib::ibv_qp, qp_num)), (160, 52));
        let at = [
            offset_of!(Ex, wr_id),
            offset_of!(Ex, wr_flags),
            offset_of!(Ex, wr_atomic_cmp_swp),
            offset_of!(Ex, wr_atomic_fetch_add),
            offset_of!(Ex, wr_rdma_read),
            offset_of!(Ex, wr_rdma_write),
            offset_of!(Ex, wr_send),
            offset_of!(Ex, wr_set_sge),
            offset_of!(Ex, wr_start),
            offset_of!(Ex, wr_complete),
        ];
        assert_eq!(at, [168, 176, 184, 192, 216, 224, 240, 304, 320, 328]);
        use ib::ibv_qp_init_attr_ex as Init;
        let at = [
            offset_of!(Init, srq),
            offset_of!(Init, cap),
            offset_of!(Init, qp_type),
            offset_of!(Init, comp_mask),
            offset_of!(Init, pd),
            offset_of!(Init, send_ops_flags),
        ];
        assert_eq!((size_of::<Init>(), at), (136, [24, 32, 52, 60, 64, 128]));
        use ib::ibv_ah_attr as Ah;
        let at = [offset_of!(Ah, dlid), offset_of!(Ah, is_global), offset_of!(Ah, port_num)];
        assert_eq!((size_of::<Ah>(), at), (32, [24, 29, 30]));
        assert_eq!(offset_of!(ib::mlx5dv_context, comp_mask), 16);
    }
}

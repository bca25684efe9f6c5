//! A stand-in for libmlx5 in tests: it notes what it is asked for, line by line, and refuses what the real one would refuse.
//!
//! It knows of the driver what was read in rdma-core (`providers/mlx5/verbs.c`, `qp.c`): a DC target may not say what it
//! sends, and has no number before it is opened; a request by DC is whole once it has both an address and memory; a raw entry has
//! all in itself. It executes nothing, and does not panic (it is called like C): what is wrong is a line among the others.

#![allow(unsafe_code)]

use super::mlx5::{Path, dc_address};
use super::provider::{Ground, Library};
use rdma_mummy_sys as ib;
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::mem::{offset_of, zeroed};
use std::ptr::{NonNull, null_mut};

/// The stand-in.
pub(super) static STAND_IN: Library =
    Library { create_qp, qp_to_qp_ex, mlx5_from_qp_ex, modify_qp, destroy_qp, create_ah, destroy_ah };

/// The number of a target that was opened.
pub(super) const TARGET: u32 = 0x00ab_cdef;
/// The number of what sends.
const SENDER: u32 = 77;

thread_local! {
    static NOTES: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

fn note(line: impl Into<String>) {
    NOTES.with_borrow_mut(|notes| notes.push(line.into()));
}

/// What was asked for since the last time, on this thread.
pub(super) fn notes() -> Vec<String> {
    NOTES.take()
}

/// Ground of which nothing is ever looked at.
pub(super) fn ground() -> Ground {
    Ground {
        library: &STAND_IN,
        context: NonNull::dangling(),
        pd: NonNull::dangling(),
        cq: NonNull::dangling(),
        srq: NonNull::dangling(),
        port: 1,
        gid_index: 3,
        mtu: 5,
        depth: 8,
    }
}

/// A queue pair: its two faces, and the request that is being put together.
#[repr(C)]
struct Qp {
    ex: ib::ibv_qp_ex,
    mlx5: ib::mlx5dv_qp_ex,
    kind: &'static str,
    /// What a request still needs, and what it says so far.
    request: Option<(usize, String)>,
}

#[repr(C)]
struct Ah {
    ah: ib::ibv_ah,
    attr: ib::ibv_ah_attr,
}

unsafe extern "C" fn create_qp(
    _: *mut ib::ibv_context,
    attr: *mut ib::ibv_qp_init_attr_ex,
    own: *mut ib::mlx5dv_qp_init_attr,
) -> *mut ib::ibv_qp {
    use ib::ibv_qp_init_attr_mask as has;
    use ib::mlx5dv_qp_init_attr_mask as own_has;
    // SAFETY: the caller gives both.
    let (attr, own) = unsafe { (&*attr, &*own) };
    let says_ops = attr.comp_mask & has::IBV_QP_INIT_ATTR_SEND_OPS_FLAGS.0 != 0;
    let says_dc = own.comp_mask & u64::from(own_has::MLX5DV_QP_INIT_ATTR_MASK_DC.0) != 0;
    let says_domain = attr.comp_mask & has::IBV_QP_INIT_ATTR_PD.0 != 0;
    let kind = match (attr.qp_type, own.dc_init_attr.dc_type) {
        _ if !says_domain => return null_mut(),
        (ib::ibv_qp_type::IBV_QPT_RC, 0) => "RC",
        (ib::ibv_qp_type::IBV_QPT_DRIVER, ib::MLX5DV_DCTYPE_DCT) if says_dc && !says_ops => "DCT",
        (ib::ibv_qp_type::IBV_QPT_DRIVER, ib::MLX5DV_DCTYPE_DCI) if says_dc && says_ops => "DCI",
        _ => return null_mut(),
    };
    // SAFETY: of the union's fields this is a target's, and only a target has one.
    let key = unsafe { *own.dc_init_attr.__bindgen_anon_1.dct_access_key.as_ref() };
    let receives = if attr.srq.is_null() { "no receives" } else { "shared receives" };
    let (sends, ops, more) = (attr.cap.max_send_wr, attr.send_ops_flags, own.send_ops_flags);
    note(format!("create {kind}: {receives}, {sends} sends, operations {ops:#x} {more:#x}, key {key:#x}"));
    // SAFETY: numbers, and pointers and functions that may be null.
    let mut qp = Qp { ex: unsafe { zeroed() }, mlx5: unsafe { zeroed() }, kind, request: None };
    qp.ex.qp_base.qp_num = if kind == "DCT" { 0 } else { SENDER };
    qp.ex.wr_start = Some(start);
    qp.ex.wr_complete = Some(complete);
    qp.ex.wr_send = Some(send);
    qp.ex.wr_rdma_read = Some(read);
    qp.ex.wr_rdma_write = Some(write);
    qp.ex.wr_atomic_cmp_swp = Some(compare_swap);
    qp.ex.wr_atomic_fetch_add = Some(fetch_add);
    qp.ex.wr_set_sge = Some(set_sge);
    qp.mlx5.wr_set_dc_addr = Some(set_dc_addr);
    qp.mlx5.wr_raw_wqe = Some(raw_wqe);
    Box::into_raw(Box::new(qp)).cast()
}

unsafe extern "C" fn qp_to_qp_ex(qp: *mut ib::ibv_qp) -> *mut ib::ibv_qp_ex {
    qp.cast()
}

unsafe extern "C" fn mlx5_from_qp_ex(qp: *mut ib::ibv_qp_ex) -> *mut ib::mlx5dv_qp_ex {
    // SAFETY: one of ours.
    unsafe { &raw mut (*qp.cast::<Qp>()).mlx5 }
}

unsafe extern "C" fn destroy_qp(qp: *mut ib::ibv_qp) -> c_int {
    // SAFETY: one of ours, and used no more.
    let qp = unsafe { Box::from_raw(qp.cast::<Qp>()) };
    note(format!("destroy {}", qp.kind));
    0
}

unsafe extern "C" fn modify_qp(qp: *mut ib::ibv_qp, attr: *mut ib::ibv_qp_attr, mask: c_int) -> c_int {
    use ib::{ibv_qp_attr_mask as with, ibv_qp_state as state};
    // SAFETY: one of ours, and what to change.
    let (qp, attr) = unsafe { (&mut *qp.cast::<Qp>(), &*attr) };
    let name = match attr.qp_state {
        state::IBV_QPS_INIT => "INIT",
        state::IBV_QPS_RTR => "RTR",
        state::IBV_QPS_RTS => "RTS",
        _ => "ERR",
    };
    let fields = [
        (with::IBV_QP_STATE, String::new()),
        (with::IBV_QP_PKEY_INDEX, format!(" partition {}", attr.pkey_index)),
        (with::IBV_QP_PORT, format!(" port {}", attr.port_num)),
        (with::IBV_QP_ACCESS_FLAGS, format!(" access {:#x}", attr.qp_access_flags)),
        (with::IBV_QP_PATH_MTU, format!(" mtu {}", attr.path_mtu)),
        (with::IBV_QP_MIN_RNR_TIMER, format!(" rnr timer {}", attr.min_rnr_timer)),
        (with::IBV_QP_AV, format!(" from {}", route(&attr.ah_attr))),
        (with::IBV_QP_SQ_PSN, format!(" psn {}", attr.sq_psn)),
        (with::IBV_QP_TIMEOUT, format!(" timeout {}", attr.timeout)),
        (with::IBV_QP_RETRY_CNT, format!(" retries {}", attr.retry_cnt)),
        (with::IBV_QP_RNR_RETRY, format!(" rnr retries {}", attr.rnr_retry)),
        (with::IBV_QP_MAX_QP_RD_ATOMIC, format!(" depth {}", attr.max_rd_atomic)),
    ];
    let mut said = format!("{} to {name}:", qp.kind);
    let mut left = mask as u32;
    for (field, words) in fields {
        if left & field.0 != 0 {
            left &= !field.0;
            said.push_str(&words);
        }
    }
    if left != 0 {
        said.push_str(" and what is not known here");
    }
    note(said);
    if (qp.kind, name) == ("DCT", "RTR") {
        qp.ex.qp_base.qp_num = TARGET;
    }
    0
}

fn route(attr: &ib::ibv_ah_attr) -> String {
    let route = if attr.is_global == 1 { "" } else { "no route, " };
    format!("{route}port {} address {} hops {}", attr.port_num, attr.grh.sgid_index, attr.grh.hop_limit)
}

unsafe extern "C" fn create_ah(_: *mut ib::ibv_pd, attr: *mut ib::ibv_ah_attr) -> *mut ib::ibv_ah {
    // SAFETY: the caller gives it; an address that is looked at by nobody but us.
    let (attr, ah) = unsafe { (*attr, zeroed()) };
    note(format!("create address: from {}", route(&attr)));
    Box::into_raw(Box::new(Ah { ah, attr })).cast()
}

unsafe extern "C" fn destroy_ah(ah: *mut ib::ibv_ah) -> c_int {
    // SAFETY: one of ours, and used no more.
    drop(unsafe { Box::from_raw(ah.cast::<Ah>()) });
    note("destroy address");
    0
}

unsafe extern "C" fn start(_: *mut ib::ibv_qp_ex) {
    note("start");
}

unsafe extern "C" fn complete(qp: *mut ib::ibv_qp_ex) -> c_int {
    // SAFETY: one of ours.
    let half = unsafe { &*qp.cast::<Qp>() }.request.is_some();
    note(if half { "complete, with half a request" } else { "complete" });
    0
}

/// Begins a request.
///
/// # Safety
/// `qp` is one of ours.
unsafe fn begin(qp: *mut ib::ibv_qp_ex, what: &str) {
    // SAFETY: as the caller says.
    let qp = unsafe { &mut *qp.cast::<Qp>() };
    if qp.request.is_some() {
        note("half a request");
    }
    let needs = if qp.kind == "DCI" { 2 } else { 1 };
    qp.request = Some((needs, format!("{} flags {:#x}: {what}", qp.ex.wr_id, qp.ex.wr_flags)));
}

/// Adds to a request, and notes it when it is whole.
///
/// # Safety
/// `qp` is one of ours.
unsafe fn add(qp: *mut Qp, what: &str) {
    // SAFETY: as the caller says.
    let qp = unsafe { &mut *qp };
    match qp.request.take() {
        None => note("no request was begun"),
        Some((1, said)) => note(format!("{said} {what}")),
        Some((needs, said)) => qp.request = Some((needs - 1, format!("{said} {what}"))),
    }
}

unsafe extern "C" fn send(qp: *mut ib::ibv_qp_ex) {
    // SAFETY: one of ours.
    unsafe { begin(qp, "SEND") };
}

unsafe extern "C" fn read(qp: *mut ib::ibv_qp_ex, key: u32, addr: u64) {
    // SAFETY: one of ours.
    unsafe { begin(qp, &format!("READ {addr:#x} by {key}")) };
}

unsafe extern "C" fn write(qp: *mut ib::ibv_qp_ex, key: u32, addr: u64) {
    // SAFETY: one of ours.
    unsafe { begin(qp, &format!("WRITE {addr:#x} by {key}")) };
}

unsafe extern "C" fn compare_swap(qp: *mut ib::ibv_qp_ex, key: u32, addr: u64, compare: u64, swap: u64) {
    // SAFETY: one of ours.
    unsafe { begin(qp, &format!("CAS {addr:#x} by {key} {compare} {swap}")) };
}

unsafe extern "C" fn fetch_add(qp: *mut ib::ibv_qp_ex, key: u32, addr: u64, sum: u64) {
    // SAFETY: one of ours.
    unsafe { begin(qp, &format!("FAA {addr:#x} by {key} {sum}")) };
}

unsafe extern "C" fn set_sge(qp: *mut ib::ibv_qp_ex, key: u32, addr: u64, length: u32) {
    // SAFETY: one of ours.
    unsafe { add(qp.cast(), &format!("[{addr:#x} {length} by {key}]")) };
}

/// The queue pair that this is a face of.
unsafe fn of(mlx5: *mut ib::mlx5dv_qp_ex) -> *mut Qp {
    // SAFETY: one of ours, which lies in its queue pair.
    unsafe { mlx5.byte_sub(offset_of!(Qp, mlx5)).cast() }
}

unsafe extern "C" fn set_dc_addr(mlx5: *mut ib::mlx5dv_qp_ex, ah: *mut ib::ibv_ah, number: u32, key: u64) {
    // SAFETY: ours, both.
    unsafe {
        let attr = (*ah.cast::<Ah>()).attr;
        let (gid, hop_limit) = (attr.grh.dgid.raw, attr.grh.hop_limit);
        let av = dc_address(number, key, &Path { lid: attr.dlid, mac: [0; 6], gid, hop_limit });
        add(of(mlx5), &format!("to {}", hex(&av)));
    }
}

unsafe extern "C" fn raw_wqe(mlx5: *mut ib::mlx5dv_qp_ex, entry: *const c_void) {
    // SAFETY: ours; the length of an entry, in units of sixteen bytes, is in its eighth byte.
    unsafe {
        let entry: *const u8 = entry.cast();
        let bytes = std::slice::from_raw_parts(entry, 16 * usize::from(*entry.add(7)));
        let id = (*of(mlx5)).ex.wr_id;
        note(format!("{id}: entry {}", hex(bytes)));
    }
}

/// Sixteen bytes a word.
pub(super) fn hex(bytes: &[u8]) -> String {
    let word = |word: &[u8]| word.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    bytes.chunks(16).map(word).collect::<Vec<_>>().join(" ")
}

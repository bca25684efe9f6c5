//! The part of libibverbs that this backend uses: its structs, its constants, and the library itself, loaded at run time.
//!
//! Written by hand, so that a build with RDMA needs a Rust compiler and nothing else. Names are those of
//! `<infiniband/verbs.h>`. Objects that the library allocates are declared as far as they are read here; structs that it
//! fills in or reads are declared whole. A test holds sizes, offsets and constants against the real header.
//!
//! This file declares and does not decide: callers keep the library's rules.

#![allow(unsafe_code, non_camel_case_types)]

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};
use std::sync::OnceLock;

/// The name under which every distribution installs it.
const LIBRARY: &CStr = c"libibverbs.so.1";

macro_rules! opaque {
    ($($name:ident)+) => {
        $(
            /// Only ever behind a pointer.
            #[repr(C)]
            #[derive(Debug)]
            pub(super) struct $name {
                _private: [u8; 0],
            }
        )+
    };
}
opaque!(ibv_device ibv_pd);

/// An open device, as far as the table of functions that need no system call.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_context {
    pub(super) device: *mut ibv_device,
    pub(super) ops: ibv_context_ops,
}

/// A place in the table for a function that is called through the library's own symbols, or not at all.
type Unused = *mut c_void;

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_context_ops {
    objects: [Unused; 11],
    pub(super) poll_cq: unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int,
    pub(super) req_notify_cq: unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int,
    queues: [Unused; 7],
    pub(super) post_srq_recv:
        unsafe extern "C" fn(*mut ibv_srq, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int,
    pairs: [Unused; 4],
    pub(super) post_send: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_mr {
    pub(super) context: *mut ibv_context,
    pub(super) pd: *mut ibv_pd,
    pub(super) addr: *mut c_void,
    pub(super) length: usize,
    pub(super) handle: u32,
    pub(super) lkey: u32,
    pub(super) rkey: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_comp_channel {
    pub(super) context: *mut ibv_context,
    pub(super) fd: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_cq {
    pub(super) context: *mut ibv_context,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_srq {
    pub(super) context: *mut ibv_context,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_qp {
    pub(super) context: *mut ibv_context,
    pub(super) qp_context: *mut c_void,
    pub(super) pd: *mut ibv_pd,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut ibv_srq,
    pub(super) handle: u32,
    pub(super) qp_num: u32,
}

/// Sixteen bytes in network order.
#[repr(C, align(8))]
#[derive(Clone, Copy, Debug)]
pub(super) struct ibv_gid {
    pub(super) raw: [u8; 16],
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_device_attr {
    pub(super) fw_ver: [c_char; 64],
    pub(super) node_guid: u64,
    pub(super) sys_image_guid: u64,
    pub(super) max_mr_size: u64,
    pub(super) page_size_cap: u64,
    pub(super) vendor_id: u32,
    pub(super) vendor_part_id: u32,
    pub(super) hw_ver: u32,
    pub(super) max_qp: c_int,
    pub(super) max_qp_wr: c_int,
    pub(super) device_cap_flags: c_uint,
    pub(super) max_sge: c_int,
    pub(super) max_sge_rd: c_int,
    pub(super) max_cq: c_int,
    pub(super) max_cqe: c_int,
    pub(super) max_mr: c_int,
    pub(super) max_pd: c_int,
    pub(super) max_qp_rd_atom: c_int,
    pub(super) max_ee_rd_atom: c_int,
    pub(super) max_res_rd_atom: c_int,
    pub(super) max_qp_init_rd_atom: c_int,
    pub(super) max_ee_init_rd_atom: c_int,
    pub(super) atomic_cap: c_uint,
    pub(super) max_ee: c_int,
    pub(super) max_rdd: c_int,
    pub(super) max_mw: c_int,
    pub(super) max_raw_ipv6_qp: c_int,
    pub(super) max_raw_ethy_qp: c_int,
    pub(super) max_mcast_grp: c_int,
    pub(super) max_mcast_qp_attach: c_int,
    pub(super) max_total_mcast_qp_attach: c_int,
    pub(super) max_ah: c_int,
    pub(super) max_fmr: c_int,
    pub(super) max_map_per_fmr: c_int,
    pub(super) max_srq: c_int,
    pub(super) max_srq_wr: c_int,
    pub(super) max_srq_sge: c_int,
    pub(super) max_pkeys: u16,
    pub(super) local_ca_ack_delay: u8,
    pub(super) phys_port_cnt: u8,
}

/// The symbol of the library fills in the older, shorter form, which ends before `flags`.
#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_port_attr {
    pub(super) state: c_uint,
    pub(super) max_mtu: c_uint,
    pub(super) active_mtu: c_uint,
    pub(super) gid_tbl_len: c_int,
    pub(super) port_cap_flags: u32,
    pub(super) max_msg_sz: u32,
    pub(super) bad_pkey_cntr: u32,
    pub(super) qkey_viol_cntr: u32,
    pub(super) pkey_tbl_len: u16,
    pub(super) lid: u16,
    pub(super) sm_lid: u16,
    pub(super) lmc: u8,
    pub(super) max_vl_num: u8,
    pub(super) sm_sl: u8,
    pub(super) subnet_timeout: u8,
    pub(super) init_type_reply: u8,
    pub(super) active_width: u8,
    pub(super) active_speed: u8,
    pub(super) phys_state: u8,
    pub(super) link_layer: u8,
    pub(super) flags: u8,
    pub(super) port_cap_flags2: u16,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_srq_init_attr {
    pub(super) srq_context: *mut c_void,
    pub(super) attr: ibv_srq_attr,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_srq_attr {
    pub(super) max_wr: u32,
    pub(super) max_sge: u32,
    pub(super) srq_limit: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_qp_cap {
    pub(super) max_send_wr: u32,
    pub(super) max_recv_wr: u32,
    pub(super) max_send_sge: u32,
    pub(super) max_recv_sge: u32,
    pub(super) max_inline_data: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_qp_init_attr {
    pub(super) qp_context: *mut c_void,
    pub(super) send_cq: *mut ibv_cq,
    pub(super) recv_cq: *mut ibv_cq,
    pub(super) srq: *mut ibv_srq,
    pub(super) cap: ibv_qp_cap,
    pub(super) qp_type: c_uint,
    pub(super) sq_sig_all: c_int,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_global_route {
    pub(super) dgid: ibv_gid,
    pub(super) flow_label: u32,
    pub(super) sgid_index: u8,
    pub(super) hop_limit: u8,
    pub(super) traffic_class: u8,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_ah_attr {
    pub(super) grh: ibv_global_route,
    pub(super) dlid: u16,
    pub(super) sl: u8,
    pub(super) src_path_bits: u8,
    pub(super) static_rate: u8,
    pub(super) is_global: u8,
    pub(super) port_num: u8,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_qp_attr {
    pub(super) qp_state: c_uint,
    pub(super) cur_qp_state: c_uint,
    pub(super) path_mtu: c_uint,
    pub(super) path_mig_state: c_uint,
    pub(super) qkey: u32,
    pub(super) rq_psn: u32,
    pub(super) sq_psn: u32,
    pub(super) dest_qp_num: u32,
    pub(super) qp_access_flags: c_uint,
    pub(super) cap: ibv_qp_cap,
    pub(super) ah_attr: ibv_ah_attr,
    pub(super) alt_ah_attr: ibv_ah_attr,
    pub(super) pkey_index: u16,
    pub(super) alt_pkey_index: u16,
    pub(super) en_sqd_async_notify: u8,
    pub(super) sq_draining: u8,
    pub(super) max_rd_atomic: u8,
    pub(super) max_dest_rd_atomic: u8,
    pub(super) min_rnr_timer: u8,
    pub(super) port_num: u8,
    pub(super) timeout: u8,
    pub(super) retry_cnt: u8,
    pub(super) rnr_retry: u8,
    pub(super) alt_port_num: u8,
    pub(super) alt_timeout: u8,
    pub(super) rate_limit: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ibv_sge {
    pub(super) addr: u64,
    pub(super) length: u32,
    pub(super) lkey: u32,
}

#[repr(C)]
#[derive(Debug)]
pub(super) struct ibv_recv_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut ibv_recv_wr,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
}

#[repr(C)]
pub(super) struct ibv_send_wr {
    pub(super) wr_id: u64,
    pub(super) next: *mut ibv_send_wr,
    pub(super) sg_list: *mut ibv_sge,
    pub(super) num_sge: c_int,
    pub(super) opcode: c_uint,
    pub(super) send_flags: c_uint,
    pub(super) imm_data: u32,
    pub(super) wr: Target,
    /// For shared queues across processes.
    qp_type: u32,
    /// For memory windows and segmentation.
    rest: [u64; 6],
}

/// What a request is about on the other side.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) union Target {
    pub(super) rdma: Rdma,
    pub(super) atomic: Atomic,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Rdma {
    pub(super) remote_addr: u64,
    pub(super) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct Atomic {
    pub(super) remote_addr: u64,
    pub(super) compare_add: u64,
    pub(super) swap: u64,
    pub(super) rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(super) struct ibv_wc {
    pub(super) wr_id: u64,
    pub(super) status: c_uint,
    pub(super) opcode: c_uint,
    pub(super) vendor_err: u32,
    pub(super) byte_len: u32,
    pub(super) imm_data: u32,
    pub(super) qp_num: u32,
    pub(super) src_qp: u32,
    pub(super) wc_flags: c_uint,
    pub(super) pkey_index: u16,
    pub(super) slid: u16,
    pub(super) sl: u8,
    pub(super) dlid_path_bits: u8,
}

macro_rules! constants {
    ($($name:ident = $value:expr;)+) => {
        $(pub(super) const $name: c_uint = $value;)+

        /// By name, for the test.
        #[cfg(test)]
        const CONSTANTS: &[(&str, c_uint)] = &[$((stringify!($name), $name)),+];
    };
}
constants! {
    IBV_ATOMIC_NONE = 0;
    IBV_ATOMIC_GLOB = 2;

    IBV_PORT_DOWN = 1;
    IBV_PORT_ACTIVE = 4;

    IBV_QPT_RC = 2;

    IBV_QPS_INIT = 1;
    IBV_QPS_RTR = 2;
    IBV_QPS_RTS = 3;
    IBV_QPS_ERR = 6;

    IBV_QP_STATE = 1 << 0;
    IBV_QP_ACCESS_FLAGS = 1 << 3;
    IBV_QP_PKEY_INDEX = 1 << 4;
    IBV_QP_PORT = 1 << 5;
    IBV_QP_AV = 1 << 7;
    IBV_QP_PATH_MTU = 1 << 8;
    IBV_QP_TIMEOUT = 1 << 9;
    IBV_QP_RETRY_CNT = 1 << 10;
    IBV_QP_RNR_RETRY = 1 << 11;
    IBV_QP_RQ_PSN = 1 << 12;
    IBV_QP_MAX_QP_RD_ATOMIC = 1 << 13;
    IBV_QP_MIN_RNR_TIMER = 1 << 15;
    IBV_QP_SQ_PSN = 1 << 16;
    IBV_QP_MAX_DEST_RD_ATOMIC = 1 << 17;
    IBV_QP_DEST_QPN = 1 << 20;

    IBV_ACCESS_LOCAL_WRITE = 1 << 0;
    IBV_ACCESS_REMOTE_WRITE = 1 << 1;
    IBV_ACCESS_REMOTE_READ = 1 << 2;
    IBV_ACCESS_REMOTE_ATOMIC = 1 << 3;

    IBV_WR_RDMA_WRITE = 0;
    IBV_WR_SEND = 2;
    IBV_WR_RDMA_READ = 4;
    IBV_WR_ATOMIC_CMP_AND_SWP = 5;
    IBV_WR_ATOMIC_FETCH_AND_ADD = 6;

    IBV_SEND_FENCE = 1 << 0;
    IBV_SEND_SIGNALED = 1 << 1;

    IBV_WC_SUCCESS = 0;
    IBV_WC_LOC_PROT_ERR = 4;
    IBV_WC_WR_FLUSH_ERR = 5;
    IBV_WC_LOC_ACCESS_ERR = 8;
    IBV_WC_REM_INV_REQ_ERR = 9;
    IBV_WC_REM_ACCESS_ERR = 10;
    IBV_WC_REM_OP_ERR = 11;
    IBV_WC_RETRY_EXC_ERR = 12;
    IBV_WC_RNR_RETRY_EXC_ERR = 13;

    IBV_WC_RECV = 1 << 7;
}

macro_rules! library {
    ($(fn $name:ident($($argument:ty),*) $(-> $result:ty)?;)+) => {
        /// The library's functions, each as its manual page has it.
        #[derive(Debug)]
        pub(super) struct Verbs {
            $(pub(super) $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
        }

        impl Verbs {
            /// Looks up every function.
            fn look_up(library: Handle) -> Result<Self, String> {
                Ok(Self {
                    $($name: {
                        type Function = unsafe extern "C" fn($($argument),*) $(-> $result)?;
                        let symbol = library.symbol(stringify!($name))?;
                        // SAFETY: a function of this type, as the header declares it; the library is never unloaded.
                        unsafe { std::mem::transmute::<*mut c_void, Function>(symbol) }
                    },)+
                })
            }
        }
    };
}
library! {
    fn ibv_get_device_list(*mut c_int) -> *mut *mut ibv_device;
    fn ibv_free_device_list(*mut *mut ibv_device);
    fn ibv_get_device_name(*mut ibv_device) -> *const c_char;
    fn ibv_open_device(*mut ibv_device) -> *mut ibv_context;
    fn ibv_close_device(*mut ibv_context) -> c_int;
    fn ibv_query_device(*mut ibv_context, *mut ibv_device_attr) -> c_int;
    fn ibv_query_port(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int;
    fn ibv_query_gid(*mut ibv_context, u8, c_int, *mut ibv_gid) -> c_int;
    fn ibv_alloc_pd(*mut ibv_context) -> *mut ibv_pd;
    fn ibv_dealloc_pd(*mut ibv_pd) -> c_int;
    fn ibv_reg_mr(*mut ibv_pd, *mut c_void, usize, c_int) -> *mut ibv_mr;
    fn ibv_dereg_mr(*mut ibv_mr) -> c_int;
    fn ibv_create_comp_channel(*mut ibv_context) -> *mut ibv_comp_channel;
    fn ibv_destroy_comp_channel(*mut ibv_comp_channel) -> c_int;
    fn ibv_create_cq(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int) -> *mut ibv_cq;
    fn ibv_destroy_cq(*mut ibv_cq) -> c_int;
    fn ibv_get_cq_event(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void) -> c_int;
    fn ibv_ack_cq_events(*mut ibv_cq, c_uint);
    fn ibv_create_srq(*mut ibv_pd, *mut ibv_srq_init_attr) -> *mut ibv_srq;
    fn ibv_destroy_srq(*mut ibv_srq) -> c_int;
    fn ibv_create_qp(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp;
    fn ibv_modify_qp(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int;
    fn ibv_destroy_qp(*mut ibv_qp) -> c_int;
}

impl Verbs {
    /// The library, loaded on first use and kept.
    ///
    /// # Errors
    /// In one line, if it cannot be loaded.
    pub(super) fn get() -> Result<&'static Self, &'static str> {
        static LOADED: OnceLock<Result<Verbs, String>> = OnceLock::new();
        LOADED.get_or_init(|| Self::look_up(Handle::open()?)).as_ref().map_err(String::as_str)
    }
}

/// An open shared library.
#[derive(Clone, Copy)]
struct Handle(*mut c_void);

impl Handle {
    fn open() -> Result<Self, String> {
        // SAFETY: a C string; what the library does when it is loaded is what every program that links it gets.
        let handle = unsafe { libc::dlopen(LIBRARY.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if handle.is_null() {
            return Err("libibverbs is not installed (package rdma-core)".to_owned());
        }
        Ok(Self(handle))
    }

    fn symbol(self, name: &str) -> Result<*mut c_void, String> {
        let missing = || format!("libibverbs has no {name}: it is too old (package rdma-core)");
        let symbol = CString::new(name).map_err(|_| missing())?;
        // SAFETY: an open library and a C string.
        let found = unsafe { libc::dlsym(self.0, symbol.as_ptr()) };
        if found.is_null() { Err(missing()) } else { Ok(found) }
    }
}

#[cfg(test)]
#[path = "ffi_tests.rs"]
mod tests;

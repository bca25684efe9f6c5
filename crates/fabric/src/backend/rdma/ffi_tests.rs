//! Holds the declarations against the real header: a C program of static assertions that has to compile.
//!
//! Needs a C compiler and `<infiniband/verbs.h>`, in the folders of the compiler's own or in `LOCKWRIGHT_VERBS_INCLUDE`;
//! `cargo xtask soft-roce` brings it. Without, the test says so and passes; with the variable set, that is a failure.

use super::*;
use std::fmt::Write as _;
use std::io::Write as _;
use std::mem::{offset_of, size_of};
use std::process::{Command, Stdio};

/// The assertions of a struct: the offset and size of fields, and its own size where it is declared whole.
macro_rules! layout {
    ($program:ident, $name:ident { $($field:ident),+ $(,)? } $($whole:ident)?) => {
        $({
            let place = offset_of!($name, $field);
            layout!(@says $program, "offsetof(struct {}, {}) == {place}", stringify!($name), stringify!($field));
        })+
        $({
            let _ = stringify!($whole);
            layout!(@says $program, "sizeof(struct {}) == {}", stringify!($name), size_of::<$name>());
        })?
    };
    (@says $program:ident, $($what:tt)+) => {{
        let what = format!($($what)+);
        writeln!($program, "_Static_assert({what}, {what:?});").unwrap();
    }};
}

/// What the compiler has to agree with.
fn program() -> String {
    let mut program = "#include <stddef.h>\n#include <infiniband/verbs.h>\n".to_owned();
    layout!(program, ibv_context { device, ops });
    layout!(program, ibv_context_ops { poll_cq, req_notify_cq, post_srq_recv, post_send });
    layout!(program, ibv_mr { context, pd, addr, length, handle, lkey, rkey } whole);
    layout!(program, ibv_comp_channel { context, fd });
    layout!(program, ibv_cq { context });
    layout!(program, ibv_srq { context });
    layout!(program, ibv_qp { context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num });
    layout!(program, ibv_device_attr {
        fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id, vendor_part_id, hw_ver, max_qp, max_qp_wr,
        device_cap_flags, max_sge, max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom,
        max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap, max_ee, max_rdd, max_mw, max_raw_ipv6_qp,
        max_raw_ethy_qp, max_mcast_grp, max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr, max_map_per_fmr,
        max_srq, max_srq_wr, max_srq_sge, max_pkeys, local_ca_ack_delay, phys_port_cnt,
    } whole);
    layout!(program, ibv_port_attr {
        state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz, bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len,
        lid, sm_lid, lmc, max_vl_num, sm_sl, subnet_timeout, init_type_reply, active_width, active_speed, phys_state,
        link_layer, flags, port_cap_flags2,
    } whole);
    layout!(program, ibv_srq_init_attr { srq_context, attr } whole);
    layout!(program, ibv_srq_attr { max_wr, max_sge, srq_limit } whole);
    layout!(program, ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data } whole);
    layout!(program, ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all } whole);
    layout!(program, ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class } whole);
    layout!(program, ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num } whole);
    layout!(program, ibv_qp_attr {
        qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn, dest_qp_num, qp_access_flags, cap, ah_attr,
        alt_ah_attr, pkey_index, alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic, max_dest_rd_atomic,
        min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry, alt_port_num, alt_timeout, rate_limit,
    } whole);
    layout!(program, ibv_sge { addr, length, lkey } whole);
    layout!(program, ibv_recv_wr { wr_id, next, sg_list, num_sge } whole);
    layout!(program, ibv_send_wr {
        wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data, wr, qp_type,
    } whole);
    layout!(program, ibv_wc {
        wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp, wc_flags, pkey_index, slid, sl,
        dlid_path_bits,
    } whole);
    // The unions' members have no names of their own in C.
    for (member, place) in [
        ("rdma.remote_addr", offset_of!(Rdma, remote_addr)),
        ("rdma.rkey", offset_of!(Rdma, rkey)),
        ("atomic.remote_addr", offset_of!(Atomic, remote_addr)),
        ("atomic.compare_add", offset_of!(Atomic, compare_add)),
        ("atomic.swap", offset_of!(Atomic, swap)),
        ("atomic.rkey", offset_of!(Atomic, rkey)),
    ] {
        let place = offset_of!(ibv_send_wr, wr) + place;
        layout!(@says program, "offsetof(struct ibv_send_wr, wr.{member}) == {place}");
    }
    layout!(@says program, "sizeof(union ibv_gid) == {}", size_of::<ibv_gid>());
    layout!(@says program, "_Alignof(union ibv_gid) == {}", align_of::<ibv_gid>());
    for (name, value) in CONSTANTS {
        layout!(@says program, "{name} == {value}");
    }
    program
}

/// What the compiler says of the program; `None` if there is no compiler, or no header.
fn compile(program: &str) -> Option<Result<(), String>> {
    let include = std::env::var_os("LOCKWRIGHT_VERBS_INCLUDE");
    let run = |text: &str| -> Option<(bool, String)> {
        let mut cc = Command::new("cc");
        cc.args(["-std=gnu11", "-fsyntax-only", "-x", "c"]);
        if let Some(include) = &include {
            cc.arg("-I").arg(include);
        }
        cc.arg("-").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut cc = cc.spawn().ok()?;
        cc.stdin.take()?.write_all(text.as_bytes()).ok()?;
        let output = cc.wait_with_output().ok()?;
        Some((output.status.success(), String::from_utf8_lossy(&output.stderr).into_owned()))
    };
    let there = run("#include <infiniband/verbs.h>\n");
    if !there.as_ref().is_some_and(|(well, _)| *well) {
        let why = there.map_or_else(|| "there is no C compiler".to_owned(), |(_, said)| said);
        assert!(include.is_none(), "the header of libibverbs cannot be compiled: {why}");
        return None;
    }
    run(program).map(|(well, said)| if well { Ok(()) } else { Err(said) })
}

#[test]
fn structs_and_constants_are_those_of_the_real_header() {
    match compile(&program()) {
        Some(compiled) => compiled.unwrap_or_else(|said| panic!("{said}")),
        None => println!(
            "skipped: no C compiler or no <infiniband/verbs.h> (libibverbs-dev); `cargo xtask soft-roce` brings it"
        ),
    }
}

#[test]
fn a_wrong_offset_does_not_compile() {
    let right = format!("offsetof(struct ibv_qp, qp_num) == {}", offset_of!(ibv_qp, qp_num));
    let wrong = program().replace(&right, "offsetof(struct ibv_qp, qp_num) == 48");
    if let Some(compiled) = compile(&wrong) {
        assert!(compiled.unwrap_err().contains("qp_num) == 48"));
    }
}

#[test]
fn without_the_library_one_line_says_what_to_install() {
    match Verbs::get() {
        Ok(_) => println!("skipped: this machine has libibverbs"),
        Err(why) => assert_eq!(why, "libibverbs is not installed (package rdma-core)"),
    }
}

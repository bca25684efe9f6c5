//! Citron (FAST '23) §4.1: one lock server, three client machines with 64 clients each, ConnectX-6 on PCIe 3.0 ×16, two Gold
//! 5220 a machine; baselines of type I have 18 RPC server threads on eRPC.

use super::{Figure, Testbed};
use lockwright_sim::{NicModel, ServerThreads, Spread};

pub(crate) const TESTBED: Testbed = Testbed {
    paper: "citron",
    hardware: "ConnectX-6 on PCIe 3.0 x16, 2x Gold 5220, 18 server threads, 3 x 64 clients",
    fitted_to: "a round trip at 96 clients (§4.4); aborts of 3 clients (§4.7); LLC in Table 2",
    figures: &[
        Figure::fitted("citron-fig6", &[]),
        Figure::fitted("citron-fig9", &[]),
        Figure::fitted("citron-fig12", &["wait-abort-rate-3-clients"]),
        Figure::held_out("citron-fig7"),
        Figure::held_out("citron-fig8"),
        Figure::held_out("citron-fig10"),
        Figure::held_out("citron-fig11"),
        // FILEBENCH_REST_NS below comes from its row LLC.
        Figure::held_out_but(
            "citron-tab2",
            &[
                "llc-kops",
                "llc-of-citron",
                "llc-throughput-order",
                "llc-reader-p99-of-citron",
                "llc-reader-p99-order",
            ],
        ),
        Figure::ours("citron-member"),
    ],
};

/// Threads of the server, for locks that have one (§4.1).
const SERVER_THREADS: usize = 18;

/// The paper's T_wait (§3.5.5): three round trips under load, 5 µs each.
pub(crate) const T_WAIT_NS: u64 = 15_000;

/// A round trip of three clients: see [`nic`].
const RTT_NS: u64 = 2_000;

/// How long reading or writing `bytes` of a file takes, while the lock is held: a round trip to the client machine that has them
/// (§4.3), and the bytes at what a PCIe 3.0 ×16 slot passes, 100 Gbit/s.
pub(crate) const fn data_ns(bytes: u64) -> u64 {
    RTT_NS + bytes * 8 / 100
}

/// The rest of an operation of Filebench, outside the lock: the file system's metadata, copies, Filebench's own work. *Fitted to LLC
/// in Table 2*, 847.5 k operations/s of 183 threads: the fastest row, for no lock leaves more than its cycle of 216 µs. (SS-4KB,
/// 575.3 k/s, would leave up to 318, with which LLC and Citron could not be as fast as they are.)
pub(crate) const FILEBENCH_REST_NS: u64 = 174_000;

/// The network. What the paper does not tell is as on ShiftLock's testbed.
pub(crate) fn nic() -> NicModel {
    NicModel {
        // "A network roundtrip" that the fast path saves is 2.4 µs with 96 clients (§4.4): 2.0 µs, and five doublings of three
        // clients of 80 ns, as on ShiftLock's testbed. *Fitted.*
        atomic8_rtt_ns: RTT_NS,
        atomic16_rtt_ns: RTT_NS,
        read_rtt_ns: RTT_NS,
        write_rtt_ns: RTT_NS,
        growth_from: 3,
        growth_per_doubling_ns: 80,
        // Data sheet of the ConnectX-6: 215 million messages per second.
        service_ps: 4_650,
        // A round trip takes 2 µs, and 5 µs "conservatively" (§3.5.5): the three more are all 192 clients' atomics at one address.
        same_address8_ns: 16,
        same_address16_ns: 16,
        // "Occasional long-lasting RDMA verbs" make one request in 10⁵ abort where nothing else does, with three clients
        // (§4.7), although T_wait is 15 µs. *Fitted*; that they take up to 50 µs is a guess.
        slow_one_in: 100_000,
        slow_ns: 50_000,
        server: server(),
        ..super::shiftlock::nic()
    }
}

/// The server of locks of type I. A session of eRPC stays with one thread, which polls for up to 16 packets and sends its
/// answers when it is through with them (eRPC, NSDI '19, §4.3).
fn server() -> ServerThreads {
    ServerThreads {
        threads: SERVER_THREADS,
        // Small requests cost a core of eRPC 100 ns (10 M/s, NSDI '19), and a look-up as much again.
        service_ns: 200,
        batch: 16,
        spread: Spread::Session,
        ..ServerThreads::default()
    }
}

//! FissLock (OSDI '24) §7.1: eight nodes around a Tofino switch, each with a 12-core CPU and a ConnectX-5 driven by DPDK; ten
//! cores for applications and one for lock managers a node, or eight cores of one node for a lock server.

use super::{Figure, Testbed};
use lockwright_sim::{NicModel, ServerThreads, Spread};

pub(crate) const TESTBED: Testbed = Testbed {
    paper: "fisslock",
    hardware: "Tofino, 8 nodes with ConnectX-5 and DPDK, 10 + 1 cores each, 160 clients",
    fitted_to: "SrvLock: 3 M requests/s (§7.5), 84.5 µs at the 90th percentile (§7.3); the peak of all application cores (§7.7)",
    figures: &[
        Figure::fitted("fiss-fig3", &[]),
        Figure::fitted("fiss-fig13", &[]),
        Figure::fitted("fiss-fig16", &[]),
        Figure::held_out("fiss-fig14"),
        Figure::held_out("fiss-fig15"),
        // REQUEST_NS and RESUME_NS below come from this one.
        Figure::held_out_but("fiss-fig17", &["uniform-peak-over-netlock"]),
        Figure::held_out("fiss-recovery"),
        Figure::held_out("fiss-memory"),
    ],
};

/// Nodes (§7.1).
pub(crate) const MACHINES: usize = 8;
/// Cores of a node that run applications, and with them a lock manager's library (§7.1).
pub(crate) const APPLICATION_CORES: usize = 10;

/// A core's work per packet. *Fitted to SrvLock*: eight cores serve 3 M requests a second (§7.5), each an acquire and a
/// release. Packets are spread at random, so that cores are idle now and then while others have a queue: with 1.32 µs a
/// closed network of 160 clients and eight such cores passes 3.0 M, 90 % of them within 96 µs (published 84.5).
const SERVICE_NS: u64 = 1_320;
/// A call of the library, a function of the application's own thread that looks at a table; and a packet that such a thread
/// polls for itself.
const CALL_NS: u64 = 200;

/// What an application's core spends on its coroutine before a lock request: the release of the lock before, the trace,
/// bookkeeping. The 80 cores of all applications pass 11.2 M requests a second at best (1.99 · 5.65 M, §7.7): 7.1 µs each, of
/// which this is one half. FissLock's own figure, used for this alone.
pub(crate) const REQUEST_NS: u64 = 3_500;
/// What it spends when the grant is there: the other half.
pub(crate) const RESUME_NS: u64 = 3_500;

/// The network. The switch has no time of its own: it passes several billion packets a second, each within a microsecond (§2.2), and
/// that is part of a message's way. DPDK on the same NICs as ShiftLock's testbed. No queue pairs, so nothing grows with clients.
pub(crate) fn nic() -> NicModel {
    NicModel { message_per_client_ps: 0, ..super::shiftlock::nic() }
}

/// Cores that serve packets of a lock manager.
const fn packets(threads: usize) -> ServerThreads {
    ServerThreads {
        threads,
        service_ns: SERVICE_NS,
        // A client on the same node calls the library: no packet, and none of the manager's cores.
        call_ns: Some(CALL_NS),
        // The published servers send every answer at once (fisslock repository, `lib/net.cc`).
        batch: 1,
        // Receive side scaling by address and port, and the sender's port changes with every packet (the same file).
        spread: Spread::Random,
    }
}

/// A lock server on a node of its own: eight cores.
pub(crate) const SERVER: [ServerThreads; 1] = [packets(8)];
/// One core of every node for a lock manager: ParLock.
pub(crate) const MANAGER: [ServerThreads; 1] = [packets(1)];
/// FissLock: one core for agents, ten for the library's side of applications.
pub(crate) const FISSION: [ServerThreads; 2] =
    [packets(1), ServerThreads { service_ns: CALL_NS, ..packets(APPLICATION_CORES) }];

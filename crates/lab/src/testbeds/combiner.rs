//! The combiner thesis (Dezalos, EPFL 2024) §5.1: BlueField-2, two Platinum 8468 with 48 cores each, one server and one client
//! machine; 18 server threads for the combiners, one for the interval tree.

use super::{Figure, Testbed};
use lockwright_sim::{NicModel, ServerThreads, Spread};

pub(crate) const TESTBED: Testbed = Testbed {
    paper: "combiner",
    hardware: "BlueField-2 (ConnectX-6 Dx), 2x Platinum 8468, 18 server threads, 48 clients on one machine",
    fitted_to: "Citron alone: 25 µs a lock (§5.2.2); round trips (Table 5)",
    figures: &[
        Figure::fitted("combiner-tab6", &[]),
        Figure::fitted("combiner-fig5", &[]),
        Figure::held_out("combiner-fig6"),
        Figure::held_out("combiner-fig7"),
        Figure::held_out("combiner-fig8"),
    ],
};

/// Threads of the server for combiners, beside the one that combines (§5.1).
pub(crate) const COMBINER_THREADS: usize = 17;
/// For the interval tree, which is fastest with one (§5.1).
pub(crate) const TREE_THREADS: usize = 1;
/// Clients, on one machine (§5.1).
pub(crate) const CLIENTS: usize = 48;

/// Median round trip of a small RPC (Table 5).
const RPC_NS: u64 = 3_520;
/// A server thread's work on it: eRPC serves 10 M small requests a second with a core (NSDI '19), and a look-up in a table is
/// as much again.
const SERVICE_NS: u64 = 200;

/// The network, and a server with so many threads. What the thesis does not tell is as on ShiftLock's testbed.
pub(crate) fn nic(server_threads: usize) -> NicModel {
    NicModel {
        // Table 5, medians.
        read_rtt_ns: 2_740,
        atomic8_rtt_ns: 2_790,
        atomic16_rtt_ns: 2_790,
        // Not measured in the thesis: as short as a READ.
        write_rtt_ns: 2_740,
        message_ns: (RPC_NS - SERVICE_NS) / 2,
        message_per_client_ps: 0,
        // Table 5 is for one client. Growth with clients as on ShiftLock's testbed.
        growth_from: 1,
        // Data sheet of the ConnectX-6: 215 million messages per second.
        service_ps: 4_650,
        // As on Citron's testbed, which has the same generation of NIC.
        same_address8_ns: 16,
        same_address16_ns: 16,
        // Citron locks in 25 µs when one client is alone and not in the six of two round trips, because each verb beyond the first
        // of a batch adds to it (§5.2.2). Random ranges take it some 140 verbs here. *Fitted to Citron with one client.*
        batch_step_ns: 130,
        server: ServerThreads {
            threads: server_threads,
            service_ns: SERVICE_NS,
            batch: 16,
            spread: Spread::Session,
            ..ServerThreads::default()
        },
        ..super::shiftlock::nic()
    }
}

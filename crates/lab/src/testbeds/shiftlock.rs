//! ShiftLock (FAST '25) §4.1: one lock server, five client machines with 48 cores, ConnectX-5 at 100 Gbit/s.
//!
//! Fitted: round trips to the CAS lock of §2.3 and to Table 3's columns for 5 and 240 clients, the pipeline to Table 3's readers
//! at 240 clients, same-address times to §2.3 and Table 3, parking slots to CAS without backoff in Table 4.

use super::{Figure, Testbed};
use lockwright_sim::{NicModel, ServerThreads};

pub(crate) const TESTBED: Testbed = Testbed {
    paper: "shiftlock",
    hardware: "ConnectX-5 100 Gb/s, 2x E5-2650 v4, one server, 5 x 48 clients",
    fitted_to: "CAS without backoff (§2.3, Table 4), latencies at 5 and 240 clients (Table 3)",
    figures: &[
        Figure::fitted("shift-sec2-3", &["ideal-kops", "no-backoff-kops"]),
        Figure::fitted(
            "shift-tab3",
            &[
                "wi-5-write-first-atomic-us",
                "wi-240-write-first-atomic-us",
                "ri-5-read-first-atomic-us",
                "ri-240-read-first-atomic-us",
            ],
        ),
        Figure::fitted("shift-tab4", &["wi-shiftlock-first-atomic-us", "wi-cas-nb-first-atomic-us"]),
        Figure::fitted("shift-fig6", &[]),
        Figure::held_out("shift-fig4"),
        Figure::held_out("shift-fig5"),
        Figure::held_out("shift-fig7"),
        Figure::held_out("shift-fig8"),
        Figure::held_out("shift-fig9"),
        Figure::held_out("shift-fig10"),
        Figure::held_out("shift-fig12"),
        Figure::held_out("shift-fig13"),
        Figure::ours("shift-ours"),
    ],
};

/// Clients: 48 cores on each of five machines (§4.1).
pub(crate) const CLIENTS: usize = 240;

/// The network.
pub(crate) fn nic() -> NicModel {
    NicModel {
        // An uncontended CAS lock does 278.3 k cycles/s, 3.593 µs each (§2.3); a cycle is two round trips and the overhead below.
        atomic8_rtt_ns: 1_770,
        // 2.05 µs for the first atomic at 5 clients (Table 3), a little of which is queueing.
        atomic16_rtt_ns: 2_030,
        // "About the same" as that (Table 3).
        read_rtt_ns: 2_000,
        // Not published: as short as the shortest, because nothing has to be fetched from memory before the answer leaves.
        write_rtt_ns: 1_770,
        // 2.05 µs at 5 clients, 2.50 at 240, which is 5.6 doublings (Table 3).
        growth_per_doubling_ns: 80,
        growth_from: 5,
        // Not published.
        jitter_ns: 50,
        // 6.95 µs per atomic at 240 clients and 5 % writes (Table 3): 15 M cycles/s of 2.2 verbs, 33 M verbs/s.
        service_ps: 30_500,
        // Nothing in the paper asks for more.
        batch_step_ns: 0,
        slow_one_in: 0,
        slow_ns: 0,
        // 240 clients on one CAS lock get 15.5 k grants/s (§2.3): the holder's release queues behind the CAS of all clients, so
        // 64.5 µs for about 240 atomics.
        same_address8_ns: 266,
        // From the queueing in Table 3 (readers' first atomic, 5 % writes, 2.32 to 6.95 µs). About twice the 8-byte time, as §4
        // says they perform worse.
        same_address16_ns: 520,
        // The first CAS without backoff takes 38.5 µs on average over *all* locks (Table 4), so waiting for a hot address must
        // reach verbs that are bound elsewhere.
        parking_slots: 64,
        // The handover's part of the wait for a predecessor (Table 3), and its growth from 120 to 240 clients.
        message_ns: 1_900,
        message_per_client_ps: 6_600,
        cycle_overhead_ns: 50,
        // The 4096 cycles of the artifact's backoff (SMART's) at 2.2 GHz.
        poll_ns: 1_862,
        // Not published: a cache miss to another core.
        cpu_access_ns: 100,
        // Not published: small RPCs cost a core about 100 ns (10 M/s, Kalia et al., NSDI '19), and a look-up as much again.
        server: ServerThreads { threads: 1, service_ns: 200, ..ServerThreads::default() },
        ..NicModel::default()
    }
}

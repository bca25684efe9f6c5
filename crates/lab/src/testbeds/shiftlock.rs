//! ShiftLock (FAST '25) §4.1: one lock server, five client machines with 48 cores, ConnectX-5 at 100 Gbit/s.
//!
//! The network model's defaults are this testbed; each of its parameters says which sentence or table it comes from. Fitted:
//! round trips to the CAS lock of §2.3 and to Table 3's columns for 5 and 240 clients, the pipeline to Table 3's readers at
//! 240 clients, same-address times to §2.3 and Table 3, parking slots to CAS without backoff in Table 4.

use super::{Figure, Testbed};
use lockwright_sim::NicModel;

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

/// The network.
pub(crate) fn nic() -> NicModel {
    NicModel::default()
}

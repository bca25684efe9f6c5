//! All experiments. A new one is a file beside this one and a line in the list.

use crate::experiment::Experiment;

mod after_a_death;
mod citron;
mod citron_fig10;
mod citron_fig11;
mod citron_fig12;
mod citron_fig6;
mod citron_fig7;
mod citron_fig8;
mod citron_fig9;
mod citron_member;
mod citron_tab2;
mod combiner;
mod combiner_fig5;
mod combiner_tab6;
mod declock;
mod farlock;
mod fiss;
mod fiss_fig13;
mod fiss_fig14;
mod fiss_fig15;
mod fiss_fig16;
mod fiss_fig17;
mod fiss_fig3;
mod fiss_memory;
mod fiss_recovery;
mod prelude;
mod qplock_fairness;
mod qplock_member;
mod qplock_mix;
mod qplock_verbs;
mod shift;
mod shift_fig10;
mod shift_fig12;
mod shift_fig13;
mod shift_fig4;
mod shift_fig5;
mod shift_fig6;
mod shift_fig7;
mod shift_fig8;
mod shift_fig9;
mod shift_ours;
mod shift_sec2_3;
mod shift_tab3;
mod shift_tab4;

/// Every experiment.
pub const ALL: &[Experiment] = &[
    citron_fig6::EXPERIMENT,
    citron_fig7::EXPERIMENT,
    citron_fig8::EXPERIMENT,
    citron_fig9::EXPERIMENT,
    citron_fig10::EXPERIMENT,
    citron_fig11::EXPERIMENT,
    citron_fig12::EXPERIMENT,
    citron_tab2::EXPERIMENT,
    citron_member::EXPERIMENT,
    shift_sec2_3::EXPERIMENT,
    shift_fig4::EXPERIMENT,
    shift_fig5::EXPERIMENT,
    shift_fig6::EXPERIMENT,
    shift_fig7::EXPERIMENT,
    shift_fig8::EXPERIMENT,
    shift_fig9::EXPERIMENT,
    shift_fig10::EXPERIMENT,
    shift_fig12::EXPERIMENT,
    shift_fig13::EXPERIMENT,
    shift_tab3::EXPERIMENT,
    shift_tab4::EXPERIMENT,
    shift_ours::EXPERIMENT,
    combiner_fig5::FIG5,
    combiner_fig5::FIG6,
    combiner_fig5::FIG7,
    combiner_fig5::FIG8,
    combiner_tab6::EXPERIMENT,
    qplock_verbs::EXPERIMENT,
    qplock_mix::EXPERIMENT,
    qplock_fairness::EXPERIMENT,
    qplock_member::EXPERIMENT,
    fiss_fig3::EXPERIMENT,
    fiss_fig13::EXPERIMENT,
    fiss_fig14::EXPERIMENT,
    fiss_fig15::EXPERIMENT,
    fiss_fig16::EXPERIMENT,
    fiss_fig17::EXPERIMENT,
    fiss_recovery::EXPERIMENT,
    fiss_memory::EXPERIMENT,
    declock::EXPERIMENT,
    farlock::EXPERIMENT,
];

/// The experiment called `id`.
///
/// ```
/// assert!(lockwright_lab::experiments::find("shift-sec2-3").is_some());
/// ```
pub fn find(id: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.id == id)
}

//! All experiments. A new one is a file beside this one and a line in the list.

use crate::experiment::Experiment;

mod combiner;
mod combiner_fig5;
mod combiner_tab6;
mod fiss;
mod fiss_fig13;
mod fiss_fig14;
mod fiss_fig16;
mod fiss_memory;
mod qplock_fairness;
mod qplock_mix;
mod qplock_verbs;
mod shift;
mod shift_fig12;
mod shift_fig13;
mod shift_fig4;
mod shift_fig5;
mod shift_fig6;
mod shift_fig7;
mod shift_fig8;
mod shift_fig9;
mod shift_sec2_3;
mod shift_tab3;
mod shift_tab4;

/// Every experiment.
pub const ALL: &[Experiment] = &[
    shift_sec2_3::EXPERIMENT,
    shift_fig4::EXPERIMENT,
    shift_fig5::EXPERIMENT,
    shift_fig6::EXPERIMENT,
    shift_fig7::EXPERIMENT,
    shift_fig8::EXPERIMENT,
    shift_fig9::EXPERIMENT,
    shift_fig12::EXPERIMENT,
    shift_fig13::EXPERIMENT,
    shift_tab3::EXPERIMENT,
    shift_tab4::EXPERIMENT,
    combiner_fig5::FIG5,
    combiner_fig5::FIG6,
    combiner_fig5::FIG7,
    combiner_fig5::FIG8,
    combiner_tab6::EXPERIMENT,
    qplock_verbs::EXPERIMENT,
    qplock_mix::EXPERIMENT,
    qplock_fairness::EXPERIMENT,
    fiss_fig13::EXPERIMENT,
    fiss_fig14::EXPERIMENT,
    fiss_fig16::EXPERIMENT,
    fiss_memory::EXPERIMENT,
];

/// The experiment called `id`.
///
/// ```
/// assert!(lockwright_lab::experiments::find("shift-sec2-3").is_some());
/// ```
pub fn find(id: &str) -> Option<&'static Experiment> {
    ALL.iter().find(|experiment| experiment.id == id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_picks_one_experiment_and_can_name_a_file() {
        for (index, experiment) in ALL.iter().enumerate() {
            assert!(
                ALL[..index].iter().all(|other| other.id != experiment.id),
                "{} is there twice",
                experiment.id
            );
            let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
            assert!(experiment.id.chars().all(plain), "{} cannot name a file", experiment.id);
        }
    }
}

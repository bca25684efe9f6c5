//! All experiments. A new one is a file beside this one and a line in the list.

use crate::experiment::Experiment;

mod citron_fig11;
mod citron_fig12;
mod shift_sec2_3;

/// Every experiment.
pub const ALL: &[Experiment] =
    &[citron_fig11::EXPERIMENT, citron_fig12::EXPERIMENT, shift_sec2_3::EXPERIMENT];

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

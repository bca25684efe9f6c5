//! What nearly every experiment names.

pub(super) use super::shift::{explained, statement, two};
pub(super) use crate::claim::Claim;
pub(super) use crate::context::{Context, LabError, Run};
pub(super) use crate::experiment::{Experiment, Findings};
pub(super) use crate::plot::{Axis, Plot, Series, Style};
pub(super) use crate::table::Table;
pub(super) use lockwright_sim::Report;

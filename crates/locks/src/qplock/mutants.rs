//! The asymmetric lock with one rule broken each.

use super::cases::{self, Cast};
use super::{QpLock, QpParams, Rules};
use crate::case::Case;
use crate::catalog::{Checker, Mutant, Visitor};
use crate::protocol::Want;

/// Shows every mutant of the asymmetric lock to `visitor`.
pub fn visit(visitor: &mut impl Visitor) {
    let mutant = |caught_by, why| Mutant { of: "qplock", caught_by, why };
    visitor.mutant::<QpLock<OneQueue>>(mutant(
        Checker::Exclusion,
        "one CAS word for both sides, where CPU and NIC atomics do not exclude each other",
    ));
}

fn one_each() -> Vec<Case<QpParams>> {
    vec![Cast::new(1, 1, 0).play("one-each", cases::budget(1), &[Want::exclusive(0)], 1)]
}

/// Both sides use one tail.
#[derive(Debug)]
pub struct OneQueue;

impl Rules for OneQueue {
    const NAME: &'static str = "qplock-one-queue";
    const TWO_QUEUES: bool = false;
    fn cases() -> Vec<Case<QpParams>> {
        one_each()
    }
}

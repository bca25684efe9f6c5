//! The asymmetric lock with one rule broken each.

use super::cases::{self, Cast};
use crate::{Checker, Mutant, Proof, Visitor};
use lockwright_locks::Want;
use lockwright_locks::qplock::{QpLock, QpParams, Rules};
use lockwright_sim::case::Case;

/// Shows every mutant of the asymmetric lock to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    let mutant = |caught_by, why| Mutant { of: "qplock", caught_by, why };
    visitor.mutant::<QpLock<OneQueue>>(mutant(
        Checker::Exclusion,
        "one CAS word for both sides, where CPU and NIC atomics do not exclude each other",
    ));
    visitor.mutant::<QpLock<Unfenced>>(mutant(
        Checker::Exclusion,
        "looks at the other queue before its own tail is visible: no store-load fence",
    ));
    visitor.mutant::<QpLock<TextReading>>(mutant(
        Checker::Exclusion,
        "Alg. 1 as its text reads: who finds the queue empty enters, who is passed the lock runs Peterson",
    ));
    visitor.mutant::<QpLock<NeverYields>>(mutant(
        Checker::Exclusion,
        "waits for the victim to change without having become it (Alg. 1 line 6)",
    ));
    visitor.mutant::<QpLock<NoBudget>>(mutant(
        Checker::Bypass,
        "passes the lock along its own side for ever (without Alg. 2 line 11)",
    ));
    visitor.coarse_mutant::<QpLock<ForgetsSuccessor>>(mutant(
        Checker::Deadlock,
        "release does not wait to learn who is behind it (Alg. 2 line 18)",
    ));
    visitor.mutant::<QpLock<IgnoresRemoteReaders>>(Mutant {
        of: "qplock-rw",
        caught_by: Checker::Exclusion,
        why: "a writer waits for the readers of the lock's own node only",
    });
    visitor.mutant::<QpLock<KeepsToken>>(Mutant {
        of: "qplock-rw",
        caught_by: Checker::Tokens,
        why: "a side that yields does not write the token back",
    });
    visitor.mutant::<QpLock<KeepsTurn>>(Mutant {
        of: "qplock-fifo",
        caught_by: Checker::Bypass,
        why: "passes the lock along its own side, past an earlier one of the other",
    });
    visitor.mutant::<QpLock<GoesAhead>>(Mutant {
        of: "qplock-fifo",
        caught_by: Checker::Bypass,
        why: "a head that could enter does so, though one of the other side came earlier",
    });
}

fn one_each() -> Vec<Case<QpParams>> {
    vec![Cast::new(1, 1, 0).play("one-each", cases::budget(1), &[Want::exclusive(0)], 2)]
}

/// Both sides use one tail.
#[derive(Debug)]
pub(crate) struct OneQueue;

impl Rules for OneQueue {
    const NAME: &'static str = "qplock-one-queue";
    const TWO_QUEUES: bool = false;
}

impl Proof for QpLock<OneQueue> {
    fn cases() -> Vec<Case<QpParams>> {
        one_each()
    }
}

/// The store of the own tail and the look at the other may take effect in any order.
#[derive(Debug)]
pub(crate) struct Unfenced;

impl Rules for Unfenced {
    const NAME: &'static str = "qplock-unfenced";
    const FENCED: bool = false;
}

impl Proof for QpLock<Unfenced> {
    fn cases() -> Vec<Case<QpParams>> {
        one_each()
    }
}

/// The roles of leader and follower exchanged.
#[derive(Debug)]
pub(crate) struct TextReading;

impl Rules for TextReading {
    const NAME: &'static str = "qplock-text-reading";
    const LEADER_RUNS_PETERSON: bool = false;
}

impl Proof for QpLock<TextReading> {
    fn cases() -> Vec<Case<QpParams>> {
        one_each()
    }
}

/// Peterson's lock without the store to `victim`.
#[derive(Debug)]
pub(crate) struct NeverYields;

impl Rules for NeverYields {
    const NAME: &'static str = "qplock-never-yields";
    const YIELDS: bool = false;
}

impl Proof for QpLock<NeverYields> {
    fn cases() -> Vec<Case<QpParams>> {
        one_each()
    }
}

/// A cohort never gives way.
#[derive(Debug)]
pub(crate) struct NoBudget;

impl Rules for NoBudget {
    const NAME: &'static str = "qplock-no-budget";
    const MINDS_BUDGET: bool = false;
}

impl Proof for QpLock<NoBudget> {
    fn cases() -> Vec<Case<QpParams>> {
        vec![cases::fair_to_one_remote()]
    }
}

/// A client that is behind waits for ever.
#[derive(Debug)]
pub(crate) struct ForgetsSuccessor;

impl Rules for ForgetsSuccessor {
    const NAME: &'static str = "qplock-forgets-successor";
    const WAITS_FOR_SUCCESSOR: bool = false;
}

impl Proof for QpLock<ForgetsSuccessor> {
    fn cases() -> Vec<Case<QpParams>> {
        vec![Cast::new(2, 0, 0).play("two-local", cases::budget(1), &[Want::exclusive(0)], 1)]
    }
}

/// A writer that does not see remote readers.
#[derive(Debug)]
pub(crate) struct IgnoresRemoteReaders;

impl Rules for IgnoresRemoteReaders {
    const NAME: &'static str = "qplock-rw-ignores-remote-readers";
    const EXTENDED: bool = true;
    const WAITS_FOR_REMOTE_READERS: bool = false;
}

impl Proof for QpLock<IgnoresRemoteReaders> {
    fn cases() -> Vec<Case<QpParams>> {
        vec![cases::reader_of_the_other_side()]
    }
}

/// The token stays with the side that had it.
#[derive(Debug)]
pub(crate) struct KeepsToken;

impl Rules for KeepsToken {
    const NAME: &'static str = "qplock-rw-keeps-token";
    const EXTENDED: bool = true;
    const WRITES_TOKEN_BACK: bool = false;
}

impl Proof for QpLock<KeepsToken> {
    fn cases() -> Vec<Case<QpParams>> {
        vec![cases::turn_that_ends_in_a_queue()]
    }
}

/// Tickets are taken and not heeded by clients that pass the lock on.
#[derive(Debug)]
pub(crate) struct KeepsTurn;

impl Rules for KeepsTurn {
    const NAME: &'static str = "qplock-fifo-keeps-turn";
    const FIFO: bool = true;
    const MINDS_TICKETS: bool = false;
}

impl Proof for QpLock<KeepsTurn> {
    fn cases() -> Vec<Case<QpParams>> {
        vec![cases::fair_in_order()]
    }
}

/// Tickets are heeded by clients that pass the lock on, and by nobody else.
#[derive(Debug)]
pub(crate) struct GoesAhead;

impl Rules for GoesAhead {
    const NAME: &'static str = "qplock-fifo-goes-ahead";
    const FIFO: bool = true;
    const LETS_EARLIER_GO: bool = false;
}

impl Proof for QpLock<GoesAhead> {
    fn cases() -> Vec<Case<QpParams>> {
        vec![cases::fair_from_the_ticket()]
    }
}

//! What must be caught.

use super::cases::{self, READ, TRY_WRITE, WRITE, left_by_the_dead, sides};
use super::{MemberParams, QpMember};
use crate::member_cases::{hasty, killed};
use crate::{Case, mutants};
use lockwright_locks::qplock::member::MemberRules;

/// Two clients that exclude each other have different tokens, too; this is about the former.
fn without_tokens(mut case: Case<MemberParams>) -> Vec<Case<MemberParams>> {
    case.checks.tokens = false;
    vec![case]
}

fn one_each(budget: u16) -> Case<MemberParams> {
    sides("one-each", budget, &[WRITE], &[WRITE]).rounds(2)
}

fn writer_and_reader() -> Vec<Case<MemberParams>> {
    without_tokens(sides("writer-and-reader", 1, &[WRITE], &[READ]))
}

/// Two of a side, who look after the dead at any moment.
fn two_and_hasty() -> Vec<Case<MemberParams>> {
    vec![hasty(sides("two-and-hasty", 2, &[WRITE, WRITE], &[]))]
}

mutants! {
    QpMember: MemberRules, MemberParams, &'static str;
    /// Its ticket is passed over before it is written down.
    mutant RecordAfter = "qplock-member-record-after", "qplock-member", Exclusion, { RECORDS_COME_FIRST: false },
        "a client writes its record after it has drawn a ticket", two_and_hasty();
    /// Or before it is known which.
    mutant IgnoresUnsettled = "qplock-member-ignores-unsettled", "qplock-member", Exclusion, { SKIPS_HEED_UNSETTLED: false },
        "a skip takes no heed of records that do not say which ticket they have", two_and_hasty();
    /// A skip that slept takes the side back to a ticket that was served.
    mutant Uncompared = "qplock-member-uncompared", "qplock-member", Exclusion, { SKIPS_COMPARE: false },
        "a skip does not compare the head with what it read",
        without_tokens(left_by_the_dead(2, 0, sides("left", 1, &[TRY_WRITE, TRY_WRITE], &[TRY_WRITE])));
    /// The head passes the lock on before its record is read, to a client that comes after its own was.
    mutant LooksOnce = "qplock-member-looks-once", "qplock-member", Exclusion, { LOOKS_AT_THE_HEAD_AGAIN: false },
        "who finds that nobody alive leads the other side does not look at its head again",
        vec![hasty(sides("two-local", 2, &[WRITE, WRITE], &[WRITE]))];
    /// A client behind it waits for ever.
    mutant WaitsUnsettled = "qplock-member-waits-unsettled", "qplock-member", Livelock, { SETTLES_BEFORE_WAITING: false },
        "a client waits before its record says which ticket it has",
        vec![killed(sides("killed", 2, &[WRITE, WRITE, WRITE], &[]))];
    /// Both find the other side's queue empty.
    mutant Unfenced = "qplock-member-unfenced", "qplock-member", Exclusion, { LOOKS_AFTER_DRAWING: false },
        "the other side is looked at before a ticket is drawn", without_tokens(one_each(1));
    /// The other side has yielded long ago.
    mutant NeverYields = "qplock-member-never-yields", "qplock-member", Exclusion, { YIELDS: false },
        "waits for the victim to change without having become it", without_tokens(one_each(1));
    /// The other side came in while the queue was empty.
    mutant StalePass = "qplock-member-stale-pass", "qplock-member", Exclusion, { PASSES_ARE_FOR_WAITERS: false },
        "a client takes a pass that was written before it came",
        without_tokens(one_each(2));
    mutant NoBudget = "qplock-member-no-budget", "qplock-member", Bypass, { MINDS_BUDGET: false },
        "passes the lock along its own side for ever", vec![cases::fair_to_one(1).bypass(2)];
    mutant ForgetsReaders = "qplock-member-forgets-readers", "qplock-member", Exclusion, { WAITS_FOR_READERS: false },
        "a writer does not wait for readers", writer_and_reader();
    /// A writer looks for it in between.
    mutant ReaderAfter = "qplock-member-reader-after", "qplock-member", Exclusion, { READERS_ARE_WRITTEN_DOWN_FIRST: false },
        "a reader leaves the queue before its record says that it reads",
        writer_and_reader();
    mutant OwnTokens = "qplock-member-own-tokens", "qplock-member", Tokens, { TOKENS_COUNT_BOTH_SIDES: false },
        "tokens count the grants of one side only", vec![one_each(1)];
    mutant DeadTokens = "qplock-member-dead-tokens", "qplock-member", Tokens, { TOKENS_COUNT_THE_DEAD: false },
        "who takes the lock past a dead holder of the other side does not count that",
        vec![killed(sides("killed", 1, &[WRITE], &[WRITE]))];
}

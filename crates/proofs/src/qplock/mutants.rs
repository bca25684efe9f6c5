//! The asymmetric lock with one rule broken each.

use super::cases::{self, Clients};
use lockwright_locks::Want;
use lockwright_locks::qplock::{QpLock, QpParams, Rules};
use lockwright_sim::case::Case;

fn one_each() -> Vec<Case<QpParams>> {
    vec![Clients::new(1, 1, 0).case("one-each", cases::budget(1), &[Want::exclusive(0)], 2)]
}

crate::mutants! { QpLock: Rules, QpParams, &'static str;
    mutant OneQueue = "qplock-one-queue", "qplock", Exclusion, { TWO_QUEUES: false },
        "one CAS word for both sides, where CPU and NIC atomics do not exclude each other",
        one_each();
    mutant Unfenced = "qplock-unfenced", "qplock", Exclusion, { FENCED: false },
        "looks at the other queue before its own tail is visible: no store-load fence",
        one_each();
    mutant TextReading = "qplock-text-reading", "qplock", Exclusion, { LEADER_RUNS_PETERSON: false },
        "Alg. 1 as its text reads: who finds the queue empty enters, who is passed the lock runs Peterson",
        one_each();
    mutant NeverYields = "qplock-never-yields", "qplock", Exclusion, { YIELDS: false },
        "waits for the victim to change without having become it (Alg. 1 line 6)",
        one_each();
    mutant NoBudget = "qplock-no-budget", "qplock", Bypass, { MINDS_BUDGET: false },
        "passes the lock along its own side for ever (without Alg. 2 line 11)",
        vec![cases::fair_to_one_remote()];
    coarse_mutant ForgetsSuccessor = "qplock-forgets-successor", "qplock", Deadlock, { WAITS_FOR_SUCCESSOR: false },
        "release does not wait to learn who is behind it (Alg. 2 line 18)",
        vec![Clients::new(2, 0, 0).case("two-local", cases::budget(1), &[Want::exclusive(0)], 1)];
    mutant IgnoresRemoteReaders = "qplock-rw-ignores-remote-readers", "qplock-rw", Exclusion,
        { EXTENDED: true, WAITS_FOR_REMOTE_READERS: false },
        "a writer waits for the readers of the lock's own node only",
        vec![cases::reader_of_the_other_side()];
    mutant KeepsToken = "qplock-rw-keeps-token", "qplock-rw", Tokens, { EXTENDED: true, WRITES_TOKEN_BACK: false },
        "a side that yields does not write the token back",
        vec![cases::turn_that_ends_in_a_queue()];
    mutant KeepsTurn = "qplock-fifo-keeps-turn", "qplock-fifo", Bypass, { FIFO: true, MINDS_TICKETS: false },
        "passes the lock along its own side, past an earlier one of the other",
        vec![cases::fair_in_order()];
    mutant GoesAhead = "qplock-fifo-goes-ahead", "qplock-fifo", Bypass, { FIFO: true, LETS_EARLIER_GO: false },
        "a head that could enter does so, though one of the other side came earlier",
        vec![cases::fair_from_the_ticket()];
}

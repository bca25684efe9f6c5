//! Citron with one rule left out, each with the case that shows it.

use super::cases::{
    INNER, INNER_AND_LEAF, LEAF, ROOT, case, dying, growing, range, regrowing, sleeping, small, spilling,
    zombie,
};
use super::rw_cases::read;
use super::wait_cases::{self, HOLDING_INNER, HOLDING_LEAF, held, in_ticks, timed};
use lockwright_locks::citron::{Citron, Params, Rules};
use lockwright_sim::case::Clock;

crate::mutants! { Citron: Rules, Params, &'static str;
    mutant LooksFirst = "citron-looks-first", "citron", Exclusion, { LOOKS_AFTER_NOTIFYING: false },
        "handshake without the look at the ancestors after they were told",
        vec![case("leaf-and-inner", small(1)).clients(1, &[INNER]).clients(1, &[LEAF])];
    mutant ClosesLate = "citron-closes-late", "citron", Exclusion, { CLOSES_GAP_FIRST: false },
        "a client that waited for its turn looks for notes before it closes the gap that let requests below in",
        vec![case("gap-under-roots", small(2)).clients(3, &[ROOT]).clients(1, &[LEAF])];
    mutant ForgetsCount = "citron-forgets-dcnt", "citron", Deadlock, { UNDO_COUNTS: false },
        "an attempt that is undone does not add to DCnt",
        vec![case("two-leaves-and-inner", small(1)).clients(2, &[LEAF]).clients(1, &[INNER])];
    mutant WaitsAbove = "citron-waits-above", "citron", Deadlock, { SPARES_COMMON_ANCESTORS: false },
        "waits for a request above a node that it holds (k > 1, as printed)",
        {
            // An internal node and a leaf: two attempts, one after the other.
            vec![case("inner-and-leaf-under-root", small(1)).clients(1, &[INNER_AND_LEAF]).clients(1, &[ROOT])]
        };
    mutant KeepsTurn = "citron-keeps-turn", "citron", Deadlock, { PASSES_TURN: false },
        "keeps its turn at a node while it waits for an ancestor (k > 1, as printed)",
        {
            // C0 holds a leaf and queues for the node behind C1, C1 waits for the root, C2 at the root waits for C0.
            vec![
                case("queue-under-a-root", small(2))
                    .clients(1, &[range(3, 8)])
                    .clients(1, &[range(4, 8)])
                    .clients(1, &[ROOT]),
            ]
        };
    mutant NeverLate = "citron-short-wait", "citron", Exclusion, { ABORTS_WHEN_LATE: false },
        "wait mode whose T_wait is too short for the delays, and that does not abort",
        {
            let clock = Clock { tick_ns: 1, delay_ticks: 2, max_ticks: 40 };
            vec![case("leaf-and-root", timed(1, 1)).clients(1, &[ROOT]).clients(1, &[LEAF]).clock(clock)]
        };
    mutant UnevenTokens = "citron-uneven-tokens", "citron", Tokens, { LEVELS_TOKENS: false },
        "a range over several token words does not lift the lower ones",
        {
            let four_words = Params { token_level: 2, ..small(1) };
            vec![
                case("across-words", four_words)
                    .clients(1, &[LEAF, range(3, 5)])
                    .clients(1, &[range(4, 5)])
                    .tokens(),
            ]
        };
    mutant IgnoresReadersAbove = "citron-rw-ignores-above", "citron-rw", Exclusion, { READERS: true, YIELDS_TO_READERS: false },
        "a lower writer ignores an upper reader",
        vec![case("reader-above-a-writer", small(1)).clients(1, &[read(INNER)]).clients(1, &[LEAF])];
    mutant IgnoresReadersBelow = "citron-rw-ignores-below", "citron-rw", Exclusion,
        { READERS: true, WAITS_FOR_READERS_BELOW: false },
        "an upper writer does not wait for lower readers",
        vec![case("reader-below-a-writer", small(1)).clients(1, &[read(LEAF)]).clients(1, &[INNER])];
    mutant ForgetsTheRoot = "citron-grow-forgets-root", "citron", Exclusion, { GROWTH_COUNTS_THE_ROOT: false },
        "growing forgets an occupied node's extra DMax",
        vec![growing("grow-over-the-root", 1).clients(1, &[INNER]).clients(1, &[ROOT])];
    mutant RegrowForgets = "citron-regrow-forgets", "citron", Deadlock, { EVERY_NOTE_SPANS: false },
        "only a request's highest note remembers that the tree grew past it: not so if the tree had shrunk before",
        vec![regrowing("shrink-and-grow-leaf", 1).clients(1, &[LEAF])];
    mutant HalfGrown = "citron-half-grown", "citron", Exclusion, { GROWTH_IS_FINISHED: false },
        "a client that goes on for a dead grower trusts that it left all notes of the nodes that it had swept",
        {
            let case = dying(in_ticks(growing("grow-crash-two-growers", 1)));
            vec![case.clients(1, &[LEAF]).rounds(2).clients(2, &[ROOT])]
        };
    mutant IgnoresEra = "citron-ignores-era", "citron", Exclusion, { ERA_IS_CHECKED: false },
        "a client that was taken for dead while it acquired does not see the new era",
        vec![zombie("zombie-leaf-and-inner", 1).clients(1, &[LEAF]).clients(1, &[INNER])];
    mutant RecoversAtOnce = "citron-recovers-at-once", "citron", Exclusion, { RECOVERY_BEGINS_AN_ERA: false },
        "what the dead left is taken away without a new era, so that nobody can tell",
        vec![zombie("zombie-inner-and-inner", 1).clients(2, &[INNER])];
    mutant EndsAnyway = "citron-ends-anyway", "citron", Exclusion, { ENDINGS_ARE_GUARDED: false },
        "a client that was taken for dead gives back what is another's by now",
        vec![zombie("zombie-inner-and-inner", 1).clients(2, &[INNER]).rounds(2)];
    mutant SpillKeepsMutex = "citron-spill-keeps-mutex", "citron", Exclusion, { SPILL_HAS_AN_ERA: false },
        "a client that has the spillover mutex and waits at a node does not see that others took the mutex away",
        vec![sleeping(spilling("spillover-zombie")).rounds(2)];
    mutant SpillTakenAtOnce = "citron-spill-taken-at-once", "citron", Exclusion, { RECOVERY_BEGINS_AN_ERA: false },
        "the spillover mutex is taken away from a client that seems dead without a new era",
        vec![sleeping(spilling("spillover-zombie")).rounds(2)];
    mutant SpillEndsAnyway = "citron-spill-ends-anyway", "citron", Exclusion, { ENDINGS_ARE_GUARDED: false },
        "a client that was taken for dead passes the spillover mutex on, which is another's by now",
        vec![sleeping(spilling("spillover-zombie")).rounds(2)];
    mutant WaitIgnoresGrowth = "citron-wait-ignores-growth", "citron", Exclusion, { NOTES_SEE_GROWTH: false },
        "wait mode: a client that left its notes does not look whether the tree had grown past the highest",
        vec![held(growing("wait-grow-over-a-leaf", 1)).clients(1, &HOLDING_LEAF).clients(1, &[ROOT])];
    mutant WaitForgetsTheRoot = "citron-wait-grow-forgets-root", "citron", Exclusion, { GROWTH_COUNTS_THE_ROOT: false },
        "wait mode: growing forgets an occupied node's extra DMax",
        vec![held(growing("wait-grow-over-the-root", 1)).clients(1, &HOLDING_INNER).clients(1, &[ROOT])];
    mutant WaitIgnoresEra = "citron-wait-ignores-era", "citron", Exclusion, { ERA_IS_CHECKED: false },
        "wait mode: a client that was taken for dead while it acquired does not see the new era",
        vec![wait_cases::zombie("wait-zombie-leaf-and-inner", 1).clients(1, &[LEAF]).clients(1, &[INNER])];
    mutant WaitEndsAnyway = "citron-wait-ends-anyway", "citron", Quiet, { ENDINGS_ARE_GUARDED: false },
        "wait mode: a client that was taken for dead gives back what is another's by now",
        vec![
            wait_cases::zombie("wait-zombie-inner-again", 1)
                .clients(1, &[INNER])
                .rounds(2)
                .clients(1, &[INNER]),
        ];
}

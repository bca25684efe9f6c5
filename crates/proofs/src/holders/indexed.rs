//! Ranges of a direct space, found by an index, as on shared memory: a client is killed or stopped between any two of its
//! loads and stores, in the middle of a tree, too.

use super::cases::{hasty, killed, patient, stopped};
use super::direct::{DirectMemory, Immediate};
use super::evictable::Evictable;
use super::explored::HolderParams;
use super::explored_ranges::{
    ALL, BESIDE, HolderRanges, LEFT, MIDDLE, Places, READ, RIGHT, RangeClient, RangeRules, SHRINK, SPLIT,
    TRY_LAST, TRY_MIDDLE, UPGRADE, changed, mixed, woken,
};
use super::memory::{Explored as Memory, Ranges};
use crate::{Checker, Mutant, Proof, Visitor};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Addr, Batch, Endpoint, FabricError, Needs, NodeId, Word64};
use lockwright_locks::holders::index_layout::IndexLayout;
use lockwright_locks::holders::{HolderClient, HolderTable, RangeSpace, RecordRules};
use lockwright_locks::shiftlock::{Rules, Shipped};
use lockwright_locks::{Info, Patience, Protocol, Space, Want};
use lockwright_sim::case::{Case, Round};
use lockwright_sim::explore::at_once;
use std::fmt::Debug;
use std::marker::PhantomData;

impl<E: Endpoint> RangeSpace for DirectMemory<E> {
    const HAS_INDEX: bool = true;

    fn index(&self) -> IndexLayout {
        self.0.ranges.and_then(|ranges| ranges.index).expect("ranges of this space have an index")
    }

    fn go_now<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        at_once(self.0.ep.go(batch))
    }

    fn gate(&self, lock: u64) -> u64 {
        self.0.gate(lock)
    }

    fn changes(&self, lock: u64) -> Word64 {
        self.0.changes(lock)
    }

    async fn swap(&self, word: Word64, old: u64, new: u64) -> Result<bool, FabricError> {
        self.0.swap(word, old, new).await
    }

    fn patience_ns(&self, looked: u32) -> Option<u64> {
        self.0.patience_ns(looked)
    }
}

/// Ranges that are found by an index, with the rules of `R`.
#[derive(Debug)]
pub(crate) struct Indexed<R = Shipped>(PhantomData<R>);

/// What a mutant says of itself, beside the rule it breaks.
pub(crate) trait IndexRules: RangeRules {
    const INDEX_NAME: &'static str;

    fn index_cases() -> Vec<Case<HolderParams>>;
}

/// Behind what ranges have anyway: roots, and entries.
fn index(space: &Space, params: &HolderParams) -> IndexLayout {
    let at = |offset| Addr::new(NodeId(0), offset);
    let roots = Places::new(space, params).end;
    let entries = (roots + 8 * space.locks).next_multiple_of(16);
    IndexLayout { entries: at(entries), roots: at(roots), stride: 8, worth: 0, every: params.index_every }
}

impl<R: IndexRules> Protocol for Indexed<R> {
    type Params = HolderParams;
    type Client<E: Endpoint> = RangeClient<Immediate<Evictable<E>>, DirectMemory<E>, R>;

    const INFO: Info = Info {
        name: R::INDEX_NAME,
        summary: "ranges written down under a keyed lock, and found by an index",
        ..<HolderRanges as Protocol>::INFO
    };

    fn needs(params: &HolderParams) -> Needs {
        <HolderRanges as Protocol>::needs(params)
    }

    fn most_clients(params: &HolderParams) -> usize {
        <HolderRanges as Protocol>::most_clients(params)
    }

    fn bytes_per_node(space: &Space, params: &HolderParams) -> u64 {
        let table = Places::new(space, params).part.layout;
        index(space, params).entries.offset + IndexLayout::bytes(&table)
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &HolderParams) -> Self::Client<E> {
        let Places { liveness, part, changes, .. } = Places::new(space, params);
        let ep = Evictable::new(ep, liveness);
        let ranges = Ranges { changes, looks: params.looks, index: Some(index(space, params)) };
        let table = HolderTable::new(DirectMemory(Memory { ep: ep.clone(), part, ranges: Some(ranges) }));
        RangeClient::new(HolderClient::new(Immediate(ep), space, &params.shift, table), params)
    }

    fn initial_memory(space: &Space, params: &HolderParams) -> Vec<(Addr, u64)> {
        let made = if params.index_made { space.locks } else { 0 };
        let roots = index(space, params).roots;
        (0..made).map(|lock| (roots.plus(8 * lock), IndexLayout::EMPTY)).collect()
    }

    fn quiet_mask(space: &Space, params: &HolderParams, addr: Addr) -> u64 {
        <HolderRanges as Protocol>::quiet_mask(space, params, addr)
    }
}

impl<R: IndexRules> Proof for Indexed<R> {
    fn cases() -> Vec<Case<HolderParams>> {
        R::index_cases()
    }

    fn refuses_crash(case: &Case<HolderParams>) -> Option<&'static str> {
        <HolderRanges as Proof>::refuses_crash(case)
    }
}

/// The index is there from the beginning; else the first look makes it.
fn made(mut case: Case<HolderParams>) -> Case<HolderParams> {
    case.params.index_made = true;
    case
}

/// Entries that say nothing are taken out by every other look only.
fn seldom(mut case: Case<HolderParams>) -> Case<HolderParams> {
    case.params.index_every = 2;
    case
}

/// Each of these clients takes one range after the other.
fn moving(name: &'static str, clients: &[&[Want]]) -> Case<HolderParams> {
    let first: Vec<_> = clients.iter().map(|wants| wants[0]).collect();
    let mut case = mixed(name, &first);
    for (script, wants) in case.clients.iter_mut().zip(clients) {
        script.rounds = wants.iter().map(|want| Round { wants: vec![*want], ..Round::default() }).collect();
    }
    case.params.looks += 1; // one for what the others change in between
    case.space.locks =
        1 + clients.iter().flat_map(|wants| wants.iter()).map(|want| want.claim.lock).max().unwrap_or(0);
    case
}

const TRY_RIGHT: Want = RIGHT.with(Patience::Try);
const FIRST: Want = Want::range(0, Mode::Exclusive, 0, 1);
const FIRST_ELSEWHERE: Want = Want::range(1, Mode::Exclusive, 0, 1);
const RIGHT_ELSEWHERE: Want = Want::range(1, Mode::Exclusive, 2, 4);
const TRY_RIGHT_ELSEWHERE: Want = RIGHT_ELSEWHERE.with(Patience::Try);
const ELSEWHERE: Want = Want::range(1, Mode::Exclusive, 0, 2);

impl IndexRules for Shipped {
    const INDEX_NAME: &'static str = "holders-ranges-indexed";

    fn index_cases() -> Vec<Case<HolderParams>> {
        vec![
            patient(made(mixed("healthy", &[LEFT, MIDDLE]))),
            patient(mixed("made", &[LEFT, MIDDLE])),
            woken(made(mixed("woken", &[LEFT, MIDDLE]))),
            hasty(made(mixed("tries", &[LEFT, TRY_MIDDLE]))),
            patient(killed(made(mixed("killed", &[LEFT, MIDDLE])))),
            patient(killed(mixed("made-and-killed", &[LEFT, MIDDLE]))),
            patient(stopped(made(mixed("stopped", &[LEFT, TRY_MIDDLE])))),
            patient(made(moving("moves", &[&[LEFT, TRY_RIGHT], &[RIGHT]]))),
            patient(seldom(made(moving("moves-past-the-stale", &[&[LEFT, TRY_RIGHT], &[TRY_RIGHT]])))),
            patient(killed(made(moving("moves-and-killed", &[&[FIRST, TRY_RIGHT], &[RIGHT]])))),
            patient(made(moving("two-locks", &[&[ELSEWHERE, LEFT], &[TRY_MIDDLE]]))),
            patient(killed(made(moving("two-locks-and-killed", &[&[ELSEWHERE, LEFT], &[TRY_MIDDLE]])))),
            patient(made(changed("upgraded", &[READ, BESIDE], UPGRADE))),
            patient(made(changed("shrunk", &[ALL, RIGHT], SHRINK))),
            patient(made(changed("split", &[ALL, TRY_LAST], SPLIT))),
        ]
    }
}

macro_rules! mutants {
    ($($mutant:ident = $name:literal, $checker:ident, $rule:ident, $why:literal, $case:expr;)+) => {
        /// Shows the protocol and its mutants to `visitor`.
        pub(super) fn visit(visitor: &mut impl Visitor) {
            visitor.model::<Indexed>();
            $(visitor.mutant::<Indexed<$mutant>>(Mutant {
                of: Shipped::INDEX_NAME,
                caught_by: Checker::$checker,
                why: $why,
            });)+
        }

        $(
            #[derive(Debug)]
            pub(crate) struct $mutant;

            impl RecordRules for $mutant {
                const $rule: bool = false;
            }

            impl Rules for $mutant {}

            impl RangeRules for $mutant {}

            impl IndexRules for $mutant {
                const INDEX_NAME: &'static str = $name;

                fn index_cases() -> Vec<Case<HolderParams>> {
                    vec![$case]
                }
            }
        )+
    };
}

mutants! {
    Stolen = "holders-indexed-stolen", Tokens, ENTRIES_ARE_IN_ONE_TREE,
        "an entry is taken out of another lock's index, and nobody who meets it there notices",
        patient(made(moving("two-locks", &[&[FIRST_ELSEWHERE, LEFT, TRY_RIGHT_ELSEWHERE], &[RIGHT_ELSEWHERE]])));
    EnteredOutside = "holders-indexed-outside", Exclusion, RANGES_ARE_ENTERED_INSIDE,
        "a range is entered into the index after the gate is given back",
        patient(made(mixed("tries", &[LEFT, TRY_MIDDLE])));
    Stays = "holders-indexed-stays", Exclusion, ENTRIES_MOVE,
        "an entry stays in the index as it was, whatever its record is about to say",
        patient(made(moving("moves", &[&[FIRST, RIGHT], &[TRY_RIGHT]])));
    Unraised = "holders-indexed-unraised", Tokens, GREATEST_ENDS_FOLLOW,
        "the greatest end below an entry is not raised by what comes below it",
        patient(made(moving("moves", &[&[FIRST, TRY_RIGHT], &[RIGHT]])));
    Believed = "holders-indexed-believed", Deadlock, RECORDS_ARE_THE_TRUTH,
        "an entry is believed, whatever its record says by now",
        patient(made(mixed("healthy", &[LEFT, MIDDLE])));
    Unsplit = "holders-indexed-unsplit", Exclusion, SECOND_PIECES_ARE_ENTERED,
        "the second of two pieces is not entered into the index",
        patient(made(changed("split", &[ALL, TRY_LAST], SPLIT)));
}

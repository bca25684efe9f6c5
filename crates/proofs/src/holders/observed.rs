//! Records as others read them, while they are written: what `ls` and a revocation rest on.
//!
//! Nobody takes a lock here. A writer fills in its record for one range after the other, clears it in between, and marks it;
//! an observer reads the record meanwhile, word by word. It may find any of the contents that were written together, and no
//! mixture. If it finds one it says so by taking a unit that a third client has to itself, for which mutual exclusion
//! objects.
//!
//! Here all six words of a record are there, and each load and store is a step.

use super::cases::patient;
use super::explored::HolderParams;
use super::explored_ranges::{HolderRanges, RangeRules, Table};
use crate::{Checker, Mutant, Visitor};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Endpoint, FabricError, PeerId};
use lockwright_locks::holders::{HolderRecord, Holding, Kind, RecordRules, State};
use lockwright_locks::shiftlock::Rules;
use lockwright_locks::{Denied, Patience, Space, Want};
use lockwright_sim::case::{Case, Round, Script};

const RECORD: u8 = 0;

/// What is written beside the range `claim`.
const fn turn(claim: &Claim) -> u64 {
    claim.start + 1
}

const fn mark(claim: &Claim) -> u64 {
    claim.end
}

/// Whether its words were not written together.
const fn is_mixed(record: &HolderRecord) -> bool {
    let claim = &record.claim;
    let marked = record.mark == 0 || record.mark == mark(claim);
    claim.end != claim.start + 1 || record.turn != turn(claim) || !marked
}

/// What a client does, which its want says: has a unit to itself, writes a record, or reads all of them.
pub(crate) async fn acquire<E: Endpoint, R: RecordRules>(
    table: &Table<E, R>,
    clients: u64,
    want: Want,
) -> Result<(), Denied> {
    let claim = want.claim;
    match (claim.mode, want.patience) {
        (Mode::Exclusive, _) => Ok(()),
        (Mode::Shared, Patience::Try) => {
            for peer in (0..clients as usize).map(PeerId::client) {
                if table.read(peer, u64::from(RECORD)).await?.is_some_and(|record| is_mixed(&record)) {
                    return Ok(());
                }
            }
            Err(Denied::Busy)
        }
        (Mode::Shared, _) => {
            let holding = Holding { state: State::Held, claim, turn: turn(&claim) };
            table.writer().fill(RECORD, Kind::Range, &holding).await?;
            Ok(table.writer().mark(RECORD, mark(&claim)).await?)
        }
    }
}

pub(crate) async fn release<E: Endpoint, R: RecordRules>(table: &Table<E, R>) -> Result<(), FabricError> {
    table.writer().clear(RECORD).await
}

/// One client that has the unit in the middle, one that writes what is beside it, and one that reads.
pub(crate) fn case(name: &'static str) -> Case<HolderParams> {
    let unit = |mode, unit| Want::range(0, mode, unit, unit + 1);
    let round = |want| Round { wants: vec![want], ..Round::default() };
    let ranges = [0, 2, 0].map(|start| round(unit(Mode::Shared, start)));
    let params = HolderParams { clients: 3, observed: true, version_bits: 2, ..HolderParams::default() };
    let mut case = Case::new(name)
        .params(params)
        .space(Space::of(1).units(4))
        .clients(1, &[unit(Mode::Exclusive, 1)])
        .clients(1, &[unit(Mode::Shared, 1).with(Patience::Try)]);
    case.clients.push(Script { home: None, rounds: ranges.to_vec() });
    case.checks.quiet = false; // versions stay
    case
}

/// Records without a version.
fn versionless(mut case: Case<HolderParams>) -> Case<HolderParams> {
    case.params.version_bits = 0;
    case
}

macro_rules! mutants {
    ($($(#[$doc:meta])* $mutant:ident = $name:literal, { $($rule:tt)* }, $case:expr, $why:literal;)+) => {
        $(
            $(#[$doc])*
            #[derive(Debug)]
            pub(crate) struct $mutant;

            impl Rules for $mutant {
                const NAME: Option<&'static str> = Some($name);
            }

            impl RecordRules for $mutant {
                $($rule)*
            }

            impl RangeRules for $mutant {
                fn range_cases() -> Vec<Case<HolderParams>> {
                    vec![patient($case)]
                }
            }
        )+

        /// Shows the mutants to `visitor`.
        pub(crate) fn visit_mutants(visitor: &mut impl Visitor) {
            $(visitor.mutant::<HolderRanges<$mutant>>(Mutant {
                of: "holders-ranges",
                caught_by: Checker::Exclusion,
                why: $why,
            });)+
        }
    };
}

mutants! {
    /// The record is in use while its range is still the last one's.
    FirstWordFirst = "holders-first-word-first", { const FIRST_WORD_IS_LAST: bool = false; }, case("observed"),
        "the first word of a record is written before the others";
    /// The record names the last grant beside the range of the next.
    MarkLate = "holders-mark-late", { const MARKS_ARE_WIPED_FIRST: bool = false; }, case("observed"),
        "the mark of the last grant is wiped after the record is in use again";
    /// It was written anew between two of its words.
    ReadOnce = "holders-read-once", { const RECORDS_ARE_READ_TWICE: bool = false; }, case("observed"),
        "who reads a record does not look at its first word again";
    /// It was cleared and written anew for the same lock: its first word is what it was.
    Versionless = "holders-versionless", {}, versionless(case("observed")), "records have no version";
}

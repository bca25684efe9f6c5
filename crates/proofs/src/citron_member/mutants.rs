//! What must be caught.

use super::cases::{self, flat, left_by_the_dead, left_in_the_middle, mixed};
use super::{CitronMember, MemberParams};
use crate::member_cases::{hasty, killed};
use crate::{Case, mutants};
use lockwright_locks::Want;
use lockwright_locks::citron::member::MemberRules;

fn nested() -> Vec<Case<MemberParams>> {
    vec![mixed("nested", 1, &[cases::INNER, cases::LEAF])]
}

/// The first unit is the dead's: one client waits for it, and others come and go beside it.
fn left(wants: &[Want]) -> Vec<Case<MemberParams>> {
    vec![hasty(left_by_the_dead(flat("left-and-hasty", wants)))]
}

/// The same; the dead was in the middle of it.
fn beside() -> Vec<Case<MemberParams>> {
    vec![hasty(left_in_the_middle(flat("left-and-hasty", &[cases::write(0, 4), cases::write(1, 2)])))]
}

mutants! {
    CitronMember: MemberRules, MemberParams, &'static str;
    /// A repair counts the marks of a client that has written nothing down yet as the dead's.
    mutant RecordAfter = "citron-member-record-after", "citron-member", Exclusion, { RECORDS_COME_FIRST: false },
        "a client writes its record after its verbs", beside();
    /// Or those of a client that is in the middle of it.
    mutant IgnoresChanges = "citron-member-ignores-changes", "citron-member", Exclusion, { REPAIRS_HEED_CHANGES: false },
        "a repair takes no heed of records that are changing", beside();
    /// Or of one that came after its record was read.
    mutant LooksOnce = "citron-member-looks-once", "citron-member", Exclusion, { REPAIRS_LOOK_TWICE: false },
        "a repair does not read the records again after the word", beside();
    /// One of the living leaves and one comes between two reads of records: the word is the same, and the swap takes away the mark
    /// of the one that came.
    mutant Swaps = "citron-member-swaps", "citron-member", Exclusion, { REPAIRS_ADD: false },
        "a repair reads the word, then the records, and swaps exactly what it read",
        vec![hasty(left_in_the_middle(flat("left-among-three", &[cases::write(0, 4), cases::write(1, 2), cases::write(2, 3)])))];
    /// Both take away the dead's.
    mutant TwoRepairers = "citron-member-two-repairers", "citron-member", Exclusion, { ONE_REPAIRER: false },
        "two clients repair at once",
        left(&[cases::write(0, 1), cases::write(0, 1)]);
    /// The next one takes the same away once more.
    mutant NotWrittenDown = "citron-member-not-written-down", "citron-member", Livelock, { REPAIRS_ARE_WRITTEN_DOWN: false },
        "a repair that is interrupted leaves the record as it was",
        vec![killed(hasty(left_by_the_dead(flat("repairer-killed", &[cases::write(0, 4), cases::write(1, 2)]))))];
    /// A client that repairs waits for one that waits for it.
    mutant WaitsChanging = "citron-member-waits-changing", "citron-member", Livelock, { SETTLES_BEFORE_WAITING: false },
        "a client waits while its record says that it is changing words",
        vec![left_in_the_middle(flat("left", &[cases::write(0, 1), cases::write(0, 1)]))];
    /// The ancestor is occupied between look and note.
    mutant LooksFirst = "citron-member-looks-first", "citron-member", Exclusion, { LOOKS_AFTER_NOTIFYING: false },
        "ancestors are looked at before they are notified", nested();
    /// Requests below are overlooked.
    mutant Overlooks = "citron-member-overlooks", "citron-member", Exclusion, { WAITS_FOR_THOSE_BELOW: false },
        "a request at an internal node does not wait for those below", nested();
    /// It waits for a client that waits for its first node.
    mutant CommonAncestors = "citron-member-common-ancestors", "citron-member", Livelock, { SPARES_COMMON_ANCESTORS: false },
        "a client waits for requests above a node that it occupies",
        vec![mixed("two-nodes-and-root", 1, &[cases::write(3, 5), cases::ROOT])];
}

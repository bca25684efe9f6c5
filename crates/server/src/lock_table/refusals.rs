//! What is said when the combiner refuses something.

use lockwright::wire::DenyReason;
use lockwright_locks::combiner::core::Refusal;

/// What is said of a change that was refused.
pub(super) fn why_not(why: Refusal) -> DenyReason {
    match why {
        Refusal::UpgradeConflict => DenyReason::Deadlock,
        why => DenyReason::Refused(words(why)),
    }
}

pub(super) fn words(why: Refusal) -> String {
    match why {
        Refusal::TooLarge => "the server allows no more clients or requests".to_owned(),
        why => why.to_string(),
    }
}

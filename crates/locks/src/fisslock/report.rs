//! What machines, the coordinator and deciders tell each other about locks when something has failed (§5.3), two words per
//! entry.
//!
//! | word | bits | meaning |
//! |---|---|---|
//! | 0 | | lock |
//! | 1 | 0–49 | a ticket with its mode and priority, as in a queue; of an agent: its machine and the lock's mode |
//! | 1 | 56–57 | [`EntryKind`] |
//! | 1 | 58 | of an agent: readers are kept out |

use super::packet::{Ticket, Waiter};
use lockwright_fabric::observe::Mode;

/// What an entry is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum EntryKind {
    /// A task that waits.
    Waits,
    /// A task that holds the lock.
    Holds,
    /// The lock's agent, and where it is.
    Agent,
}

/// One line of a report.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Entry {
    pub(super) lid: u64,
    pub(super) what: EntryKind,
    pub(super) waiter: Waiter,
    pub(super) barred: bool,
}

impl Entry {
    /// A task that waits or holds.
    pub(super) fn task(lid: u64, waiter: Waiter, held: bool) -> Self {
        Self { lid, what: if held { EntryKind::Holds } else { EntryKind::Waits }, waiter, barred: false }
    }

    /// An agent on machine `mid`.
    pub(super) fn agent(lid: u64, mid: u8, mode: Mode, barred: bool) -> Self {
        let waiter = Waiter { ticket: Ticket { mid, tid: 0 }, mode, priority: 0, tries: false };
        Self { lid, what: EntryKind::Agent, waiter, barred }
    }

    /// As they travel.
    pub(super) fn encode(entries: &[Self]) -> Vec<u64> {
        entries
            .iter()
            .flat_map(|entry| {
                let what = match entry.what {
                    EntryKind::Waits => 0,
                    EntryKind::Holds => 1,
                    EntryKind::Agent => 2,
                };
                [entry.lid, entry.waiter.pack() | what << 56 | u64::from(entry.barred) << 58]
            })
            .collect()
    }

    /// What travelled.
    pub(super) fn decode(words: &[u64]) -> Vec<Self> {
        words
            .chunks_exact(2)
            .map(|words| Self {
                lid: words[0],
                what: match words[1] >> 56 & 3 {
                    0 => EntryKind::Waits,
                    1 => EntryKind::Holds,
                    _ => EntryKind::Agent,
                },
                waiter: Waiter::unpack(words[1]),
                barred: words[1] >> 58 & 1 != 0,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_entry_comes_out_as_it_went_in() {
        let waiter =
            Waiter { ticket: Ticket { mid: 255, tid: 77 }, mode: Mode::Shared, priority: 3, tries: true };
        let entries = [
            Entry::task(u64::MAX, waiter, true),
            Entry::task(0, Waiter { mode: Mode::Exclusive, ..waiter }, false),
            Entry::agent(5, 9, Mode::Shared, true),
        ];
        assert_eq!(Entry::decode(&Entry::encode(&entries)), entries);
    }
}

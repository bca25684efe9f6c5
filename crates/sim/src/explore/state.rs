//! A global state as plain numbers: what is where in it, and who is down.
//!
//! | part | one number for each | meaning |
//! |---|---|---|
//! | memory | 8 bytes of lock memory | its value, in `Tables::values` |
//! | nodes | client | where it is in its automaton; [`DEAD`] if it crashed |
//! | mailboxes | client, then role | messages on their way to it, in `Tables::mailboxes` |
//! | roles | role | its state; [`DEAD`] if it was lost with its node |
//! | timers | role | timers that are armed, in `Tables::timers` |
//! | moved | client | with a clock: the tick at which it last moved |
//! | clock | – | with a clock: the tick |
//! | watch | – | what the checkers remember, in `Tables::watches` |
//! | faults | – | a [`FaultWord`] |

use crate::case::Faults;
use lockwright_fabric::Addr;
use std::ops::Range;

/// Where a crashed client is, and a lost role.
pub(super) const DEAD: u32 = u32::MAX;

/// Where the parts of a state begin.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub(super) words_per_node: usize,
    pub(super) memory_words: usize,
    pub(super) clients: usize,
    pub(super) roles: usize,
    pub(super) has_clock: bool,
}

impl Shape {
    pub(super) fn stride(&self) -> usize {
        let clock = if self.has_clock { self.clients + 1 } else { 0 };
        self.memory_words + 2 * self.clients + 3 * self.roles + clock + 2
    }

    pub(super) fn memory(&self) -> Range<usize> {
        0..self.memory_words
    }

    pub(super) fn word(&self, addr: Addr) -> usize {
        let word = (addr.offset / 8) as usize;
        assert!(word < self.words_per_node, "{addr} is outside of the case's lock memory");
        addr.node.0 as usize * self.words_per_node + word
    }

    pub(super) fn node(&self, client: usize) -> usize {
        self.memory_words + client
    }

    /// Mailboxes of clients come first, then those of roles.
    pub(super) fn mailbox(&self, peer: usize) -> usize {
        self.memory_words + self.clients + peer
    }

    pub(super) fn role(&self, role: usize) -> usize {
        self.memory_words + 2 * self.clients + self.roles + role
    }

    pub(super) fn timers(&self, role: usize) -> usize {
        self.memory_words + 2 * self.clients + 2 * self.roles + role
    }

    /// Only with a clock.
    pub(super) fn moved(&self, client: usize) -> usize {
        self.memory_words + 2 * self.clients + 3 * self.roles + client
    }

    /// Only with a clock.
    pub(super) fn clock(&self) -> usize {
        self.stride() - 3
    }

    pub(super) fn watch(&self) -> usize {
        self.stride() - 2
    }

    pub(super) fn faults(&self) -> usize {
        self.stride() - 1
    }
}

/// Who is down, and how much may still go wrong.
///
/// | bits | meaning |
/// |---|---|
/// | 0–7 | client i is paused |
/// | 8–19 | crashes, pauses, losses, duplicates left (3 bits each) |
/// | 20–23 | restarts, losses of nodes left (2 bits each) |
/// | 24 | a client has crashed |
/// | 25 | a client has paused |
/// | 26–31 | client i, of the first six, has been paused |
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FaultWord(pub(super) u32);

/// The budgets of a [`FaultWord`], by where they sit in it.
#[derive(Clone, Copy, Debug)]
pub(super) enum Budget {
    Crashes = 8,
    Pauses = 11,
    Losses = 14,
    Duplicates = 17,
    Restarts = 20,
    NodeLosses = 22,
}

impl Budget {
    /// The most that it can hold.
    const fn most(self) -> u32 {
        match self {
            Budget::Crashes | Budget::Pauses | Budget::Losses | Budget::Duplicates => 7,
            Budget::Restarts | Budget::NodeLosses => 3,
        }
    }
}

impl FaultWord {
    const CRASHED: u32 = 1 << 24;
    const HAS_PAUSED: u32 = 1 << 25;
    const SLEPT: u32 = 1 << 26;

    pub(super) fn new(faults: Faults) -> Self {
        let budgets = [
            (faults.crashes, Budget::Crashes),
            (faults.pauses, Budget::Pauses),
            (faults.losses, Budget::Losses),
            (faults.duplicates, Budget::Duplicates),
            (faults.restarts, Budget::Restarts),
            (faults.node_losses, Budget::NodeLosses),
        ];
        Self(budgets.iter().fold(0, |word, (count, budget)| {
            assert!(u32::from(*count) <= budget.most(), "at most {} faults of this kind", budget.most());
            word | u32::from(*count) << *budget as u32
        }))
    }

    pub(super) fn left(self, budget: Budget) -> u32 {
        self.0 >> budget as u32 & budget.most()
    }

    pub(super) fn spend(self, budget: Budget) -> Self {
        Self(self.0 - (1 << budget as u32))
    }

    pub(super) fn is_paused(self, client: usize) -> bool {
        self.0 & 1 << client != 0
    }

    pub(super) fn with_crash(self) -> Self {
        Self(self.spend(Budget::Crashes).0 | Self::CRASHED)
    }

    pub(super) fn with_node_loss(self) -> Self {
        Self(self.spend(Budget::NodeLosses).0 | Self::CRASHED)
    }

    pub(super) fn with_pause(self, client: usize) -> Self {
        let slept = if client < 6 { Self::SLEPT << client } else { 0 };
        Self(self.spend(Budget::Pauses).0 | Self::HAS_PAUSED | slept | 1 << client)
    }

    /// Whether the client is or was paused.
    pub(super) fn has_slept(self, client: usize) -> bool {
        assert!(client < 6, "only six clients can be told that they slept");
        self.0 & Self::SLEPT << client != 0
    }

    pub(super) fn without_pause(self, client: usize) -> Self {
        Self(self.0 & !(1 << client))
    }

    /// A client has crashed, or is paused now.
    pub(super) fn any_client_is_down(self) -> bool {
        self.0 & (Self::CRASHED | 0xff) != 0
    }

    pub(super) fn any_client_crashed(self) -> bool {
        self.0 & Self::CRASHED != 0
    }
}

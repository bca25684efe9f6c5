//! DSLR's lock word: four counters, and what a ticket holder may conclude from them.
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 48–63 | nX | exclusive tickets served |
//! | 32–47 | nS | shared tickets served |
//! | 16–31 | maxX | exclusive tickets taken |
//! | 0–15 | maxS | shared tickets taken |
//!
//! | word | state |
//! |---|---|
//! | nX = maxX, nS = maxS | free |
//! | nX < maxX or nS < maxS | so many tickets are held or waiting |
//! | maxX or maxS ≥ limit | full: no more tickets until the word is set back to zero |
//! | nX > limit | full, and every client with a ticket passed over: to be set back when all have seen it |
//!
//! A ticket is what the word was when it was taken. An exclusive ticket is served when nX and nS have come to where
//! maxX and maxS were; a shared one when nX has. Numbers and nothing else: no verbs here.

use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Cond, Field};

const N_X: Field = Field { shift: 48, bits: 16 };
const N_S: Field = Field { shift: 32, bits: 16 };
const MAX_X: Field = Field { shift: 16, bits: 16 };
const MAX_S: Field = Field { shift: 0, bits: 16 };

/// The four counters of a lock word.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Counters {
    /// Exclusive tickets served.
    pub n_x: u64,
    /// Shared tickets served.
    pub n_s: u64,
    /// Exclusive tickets taken.
    pub max_x: u64,
    /// Shared tickets taken.
    pub max_s: u64,
}

impl Counters {
    /// Out of a word.
    #[inline(always)]
    pub fn of(word: u64) -> Self {
        let get = |field: Field| field.get(u128::from(word)) as u64;
        Self { n_x: get(N_X), n_s: get(N_S), max_x: get(MAX_X), max_s: get(MAX_S) }
    }

    /// Into a word.
    #[inline(always)]
    pub fn word(self) -> u64 {
        let put = |field: Field, value: u64| field.put(u128::from(value)) as u64;
        put(N_X, self.n_x) | put(N_S, self.n_s) | put(MAX_X, self.max_x) | put(MAX_S, self.max_s)
    }

    /// No tickets are left, in one mode or the other.
    pub const fn is_full(self, limit: u64) -> bool {
        self.max_x >= limit || self.max_s >= limit
    }

    /// Full, and every client with a ticket has been passed over.
    pub const fn is_cleared(self, limit: u64) -> bool {
        self.n_x > limit
    }

    /// Full, and every ticket ever taken has been served: no client notices if the word is set back to zero.
    pub const fn is_spent(self, limit: u64) -> bool {
        let all_served = self.n_x == self.max_x && self.n_s == self.max_s;
        self.is_full(limit) && all_served && !self.is_cleared(limit)
    }

    /// Whether the same tickets have been served: nothing has moved.
    pub const fn served_as(self, other: Self) -> bool {
        self.n_x == other.n_x && self.n_s == other.n_s
    }

    /// Passes over every client with a ticket, the living too: they see it and take new ones. A writer that never was
    /// takes one ticket and has been served, so that no ticket of before can be taken for one of after.
    pub const fn cleared(self, limit: u64) -> Self {
        let next = self.max_x + 1;
        if next >= limit || self.is_full(limit) {
            // Past every ticket ever given out. A client that overshot takes back what it added, so maxX and maxS stay.
            let max_x = if self.is_full(limit) { self.max_x } else { limit };
            return Self { n_x: limit + 1, max_x, ..self };
        }
        Self { n_x: next, max_x: next, n_s: self.max_s, max_s: self.max_s }
    }
}

/// A ticket: where maxX and maxS stood when it was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    /// In which mode.
    pub mode: Mode,
    /// Exclusive tickets before it.
    pub x: u64,
    /// Shared tickets before it.
    pub s: u64,
}

/// What a word says about a ticket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TicketState {
    /// It is served: the lock is held.
    Served,
    /// Others are before it.
    Waits,
    /// A waiter cleared the lock after a crash, and passed it over.
    PassedOver,
}

impl Ticket {
    /// The ticket that was taken when the word was `before`.
    pub const fn taken(mode: Mode, before: Counters) -> Self {
        Self { mode, x: before.max_x, s: before.max_s }
    }

    /// What a fetch-and-add adds to take a ticket.
    #[inline(always)]
    pub const fn take(mode: Mode) -> u64 {
        match mode {
            Mode::Exclusive => 1 << MAX_X.shift,
            Mode::Shared => 1 << MAX_S.shift,
        }
    }

    /// What a fetch-and-add adds to count a ticket as served.
    #[inline(always)]
    pub const fn serve(mode: Mode) -> u64 {
        match mode {
            Mode::Exclusive => 1 << N_X.shift,
            Mode::Shared => 1 << N_S.shift,
        }
    }

    /// What `now` says about it. For a reader nS says nothing: those with the same writers before them are served
    /// together and may be gone first.
    pub const fn state(self, now: Counters) -> TicketState {
        let served = match self.mode {
            Mode::Exclusive => now.n_x == self.x && now.n_s == self.s,
            Mode::Shared => now.n_x == self.x,
        };
        if served {
            TicketState::Served
        } else if now.n_x > self.x {
            TicketState::PassedOver
        } else {
            TicketState::Waits
        }
    }

    /// How many tickets before it are not served, as far as it has to wait for them.
    pub const fn before_it(self, now: Counters) -> u64 {
        let writers = self.x.saturating_sub(now.n_x);
        match self.mode {
            Mode::Exclusive => writers + self.s.saturating_sub(now.n_s),
            Mode::Shared => writers,
        }
    }
}

/// Holds when other tickets have been served than in `seen`, or the lock was cleared.
pub(super) fn moved_on(seen: Counters) -> Cond {
    Cond::Ne { mask: N_X.mask() | N_S.mask(), value: u128::from(seen.word()) }
}

/// Holds when tickets are given out again. The limit is a power of two.
pub(super) fn not_full(limit: u64) -> Cond {
    let high = |field: Field| field.mask() & !(u128::from(limit - 1) << field.shift);
    Cond::Eq { mask: high(MAX_X) | high(MAX_S), value: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: u64 = 1 << 15;

    #[test]
    fn counters_survive_the_word() {
        let counters = Counters { n_x: 1, n_s: 0xfffe, max_x: 3, max_s: 0xffff };
        assert_eq!(Counters::of(counters.word()), counters);
        assert_eq!(counters.word(), 0x0001_fffe_0003_ffff);
    }

    #[test]
    fn each_step_adds_to_its_own_counter() {
        let word = |mode| Counters::of(Ticket::take(mode) + Ticket::serve(mode));
        assert_eq!(word(Mode::Exclusive), Counters { n_x: 1, max_x: 1, ..Counters::default() });
        assert_eq!(word(Mode::Shared), Counters { n_s: 1, max_s: 1, ..Counters::default() });
    }

    #[test]
    fn a_reader_does_not_mind_readers_who_leave_before_it_looks() {
        let ticket = Ticket { mode: Mode::Shared, x: 1, s: 0 };
        let other_left = Counters { n_x: 1, n_s: 1, max_x: 1, max_s: 2 };
        assert_eq!(ticket.state(other_left), TicketState::Served);
    }

    #[test]
    fn clearing_passes_over_every_ticket_and_leaves_the_lock_free() {
        let stuck = Counters { n_x: 0, n_s: 0, max_x: 1, max_s: 2 };
        let cleared = stuck.cleared(LIMIT);
        for s in 0..2 {
            assert_eq!(Ticket { mode: Mode::Shared, x: 1, s }.state(cleared), TicketState::PassedOver);
        }
        assert_eq!(Ticket::taken(Mode::Exclusive, cleared).state(cleared), TicketState::Served);
    }

    #[test]
    fn a_full_word_that_is_cleared_stays_full() {
        let full = Counters { n_x: 7, n_s: 0, max_x: 9, max_s: LIMIT + 1 };
        let cleared = full.cleared(LIMIT);
        assert!(cleared.is_full(LIMIT) && cleared.is_cleared(LIMIT));
        assert!(!cleared.is_spent(LIMIT));
        let last = Ticket { mode: Mode::Shared, x: 9, s: LIMIT - 1 };
        assert_eq!(last.state(cleared), TicketState::PassedOver);
    }

    #[test]
    fn clearing_that_uses_up_the_last_ticket_leaves_the_word_full() {
        let stuck = Counters { n_x: 3, n_s: 0, max_x: LIMIT - 1, max_s: 0 };
        let cleared = stuck.cleared(LIMIT);
        assert!(cleared.is_full(LIMIT) && cleared.is_cleared(LIMIT) && !cleared.is_spent(LIMIT));
    }

    #[test]
    fn a_word_is_spent_when_its_last_ticket_is_served() {
        let served = Counters { n_x: 4, n_s: LIMIT, max_x: 4, max_s: LIMIT };
        assert!(served.is_spent(LIMIT));
        assert!(!Counters { max_x: 5, ..served }.is_spent(LIMIT));
        assert!(!Counters { n_s: LIMIT - 1, max_s: LIMIT - 1, ..served }.is_spent(LIMIT));
    }

    #[test]
    fn full_is_what_the_wait_waits_out() {
        for (max_x, max_s) in [(LIMIT - 1, 0), (LIMIT, 0), (0, LIMIT + 5), (3, 4)] {
            let counters = Counters { max_x, max_s, ..Counters::default() };
            assert_eq!(not_full(LIMIT).holds(u128::from(counters.word())), !counters.is_full(LIMIT));
        }
    }
}

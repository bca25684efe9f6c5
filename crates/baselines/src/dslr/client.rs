//! The bakery's steps on any one word: take a ticket, wait for its turn, count it as served; clear what is stuck.
//!
//! A part that other locks can use: it knows a word and nothing of tables of locks.

use super::DslrParams;
use super::rules::{AsShipped, Rules};
use super::word::{Counters, Ticket, TicketState, moved_on, not_full};
use lockwright_fabric::observe::{Mode, Observation};
use lockwright_fabric::{Deadline, Endpoint, FabricError, MAX_BATCH, Time, Word64};
use lockwright_locks::{Denied, Lost, Patience, Reason, Want};
use std::marker::PhantomData;

/// One client's side of DSLR locks, wherever their words are.
#[derive(Clone, Debug)]
pub(crate) struct Bakery<E, R = AsShipped> {
    ep: E,
    params: DslrParams,
    rules: PhantomData<R>,
}

/// A ticket whose turn has come: what release needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Turn {
    ticket: Ticket,
    /// When the lease runs out.
    expires: Time,
}

/// What became of a lock that seemed stuck, and its word.
enum Cleared {
    /// Every client with a ticket has been passed over, this one too.
    ByMe(Counters),
    /// Something moved.
    NoNeed(Counters),
}

impl<E: Endpoint, R: Rules> Bakery<E, R> {
    /// A client that talks through `ep`.
    ///
    /// # Panics
    /// If the limit is not a power of two between 2 and 2^15.
    pub(crate) fn new(ep: E, params: &DslrParams) -> Self {
        let limit = params.limit;
        assert!(limit.is_power_of_two() && (2..=1 << 15).contains(&limit), "{limit} is no limit for tickets");
        Self { ep, params: params.clone(), rules: PhantomData }
    }

    /// Acquires the lock at `word`, in the mode that `want` says. A ticket cannot be given back, so a client that
    /// waits does so to the end.
    ///
    /// # Errors
    /// The lock is busy and the client only tries, or the fabric failed.
    pub(crate) async fn acquire(&self, word: Word64, want: Want) -> Result<Turn, Denied> {
        match want.patience {
            Patience::Forever => {}
            Patience::Try => return self.try_acquire(word, want.claim.mode).await,
            Patience::Until(_) => {
                return Err(Denied::Unsupported(&Reason("a DSLR ticket cannot be given back")));
            }
        }
        let mode = want.claim.mode;
        loop {
            self.ep.mark("dslr takes a ticket", &[at(word)]);
            let before = Counters::of(self.ep.go(word.fetch_add(Ticket::take(mode))).await?);
            if before.is_full(self.params.limit) {
                self.wait_for_tickets(word, want).await?;
                continue;
            }
            let ticket = Ticket::taken(mode, before);
            if self.wait_for_turn(word, ticket, before, want).await? {
                return Ok(self.turn(ticket).await);
            }
            self.ep.observe(Observation::Aborted(want.claim));
        }
    }

    /// Gives the lock back.
    ///
    /// # Errors
    /// The lease has run out: others may have cleared the lock, so it is left alone. Or the fabric failed.
    pub(crate) async fn release(&self, word: Word64, turn: Turn) -> Result<(), Lost> {
        if self.ep.passed(turn.expires).await {
            return Err(Lost::Recovered);
        }
        let serve = Ticket::serve(turn.ticket.mode);
        let after = self.ep.go(word.fetch_add(serve)).await? + serve;
        self.set_back_if_spent(word, Counters::of(after)).await?;
        Ok(())
    }

    /// Gives several locks back at once. All their words must be on one node.
    ///
    /// # Errors
    /// As [`Bakery::release`], if that holds for any of them; the others are given back all the same.
    pub(crate) async fn release_all(&self, held: &[(Word64, Turn)]) -> Result<(), Lost> {
        let mut mine = Vec::with_capacity(held.len());
        for (word, turn) in held {
            if !self.ep.passed(turn.expires).await {
                mine.push((*word, Ticket::serve(turn.ticket.mode)));
            }
        }
        for some in mine.chunks(MAX_BATCH) {
            let verbs: Vec<_> = some.iter().map(|(word, serve)| word.fetch_add(*serve).raw()).collect();
            let olds = self.ep.go(verbs.as_slice()).await?;
            for ((word, serve), old) in some.iter().zip(olds) {
                self.set_back_if_spent(*word, Counters::of(old as u64 + serve)).await?;
            }
        }
        if mine.len() == held.len() { Ok(()) } else { Err(Lost::Recovered) }
    }

    /// Takes a ticket only if its turn comes with it.
    async fn try_acquire(&self, word: Word64, mode: Mode) -> Result<Turn, Denied> {
        let mut seen = self.ep.go(word.read()).await?;
        loop {
            self.ep.mark("dslr tries", &[at(word), seen]);
            let before = Counters::of(seen);
            let ticket = Ticket::taken(mode, before);
            if before.is_full(self.params.limit) || ticket.state(before) != TicketState::Served {
                return Err(Denied::Busy);
            }
            let old = self.ep.go(word.cas(seen, seen + Ticket::take(mode))).await?;
            if old == seen {
                return Ok(self.turn(ticket).await);
            }
            seen = old;
        }
    }

    async fn turn(&self, ticket: Ticket) -> Turn {
        Turn { ticket, expires: self.ep.now().await.plus(self.params.lease_ns) }
    }

    /// Looks again and again until the ticket is served (true) or passed over (false).
    async fn wait_for_turn(
        &self,
        word: Word64,
        ticket: Ticket,
        mut seen: Counters,
        want: Want,
    ) -> Result<bool, FabricError> {
        if ticket.mode == Mode::Shared && !R::READER_WAITS {
            return Ok(true);
        }
        loop {
            match ticket.state(seen) {
                TicketState::Served => return Ok(true),
                TicketState::PassedOver => return Ok(false),
                TicketState::Waits => {}
            }
            self.ep.mark("dslr waits", &[at(word), ticket.x, ticket.s, seen.n_x, seen.n_s]);
            // Two leases in which no client is served: one for the holder to stop believing, one for its last verb.
            let patience = self.ep.now().await.plus(2 * self.params.lease_ns);
            let pace_ns = self.params.wait_ns * ticket.before_it(seen);
            self.ep.sleep(pace_ns).await;
            let moved = word.until(moved_on(seen)).by(Deadline::At(patience)).pace(pace_ns);
            let waited = self.ep.wait_until(moved).await?;
            seen = Counters::of(waited.value);
            if !waited.met {
                match self.clear(word, Some(ticket), seen, want).await? {
                    Cleared::ByMe(_) => return Ok(false),
                    Cleared::NoNeed(now) => seen = now,
                }
            }
        }
    }

    /// The word is full: take back what was added, and wait until it has been set back.
    async fn wait_for_tickets(&self, word: Word64, want: Want) -> Result<(), FabricError> {
        let limit = self.params.limit;
        let take = Ticket::take(want.claim.mode);
        let after = self.ep.go(word.fetch_add(take.wrapping_neg())).await? - take;
        let mut seen = Counters::of(after);
        self.set_back_if_spent(word, seen).await?;
        loop {
            self.ep.mark("dslr waits for tickets", &[at(word), seen.n_x, seen.n_s]);
            let patience = self.ep.now().await.plus(2 * self.params.lease_ns);
            let wait = word.until(not_full(limit)).or(moved_on(seen)).by(Deadline::At(patience));
            let waited = self.ep.wait_until(wait.pace(self.params.wait_ns)).await?;
            seen = Counters::of(waited.value);
            if !waited.met {
                let (Cleared::ByMe(now) | Cleared::NoNeed(now)) = self.clear(word, None, seen, want).await?;
                seen = now;
            }
            if !seen.is_full(limit) {
                return Ok(());
            }
        }
    }

    /// A client that left the word full with every ticket served sets it back to zero. If another client overshot meanwhile, it
    /// will come here too, when it has taken back what it added.
    async fn set_back_if_spent(&self, word: Word64, after: Counters) -> Result<(), FabricError> {
        let limit = self.params.limit;
        if after.is_spent(limit) || (after.is_full(limit) && !R::RESET_WAITS) {
            self.ep.go(word.cas(after.word(), 0)).await?;
        }
        Ok(())
    }

    /// Nothing has moved for two leases since the word was `seen`: passes over every client with a ticket or, where
    /// that has been done to a full word, sets it back to zero. If something moved after all, it is left alone.
    async fn clear(
        &self,
        word: Word64,
        ticket: Option<Ticket>,
        mut seen: Counters,
        want: Want,
    ) -> Result<Cleared, FabricError> {
        let limit = self.params.limit;
        loop {
            let mine = ticket.map_or([u64::MAX; 2], |ticket| [ticket.x, ticket.s]);
            self.ep.mark("dslr clears", &[at(word), mine[0], mine[1], seen.word()]);
            let new = if seen.is_cleared(limit) {
                // Two leases ago: a client that had a ticket has seen it, and a client that overshot has taken it back.
                Counters::default()
            } else {
                R::cleared(ticket, seen, limit)
            };
            let old = Counters::of(self.ep.go(word.cas(seen.word(), new.word())).await?);
            if old == seen {
                self.ep.observe(Observation::Recovered(want.claim));
                return Ok(Cleared::ByMe(new));
            }
            if !old.served_as(seen) {
                return Ok(Cleared::NoNeed(old));
            }
            seen = old;
        }
    }
}

/// The word, for marks: a lock made of several words is at different places of its own code at each of them.
fn at(word: Word64) -> u64 {
    word.addr().offset
}

//! Tickets of the dead, and of those who gave up: found by the records of the living, and passed over.
//!
//! A client reads the head of its side and that the ticket was drawn, *then* the records, and swaps exactly the head it has
//! read. The owner of that ticket, if it lives, had written *taking* before it drew it, and stays in its record until its side
//! serves the next. So it is found, or the swap fails. Nobody is passed anything by a skip.
//!
//! Who waits for the other side does not touch that side's words. If nobody alive has the ticket that is served there, and the
//! head is still the same after the records were read, then nobody there has the lock: who comes to that head later was passed
//! nothing, finds this side's queue not empty, and yields.

use super::layout::{Head, LockState, Queue};
use super::record::{UNSETTLED, turn};
use super::{MemberClient, MemberRules, MemberSpace, Side};
use crate::holders::listed::{listed, load_all};
use crate::holders::record::{First, Kind, RecordWord, State};
use crate::holders::space::bits;
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Endpoint, FabricError, PeerId, Word64};

/// A record that is in use for a lock.
struct Used {
    peer: PeerId,
    place: Word64,
    first: First,
    turn: u64,
}

impl<E: Endpoint, S: MemberSpace, R: MemberRules> MemberClient<E, S, R> {
    /// Passes over the tickets below `ticket`, all of which were drawn, that nobody alive has; from the head on, which was this.
    /// Returns what it is now.
    pub(super) async fn skip_dead(
        &self,
        lock: u64,
        mut head: Head,
        ticket: u64,
    ) -> Result<Head, FabricError> {
        while head.ticket() < ticket && !self.has_owner(lock, self.side, head).await? {
            head = self.skip(lock, head).await?;
            self.ep.mark("qplock-member: skips", &[ticket, head.0]);
        }
        Ok(head)
    }

    /// The owner of the ticket that the own side serves is dead. Returns what the head is now.
    async fn skip(&self, lock: u64, seen: Head) -> Result<Head, FabricError> {
        let (word, next) = (self.locks.lock(lock).head(self.side), seen.skipped());
        if !R::SKIPS_COMPARE {
            self.ep.go(word.write(next.0)).await?;
            return Ok(next);
        }
        let found = Head(self.ep.go(word.cas(seen.0, next.0)).await?);
        Ok(if found == seen { next } else { found })
    }

    /// Whether a live client of `side` drew the ticket of `head`, or may have.
    async fn has_owner(&self, lock: u64, side: Side, head: Head) -> Result<bool, FabricError> {
        let is_it = |found| found == turn(head.ticket()) || found == UNSETTLED && R::SKIPS_HEED_UNSETTLED;
        self.is_queued(lock, side, is_it).await
    }

    /// Whether nobody of the other side, whose queue looked like this, has the lock or will without looking at this side's.
    pub(super) async fn nobody_leads(&self, lock: u64, rival: Queue) -> Result<bool, FabricError> {
        let them = self.side.other();
        if self.has_owner(lock, them, rival.head).await? {
            return Ok(false);
        }
        if !R::LOOKS_AT_THE_HEAD_AGAIN {
            return Ok(true);
        }
        Ok(self.ep.go(self.locks.lock(lock).head(them).read()).await? == rival.head.0)
    }

    /// The lock was taken past a dead head of the other side, which stays where it is: tokens rise all the same.
    pub(super) async fn count_the_dead(&self, lock: u64) -> Result<(), FabricError> {
        if R::TOKENS_COUNT_THE_DEAD {
            let word = self.locks.lock(lock).state();
            let state = LockState(self.ep.go(word.read()).await?);
            self.ep.go(word.write(state.past_the_dead().0)).await?;
        }
        Ok(())
    }

    /// Passes over all tickets of the dead on the own side, for who wants nothing itself. Returns whether the queue is empty.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub async fn recover(&self, lock: u64) -> Result<bool, FabricError> {
        let drawn = self.drawn(lock).await?;
        self.recover_below(lock, drawn).await
    }

    /// The same for those of the first `drawn` tickets; whether none of them is left, of the living either.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub async fn recover_below(&self, lock: u64, drawn: u64) -> Result<bool, FabricError> {
        let head = Head(self.ep.go(self.locks.lock(lock).head(self.side).read()).await?);
        Ok(self.skip_dead(lock, head, drawn).await?.ticket() >= drawn)
    }

    /// Tickets that the own side has given out.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub async fn drawn(&self, lock: u64) -> Result<u64, FabricError> {
        self.ep.go(self.locks.lock(lock).tail(self.side).read()).await
    }

    /// The last token that was given out for a lock that no client holds or wants; `None` if one may.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached.
    pub async fn last_token(&self, lock: u64) -> Result<Option<u64>, FabricError> {
        if !self.used(lock).await?.is_empty() {
            return Ok(None);
        }
        let words = self.locks.lock(lock);
        let theirs = self.rival(lock).await?;
        let ours = self.ep.go((words.head(self.side).read(), words.tail(self.side).read())).await?;
        let ours = Queue { head: Head(ours.0), tail: ours.1 };
        let state = LockState(self.ep.go(words.state().read()).await?);
        let is_quiet = ours.is_empty() && theirs.is_empty();
        Ok(is_quiet.then(|| state.token(ours.head.ticket(), theirs.head.ticket()) + 1))
    }

    /// Whether a live client's record on `side` is for `lock` and has a turn like that.
    async fn is_queued(
        &self,
        lock: u64,
        side: Side,
        is_there: impl Fn(u64) -> bool,
    ) -> Result<bool, FabricError> {
        for used in self.used(lock).await? {
            if is_there(used.turn)
                && self.space.side(used.peer).await? == side
                && self.space.is_alive(used.peer).await?
            {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The first word of a live reader's record for `lock`, and its value.
    pub(super) async fn a_reader(&self, lock: u64) -> Result<Option<(Word64, u64)>, FabricError> {
        for used in self.used(lock).await? {
            let reads = used.first.state() == Some(State::Held) && used.first.mode() == Mode::Shared;
            if reads && self.space.is_alive(used.peer).await? {
                return Ok(Some((self.space.place(used.place), used.first.0)));
            }
        }
        Ok(None)
    }

    /// The records that are in use for `lock`, of those who are in.
    async fn used(&self, lock: u64) -> Result<Vec<Used>, FabricError> {
        let mut records = Vec::new();
        for listed in listed(&self.space).await?.iter().filter(|listed| listed.is_in) {
            let place = |record| self.record_of(listed.peer, record as u8);
            records.extend(bits(listed.used).map(|record| (listed.peer, place(record))));
        }
        let firsts: Vec<_> = records.iter().map(|(_, at)| at.word(RecordWord::First)).collect();
        let firsts = load_all(&self.space, &firsts).await?.into_iter().map(First);
        let found: Vec<_> =
            records.into_iter().zip(firsts).filter(|(_, first)| first.is_for(Kind::Keyed, lock)).collect();
        let turns: Vec<_> = found.iter().map(|((_, at), _)| at.word(RecordWord::Turn)).collect();
        let turns = load_all(&self.space, &turns).await?;
        let used = found.into_iter().zip(turns);
        Ok(used
            .map(|(((peer, at), first), turn)| Used { peer, place: at.word(RecordWord::First), first, turn })
            .collect())
    }
}

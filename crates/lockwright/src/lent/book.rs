//! The book of a lent space as a client has it: it writes its own cards by WRITEs, and reads those of others by READs.
//!
//! A card is posted and not waited for: the verb that takes the lock goes over the same connection, and comes after it. If
//! the connection breaks in between, that order is lost. So a grant counts only if no connection broke since its card was
//! written; whatever such a grant leaves in the lock's word is held by nobody's card, and the next to come resets it.
//! The card of a range is waited for: what comes after it may be a message to another client, which goes another way.

use super::layout;
use super::reach::Reach;
use crate::home::Kind;
use crate::home::cards::{CARDS, Card, END, SINCE, START, State, TOKEN, TURN, first};
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{FabricError, NodeId, RawVerb, Word64};
use lockwright_locks::kept::ranges::{Entered, RangeBook};
use lockwright_locks::kept::{self, Book, KeptClient, Says};
use lockwright_locks::shiftlock::Shipped;
use lockwright_locks::shiftlock::layout::{Layout, Member};
use lockwright_locks::shiftlock::stirred_portable::StirredPortable;
use lockwright_locks::shiftlock::witness::Witness;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// A client of the locks of a lent space.
pub(crate) type Kept<E> = KeptClient<E, LentBook<E>, Shipped, StirredPortable>;

/// Pause before somebody looks again whether there is room to post, or a sign of life was answered.
const PAUSE_NS: u64 = 100_000;
/// How often a waiter for a range looks whether those in its way are alive.
const LOOK_NS: u64 = 30_000_000;
/// READs in one batch: as many as go out together.
const READS: usize = 16;
/// The server cannot be reached, or has given this client up.
const GONE: FabricError = FabricError::NodeLost(NodeId(0));

/// One client's view of the book.
#[derive(Debug)]
pub(crate) struct LentBook<E> {
    ep: E,
    shared: Arc<Written>,
}

/// What was written, and over which connection.
#[derive(Debug)]
struct Written {
    /// Connections that had broken when a card was last written.
    at: [AtomicU64; CARDS as usize],
    /// Cards that have been in use, as others can read it, and connections that had broken when that was written.
    used: Mutex<(u64, u64)>,
}

impl<E: Reach> LentBook<E> {
    pub(crate) fn new(ep: E) -> Self {
        let at = [const { AtomicU64::new(0) }; CARDS as usize];
        Self { ep, shared: Arc::new(Written { at, used: Mutex::new((0, 0)) }) }
    }

    fn me(&self) -> u64 {
        u64::from(self.ep.me().0)
    }

    /// Posts `verbs`, as soon as there is room.
    async fn post(&self, verbs: &[RawVerb]) -> Result<(), FabricError> {
        while !self.ep.post(verbs) {
            self.pause().await?;
        }
        Ok(())
    }

    async fn pause(&self) -> Result<(), FabricError> {
        if self.ep.is_over() {
            return Err(GONE);
        }
        self.ep.sleep(PAUSE_NS).await;
        Ok(())
    }

    /// Says, once for every card and connection, that it is in use now and then. Posted under the lock, so that what is
    /// written last says most.
    async fn uses(&self, card: u8) -> Result<(), FabricError> {
        loop {
            let breaks = self.ep.breaks();
            {
                let mut used = self.shared.used.lock().unwrap_or_else(PoisonError::into_inner);
                let with = (used.0 | 1 << card, breaks);
                if *used == with {
                    return Ok(());
                }
                if self.ep.post(&[layout::used(self.me()).write(with.0).raw()]) {
                    *used = with;
                    return Ok(());
                }
            }
            self.pause().await?;
        }
    }

    /// What to write on a card, the first word last.
    async fn words(&self, card: u8, first: u64, more: &[(u64, u64)]) -> Result<Vec<RawVerb>, FabricError> {
        self.uses(card).await?;
        self.shared.at[usize::from(card)].store(self.ep.breaks(), SeqCst);
        let word = |word, value| layout::card(self.me(), u64::from(card), word).write(value).raw();
        let words = more.iter().map(|(at, value)| word(*at, *value));
        Ok(words.chain([word(0, first)]).collect())
    }

    async fn read(&self, words: &[Word64]) -> Result<Vec<u64>, FabricError> {
        let mut read = Vec::with_capacity(words.len());
        for some in words.chunks(READS) {
            let verbs: Vec<_> = some.iter().map(|word| word.read().raw()).collect();
            read.extend(self.ep.go(&verbs[..]).await?.iter().map(|old| *old as u64));
        }
        Ok(read)
    }

    /// The cards that somebody who is in has used, by client and number.
    async fn cards(&self) -> Result<Vec<(u64, u64)>, FabricError> {
        let top = self.ep.go(layout::top().read()).await?.min(layout::NUMBERS);
        let lines: Vec<_> =
            (1..=top).flat_map(|number| [layout::is_in(number), layout::used(number)]).collect();
        let lines = self.read(&lines).await?;
        let mut cards = Vec::new();
        for (number, line) in (1..=top).zip(lines.chunks_exact(2)) {
            if line[0] != 0 {
                cards.extend(layout::bits(line[1]).map(|card| (number, card)));
            }
        }
        Ok(cards)
    }

    /// The cards of those who are in for which `which` is true, by client, number and first word.
    async fn find(&self, which: impl Fn(u64, u64, u64) -> bool) -> Result<Vec<(u64, u64)>, FabricError> {
        let mut cards = self.cards().await?;
        let words: Vec<_> = cards.iter().map(|(number, card)| layout::card(*number, *card, 0)).collect();
        let mut firsts = self.read(&words).await?.into_iter();
        cards.retain(|(number, card)| firsts.next().is_some_and(|first| which(*number, *card, first)));
        Ok(cards)
    }

    /// A card as a whole, read until it does not change meanwhile.
    async fn card(&self, number: u64, card: u64) -> Result<Option<Card>, FabricError> {
        let words = [0, TOKEN, SINCE, START, END, TURN, 0].map(|word| layout::card(number, card, word));
        loop {
            let read = self.read(&words).await?;
            if read[0] == read[6] {
                let words = [read[0], read[1], read[2], read[3], read[4], read[5]];
                return Ok(Card::of(layout::peer(number), card, words));
            }
        }
    }

    async fn now(&self) -> u64 {
        self.ep.now().await.0
    }
}

const fn is_of(first: u64, kind: Kind, lock: u64) -> bool {
    first >> 8 == lock && (first >> 5 & 1 == 1) == matches!(kind, Kind::Ranges)
}

impl<E: Reach> Witness for LentBook<E> {
    async fn is_held(&self, lock: u64, except: Member) -> Result<bool, FabricError> {
        let holds =
            |first: u64| [State::Taking, State::Held].iter().any(|state| *state as u64 == first & 0xf);
        let asks = |number, card| {
            let slot = card & StirredPortable::SLOT.max() as u64;
            Member::new::<StirredPortable>(layout::peer(number), slot) == Some(except)
        };
        let held =
            |number, card, first| is_of(first, Kind::Keyed, lock) && holds(first) && !asks(number, card);
        Ok(!self.find(held).await?.is_empty())
    }
}

impl<E: Reach> Book for LentBook<E> {
    async fn write(&self, card: u8, says: Option<Says>) -> Result<(), FabricError> {
        let verbs = match says {
            None => {
                let card = layout::card(self.me(), u64::from(card), 0);
                return self.post(&[card.write(0).raw()]).await;
            }
            Some(Says { state: kept::State::Taking, claim }) => {
                self.words(card, first(State::Taking, Kind::Keyed, &claim), &[]).await?
            }
            Some(Says { state, claim }) => {
                let more = [(TOKEN, 0), (SINCE, self.now().await)];
                self.words(card, first(state.into(), Kind::Keyed, &claim), &more).await?
            }
        };
        self.post(&verbs).await
    }

    /// The verb that brought the lock was executed while this client was in: its queue pair is destroyed before it is
    /// struck off. What is left to see is that it is not struck off just now for a sleep that lies behind it.
    async fn granted(&self, card: u8, token: u64) -> Result<(), FabricError> {
        let word = |word, value| layout::card(self.me(), u64::from(card), word).write(value).raw();
        self.post(&[word(TOKEN, token), word(SINCE, self.now().await)]).await?;
        while !self.ep.is_fresh() {
            self.pause().await.map_err(|_| FabricError::Evicted)?;
        }
        let written = self.shared.at[usize::from(card)].load(SeqCst);
        if written == self.ep.breaks() && !self.ep.is_over() { Ok(()) } else { Err(GONE) }
    }
}

impl<E: Reach> RangeBook for LentBook<E> {
    async fn enter(&self, card: u8, what: Option<Entered>) -> Result<(), FabricError> {
        let Some(Entered { state, claim, turn }) = what else { return self.write(card, None).await };
        let more =
            [(START, claim.start), (END, claim.end), (TURN, turn), (TOKEN, 0), (SINCE, self.now().await)];
        let verbs = self.words(card, first(state.into(), Kind::Ranges, &claim), &more).await?;
        self.ep.go(&verbs[..]).await.map(drop)
    }

    async fn is_entered(&self, card: u8, claim: Claim) -> Result<bool, FabricError> {
        let word = layout::card(self.me(), u64::from(card), 0);
        Ok(self.ep.go(word.read()).await? == first(State::Held, Kind::Ranges, &claim))
    }

    async fn is_blocked(&self, card: u8, claim: Claim, turn: u64) -> Result<bool, FabricError> {
        let mine = (self.me(), u64::from(card));
        let of_it = |number, card, first| is_of(first, Kind::Ranges, claim.lock) && (number, card) != mine;
        for (number, card) in self.find(of_it).await? {
            let entered = self.card(number, card).await?.and_then(|card| card.entered());
            if entered.is_some_and(|entered| {
                entered.claim.lock == claim.lock && entered.is_in_the_way(&claim, turn)
            }) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn gate(&self, lock: u64) -> u64 {
        layout::gate(lock)
    }

    fn changes(&self, lock: u64) -> Word64 {
        layout::changes(lock)
    }

    fn patience_ns(&self, _: u32) -> Option<u64> {
        Some(LOOK_NS)
    }
}

/// A client of the locks that are lent to `ep`.
pub(crate) fn client<E: Reach + Clone>(ep: E) -> Kept<E> {
    let book = LentBook::new(ep.clone());
    KeptClient::new(ep, &layout::SHAPE, &layout::params(), book)
}

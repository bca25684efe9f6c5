//! Range locks between processes: exact, over all of 0..2^64, shared and exclusive, first come first served.
//!
//! They are kept ranges (`lockwright_locks::kept::ranges`): the cards are the lock. This file brings the cards of a space,
//! and gives requests their places.

use super::cards::{Card, State};
use super::member::Member;
use super::members::NAMES;
use super::shm::ShmBackend;
use super::vitals::Cards;
use super::{BoxFuture, Granted, Kind, ProtocolGrant, Refused, Standing};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::ShmEndpoint;
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Addr, Endpoint, FabricError, NodeId, RegionId, Word64};
use lockwright_locks::kept;
use lockwright_locks::kept::ranges::{Entered, RangeBook, RangeCards};
use lockwright_locks::{Denied, Lost};
use std::sync::Arc;
use std::time::Duration;

const REGION: RegionId = RegionId(2);
/// How often a waiter looks whether those in its way are alive.
const LOOK_NS: u64 = 30_000_000;
/// For so long a thread that only tries waits for the gate, which others have for microseconds. If a future has it that this
/// thread should be polling, it would wait for ever: somebody is in the way.
pub(super) const TRY: Duration = Duration::from_millis(500);

/// Bytes of the counts of changes of `locks` locks.
pub(crate) const fn bytes(locks: u64) -> u64 {
    locks * 8
}

fn changes(lock: u64) -> Word64 {
    Word64::at(Addr { offset: lock * 8, node: NodeId(0), region: REGION })
}

/// Tells those who wait that a range of `lock` is free, or that somebody left the queue.
pub(crate) fn changed(ep: &ShmEndpoint, lock: u64) -> Result<(), FabricError> {
    block_on(ep.go(changes(lock).fetch_add(1))).map(drop)
}

/// The keyed lock that guards the ranges of `lock`.
pub(crate) const fn gate(lock: u64) -> u64 {
    NAMES + lock
}

impl ShmBackend {
    /// Takes the range if nobody is in its way. `None`: others look just now, and one would have to wait for the gate.
    pub(super) fn try_range_now(&self, claim: Claim) -> Option<Result<Granted, Refused>> {
        let (member, cards) = match self.members.sit_twice() {
            Ok(seats) => seats,
            Err(error) => return Some(Err(Refused::Error(error))),
        };
        let tried = block_on(member.client.try_range_at_once(cards, claim));
        if tried.is_none() {
            member.stand_up(cards.gate);
            member.stand_up(cards.range);
        }
        Some(member.range(cards, claim, tried?))
    }

    /// Takes the range, however long it takes; without `wait`, if nobody is in its way. Either may have to wait for the gate,
    /// so neither blocks a thread: whoever has the gate may be a future of that thread.
    pub(super) fn range(&self, claim: Claim, wait: bool) -> BoxFuture<Result<Granted, Refused>> {
        let (member, cards): (Arc<Member>, _) = match self.members.sit_twice() {
            Ok((member, cards)) => (member.share(), cards),
            Err(error) => return Box::pin(async { Err(Refused::Error(error)) }),
        };
        Box::pin(async move {
            let client = &member.client;
            let taken = if wait {
                client.take_range(cards, claim).await
            } else {
                client.try_range(cards, claim).await
            };
            member.range(cards, claim, taken)
        })
    }

    pub(super) fn release_range(&self, claim: Claim, granted: &Granted) -> Result<(), Lost> {
        let (member, card) = (self.members.member(granted.record), granted.record.index());
        let given = block_on(member.client.give_range_back(card, claim));
        member.stand_up(card);
        match given {
            Err(Lost::Fabric(FabricError::Evicted)) => Err(Lost::Recovered),
            given => given,
        }
    }

    pub(super) fn range_standing(&self, claim: Claim, granted: &Granted) -> Standing {
        let member = self.members.member(granted.record);
        let book = &member.book;
        let held =
            book.pen.says_held(u64::from(granted.record.index()), &claim) && book.ep.is_member_seq_cst();
        if held { self.by_lease(&member) } else { Standing::Lost(member.lost_reason()) }
    }
}

impl Member {
    /// What came of a request by these cards.
    fn range(&self, cards: RangeCards, claim: Claim, token: Result<u64, Denied>) -> Result<Granted, Refused> {
        self.stand_up(cards.gate);
        match token {
            Ok(token) => Ok(self.granted(cards.range, ProtocolGrant::Range { token })),
            Err(denied) => {
                self.stand_up(cards.range);
                Err(Refused::new(denied, claim))
            }
        }
    }
}

impl Card {
    /// What it says, if it is a range's.
    pub(crate) fn entered(&self) -> Option<Entered> {
        let state = match self.state {
            State::Held => kept::State::Held,
            State::Waiting => kept::State::Waiting,
            State::Taking | State::Struck => return None,
        };
        (self.kind == Kind::Ranges).then_some(Entered { state, claim: self.claim, turn: self.turn })
    }
}

impl RangeBook for Cards {
    async fn enter(&self, card: u8, what: Option<Entered>) -> Result<(), FabricError> {
        self.if_in()?;
        let card = u64::from(card);
        match what {
            Some(entered) => {
                let waits = entered.state == kept::State::Waiting;
                let since = if waits { self.space.now() } else { self.life.last() };
                self.pen.fill_range(card, &entered, since);
            }
            None => self.pen.clear(card),
        }
        Ok(())
    }

    async fn is_entered(&self, card: u8, claim: Claim) -> Result<bool, FabricError> {
        self.if_in()?;
        Ok(self.pen.says_held(u64::from(card), &claim))
    }

    async fn is_blocked(&self, card: u8, claim: Claim, turn: u64) -> Result<bool, FabricError> {
        let mine = (self.ep.me(), u64::from(card));
        let blocks = |card: &Card| {
            let entered = card.entered().filter(|_| (card.peer, card.card) != mine);
            entered.is_some_and(|entered| entered.is_in_the_way(&claim, turn))
        };
        let mut in_the_way =
            self.sheets.all().filter(|sheet| self.sheets.in_the_way(*sheet, claim).any(|card| blocks(&card)));
        Ok(in_the_way.any(|sheet| self.is_alive(&sheet, self.space.now())))
    }

    fn gate(&self, lock: u64) -> u64 {
        gate(lock)
    }

    fn changes(&self, lock: u64) -> Word64 {
        changes(lock)
    }

    fn patience_ns(&self, _: u32) -> Option<u64> {
        Some(LOOK_NS)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Space;
    use super::super::shm::open;
    use super::*;
    use crate::Client;
    use crate::error::TryLockError;
    use crate::name::LockName;
    use lockwright_fabric::observe::Mode;
    use std::pin::Pin;
    use std::sync::mpsc;
    use std::task::{Context, Waker};

    /// Whoever has the gate may be a future that the same thread would poll next.
    #[test]
    fn whoever_asks_for_a_range_while_another_has_the_gate_gets_its_thread_back() {
        let path = std::env::temp_dir().join(format!("lockwright-gate-{}.space", std::process::id()));
        let client = Client::open(&format!("shm:{}", path.display())).unwrap();
        let ranges = client.range_lock("a").unwrap();
        let other = ShmBackend::new(open(&path, false).unwrap(), Duration::from_secs(10)).unwrap();
        let lock = other.bind(&LockName::new("a").unwrap(), Kind::Ranges).unwrap().lock;
        let inside = Claim { lock: gate(lock), mode: Mode::Exclusive, start: 0, end: u64::MAX };
        let granted = other.members.try_take(inside).unwrap();
        let (done, told) = mpsc::channel();
        let asks = std::thread::spawn(move || {
            let mut context = Context::from_waker(Waker::noop());
            let mut waits = ranges.write(0..1);
            let mut tries = ranges.write_timeout(1..2, Duration::ZERO);
            assert!(Pin::new(&mut waits).poll(&mut context).is_pending());
            assert!(Pin::new(&mut tries).poll(&mut context).is_pending());
            assert!(matches!(ranges.try_write(2..3), Err(TryLockError::Busy)));
            done.send(()).unwrap();
            (waits, tries)
        });
        told.recv_timeout(Duration::from_secs(60)).expect("nobody waits for a future of its own thread");
        let (waits, tries) = asks.join().unwrap();
        block_on(Arc::clone(&other.members).give_back(inside, granted)).unwrap();
        let granted = [waits.wait(), tries.wait()].map(|granted| granted.map(drop));
        let _ = std::fs::remove_file(path);
        assert_eq!(granted, [Ok(()), Ok(())]);
    }
}

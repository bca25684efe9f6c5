//! RMA-RW: a distributed MCS queue of writers with a reader mode beside it (Schmid, Besta, Hoefler: "High-Performance
//! Distributed RMA Locks", HPDC 2016; as ShiftLock §4.1 has it, for a server and its clients, without levels).
//!
//! | offset | bits | field | meaning |
//! |---|---|---|---|
//! | 0 | 0–63 | tail | 0: no writer; n: peer n is the last in the writers' queue |
//! | 8 | 0–30 | arrive | readers that came in |
//! | 8 | 31 | write mode | readers keep out |
//! | 8 | 32–62 | depart | readers that left |
//!
//! | counters | state |
//! |---|---|
//! | arrive = depart, read mode | nobody reads |
//! | arrive > depart, read mode | so many read (or came to look and are about to take it back) |
//! | write mode, arrive > depart | a writer waits for the last readers |
//! | write mode, arrive = depart | a writer holds it |
//!
//! A reader counts itself in with one fetch-and-add, and out with another; if it finds write mode, or a limit's worth
//! of readers since the last writer, it takes that back and waits. A writer queues as in [`mcs`](super::mcs); the first
//! of the queue waits until nobody reads, sets write mode, and looks again. Write mode stays on while the lock is handed
//! over; after so many writers in a row, or when nobody is next, the releasing writer goes back to read mode.
//!
//! The lock prefers readers: a writer that waits for them does not keep new ones out before the limit is reached.
//! No timeouts and no recovery.
//!
//! Here a reader that finds the limit reached and no writer in the queue sets the counters back with a CAS. In
//! ShiftLock's artifact it is an unconditional subtraction by a client that saw exactly the limit: it can meet a writer that has
//! come meanwhile, and take its write mode away.

use super::cas::out_of_patience;
use lockwright_fabric::observe::{Mode, Observation};
use lockwright_fabric::{
    Addr, Cond, Deadline, Endpoint, FabricError, Field, Message, Needs, PeerId, Wait, Word64,
};
use lockwright_locks::{
    Denied, Grant, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, Want,
};
use std::marker::PhantomData;

/// The RMA-RW lock, with the rules of `R`: ours, or a mutant's.
#[derive(Debug)]
pub struct RmaRw<R = AsShipped>(PhantomData<R>);

/// Where the mutants of RMA-RW differ from it.
pub trait Rules: std::fmt::Debug + 'static {
    /// The name on the command line.
    const NAME: &'static str;
    /// A reader that has counted itself in looks at the mode it found.
    const READER_CHECKS_MODE: bool = true;
    /// A writer looks for readers again after it has set write mode.
    const WRITER_LOOKS_AGAIN: bool = true;
    /// A release goes back to read mode when nobody is next.
    const GOES_BACK_TO_READ_MODE: bool = true;
    /// A reader sets the counts back only if they are what it saw, write mode included.
    const SETS_BACK_BY_CAS: bool = true;
}

/// The rules that are shipped.
#[derive(Clone, Copy, Debug)]
pub struct AsShipped;

impl Rules for AsShipped {
    const NAME: &'static str = "rma-rw";
}

/// RMA-RW's tunables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RmaRwParams {
    /// Writers in a row before readers have their turn: as many as ShiftLock's.
    pub writers_in_a_row: u64,
    /// Readers since the last writer before they make room for writers.
    pub reader_limit: u64,
    /// Pause between two looks of a reader that makes room.
    pub wait_ns: u64,
}

impl Default for RmaRwParams {
    fn default() -> Self {
        Self { writers_in_a_row: 16, reader_limit: 4000, wait_ns: 1862 }
    }
}

impl<R: Rules> Protocol for RmaRw<R> {
    type Params = RmaRwParams;
    type Client<E: Endpoint> = RmaRwClient<E, R>;

    const INFO: Info = Info {
        name: R::NAME,
        summary: "MCS queue of writers, counted readers, modes",
        source: "RMA-RW (HPDC '16); ShiftLock §4.1",
        offers: Offers { shared: true, tries: true, ..Offers::NONE },
    };

    fn needs(_: &RmaRwParams) -> Needs {
        Needs { masked: true, messages: true, global_scope: true, ..Needs::default() }
    }

    fn bytes_per_node(space: &Space, _: &RmaRwParams) -> u64 {
        space.table_bytes(STRIDE)
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &RmaRwParams) -> RmaRwClient<E, R> {
        RmaRwClient { ep, space: *space, params: params.clone(), rules: PhantomData }
    }

    /// Readers that came and left leave their counts behind.
    fn quiet_mask(_: &Space, _: &RmaRwParams, addr: Addr) -> u64 {
        if addr.offset.is_multiple_of(STRIDE) { u64::MAX } else { WRITE_MODE }
    }

    fn message_name(kind: u32) -> &'static str {
        ["message", "Successor", "Handover", "ModeChanged"][kind as usize]
    }
}

const STRIDE: u64 = 16;
const ARRIVE: Field = Field { shift: 0, bits: 31 };
const DEPART: Field = Field { shift: 32, bits: 31 };
const WRITE_MODE: u64 = 1 << 31;
const ONE_ARRIVES: u64 = 1;
const ONE_DEPARTS: u64 = 1 << 32;

fn arrived(counters: u64) -> u64 {
    ARRIVE.get(u128::from(counters)) as u64
}

fn departed(counters: u64) -> u64 {
    DEPART.get(u128::from(counters)) as u64
}

/// Clients that left, taken out of both counts.
fn without_the_departed(counters: u64) -> u64 {
    let gone = departed(counters);
    counters - gone * (ONE_ARRIVES + ONE_DEPARTS)
}

/// "I am behind you": a writer to its predecessor.
const SUCCESSOR: u32 = 1;
/// "It is yours": a writer to its successor, with how many had it in a row.
const HANDOVER: u32 = 2;
/// "You are next, after the readers": a writer to its successor.
const MODE_CHANGED: u32 = 3;

/// A granted RMA-RW lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RmaRwGrant {
    /// The lock.
    pub lock: u64,
    mode: Mode,
    /// Writers in a row before this one.
    in_a_row: u64,
}

impl Grant for RmaRwGrant {}

/// A client of the RMA-RW lock.
#[derive(Clone, Debug)]
pub struct RmaRwClient<E, R = AsShipped> {
    ep: E,
    space: Space,
    params: RmaRwParams,
    rules: PhantomData<R>,
}

impl<E: Endpoint, R: Rules> LockClient for RmaRwClient<E, R> {
    type Grant = RmaRwGrant;

    async fn acquire(&self, want: Want) -> Result<RmaRwGrant, Denied> {
        if let Patience::Until(_) = want.patience {
            return Err(Denied::Unsupported(&Reason("a queued RMA-RW client cannot give up")));
        }
        let (lock, mode) = (want.claim.lock, want.claim.mode);
        let in_a_row = match mode {
            Mode::Exclusive => self.write(want).await?,
            Mode::Shared => {
                self.read(want).await?;
                0
            }
        };
        Ok(RmaRwGrant { lock, mode, in_a_row })
    }

    async fn release(&self, grant: RmaRwGrant) -> Result<(), Lost> {
        match grant.mode {
            Mode::Shared => {
                self.ep.go(self.counters(grant.lock).fetch_add(ONE_DEPARTS)).await?;
            }
            Mode::Exclusive => self.pass_on(grant.lock, grant.in_a_row + 1).await?,
        }
        Ok(())
    }
}

/// Readers.
impl<E: Endpoint, R: Rules> RmaRwClient<E, R> {
    async fn read(&self, want: Want) -> Result<(), Denied> {
        let counters = self.counters(want.claim.lock);
        loop {
            let found = self.ep.go(counters.fetch_add(ONE_ARRIVES)).await?;
            if self.lets_in(found) || !R::READER_CHECKS_MODE {
                return Ok(());
            }
            self.ep.go(counters.fetch_add(ONE_ARRIVES.wrapping_neg())).await?;
            out_of_patience(&self.ep, want).await?;
            self.wait_to_read(want.claim.lock).await?;
            self.ep.mark("rma-rw reads", &[]);
            self.ep.observe(Observation::Retried(want.claim));
        }
    }

    /// Whether readers may come in.
    fn lets_in(&self, counters: u64) -> bool {
        counters & WRITE_MODE == 0 && arrived(counters) < self.params.reader_limit
    }

    /// Waits for read mode. Where the limit keeps readers out for writers of whom there are none, sets the counts back.
    async fn wait_to_read(&self, lock: u64) -> Result<(), FabricError> {
        let (tail, counters) = (self.tail(lock), self.counters(lock));
        loop {
            self.ep.mark("rma-rw waits to read", &[]);
            self.ep.wait_until(counters.until(READ_MODE)).await?;
            let (writer, found) = self.ep.go((tail.read(), counters.read())).await?;
            if self.lets_in(found) {
                return Ok(());
            }
            if found & WRITE_MODE != 0 {
                continue;
            }
            if writer == 0 {
                self.set_back(counters, found).await?;
                return Ok(());
            }
            self.ep.sleep(self.params.wait_ns).await;
        }
    }

    /// Takes the clients that left out of the counts, which were `found` when no writer queued.
    async fn set_back(&self, counters: Word64, found: u64) -> Result<(), FabricError> {
        if R::SETS_BACK_BY_CAS {
            self.ep.go(counters.cas(found, without_the_departed(found))).await?;
            return Ok(());
        }
        // As in ShiftLock's artifact: read, and subtract what was read.
        let now = self.ep.go(counters.read()).await?;
        let subtract = now - without_the_departed(now & !WRITE_MODE);
        self.ep.go(counters.fetch_add(subtract.wrapping_neg())).await?;
        Ok(())
    }
}

/// Holds in read mode.
const READ_MODE: Cond = Cond::Eq { mask: WRITE_MODE as u128, value: 0 };

/// Writers.
impl<E: Endpoint, R: Rules> RmaRwClient<E, R> {
    /// Returns how many writers had the lock in a row before.
    async fn write(&self, want: Want) -> Result<u64, Denied> {
        let lock = want.claim.lock;
        let me = u64::from(self.ep.me().0);
        if want.patience == Patience::Try {
            return self.try_write(lock, me).await;
        }
        let prev = self.ep.go(self.tail(lock).swap(me)).await?;
        if prev == 0 {
            self.begin_to_write(lock).await?;
            return Ok(0);
        }
        self.ep.send(PeerId(prev as u32), Message::new(lock, SUCCESSOR, &[me])).await?;
        let handed_over = self
            .ep
            .recv(|_, message| match message.kind {
                HANDOVER if message.lock == lock => Some(Some(message.words[0])),
                MODE_CHANGED if message.lock == lock => Some(None),
                _ => None,
            })
            .await;
        match handed_over {
            Some(in_a_row) => Ok(in_a_row),
            None => {
                self.begin_to_write(lock).await?;
                Ok(0)
            }
        }
    }

    /// Waits for the readers, sets write mode, and looks again for clients that came in between.
    async fn begin_to_write(&self, lock: u64) -> Result<(), FabricError> {
        let counters = self.counters(lock);
        self.ep.wait_until(nobody_reads(counters)).await?;
        self.ep.go(counters.fetch_add(WRITE_MODE)).await?;
        if R::WRITER_LOOKS_AGAIN {
            self.ep.wait_until(nobody_reads(counters)).await?;
        }
        Ok(())
    }

    /// Takes the queue only if it is empty, and sets write mode only if nobody reads.
    async fn try_write(&self, lock: u64, me: u64) -> Result<u64, Denied> {
        let (tail, counters) = (self.tail(lock), self.counters(lock));
        if self.ep.go(tail.cas(0, me)).await? != 0 {
            return Err(Denied::Busy);
        }
        let found = self.ep.go(counters.read()).await?;
        if found & WRITE_MODE == 0 && arrived(found) == departed(found) {
            let old = self.ep.go(counters.cas(found, found | WRITE_MODE)).await?;
            if old == found {
                return Ok(0);
            }
        }
        // Not to be had: out of the queue again. A client that came behind meanwhile waits for the readers itself.
        if self.ep.go(tail.cas(me, 0)).await? != me {
            self.tell_successor(lock, None, Message::new(lock, MODE_CHANGED, &[])).await?;
        }
        Err(Denied::Busy)
    }

    /// Release: `in_a_row` writers have had it, this one included.
    async fn pass_on(&self, lock: u64, in_a_row: u64) -> Result<(), FabricError> {
        let next = self.successor(lock, Deadline::Now).await;
        if next.is_some() && in_a_row < self.params.writers_in_a_row {
            return self.tell_successor(lock, next, Message::new(lock, HANDOVER, &[in_a_row])).await;
        }
        if R::GOES_BACK_TO_READ_MODE {
            self.back_to_read_mode(lock).await?;
        }
        if next.is_none() {
            let me = u64::from(self.ep.me().0);
            if self.ep.go(self.tail(lock).cas(me, 0)).await? == me {
                return Ok(());
            }
        }
        self.tell_successor(lock, next, Message::new(lock, MODE_CHANGED, &[])).await
    }

    /// Takes write mode away, and with it the counts of clients that left. Readers may come and look meanwhile, so
    /// only what is known is subtracted.
    async fn back_to_read_mode(&self, lock: u64) -> Result<(), FabricError> {
        let counters = self.counters(lock);
        let gone = departed(self.ep.go(counters.read()).await?);
        let subtract = WRITE_MODE + gone * (ONE_ARRIVES + ONE_DEPARTS);
        self.ep.go(counters.fetch_add(subtract.wrapping_neg())).await?;
        Ok(())
    }

    /// Sends `message` to the next client, once that is known.
    async fn tell_successor(
        &self,
        lock: u64,
        next: Option<PeerId>,
        message: Message,
    ) -> Result<(), FabricError> {
        let next = match next {
            Some(next) => next,
            None => self
                .successor(lock, Deadline::Never)
                .await
                .expect("a receive without a deadline ends with a message"),
        };
        self.ep.send(next, message).await
    }

    fn successor(&self, lock: u64, deadline: Deadline) -> impl Future<Output = Option<PeerId>> {
        self.ep.recv_by(deadline, move |_, message| {
            (message.lock == lock && message.kind == SUCCESSOR).then(|| PeerId(message.words[0] as u32))
        })
    }

    fn tail(&self, lock: u64) -> Word64 {
        Word64::at(self.space.place(lock, STRIDE))
    }

    fn counters(&self, lock: u64) -> Word64 {
        Word64::at(self.space.place(lock, STRIDE).plus(8))
    }
}

/// Until as many readers have left as came.
fn nobody_reads(counters: Word64) -> Wait<u64> {
    counters.until(Cond::FieldsEq(ARRIVE, DEPART))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_of_the_departed_go_and_the_mode_stays() {
        let counters = WRITE_MODE + 5 * ONE_ARRIVES + 3 * ONE_DEPARTS;
        assert_eq!((arrived(counters), departed(counters)), (5, 3));
        assert_eq!(without_the_departed(counters), WRITE_MODE + 2 * ONE_ARRIVES);
    }
}

//! The vanilla MCS queue lock over messages (ShiftLock Alg. 1, §3.3).
//!
//! | word (tail) | meaning |
//! |---|---|
//! | 0 | free |
//! | n | held; peer n is the last in the queue (or the holder) |
//!
//! The queue is spread over the clients: each knows its successor from a message, and hands the lock over with
//! another. Fetch-and-store is a masked CAS that compares nothing. A mutex: shared wants are served as
//! exclusive ones. No timeouts and no recovery: a waiter that leaves breaks the queue.

use lockwright_fabric::{Deadline, Endpoint, FabricError, Message, Needs, PeerId, Verb, Word64};
use lockwright_locks::fast::{AtOnce, Begun, Quick, now};
use lockwright_locks::{
    Denied, Held, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, Want,
};
use std::marker::PhantomData;

/// The MCS lock, with the rules of `R`: those of the paper, or a mutant's.
#[derive(Debug)]
pub struct Mcs<R = AsPrinted>(PhantomData<R>);

/// Where the mutants of MCS differ from it.
pub trait Rules: std::fmt::Debug + 'static {
    /// The name on the command line.
    const NAME: &'static str;
    /// A release that finds somebody queued behind it waits to learn who (Alg. 1 line 10).
    const WAITS_FOR_SUCCESSOR: bool = true;
    /// A client that found a predecessor waits for the handover (Alg. 1 line 5).
    const WAITS_FOR_HANDOVER: bool = true;
}

/// Alg. 1 as printed, which is right.
#[derive(Debug)]
pub struct AsPrinted;

impl Rules for AsPrinted {
    const NAME: &'static str = "mcs";
}

impl<R: Rules> Protocol for Mcs<R> {
    type Params = ();
    type Client<E: Endpoint> = McsClient<E, R>;

    const INFO: Info = Info {
        name: R::NAME,
        summary: "MCS queue lock, handed over by message",
        source: "ShiftLock Alg. 1",
        offers: Offers { tries: true, ..Offers::NONE },
    };

    fn needs((): &()) -> Needs {
        Needs { masked: true, messages: true, global_scope: true, ..Needs::default() }
    }

    fn bytes_per_node(space: &Space, (): &()) -> u64 {
        space.table_bytes(8)
    }

    fn client<E: Endpoint>(ep: E, space: &Space, (): &()) -> McsClient<E, R> {
        McsClient { ep, space: *space, rules: PhantomData }
    }

    fn message_name(kind: u32) -> &'static str {
        if kind == SUCCESSOR { "Successor" } else { "Handover" }
    }
}

/// "I am behind you": a client to its predecessor.
const SUCCESSOR: u32 = 1;
/// "It is yours": a client to its successor.
const HANDOVER: u32 = 2;

/// A client of the MCS lock.
#[derive(Clone, Debug)]
pub struct McsClient<E, R> {
    ep: E,
    space: Space,
    rules: PhantomData<R>,
}

impl<E: Endpoint, R: Rules> LockClient for McsClient<E, R> {
    type Grant = Held;

    // Alg. 1, MCS-ACQUIRE
    #[inline(always)]
    fn acquire(&self, want: Want) -> impl Future<Output = Result<Held, Denied>> {
        if !E::IS_IMMEDIATE {
            return Quick::all(self.acquire_on(want, None));
        }
        self.begin(want)
    }

    #[inline(always)]
    fn acquire_at_once(&self, want: Want) -> AtOnce<'_, Result<Held, Denied>> {
        self.begin(want)
    }

    // Alg. 1, MCS-RELEASE
    #[inline(always)]
    fn release(&self, grant: Held) -> impl Future<Output = Result<(), Lost>> {
        if !E::IS_IMMEDIATE {
            return Quick::all(self.release_on(grant.lock, None));
        }
        self.begin_release(grant)
    }

    #[inline(always)]
    fn release_at_once(&self, grant: Held) -> AtOnce<'_, Result<(), Lost>> {
        self.begin_release(grant)
    }
}

impl<E: Endpoint, R: Rules> McsClient<E, R> {
    /// An acquire's first verb, where it takes no waiting.
    #[inline(always)]
    fn begin<'a, B: Begun<'a, Result<Held, Denied>>>(&'a self, want: Want) -> B {
        if !E::IS_IMMEDIATE {
            return B::rest(self.acquire_on(want, None));
        }
        match now(&self.ep, self.enqueue(want)) {
            Ok(0) => B::done(Ok(Held { lock: want.claim.lock })),
            prev => B::rest(self.acquire_on(want.anew(), Some(prev))),
        }
    }

    /// A release's, likewise.
    #[inline(always)]
    fn begin_release<'a, B: Begun<'a, Result<(), Lost>>>(&'a self, grant: Held) -> B {
        let lock = grant.lock;
        // Line 7, as one load.
        if !E::IS_IMMEDIATE || !self.ep.has_no_mail() {
            return B::rest(self.release_on(lock, None));
        }
        match now(&self.ep, self.free(lock)) {
            Ok(tail) if tail == self.me() => B::done(Ok(())),
            tail => B::rest(self.release_on(lock, Some(tail))),
        }
    }

    /// An acquire whose first verb has found this, or which has to execute it yet.
    async fn acquire_on(&self, want: Want, found: Option<Result<u64, FabricError>>) -> Result<Held, Denied> {
        let prev = match found {
            Some(prev) => prev?,
            None => self.ep.go(self.enqueue(want)).await?,
        };
        let lock = want.claim.lock;
        if prev != 0 {
            self.queue(want, PeerId(prev as u32)).await?;
        }
        Ok(Held { lock })
    }

    /// Line 2.
    #[inline(always)]
    fn enqueue(&self, want: Want) -> Verb<u64> {
        let (tail, me) = (self.tail(want.claim.lock), self.me());
        match want.patience {
            Patience::Forever => tail.swap(me),
            Patience::Try | Patience::Until(_) => tail.cas(0, me),
        }
    }

    /// Lines 3–5: tell the predecessor, wait for the handover.
    async fn queue(&self, want: Want, prev: PeerId) -> Result<(), Denied> {
        match want.patience {
            Patience::Forever => {}
            Patience::Try => return Err(Denied::Busy),
            Patience::Until(_) => {
                return Err(Denied::Unsupported(&Reason("a queued MCS client cannot give up")));
            }
        }
        let lock = want.claim.lock;
        self.ep.send(prev, Message::new(lock, SUCCESSOR, &[self.me()])).await?;
        if R::WAITS_FOR_HANDOVER {
            self.ep.recv(|_, message| (message.lock == lock && message.kind == HANDOVER).then_some(())).await;
        }
        Ok(())
    }

    /// A release whose verb has found this, or which has to look for a successor first (line 7).
    async fn release_on(&self, lock: u64, found: Option<Result<u64, FabricError>>) -> Result<(), Lost> {
        let tail = match found {
            Some(tail) => tail?,
            None => {
                if let Some(next) = self.successor(lock, Deadline::Now).await {
                    return self.hand_over(lock, Some(next)).await;
                }
                self.ep.go(self.free(lock)).await?
            }
        };
        if tail == self.me() { Ok(()) } else { self.hand_over(lock, None).await }
    }

    /// Lines 8, 9: nobody is known to be behind; free the lock if that is true.
    #[inline(always)]
    fn free(&self, lock: u64) -> Verb<u64> {
        self.tail(lock).cas(self.me(), 0)
    }

    /// Lines 10, 11: learn who is next, if that is not known yet, and hand the lock over.
    async fn hand_over(&self, lock: u64, mut next: Option<PeerId>) -> Result<(), Lost> {
        if next.is_none() && R::WAITS_FOR_SUCCESSOR {
            next = self.successor(lock, Deadline::Never).await;
        }
        if let Some(next) = next {
            self.ep.send(next, Message::new(lock, HANDOVER, &[])).await?;
        }
        Ok(())
    }

    #[inline(always)]
    fn me(&self) -> u64 {
        u64::from(self.ep.me().0)
    }

    #[inline(always)]
    fn successor(&self, lock: u64, deadline: Deadline) -> impl Future<Output = Option<PeerId>> {
        self.ep.recv_by(deadline, move |_, message| {
            (message.lock == lock && message.kind == SUCCESSOR).then(|| PeerId(message.words[0] as u32))
        })
    }

    #[inline(always)]
    fn tail(&self, lock: u64) -> Word64 {
        Word64::at(self.space.place(lock, 8))
    }
}

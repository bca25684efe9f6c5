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
//!
//! This file is the model for new protocols (CONTRIBUTING.md): rules that mutants turn off, the protocol, its client, and
//! acquire and release beside the lines of the paper. Its cases and mutants are in `proofs/src/baselines/mcs.rs`.

use lockwright_fabric::{Deadline, Endpoint, Message, Needs, PeerId, Word64};
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
    /// A release that finds a client queued behind it waits to learn which (Alg. 1 line 10).
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
    async fn acquire(&self, want: Want) -> Result<Held, Denied> {
        let (lock, tail) = (want.claim.lock, self.tail(want.claim.lock));
        let prev = match want.patience {
            Patience::Forever => self.ep.go(tail.swap(self.me())).await?, // line 2
            // A client that does not wait to the end must not join the queue: it takes the lock only if that is empty.
            Patience::Try | Patience::Until(_) => self.ep.go(tail.cas(0, self.me())).await?,
        };
        match want.patience {
            _ if prev == 0 => return Ok(Held { lock }),
            Patience::Forever => {}
            Patience::Try => return Err(Denied::Busy),
            Patience::Until(_) => {
                return Err(Denied::Unsupported(&Reason("a queued MCS client cannot give up")));
            }
        }
        self.ep.send(PeerId(prev as u32), Message::new(lock, SUCCESSOR, &[self.me()])).await?; // lines 3, 4
        if R::WAITS_FOR_HANDOVER {
            let handover =
                |_, message: &Message| (message.lock == lock && message.kind == HANDOVER).then_some(());
            self.ep.recv(handover).await; // line 5
        }
        Ok(Held { lock })
    }

    // Alg. 1, MCS-RELEASE
    async fn release(&self, Held { lock }: Held) -> Result<(), Lost> {
        let mut next = self.successor(lock, Deadline::Now).await; // line 7
        if next.is_none() {
            // WordSlice 8, 9: nobody is known to be behind; free the lock if that is true.
            if self.ep.go(self.tail(lock).cas(self.me(), 0)).await? == self.me() {
                return Ok(());
            }
            if R::WAITS_FOR_SUCCESSOR {
                next = self.successor(lock, Deadline::Never).await; // line 10
            }
        }
        if let Some(next) = next {
            self.ep.send(next, Message::new(lock, HANDOVER, &[])).await?; // line 11
        }
        Ok(())
    }
}

impl<E: Endpoint, R: Rules> McsClient<E, R> {
    fn me(&self) -> u64 {
        u64::from(self.ep.me().0)
    }

    /// The lock's word.
    fn tail(&self, lock: u64) -> Word64 {
        Word64::at(self.space.place(lock, 8))
    }

    /// The client that said it is behind this one, if it has said so by `deadline`.
    async fn successor(&self, lock: u64, deadline: Deadline) -> Option<PeerId> {
        let successor = move |_, message: &Message| {
            (message.lock == lock && message.kind == SUCCESSOR).then(|| PeerId(message.words[0] as u32))
        };
        self.ep.recv_by(deadline, successor).await
    }
}

//! [`Counted`]: an endpoint that counts verbs, round trips, messages and bytes, as the papers count them.

use crate::addr::{NodeId, PeerId, Value};
use crate::endpoint::{Endpoint, FabricError};
use crate::message::Message;
use crate::verb::{Batch, VerbKind};
use crate::wait::{Deadline, Wait, Waited};
use std::ops::Sub;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// An endpoint that counts into a [`Tally`].
///
/// Verbs on the client's own node are CPU instructions: counted as `local`, and no round trip.
///
/// ```
/// use lockwright_fabric::backend::inproc::{InProc, block_on};
/// use lockwright_fabric::count::Counted;
/// use lockwright_fabric::{Addr, Endpoint, NodeId, PeerId, Word64};
///
/// let fabric = InProc::new(1, 64);
/// let ep = Counted::new(fabric.endpoint(PeerId::client(0)));
/// let word = Word64::at(Addr::new(NodeId(0), 0));
/// let before = ep.tally().snapshot();
/// block_on(ep.go((word.fetch_add(1), word.read()))).unwrap();
/// let cost = ep.tally().snapshot() - before;
/// assert_eq!((cost.fetch_adds, cost.reads, cost.round_trips), (1, 1, 1));
/// ```
#[derive(Clone, Debug)]
pub struct Counted<E> {
    inner: E,
    tally: Arc<Tally>,
}

impl<E: Endpoint> Counted<E> {
    /// Counts what goes through `inner`, from zero.
    pub fn new(inner: E) -> Self {
        Self::into_tally(inner, Arc::default())
    }

    /// Counts into `tally`. One client each: a tally has one writer.
    pub fn into_tally(inner: E, tally: Arc<Tally>) -> Self {
        Self { inner, tally }
    }

    /// The counters; any thread may read them.
    pub fn tally(&self) -> &Arc<Tally> {
        &self.tally
    }

    fn is_local(&self, node: NodeId) -> bool {
        self.inner.home() == Some(node)
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])+ $name:ident,)+) => {
        /// Counters of one client. Only that client writes them, so that counting needs no locked instruction.
        #[derive(Debug, Default)]
        pub struct Tally {
            $($name: AtomicU64,)+
        }

        /// The values of a [`Tally`] at one time, or the difference between two times.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct Counts {
            $($(#[$doc])+ pub $name: u64,)+
        }

        impl Tally {
            /// What has been counted up to now.
            pub fn snapshot(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)+ }
            }
        }

        impl Sub for Counts {
            type Output = Self;
            /// What was counted since `earlier`.
            fn sub(self, earlier: Self) -> Self {
                Self { $($name: self.$name - earlier.$name,)+ }
            }
        }
    };
}

counters! {
    /// READs, those that waits took included.
    reads,
    /// WRITEs.
    writes,
    /// Compare-and-swaps, masked or not.
    cas,
    /// Fetch-and-adds, masked, guarded or not.
    fetch_adds,
    /// Verbs on the client's own node, of any kind.
    local,
    /// Round trips: a batch is one, every READ of a wait is one.
    round_trips,
    /// Messages sent reliably.
    sent,
    /// Datagrams sent.
    datagrams,
    /// Messages and datagrams received.
    received,
    /// Operands and results of verbs, and messages sent, in bytes and without headers.
    payload_bytes,
}

impl Counts {
    /// Verbs that crossed the network.
    pub const fn verbs(&self) -> u64 {
        self.reads + self.writes + self.cas + self.fetch_adds
    }
}

/// There is one writer, so a load and a store suffice.
#[inline(always)]
fn bump(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Relaxed) + by, Relaxed);
}

impl Tally {
    fn verb(&self, kind: VerbKind, count: u64, bytes: u64) {
        let counter = match kind {
            VerbKind::Read => &self.reads,
            VerbKind::Write => &self.writes,
            VerbKind::Cas => &self.cas,
            VerbKind::FetchAdd => &self.fetch_adds,
        };
        bump(counter, count);
        bump(&self.payload_bytes, count * bytes);
    }
}

impl<E: Endpoint> Endpoint for Counted<E> {
    crate::delegate!(inner: me home capabilities now passed alarm is_gone sleep suspects random mark checkpoint observe);

    #[inline(always)]
    fn go<B: Batch>(&self, batch: B) -> impl Future<Output = Result<B::Old, FabricError>> {
        let mut remote = 0;
        batch.each(&mut |verb| {
            if self.is_local(verb.addr.node) {
                bump(&self.tally.local, 1);
            } else {
                self.tally.verb(verb.op.kind(), 1, verb.payload_bytes());
                remote = 1;
            }
            0
        });
        bump(&self.tally.round_trips, remote);
        self.inner.go(batch)
    }

    async fn wait_until<T: Value>(&self, wait: Wait<T>) -> Result<Waited<T>, FabricError> {
        let end = self.inner.wait_until(wait).await?;
        let polls = u64::from(end.polls);
        if self.is_local(wait.word.addr().node) {
            bump(&self.tally.local, polls);
        } else {
            self.tally.verb(VerbKind::Read, polls, T::WIDTH.bytes());
            bump(&self.tally.round_trips, polls);
        }
        Ok(end)
    }

    fn send(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        bump(&self.tally.sent, 1);
        bump(&self.tally.payload_bytes, message.wire_bytes());
        self.inner.send(to, message)
    }

    fn send_datagram(&self, to: PeerId, message: Message) -> impl Future<Output = Result<(), FabricError>> {
        bump(&self.tally.datagrams, 1);
        bump(&self.tally.payload_bytes, message.wire_bytes());
        self.inner.send_datagram(to, message)
    }

    async fn recv_by<T>(
        &self,
        deadline: Deadline,
        pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> Option<T> {
        let taken = self.inner.recv_by(deadline, pick).await;
        bump(&self.tally.received, u64::from(taken.is_some()));
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::{Addr, Word64, Word128};
    use crate::backend::inproc::{InProc, block_on};
    use crate::wait::Cond;

    #[test]
    fn verbs_batches_and_messages_are_counted_apart() {
        let fabric = InProc::new(1, 64);
        let ep = Counted::new(fabric.endpoint(PeerId::client(0)));
        let word = Word64::at(Addr::new(NodeId(0), 0));
        let wide = Word128::at(Addr::new(NodeId(0), 16));
        block_on(async {
            ep.go((word.write(1), word.swap(2), word.cas(2, 3), wide.fetch_add(1))).await.unwrap();
            ep.go(word.read()).await.unwrap();
            ep.wait_until(word.until(Cond::Eq { mask: 1, value: 1 })).await.unwrap();
            ep.send(ep.me(), Message::new(0, 1, &[])).await.unwrap();
            ep.send_datagram(ep.me(), Message::new(0, 2, &[])).await.unwrap();
            assert_eq!(
                ep.recv_by(Deadline::Now, |_, message| (message.kind == 2).then_some(())).await,
                Some(())
            );
            assert_eq!(ep.recv_by(Deadline::Now, |_, message| (message.kind == 9).then_some(())).await, None);
        });
        let counts = ep.tally().snapshot();
        let expected = Counts {
            reads: 1,
            writes: 1,
            cas: 2,
            fetch_adds: 1,
            round_trips: 2,
            sent: 1,
            datagrams: 1,
            received: 1,
            payload_bytes: 8 + 40 + 24 + 32 + 8 + 2 * 44,
            local: 0,
        };
        assert_eq!(counts, expected);
        assert_eq!((counts.verbs(), (counts - counts).verbs()), (5, 0));
    }

    #[test]
    fn verbs_at_home_cost_no_round_trip() {
        let fabric = InProc::new(2, 64);
        let ep = Counted::new(fabric.endpoint_at(PeerId::client(0), NodeId(1)));
        block_on(async {
            ep.go(Word64::at(Addr::new(NodeId(1), 0)).fetch_add(1)).await.unwrap();
            ep.go(Word64::at(Addr::new(NodeId(0), 0)).fetch_add(1)).await.unwrap();
        });
        let counts = ep.tally().snapshot();
        assert_eq!((counts.local, counts.verbs(), counts.round_trips), (1, 1, 1));
    }
}

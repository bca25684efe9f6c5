//! A guest: a session whose client runs the protocol of an exported space itself, over tcp verbs.
//!
//! The server joins the space for it, so that it has a number there, a mailbox and a sheet of cards like any process; to
//! the space it is a client of this process. Its verbs are executed here, on the words of locks and nothing else; what
//! others in the space write to it is carried to its connection, and what it writes to them goes into their mailboxes. When
//! its session is over it is declared dead, and whoever waits for what it held gets it as from any process that died. The
//! server shows life for it as long as the session lasts.
//!
//! What this file must not do: know the protocol.

use super::exported::Task;
use crate::home::BoxFuture;
use crate::home::holders::{ShmHolders, ShmTable};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{ShmEndpoint, ShmSpace};
use lockwright_fabric::backend::tcp::{HostError, Inbox, SessionEnd, Watch};
use lockwright_fabric::{
    Addr, Endpoint, FabricError, Message, NodeId, PeerId, RawVerb, RegionId, Wait, Width, Word64, Word128,
};
use lockwright_locks::holders::record::HEARTBEATS;
use lockwright_locks::holders::{DirectRecorder, HolderRecord, Holding, Kind};
use lockwright_locks::shiftlock::layout::Member;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};
use std::time::Duration;
use tokio::sync::mpsc;

/// How long this process may be silent before others may take its guests' locks.
const LEASE: Duration = Duration::from_secs(10);
/// Messages to processes that do not empty their mailboxes.
const MOST_WAITING: usize = 4096;
/// The locks of a space.
const LOCKS: (NodeId, RegionId) = (NodeId(0), RegionId(0));

/// A session's place in a space.
#[derive(Debug)]
pub(super) struct Guest {
    space: ShmSpace,
    table: ShmTable,
    /// Bit n: card n has been in use.
    used: AtomicU64,
    /// Messages that a full mailbox holds up, in order, and how many.
    held_up: mpsc::UnboundedSender<BoxFuture<()>>,
    waiting: Arc<AtomicUsize>,
    _tasks: [Task; 3],
}

impl Guest {
    /// Joins `space` for a session that is reached by `inbox`; `expelled` is called if others declare the guest dead.
    pub(super) fn join(
        space: &ShmSpace,
        inbox: Inbox,
        expelled: impl FnOnce() + Send + 'static,
    ) -> Result<Self, String> {
        let ep = space.endpoint().map_err(|error| error.to_string())?;
        let holders = ShmHolders::join(space, ep.clone(), LEASE.as_nanos() as u64);
        let holders = holders.map_err(|error| error.to_string())?;
        let (held_up, waiting) = (mpsc::unbounded_channel(), Arc::new(AtomicUsize::new(0)));
        let tasks = [
            Task::spawn(carry(ep, inbox)),
            Task::spawn(catch_up(held_up.1, Arc::clone(&waiting))),
            Task::spawn(live(holders.clone(), expelled)),
        ];
        let (space, used, held_up) = (space.clone(), AtomicU64::new(0), held_up.0);
        Ok(Self { space, table: ShmTable::new(holders), used, held_up, waiting, _tasks: tasks })
    }

    pub(super) fn peer(&self) -> PeerId {
        self.ep().me()
    }

    const fn holders(&self) -> &ShmHolders {
        self.table.space()
    }

    const fn ep(&self) -> &ShmEndpoint {
        &self.holders().ep
    }

    /// Guests reach the words of locks, and no others.
    fn check(&self, addr: Addr, width: Width) -> Result<(), HostError> {
        let end = addr.offset.checked_add(width.bytes());
        let inside = end.is_some_and(|end| end <= self.space.bytes(LOCKS.0, LOCKS.1));
        if (addr.node, addr.region) == LOCKS && inside && addr.offset.is_multiple_of(width.bytes()) {
            return Ok(());
        }
        Err(HostError::NoSuchWord { addr, width })
    }

    pub(super) fn execute(&self, verbs: &[RawVerb], olds: &mut Vec<u128>) -> Result<(), HostError> {
        for verb in verbs {
            self.check(verb.addr, verb.width)?;
        }
        olds.extend(block_on(self.ep().go(verbs)).map_err(lost)?);
        Ok(())
    }

    pub(super) async fn watch(&self, watch: Watch) -> Result<u128, HostError> {
        let Watch { addr, width, cond, or } = watch;
        self.check(addr, width)?;
        match width {
            Width::W64 => {
                let wait = Wait { or, ..Word64::at(addr).until(cond) };
                Ok(self.ep().wait_until(wait).await.map_err(lost)?.value.into())
            }
            Width::W128 => {
                let wait = Wait { or, ..Word128::at(addr).until(cond) };
                Ok(self.ep().wait_until(wait).await.map_err(lost)?.value)
            }
        }
    }

    /// Sends a message to somebody in the space; `false` if there is nobody.
    pub(super) fn send(&self, to: PeerId, message: Message) -> bool {
        let ep = self.ep().clone();
        let mut sending: BoxFuture<Result<(), FabricError>> =
            Box::pin(async move { ep.send(to, message).await });
        if self.waiting.load(SeqCst) == 0
            && let Poll::Ready(sent) = sending.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        {
            return sent.is_ok();
        }
        if self.waiting.fetch_add(1, SeqCst) >= MOST_WAITING {
            self.waiting.fetch_sub(1, SeqCst);
            return false;
        }
        self.held_up.send(Box::pin(async move { sending.await.unwrap_or(()) })).is_ok()
    }

    /// Fills in a record, or clears it.
    pub(super) fn card(&self, card: u8, says: Option<Holding>) {
        if self.used.fetch_or(1 << card, SeqCst) >> card & 1 == 0 {
            let _ = self.holders().use_record(card);
        }
        // A guest that was evicted has no records, and finds out when it is granted something.
        let _ = self.table.write_now(card, says);
    }

    /// Writes down the token of a grant; `false` if the guest is out of the space, and the grant does not count.
    pub(super) fn granted(&self, card: u8, token: u64) -> bool {
        self.table.granted_now(card, token).is_ok()
    }

    /// Whether somebody alive holds `lock`, but for the member that asks.
    pub(super) fn is_held(&self, lock: u64, except: u64) -> bool {
        self.table.is_held_now(lock, Member(except))
    }

    fn records(&self) -> Vec<HolderRecord> {
        let reader = self.holders().reader();
        let client = reader.client(self.peer());
        client.map(|client| reader.records(&client).collect()).unwrap_or_default()
    }

    /// What it holds: lock and token.
    pub(super) fn holds(&self) -> Vec<(u64, u64)> {
        let held = self.records().into_iter();
        let held = held.filter(|record| record.state.holds() && record.kind == Kind::Keyed);
        held.map(|record| (record.claim.lock, record.token())).collect()
    }

    /// The session is over. What it still held or wanted is cleared away as what the dead leave behind.
    pub(super) fn depart(&self, how: SessionEnd) {
        if how == SessionEnd::Lost || !self.records().is_empty() {
            self.space.declare_dead(self.peer());
        } else {
            let _ = self.holders().leave();
        }
    }
}

/// Whoever is out of the space cannot reach its memory any more.
fn lost(error: FabricError) -> HostError {
    match error {
        FabricError::NodeLost(node) => HostError::NodeLost(node),
        FabricError::PeerLost(_) | FabricError::Expelled => HostError::NodeLost(LOCKS.0),
    }
}

/// Carries what others in the space write to the guest.
async fn carry(ep: ShmEndpoint, inbox: Inbox) {
    loop {
        let (from, message) = ep.recv(|from, message| Some((from, message.clone()))).await;
        if !inbox.deliver(from, message) {
            return;
        }
    }
}

/// Sends what was held up, one after the other.
async fn catch_up(mut held_up: mpsc::UnboundedReceiver<BoxFuture<()>>, waiting: Arc<AtomicUsize>) {
    while let Some(sending) = held_up.recv().await {
        sending.await;
        waiting.fetch_sub(1, SeqCst);
    }
}

/// Shows life for the guest.
async fn live(holders: ShmHolders, expelled: impl FnOnce()) {
    loop {
        tokio::time::sleep(LEASE / HEARTBEATS).await;
        if holders.beat().is_err() {
            return expelled();
        }
    }
}

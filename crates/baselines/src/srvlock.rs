//! SrvLock: a lock manager on dedicated servers (FissLock §2.1). Reader-writer locks with one queue each, first come,
//! first served; a server answers when the lock is granted. [`LockTable`] is the manager itself, which ParLock and
//! NetLock have too; [`ServedClient`] is a client of any of the three.

use lockwright_fabric::observe::Mode;
use lockwright_fabric::{BoxedRole, Endpoint, Message, Needs, Outbox, PeerId, Role, Time};
use lockwright_locks::slots::Slots;
use lockwright_locks::{
    Denied, Held, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, Want,
};
use std::collections::{BTreeMap, VecDeque};
use std::future::poll_fn;
use std::pin::pin;
use std::task::Poll;

/// Kinds of messages.
pub(super) mod kind {
    pub(in super::super) const LOCK: u32 = 1;
    pub(in super::super) const UNLOCK: u32 = 2;
    pub(in super::super) const GIVE_UP: u32 = 3;
    pub(in super::super) const LOCKED: u32 = 4;
    pub(in super::super) const GAVE_UP: u32 = 5;

    pub(in super::super) fn name(kind: u32) -> &'static str {
        ["message", "lock", "unlock", "give up", "locked", "gave up"]
            .get(kind as usize)
            .copied()
            .unwrap_or("move")
    }
}

/// Who waits or holds: a client, and its number for this acquisition.
pub(super) type Participant = (PeerId, u64);

/// One lock's participants.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Lock {
    mode: Mode,
    holders: Vec<Participant>,
    queue: VecDeque<(Participant, Mode)>,
}

/// A lock manager: locks that are held, each with its queue.
///
/// ```
/// use lockwright_fabric::{PeerId, observe::Mode};
/// use lockwright_baselines::srvlock::LockTable;
/// let (a, b) = ((PeerId::client(0), 0), (PeerId::client(1), 0));
/// let mut table = LockTable::default();
/// assert!(table.lock(7, a, Mode::Exclusive));
/// assert!(!table.lock(7, b, Mode::Shared));
/// assert_eq!(table.unlock(7, a), [b]);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockTable {
    locks: BTreeMap<u64, Lock>,
}

impl LockTable {
    /// Asks for a lock. True if it is granted now; else it is granted when [`LockTable::unlock`] says so.
    pub fn lock(&mut self, lid: u64, who: (PeerId, u64), mode: Mode) -> bool {
        let Some(lock) = self.locks.get_mut(&lid) else {
            self.locks.insert(lid, Lock { mode, holders: vec![who], queue: VecDeque::new() });
            return true;
        };
        let joins = (mode, lock.mode) == (Mode::Shared, Mode::Shared) && lock.queue.is_empty();
        if joins {
            lock.holders.push(who);
        } else {
            lock.queue.push_back((who, mode));
        }
        joins
    }

    /// A holder lets go, or a waiter goes away. Returns the clients that hold the lock now and did not before.
    pub fn unlock(&mut self, lid: u64, who: (PeerId, u64)) -> Vec<(PeerId, u64)> {
        let Some(lock) = self.locks.get_mut(&lid) else { return Vec::new() };
        lock.holders.retain(|holder| *holder != who);
        lock.queue.retain(|(waiter, _)| *waiter != who);
        if lock.holders.is_empty() && lock.queue.is_empty() {
            self.locks.remove(&lid);
            return Vec::new();
        }
        let mut granted = Vec::new();
        while let Some((next, mode)) = lock.queue.front().copied() {
            let joins = (mode, lock.mode) == (Mode::Shared, Mode::Shared);
            if !lock.holders.is_empty() && !joins {
                break;
            }
            lock.queue.pop_front();
            lock.mode = mode;
            lock.holders.push(next);
            granted.push(next);
        }
        granted
    }

    /// Whether no client holds or wants the lock.
    pub fn is_free(&self, lid: u64) -> bool {
        !self.locks.contains_key(&lid)
    }

    /// Whether a client holds or wants the lock under this number.
    pub fn takes_part(&self, lid: u64, who: (PeerId, u64)) -> bool {
        self.locks.get(&lid).is_some_and(|lock| {
            lock.holders.contains(&who) || lock.queue.iter().any(|(waiter, _)| *waiter == who)
        })
    }

    /// Locks in which `client` takes part, and with which numbers.
    fn of(&self, client: PeerId) -> Vec<(u64, Participant)> {
        let of_lock = |(lid, lock): (&u64, &Lock)| {
            let waiting = lock.queue.iter().map(|(waiter, _)| *waiter);
            let all = lock.holders.iter().copied().chain(waiting);
            all.filter(|who| who.0 == client).map(|who| (*lid, who)).collect::<Vec<_>>()
        };
        self.locks.iter().flat_map(of_lock).collect()
    }

    /// Deals with a message. False if it is none for a lock manager.
    pub(super) fn serve(&mut self, from: PeerId, message: &Message, out: &mut Outbox) -> bool {
        let (lid, who) = (message.lock, participant(from, message));
        match message.kind {
            kind::LOCK => {
                let mode = if message.words[1] == 1 { Mode::Shared } else { Mode::Exclusive };
                if self.lock(lid, who, mode) {
                    grant(lid, who, out);
                }
            }
            kind::UNLOCK => self.unlock(lid, who).into_iter().for_each(|who| grant(lid, who, out)),
            kind::GIVE_UP => {
                self.unlock(lid, who).into_iter().for_each(|who| grant(lid, who, out));
                out.send(who.0, Message::new(lid, kind::GAVE_UP, &[who.1]));
            }
            Message::DEPARTED => {
                for (lid, who) in self.of(from) {
                    self.unlock(lid, who).into_iter().for_each(|who| grant(lid, who, out));
                }
            }
            _ => return false,
        }
        true
    }
}

/// Who asks: the sender, or the client whose request a switch passed on.
pub(super) fn participant(from: PeerId, message: &Message) -> Participant {
    let client = match message.words[2] {
        0 => from,
        passed_on => PeerId(passed_on as u32),
    };
    (client, message.words[0])
}

fn grant(lid: u64, (client, slot): Participant, out: &mut Outbox) {
    out.send(client, Message::new(lid, kind::LOCKED, &[slot]));
}

/// A lock server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct LockServer(LockTable);

impl Role for LockServer {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        self.0.serve(from, message, out);
    }

    fn wants_departures(&self) -> bool {
        true
    }
}

/// A client of a lock manager somewhere.
#[derive(Debug)]
pub struct ServedClient<E> {
    ep: E,
    route: Route,
    slots: Slots,
}

/// Where requests go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Route {
    /// To one of so many servers, round robin.
    Spread(u64),
    /// To one of so many servers, each with a stretch of so many locks.
    Stretches(u64, u64),
    /// To this one.
    To(PeerId),
}

impl Route {
    fn server(self, lid: u64) -> PeerId {
        match self {
            Route::Spread(servers) => PeerId::role((lid % servers) as usize),
            Route::Stretches(servers, locks) => PeerId::role((lid / locks).min(servers - 1) as usize),
            Route::To(server) => server,
        }
    }
}

/// What is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServedGrant {
    held: Held,
    slot: u64,
}

impl lockwright_locks::Grant for ServedGrant {}

impl<E: Endpoint> ServedClient<E> {
    pub(super) fn new(ep: E, route: Route) -> Self {
        Self { ep, route, slots: Slots::default() }
    }

    /// Whether the lock was granted, or given up.
    async fn hear(&self, lock: u64, slot: u64) -> bool {
        let about_slot = |_: PeerId, message: &Message| {
            let mine = (message.lock, message.words[0]) == (lock, slot);
            (mine && matches!(message.kind, kind::LOCKED | kind::GAVE_UP))
                .then_some(message.kind == kind::LOCKED)
        };
        self.ep.recv(about_slot).await
    }
}

impl<E: Endpoint> LockClient for ServedClient<E> {
    type Grant = ServedGrant;

    async fn acquire(&self, want: Want) -> Result<ServedGrant, Denied> {
        if want.patience == Patience::Try {
            return Err(Denied::Unsupported(&Reason("these servers queue what is not granted")));
        }
        let lock = want.claim.lock;
        let (server, slot) = (self.route.server(lock), self.slots.take());
        let shared = u64::from(want.claim.mode == Mode::Shared);
        self.ep.send(server, Message::new(lock, kind::LOCK, &[slot, shared])).await?;
        let granted = Ok(ServedGrant { held: Held { lock }, slot });
        let Patience::Until(until) = want.patience else {
            self.hear(lock, slot).await;
            return granted;
        };
        let heard = {
            let (mut heard, mut alarm) = (pin!(self.hear(lock, slot)), pin!(self.ep.alarm(until)));
            poll_fn(|cx| match heard.as_mut().poll(cx) {
                Poll::Ready(locked) => Poll::Ready(locked),
                Poll::Pending => alarm.as_mut().poll(cx).map(|()| false),
            })
            .await
        };
        if heard {
            return granted;
        }
        self.ep.send(server, Message::new(lock, kind::GIVE_UP, &[slot])).await?;
        // A grant that crossed the message comes before its answer, and is void.
        while self.hear(lock, slot).await {}
        self.slots.free(slot);
        Err(Denied::TimedOut)
    }

    async fn release(&self, grant: ServedGrant) -> Result<(), Lost> {
        let lock = grant.held.lock;
        self.ep.send(self.route.server(lock), Message::new(lock, kind::UNLOCK, &[grant.slot])).await?;
        self.slots.free(grant.slot);
        Ok(())
    }

    fn locals(&self) -> Vec<u64> {
        self.slots.in_use()
    }
}

pub(super) const OFFERS: Offers = Offers { shared: true, timeouts: true, recovery: true, ..Offers::NONE };

/// SrvLock.
#[derive(Debug)]
pub struct SrvLock;

/// Its tunables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvParams {
    /// Servers, on the first nodes.
    pub servers: u16,
}

impl Default for SrvParams {
    fn default() -> Self {
        Self { servers: 1 }
    }
}

impl Protocol for SrvLock {
    type Params = SrvParams;
    type Client<E: Endpoint> = ServedClient<E>;

    const INFO: Info = Info {
        name: "srvlock",
        summary: "lock manager on dedicated servers, a queue per lock",
        source: "FissLock (OSDI '24) §2.1",
        offers: OFFERS,
    };

    fn needs(_: &SrvParams) -> Needs {
        Needs { messages: true, ..Needs::default() }
    }

    fn bytes_per_node(_: &Space, _: &SrvParams) -> u64 {
        0
    }

    fn client<E: Endpoint>(ep: E, _: &Space, params: &SrvParams) -> ServedClient<E> {
        ServedClient::new(ep, Route::Spread(u64::from(params.servers)))
    }

    fn roles(_: &Space, params: &SrvParams) -> Vec<BoxedRole> {
        (0..params.servers).map(|_| BoxedRole::new(LockServer::default())).collect()
    }

    fn message_name(kind: u32) -> &'static str {
        kind::name(kind)
    }
}

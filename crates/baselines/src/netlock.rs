//! NetLock: hot locks on the switch, queue and all, and the rest on a server (Yu et al., SIGCOMM 2020; FissLock §2.1).
//!
//! All requests pass the switch. It holds the locks of the *profile* (a stretch of ids that is hot from the start) and
//! passes on everything else. With `profile_every` it takes stock after so many requests and moves what has become hot
//! in and what has become cold out. A lock moves only when it is free: the place it comes from serves its participants
//! to the end and then says Ready; the place it goes to keeps new requests until it hears that.
//!
//! ```text
//!  switch                          server
//!  Hosted --Evict--> Leaving       Coming (keeps requests)
//!  Leaving, free   --Ready-->      serves them
//!  Coming (keeps)  --Promote-->    drains
//!  Hosted          <--Ready--      free
//! ```

use super::srvlock::{LockTable, OFFERS, Route, ServedClient, kind, participant};
use lockwright_fabric::{BoxedRole, Endpoint, Message, Needs, Outbox, PeerId, Role, Time};
use lockwright_locks::{Info, Protocol, Space};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

/// NetLock.
#[derive(Debug)]
pub struct NetLock;

/// Its tunables.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NetParams {
    /// Locks that fit into the switch: "less than 10,000" (FissLock §1).
    pub hot_locks: u64,
    /// The first of the locks that the profile calls hot.
    pub hot_from: u64,
    /// Requests after which the profile is taken anew; never, if zero, as in FissLock §7.5.
    pub profile_every: u32,
}

impl Default for NetParams {
    fn default() -> Self {
        Self { hot_locks: 10_000, hot_from: 0, profile_every: 0 }
    }
}

const EVICT: u32 = 16;
const PROMOTE: u32 = 17;
const READY: u32 = 18;
/// A client is gone. The server hears it from the switch, behind all that the switch passed on for that client.
const GONE: u32 = 19;

const SERVER: PeerId = PeerId::role(0);
const SWITCH: PeerId = PeerId::role(1);

/// Requests for locks that are not here yet, in the order they came.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
struct PendingRequests(BTreeMap<u64, Vec<(PeerId, Message)>>);

impl PendingRequests {
    fn begin(&mut self, lid: u64) {
        self.0.entry(lid).or_default();
    }

    /// Keeps a request for a lock that is to come, or forgets one that is given up. False if it is for another lock.
    fn take(&mut self, from: PeerId, message: &Message, out: &mut Outbox) -> bool {
        let Some(kept) = self.0.get_mut(&message.lock) else { return false };
        let who = participant(from, message);
        match message.kind {
            kind::LOCK => kept.push((from, message.clone())),
            kind::GIVE_UP => {
                let before = kept.len();
                kept.retain(|(from, message)| participant(*from, message) != who);
                if kept.len() == before {
                    return false;
                }
                out.send(who.0, Message::new(message.lock, kind::GAVE_UP, &[who.1]));
            }
            _ => return false,
        }
        true
    }

    /// The lock is here: serves what was kept.
    fn serve(&mut self, lid: u64, table: &mut LockTable, out: &mut Outbox) {
        for (from, message) in self.0.remove(&lid).unwrap_or_default() {
            table.serve(from, &message, out);
        }
    }
}

/// The switch: its locks, and a control plane that takes stock.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct NetSwitch {
    params: NetParams,
    hosted: BTreeSet<u64>,
    leaving: BTreeSet<u64>,
    coming: PendingRequests,
    table: LockTable,
    requests: BTreeMap<u64, u32>,
    counted: u32,
}

impl NetSwitch {
    /// With the locks of the profile.
    pub fn new(params: &NetParams, locks: u64) -> Self {
        let end = (params.hot_from + params.hot_locks).min(locks);
        Self {
            params: params.clone(),
            hosted: (params.hot_from..end).collect(),
            leaving: BTreeSet::new(),
            coming: PendingRequests::default(),
            table: LockTable::default(),
            requests: BTreeMap::new(),
            counted: 0,
        }
    }

    /// Counts, and moves locks when it is time: the hottest come in while others make room.
    fn profile(&mut self, lid: u64, out: &mut Outbox) {
        if self.params.profile_every == 0 {
            return;
        }
        *self.requests.entry(lid).or_default() += 1;
        self.counted += 1;
        if self.counted < self.params.profile_every {
            return;
        }
        self.counted = 0;
        let mut hottest: Vec<_> = std::mem::take(&mut self.requests).into_iter().collect();
        hottest.sort_by_key(|(lid, requests)| (Reverse(*requests), *lid));
        hottest.truncate(self.params.hot_locks as usize);
        let hot: BTreeSet<u64> = hottest.into_iter().map(|(lid, _)| lid).collect();
        let here = |lid: &u64| {
            self.hosted.contains(lid) || self.leaving.contains(lid) || self.coming.0.contains_key(lid)
        };
        let wanted: Vec<_> = hot.iter().copied().filter(|lid| !here(lid)).collect();
        let cold: Vec<_> = self.hosted.difference(&hot).copied().take(wanted.len()).collect();
        for lid in cold {
            self.hosted.remove(&lid);
            self.leaving.insert(lid);
            out.send(SERVER, Message::new(lid, EVICT, &[]));
            self.let_leave(lid, out);
        }
        let taken = self.hosted.len() + self.leaving.len() + self.coming.0.len();
        let room = (self.params.hot_locks as usize).saturating_sub(taken);
        for lid in wanted.into_iter().take(room) {
            self.coming.begin(lid);
            out.send(SERVER, Message::new(lid, PROMOTE, &[]));
        }
    }

    fn let_leave(&mut self, lid: u64, out: &mut Outbox) {
        if self.leaving.contains(&lid) && self.table.is_free(lid) {
            self.leaving.remove(&lid);
            out.send(SERVER, Message::new(lid, READY, &[]));
        }
    }
}

impl Role for NetSwitch {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        let lid = message.lock;
        match message.kind {
            READY => {
                self.hosted.insert(lid);
                self.coming.serve(lid, &mut self.table, out);
                return;
            }
            Message::DEPARTED => {
                self.table.serve(from, message, out);
                for kept in self.coming.0.values_mut() {
                    kept.retain(|(client, _)| *client != from);
                }
                out.send(SERVER, Message::new(0, GONE, &[0, 0, u64::from(from.0)]));
                for lid in self.leaving.clone() {
                    self.let_leave(lid, out);
                }
                return;
            }
            kind::LOCK => self.profile(lid, out),
            _ => {}
        }
        if self.coming.take(from, message, out) {
            return;
        }
        let leaves = self.leaving.contains(&lid) && message.kind != kind::LOCK;
        if self.hosted.contains(&lid) || (leaves && self.table.takes_part(lid, participant(from, message))) {
            self.table.serve(from, message, out);
            self.let_leave(lid, out);
        } else {
            let mut message = message.clone();
            message.words[2] = u64::from(from.0);
            out.send(SERVER, message);
        }
    }

    fn wants_departures(&self) -> bool {
        true
    }
}

/// The server: every other lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct NetServer {
    table: LockTable,
    coming: PendingRequests,
    draining: BTreeSet<u64>,
}

impl NetServer {
    fn let_leave(&mut self, lid: u64, out: &mut Outbox) {
        if self.draining.contains(&lid) && self.table.is_free(lid) {
            self.draining.remove(&lid);
            out.send(SWITCH, Message::new(lid, READY, &[]));
        }
    }
}

impl Role for NetServer {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        let lid = message.lock;
        match message.kind {
            EVICT => self.coming.begin(lid),
            READY => self.coming.serve(lid, &mut self.table, out),
            PROMOTE => {
                self.draining.insert(lid);
                self.let_leave(lid, out);
            }
            GONE => {
                let (client, _) = participant(from, message);
                self.table.serve(client, &Message::new(0, Message::DEPARTED, &[]), out);
                for kept in self.coming.0.values_mut() {
                    kept.retain(|(asker, message)| participant(*asker, message).0 != client);
                }
                for lid in self.draining.clone() {
                    self.let_leave(lid, out);
                }
            }
            _ => {
                if !self.coming.take(from, message, out) {
                    self.table.serve(from, message, out);
                    self.let_leave(lid, out);
                }
            }
        }
    }
}

impl Protocol for NetLock {
    type Params = NetParams;
    type Client<E: Endpoint> = ServedClient<E>;

    const INFO: Info = Info {
        name: "netlock",
        summary: "hot locks on the switch, the rest on a server",
        source: "NetLock (SIGCOMM '20); FissLock (OSDI '24) §2.1",
        offers: OFFERS,
    };

    fn needs(_: &NetParams) -> Needs {
        Needs { messages: true, ..Needs::default() }
    }

    fn bytes_per_node(_: &Space, _: &NetParams) -> u64 {
        0
    }

    fn client<E: Endpoint>(ep: E, _: &Space, _: &NetParams) -> ServedClient<E> {
        ServedClient::new(ep, Route::To(SWITCH))
    }

    fn roles(space: &Space, params: &NetParams) -> Vec<BoxedRole> {
        vec![BoxedRole::new(NetServer::default()), BoxedRole::new(NetSwitch::new(params, space.locks))]
    }

    fn switches(_: &Space, _: &NetParams) -> usize {
        1
    }

    fn tune(params: &mut NetParams, name: &str, value: u64) -> bool {
        match name {
            "hot_locks" => params.hot_locks = value,
            "hot_from" => params.hot_from = value,
            "profile_every" => params.profile_every = value as u32,
            _ => return false,
        }
        true
    }

    fn message_name(kind: u32) -> &'static str {
        match kind {
            EVICT => "evict",
            PROMOTE => "promote",
            READY => "ready",
            GONE => "gone",
            _ => kind::name(kind),
        }
    }
}

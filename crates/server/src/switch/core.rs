//! A decider with its control plane, as one state machine without sockets: packets and messages in, packets and messages out.
//!
//! The decider and the coordinator are the explored ones. Here is what a real network adds: clients that come and go (*machines*
//! while they are there), names, the addresses and keys of machines, and a restart of all of it, after which the machines say
//! who they were.
//!
//! | phase | begins | packets | new machines |
//! |---|---|---|---|
//! | waiting | at a start after a run that may have left machines | dropped: the decider is closed | wait |
//! | open | when all of those have come back, or their lease is over; a recovery makes the registers anew | decided | are let in unless a recovery is under way |
//!
//! A machine that departs costs a recovery: its last packets may have changed the registers of any lock.

mod surveys;

use super::kernel::Elsewhere;
use super::memory::{Memory, Past};
use super::names::{Names, Unbound};
use super::report::{Phase as ReportedPhase, Report};
use lockwright::internal::fiss::{Answer, MACHINES, Request, Taken, Welcome, params, pieces};
use lockwright_fabric::backend::tcp::{Inbox, Subnet};
use lockwright_fabric::{Message, Outbox, PeerId, Role, Time};
use lockwright_locks::fisslock::datagram::{self, Ends, HELLO, Key, Limits, Malformed};
use lockwright_locks::fisslock::{Coordinator, Decider, Params, Shipped, machine_of};
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

/// Kinds of packets that pass between machines, by way of the decider's host, and those that grant.
const ACK: u32 = 6;
const GRANT: u32 = 4;
/// How long clients may take to say what they hold, for a listing.
const SURVEY: Duration = Duration::from_secs(1);
/// The decider, as the coordinator knows it.
const DECIDER: PeerId = PeerId::role(MACHINES as usize);
/// The coordinator, as the decider knows it.
const COORDINATOR: PeerId = PeerId::role(MACHINES as usize + 1);
/// The sender of all messages to clients.
const SERVER: PeerId = lockwright::wire::SERVER;

/// A datagram to send.
pub(super) type Send = (SocketAddr, Vec<u8>);

#[derive(Debug)]
pub(super) struct Core {
    limits: Limits,
    coordinator: Coordinator<Shipped>,
    decider: Decider<Shipped>,
    /// The decider that packets come to, if it is not that one.
    elsewhere: Option<Box<dyn Elsewhere>>,
    memory: Memory,
    names: Names,
    sessions: HashMap<u32, Session>,
    last_session: u32,
    /// By the machine's number.
    peers: Vec<Option<Peer>>,
    phase: Phase,
    /// Sessions that want to be machines.
    joins: VecDeque<u32>,
    surveys: BTreeMap<u64, Survey>,
    last_survey: u64,
    new_key: fn() -> Key,
    /// Packets from elsewhere are dropped; none: from nowhere.
    pub(super) allow: Vec<Subnet>,
    /// It is being stopped: sessions that are closed now are no goodbyes.
    ended: bool,
    pub(super) counts: Counts,
}

/// What was counted since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Counts {
    pub(super) received: u64,
    pub(super) sent: u64,
    pub(super) grants: u64,
    /// Between machines.
    pub(super) passed_on: u64,
    /// Not packets.
    pub(super) malformed: u64,
    /// With a wrong checksum, from an unknown machine, from another address than the machine's, or from one where no client may be.
    pub(super) forged: u64,
    /// Past the decider in the kernel: by an interface that it is not at, or in a form that it does not read.
    pub(super) astray: u64,
    pub(super) recoveries: u64,
}

#[derive(Debug)]
struct Session {
    label: String,
    inbox: Option<Inbox>,
    taken: Taken,
    mid: Option<u8>,
    /// Names asked for while claims are still coming in, or while no lock is free.
    asked: Vec<(u64, Vec<u8>)>,
}

/// A machine.
#[derive(Debug)]
struct Peer {
    session: u32,
    key: Key,
    /// That of its first HELLO: with every key a machine has a socket of its own.
    address: Option<SocketAddr>,
}

#[derive(Debug)]
enum Phase {
    Waiting {
        /// Machines that may come back; `None`: any that says it was one.
        members: Option<BTreeMap<u8, Key>>,
        /// Those that have come back.
        back: BTreeSet<u8>,
        /// Those that have not, or have not said everything.
        missing: BTreeSet<u8>,
        /// The latest of the last run and of the machines that have come back.
        epoch: u32,
    },
    Open,
}

/// A listing that is being gathered.
#[derive(Debug)]
struct Survey {
    asker: u32,
    id: u64,
    missing: BTreeSet<u32>,
    bytes: Vec<u8>,
    began: Instant,
}

impl Core {
    pub(super) fn new(
        Limits { locks, lanes }: Limits,
        memory: Memory,
        past: Past,
        new_key: fn() -> Key,
        elsewhere: Option<Box<dyn Elsewhere>>,
    ) -> Self {
        let params: Params = params(locks, lanes);
        let coordinator = Coordinator::vacant(MACHINES, &params, past.epoch + 1, past.block);
        let decider = Decider::closed(locks, MACHINES, &params);
        let awaited = past.is_awaited();
        let missing: BTreeSet<u8> = past.members.iter().flatten().map(|(mid, _)| *mid).collect();
        let epoch = past.epoch;
        let mut core = Self {
            limits: Limits { locks, lanes },
            coordinator,
            decider,
            elsewhere,
            memory,
            names: Names::new(locks),
            sessions: HashMap::new(),
            last_session: 0,
            peers: (0..=MACHINES).map(|_| None).collect(),
            phase: Phase::Waiting { members: past.members, back: BTreeSet::new(), missing, epoch },
            joins: VecDeque::new(),
            surveys: BTreeMap::new(),
            last_survey: 0,
            new_key,
            allow: Vec::new(),
            ended: false,
            counts: Counts::default(),
        };
        if !awaited {
            core.open();
        }
        core
    }

    /// The decider of this process, and the keys of machines: to run another one beside it.
    #[cfg(all(test, feature = "xdp"))]
    pub(super) fn decider(&self) -> (&Decider<Shipped>, Vec<(u8, Key)>) {
        let keys =
            (0_u8..=u8::MAX).zip(&self.peers).filter_map(|(mid, peer)| Some((mid, peer.as_ref()?.key)));
        (&self.decider, keys.collect())
    }

    /// The last message of a recovery, without those before it.
    #[cfg(all(test, feature = "xdp"))]
    pub(super) fn load(&mut self, registers: &Message) {
        self.decider.on_message(Time(0), COORDINATOR, registers, &mut Outbox::default());
    }

    /// Whether machines of the last run are still waited for.
    pub(super) fn is_waiting(&self) -> bool {
        matches!(self.phase, Phase::Waiting { .. })
    }

    // ---- sessions ----

    pub(super) fn admit(&mut self, label: &str) -> u32 {
        self.last_session += 1;
        let (taken, asked) = (Taken::default(), Vec::new());
        let session = Session { label: label.to_owned(), inbox: None, taken, mid: None, asked };
        self.sessions.insert(self.last_session, session);
        self.last_session
    }

    pub(super) fn attach(&mut self, session: u32, inbox: Inbox) {
        if let Some(session) = self.sessions.get_mut(&session) {
            session.inbox = Some(inbox);
        }
    }

    fn tell(&mut self, session: u32, answer: &Answer) {
        let Some(session) = self.sessions.get(&session) else { return };
        let Some(inbox) = &session.inbox else { return };
        for mut message in pieces(answer.encode()) {
            message.lock = session.taken.number();
            inbox.deliver(SERVER, message);
        }
    }

    pub(super) fn message(&mut self, session: u32, message: Message) {
        let Some(known) = self.sessions.get_mut(&session) else { return };
        if let Some(message) = known.taken.take(message) {
            match Request::decode(&message) {
                Some(request) => self.request(session, request),
                None => {
                    let why = "it said something that this version does not know".to_owned();
                    self.tell(session, &Answer::Refused { id: 0, why });
                }
            }
        }
        self.tell(session, &Answer::Taken);
    }

    fn request(&mut self, session: u32, request: Request) {
        let mid = self.sessions.get(&session).and_then(|session| session.mid);
        match (request, mid) {
            (Request::Join { seen }, None) => {
                self.raise_stamps(seen);
                self.join(session);
            }
            (Request::Rejoin { mid, epoch, id, key, seen }, None) => {
                self.raise_stamps(seen);
                self.rejoin(session, mid, epoch, id, key);
            }
            (Request::Claim { lid, name }, Some(mid)) => {
                let fits = self.is_waiting() && self.names.claim(name, lid, mid);
                if !fits {
                    tracing::warn!(mid, lid, "a claim does not fit those before it");
                }
            }
            (Request::Claimed, Some(mid)) => {
                if let Phase::Waiting { members: Some(_), missing, .. } = &mut self.phase {
                    missing.remove(&mid);
                    if missing.is_empty() {
                        self.open();
                    }
                }
            }
            (Request::Renew, Some(mid)) => {
                // A key for its packets from wherever it is now; those under the old one are nobody's.
                let epoch = self.coordinator.epoch();
                self.welcome(session, mid, epoch, true);
            }
            (Request::Name { id, name }, Some(mid)) => self.name(session, mid, id, name),
            (Request::Unname { lid }, Some(mid)) => self.names.unbind(lid, mid),
            (Request::Listed { id, bytes }, _) => self.listed(session, id, &bytes),
            (Request::List { id, space }, _) => self.list(session, id, &space),
            (Request::Status { id }, _) => {
                let bytes = self.report().json().into_bytes();
                self.tell(session, &Answer::Bytes { id, bytes });
            }
            (Request::Protocol(message), Some(mid)) => {
                let mut out = Outbox::default();
                self.coordinator.on_message(Time(0), machine_of(mid), &message, &mut out);
                self.carry_out(out);
            }
            // Of a machine that was not let in again: it hears of that.
            _ => {}
        }
    }

    /// The session is over, and with it its machine.
    pub(super) fn departed(&mut self, session: u32) {
        let Some(gone) = self.sessions.remove(&session).filter(|_| !self.ended) else { return };
        self.joins.retain(|waiting| *waiting != session);
        let surveys: Vec<u64> = self.surveys.keys().copied().collect();
        surveys.into_iter().for_each(|survey| self.listed(session, survey, &[]));
        let Some(mid) = gone.mid else { return };
        tracing::info!(mid, client = gone.label, "a machine is gone");
        self.peers[usize::from(mid)] = None;
        if let Some(elsewhere) = &mut self.elsewhere {
            elsewhere.peer(mid, None);
        }
        self.names.forget(mid);
        self.memory.gone(mid);
        match &mut self.phase {
            Phase::Waiting { back, missing, members, .. } => {
                back.remove(&mid);
                missing.remove(&mid);
                if members.is_some() && missing.is_empty() {
                    self.open();
                }
            }
            Phase::Open => {
                let mut out = Outbox::default();
                let departed = Message::new(0, Message::DEPARTED, &[]);
                self.coordinator.on_message(Time(0), machine_of(mid), &departed, &mut out);
                self.counts.recoveries += 1;
                self.carry_out(out);
            }
        }
    }

    /// A client has seen this token: what it is granted from now on is larger, also if nothing is remembered of that run.
    fn raise_stamps(&mut self, seen: u64) {
        if let Some(stamps) = self.coordinator.raise_stamps(seen) {
            let mut out = Outbox::default();
            out.send(DECIDER, stamps);
            self.carry_out(out);
        }
    }

    fn join(&mut self, session: u32) {
        self.joins.push_back(session);
        self.let_in();
    }

    /// Lets in clients that wait, unless a recovery is under way.
    fn let_in(&mut self) {
        while !self.is_waiting() && self.coordinator.is_quiet() {
            let Some(session) = self.joins.pop_front() else { return };
            match self.coordinator.join() {
                Some((mid, epoch)) => self.welcome(session, mid, epoch, false),
                None => {
                    let why = format!("the decider has {MACHINES} clients, and cannot tell more apart");
                    self.tell(session, &Answer::Refused { id: 0, why });
                }
            }
        }
    }

    fn welcome(&mut self, session: u32, mid: u8, epoch: u32, resumed: bool) {
        let key = (self.new_key)();
        self.memory.member(mid, key);
        self.peers[usize::from(mid)] = Some(Peer { session, key, address: None });
        if let Some(elsewhere) = &mut self.elsewhere {
            elsewhere.peer(mid, Some(key));
        }
        if let Some(session) = self.sessions.get_mut(&session) {
            session.mid = Some(mid);
        }
        let (Limits { locks, lanes }, id) = (self.limits, self.memory.id);
        self.tell(session, &Answer::Welcome(Welcome { mid, epoch, resumed, locks, lanes, id, key }));
    }

    /// A machine of the last run.
    fn rejoin(&mut self, session: u32, mid: u8, epoch: u32, id: u128, key: Key) {
        let is_ours = id == self.memory.id && self.peers[usize::from(mid)].is_none();
        match &mut self.phase {
            Phase::Waiting { members, back, epoch: latest, .. }
                if is_ours && members.as_ref().is_none_or(|members| members.get(&mid) == Some(&key)) =>
            {
                back.insert(mid);
                *latest = epoch.max(*latest);
                self.welcome(session, mid, epoch, true);
            }
            // Its locks went to others.
            _ => self.join(session),
        }
    }

    /// Machines that are not back by now are gone. Grants go on, after a recovery if any machine is back.
    pub(super) fn open(&mut self) {
        let Phase::Waiting { members, back, epoch, .. } = std::mem::replace(&mut self.phase, Phase::Open)
        else {
            return;
        };
        for mid in members.iter().flatten().map(|(mid, _)| *mid).filter(|mid| !back.contains(mid)) {
            self.memory.gone(mid);
        }
        let mut out = Outbox::default();
        self.coordinator.take_over(back, epoch, &mut out);
        self.counts.recoveries += u64::from(self.coordinator.members() > 0);
        self.carry_out(out);
        self.look_for_locks();
    }

    /// Names that had to wait get their locks, if there are any.
    pub(super) fn look_for_locks(&mut self) {
        if self.is_waiting() {
            return;
        }
        let asked = self.sessions.iter_mut().filter(|(_, session)| !session.asked.is_empty());
        let asked = asked.filter_map(|(number, session)| {
            Some((*number, session.mid?, std::mem::take(&mut session.asked)))
        });
        for (session, mid, asked) in asked.collect::<Vec<_>>() {
            asked.into_iter().for_each(|(id, name)| self.name(session, mid, id, name));
        }
    }

    fn name(&mut self, session: u32, mid: u8, id: u64, name: Vec<u8>) {
        let (decider, elsewhere) = (&self.decider, &self.elsewhere);
        let is_free = |lid| match elsewhere {
            Some(elsewhere) => elsewhere.is_free(lid),
            None => decider.registers().0.registers(lid as usize).free,
        };
        let bound = if self.is_waiting() { Err(Unbound::Busy) } else { self.names.bind(&name, mid, is_free) };
        let answer = match bound {
            Ok(lid) => Answer::Named { id, lid },
            Err(Unbound::Busy) => {
                if let Some(session) = self.sessions.get_mut(&session) {
                    session.asked.push((id, name));
                }
                return;
            }
            Err(Unbound::Full) => {
                let why = format!("all {} locks of the decider are in use", self.limits.locks);
                Answer::Refused { id, why }
            }
        };
        self.tell(session, &answer);
    }

    // ---- the coordinator and the decider ----

    /// Carries out what the coordinator wants, until it wants nothing more.
    fn carry_out(&mut self, out: Outbox) {
        // Written down before any machine hears of it.
        self.memory.epoch(self.coordinator.epoch());
        self.memory.block(self.coordinator.block());
        let mut messages = VecDeque::from(out.messages);
        while let Some((to, message)) = messages.pop_front() {
            let mut out = Outbox::default();
            match to {
                DECIDER => self.tell_decider(&message, &mut out),
                COORDINATOR => {
                    self.coordinator.on_message(Time(0), DECIDER, &message, &mut out);
                    self.memory.block(self.coordinator.block());
                }
                machine => {
                    let (role, _) = machine.index();
                    if let Some(peer) = self.peers.get(role + 1).and_then(Option::as_ref) {
                        self.tell(peer.session, &Answer::Protocol(message));
                    }
                }
            }
            messages.extend(out.messages);
        }
        self.let_in();
    }

    /// The coordinator's message changes the decider's registers, wherever they are.
    fn tell_decider(&mut self, message: &Message, out: &mut Outbox) {
        let epoch = self.decider.registers().1.epoch();
        self.decider.on_message(Time(0), COORDINATOR, message, out);
        let Some(elsewhere) = &mut self.elsewhere else { return };
        let (_, once) = self.decider.registers();
        if once.epoch() == epoch {
            elsewhere.raise_stamp(once.stamp());
        } else {
            elsewhere.load(&self.decider);
        }
    }

    /// Looks after a decider elsewhere: it cannot ask for stamps by itself.
    pub(super) fn look_elsewhere(&mut self) {
        let Some(elsewhere) = &self.elsewhere else { return };
        let (stamp, mut out) = (elsewhere.stamp(), Outbox::default());
        self.decider.stamped(stamp, &mut out);
        if !out.messages.is_empty() {
            self.carry_out(out);
        }
    }

    // ---- packets ----

    /// A datagram came from `from`; what is to be sent because of it goes into `sends`.
    pub(super) fn datagram(&mut self, bytes: &[u8], from: SocketAddr, sends: &mut Vec<Send>) {
        if self.elsewhere.is_some() {
            // It came by a way that is not that decider's, whose registers are not here.
            self.counts.astray += 1;
            return;
        }
        self.counts.received += 1;
        if !self.allow.is_empty() && !self.allow.iter().any(|subnet| subnet.contains(from.ip())) {
            self.counts.forged += 1;
            return;
        }
        match self.packet(bytes, from, sends) {
            Ok(()) => {}
            Err(Malformed::Forged) => self.counts.forged += 1,
            Err(_) => self.counts.malformed += 1,
        }
    }

    fn packet(&mut self, bytes: &[u8], from: SocketAddr, sends: &mut Vec<Send>) -> Result<(), Malformed> {
        let Ends { from: mid, .. } = datagram::ends(bytes)?;
        let peer = self.peers[usize::from(mid)].as_mut().ok_or(Malformed::Forged)?;
        let (Ends { to, .. }, message) = datagram::decode(bytes, peer.key, self.limits)?;
        if message.kind == HELLO {
            // The first one counts: a copy of it from elsewhere would have the machine's packets sent there.
            peer.address.get_or_insert(from);
        }
        if peer.address != Some(from) {
            return Err(Malformed::Forged);
        }
        if message.kind == HELLO {
            self.send(mid, 0, &message, sends);
            return Ok(());
        }
        if to != 0 {
            // Machines say nothing to each other but that something has arrived.
            if message.kind != ACK {
                return Err(Malformed::Field);
            }
            self.counts.passed_on += 1;
            self.send(to, mid, &message, sends);
            return Ok(());
        }
        // The origin of what a machine sends to the decider is that machine: another's numbers are not its to use.
        if message.words[1] as u8 != mid || message.kind == ACK {
            return Err(Malformed::Field);
        }
        let mut out = Outbox::default();
        self.decider.on_message(Time(0), machine_of(mid), &message, &mut out);
        for (to, message) in &out.datagrams {
            let (role, _) = to.index();
            self.counts.grants += u64::from(message.kind == GRANT);
            self.send(role as u8 + 1, 0, message, sends);
        }
        // Stamps are running out.
        if !out.messages.is_empty() {
            self.carry_out(out);
        }
        Ok(())
    }

    fn send(&mut self, to: u8, from: u8, message: &Message, sends: &mut Vec<Send>) {
        let Some(Peer { key, address: Some(address), .. }) = &self.peers[usize::from(to)] else { return };
        let mut bytes = Vec::new();
        datagram::encode(Ends { from, to }, message, *key, &mut bytes);
        self.counts.sent += 1;
        sends.push((*address, bytes));
    }

    // ---- for people ----

    /// How it is, for people and programs.
    pub(super) fn report(&self) -> Report<'_> {
        Report {
            phase: match (&self.phase, self.coordinator.is_quiet()) {
                (Phase::Waiting { .. }, _) => ReportedPhase::Waiting,
                (Phase::Open, true) => ReportedPhase::Open,
                (Phase::Open, false) => ReportedPhase::Recovering,
            },
            place: self.elsewhere.as_ref().map_or("user space", |elsewhere| elsewhere.place()),
            epoch: self.coordinator.epoch(),
            clients: self.coordinator.members(),
            names: self.names.len(),
            locks: self.limits.locks,
            register_bits: self.decider.bits(),
            counts: Counts {
                recoveries: self.counts.recoveries,
                astray: self.counts.astray,
                ..self.elsewhere.as_ref().map_or(self.counts, |elsewhere| elsewhere.counts())
            },
        }
    }

    /// An orderly end: if no machine is there, the next run has none to wait for.
    pub(super) fn end(&mut self) {
        self.ended = true;
        if !self.is_waiting() && self.coordinator.members() == 0 {
            self.memory.clean();
        }
    }
}

//! Clients that come, lock, die and are followed by others under the same numbers, names that are dropped and get other locks,
//! on a network that loses, doubles and reorders packets, in which a stranger repeats what it has seen, and a decider that is
//! killed: the shipped state machines, by dice.
//!
//! Checked of every name: two conflicting holders never hold at once, and tokens of conflicting grants rise. Every waiter is
//! served, and the stranger is sent nothing.

use super::core::Core;
use super::memory::{Memory, Past};
use lockwright::internal::fiss::{Answer, MACHINES, Pieces, Request, Unacked, params};
use lockwright_fabric::backend::tcp::Inbox;
use lockwright_fabric::random::SplitMix;
use lockwright_fabric::{Message, Outbox, PeerId, Role, Time};
use lockwright_locks::fisslock::datagram::{self, Ends, HELLO, Key, Limits};
use lockwright_locks::fisslock::{Machine, Params, Shipped, coordinator_of};
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One more than there are names: a name that comes back finds its lock taken, or another one free.
const LOCKS: u64 = 4;
const NAMES: usize = 3;
const LANES: u32 = 2;
const LIMITS: Limits = Limits { locks: LOCKS, lanes: LANES };
/// What a task says to its machine, and hears.
const LOCK: u32 = 16;
const LOCKED: u32 = 19;

struct Dice(SplitMix);

impl Dice {
    fn below(&mut self, limit: usize) -> usize {
        self.0.below(limit as u64) as usize
    }
}

type Told = Arc<Mutex<VecDeque<Message>>>;

struct Client {
    session: u32,
    told: Told,
    unacked: Unacked,
    pieces: Pieces,
    machine: Option<Machine<Shipped>>,
    mid: u8,
    key: Key,
    id: u128,
    reached: bool,
    timers: Vec<u64>,
    last_task: usize,
    task: Option<Task>,
    /// The locks of the names that it uses.
    named: BTreeMap<usize, u64>,
    /// A name that it has asked for, and whether it wants to share its lock.
    asked: Option<(usize, bool)>,
}

#[derive(Clone, Copy)]
struct Task {
    number: usize,
    name: usize,
    shared: bool,
    held: bool,
}

struct World {
    core: Core,
    clients: Vec<Client>,
    /// To the client with that address, or to the decider.
    network: Vec<(SocketAddr, SocketAddr, Vec<u8>)>,
    dice: Dice,
    /// By name: the last token of a writer, and of readers since.
    tokens: BTreeMap<usize, (u64, u64)>,
    grants: u64,
    block: u64,
    epoch: u32,
}

fn called(name: usize) -> Vec<u8> {
    vec![b'a' + name as u8]
}

fn new_key() -> Key {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Key([NEXT.fetch_add(1, Relaxed), 7])
}

fn address(session: u32) -> SocketAddr {
    SocketAddr::from(([10, 0, (session >> 8) as u8, session as u8], 9))
}

fn decider() -> SocketAddr {
    SocketAddr::from(([10, 1, 0, 0], 9))
}

/// Repeats packets, from an address of its own.
fn stranger() -> SocketAddr {
    SocketAddr::from(([10, 2, 0, 0], 9))
}

fn core(past: Past) -> Core {
    let (memory, _) = Memory::begin(None, Duration::from_secs(8), 1).unwrap();
    Core::new(LIMITS, memory, past, new_key, None)
}

fn small() -> Params {
    Params { readers_past_writer: 2, queue_limit: 1, ..params(LOCKS, LANES) }
}

impl World {
    fn new(seed: u64) -> Self {
        let past = Past { members: Some(BTreeMap::new()), ..Past::default() };
        Self {
            core: core(past),
            clients: Vec::new(),
            network: Vec::new(),
            dice: Dice(SplitMix::new(seed)),
            tokens: BTreeMap::new(),
            grants: 0,
            block: 0,
            epoch: 0,
        }
    }

    fn connect(&mut self) -> (u32, Told) {
        let (session, told) = (self.core.admit("soak"), Told::default());
        let inbox = Arc::clone(&told);
        self.core.attach(
            session,
            Inbox::new(move |_, message| {
                inbox.lock().unwrap().push_back(message);
                true
            }),
        );
        (session, told)
    }

    fn join(&mut self) {
        let (session, told) = self.connect();
        self.clients.push(Client {
            session,
            told,
            unacked: Unacked::default(),
            pieces: Pieces::default(),
            machine: None,
            mid: 0,
            key: Key([0, 0]),
            id: 0,
            reached: false,
            timers: Vec::new(),
            last_task: 0,
            task: None,
            named: BTreeMap::new(),
            asked: None,
        });
        self.say(self.clients.len() - 1, &Request::Join { seen: 0 });
    }

    fn say(&mut self, at: usize, request: &Request) {
        let session = self.clients[at].session;
        for message in self.clients[at].unacked.say(request) {
            self.core.message(session, message);
        }
    }

    fn die(&mut self, at: usize) {
        let client = self.clients.remove(at);
        self.core.departed(client.session);
    }

    /// Decider and control plane are gone; clients come back, but for one.
    fn restart(&mut self) {
        let members = self.clients.iter().filter(|client| client.machine.is_some());
        let members = members.map(|client| (client.mid, client.key)).collect();
        self.block += 1000;
        self.epoch += 1000;
        let past = Past { epoch: self.epoch, block: self.block, members: Some(members), ..Past::default() };
        self.core = core(past);
        let dies = self.dice.below(self.clients.len() + 1);
        if dies < self.clients.len() {
            self.clients.remove(dies);
        }
        for at in 0..self.clients.len() {
            let (session, told) = self.connect();
            let client = &mut self.clients[at];
            (client.session, client.told) = (session, told);
            (client.unacked, client.pieces, client.reached) = (Unacked::default(), Pieces::default(), false);
            match &client.machine {
                None => self.say(at, &Request::Join { seen: 0 }),
                Some(machine) => {
                    let (mid, epoch, id, key) = (client.mid, machine.epoch(), client.id, client.key);
                    let (named, asked) = (client.named.clone(), client.asked);
                    self.say(at, &Request::Rejoin { mid, epoch, id, key, seen: 0 });
                    for (name, lid) in named {
                        self.say(at, &Request::Claim { lid, name: called(name) });
                    }
                    self.say(at, &Request::Claimed);
                    if let Some((name, _)) = asked {
                        self.say(at, &Request::Name { id: name as u64, name: called(name) });
                    }
                }
            }
        }
        // The lease of machines that are not back is over.
        self.core.open();
    }

    fn send(&mut self, at: usize, to: u8, message: &Message) {
        let client = &self.clients[at];
        let mut bytes = Vec::new();
        datagram::encode(Ends { from: client.mid, to }, message, client.key, &mut bytes);
        self.network.push((decider(), address(client.session), bytes));
    }

    fn call(&mut self, at: usize, from: PeerId, message: &Message) {
        let mut out = Outbox::default();
        let Some(machine) = &mut self.clients[at].machine else { return };
        machine.on_message(Time(0), from, message, &mut out);
        self.dispatch(at, out);
    }

    fn dispatch(&mut self, at: usize, out: Outbox) {
        for (to, message) in out.messages {
            match to.index() {
                (task, false) if message.kind == LOCKED => self.granted(at, task, message.words[1]),
                (_, false) => {}
                _ => self.say(at, &Request::Protocol(message)),
            }
        }
        for (to, message) in out.datagrams {
            let (role, _) = to.index();
            self.send(at, if role < usize::from(MACHINES) { role as u8 + 1 } else { 0 }, &message);
        }
        self.clients[at].timers.extend(out.timers.iter().map(|(_, id)| *id));
    }

    fn granted(&mut self, at: usize, number: usize, token: u64) {
        let Some(task) = &mut self.clients[at].task else { return };
        assert_eq!((task.number, task.held), (number, false), "granted to whom it is not for");
        task.held = true;
        let granted = *task;
        self.grants += 1;
        let others = self.clients.iter().enumerate().filter(|(other, _)| *other != at);
        let held = others.filter_map(|(_, client)| client.task).filter(|task| task.held);
        for other in held.filter(|other| other.name == granted.name) {
            assert!(other.shared && granted.shared, "two hold lock {}", granted.name);
        }
        let (writer, reader) = self.tokens.entry(granted.name).or_default();
        let newest = if granted.shared { *writer } else { (*writer).max(*reader) };
        assert!(token > newest, "token {token:x} after {newest:x} of lock {}", granted.name);
        if granted.shared {
            *reader = (*reader).max(token);
        } else {
            *writer = token;
        }
    }

    /// Something happens to client `at`. `active`: it may begin something new.
    fn client_step(&mut self, at: usize, active: bool) {
        let heard = self.clients[at].told.lock().unwrap().pop_front();
        if let Some(message) = heard {
            return self.hear(at, message);
        }
        let client = &mut self.clients[at];
        if client.machine.is_none() {
            return;
        }
        if !client.reached {
            return self.send(at, 0, &Message::new(0, HELLO, &[]));
        }
        match client.task {
            None if active && client.asked.is_none() => {
                let (name, shared) = (self.dice.below(NAMES), self.dice.below(2) == 0);
                if let Some(lid) = self.clients[at].named.get(&name).copied() {
                    self.lock(at, name, lid, shared);
                } else {
                    self.clients[at].asked = Some((name, shared));
                    self.say(at, &Request::Name { id: name as u64, name: called(name) });
                }
            }
            Some(Task { number, name, held, .. }) if held || self.dice.below(40) == 0 && active => {
                // Released, or given up.
                client.task = None;
                self.call(at, PeerId::client(number), &Message::new(0, Message::DEPARTED, &[]));
                if self.dice.below(2) == 0
                    && let Some(lid) = self.clients[at].named.remove(&name)
                {
                    self.say(at, &Request::Unname { lid });
                }
            }
            _ => {}
        }
    }

    fn lock(&mut self, at: usize, name: usize, lid: u64, shared: bool) {
        let client = &mut self.clients[at];
        client.last_task += 1;
        let number = client.last_task;
        client.task = Some(Task { number, name, shared, held: false });
        self.call(at, PeerId::client(number), &Message::new(lid, LOCK, &[0, u64::from(shared)]));
    }

    fn hear(&mut self, at: usize, message: Message) {
        let client = &mut self.clients[at];
        client.unacked.taken(message.lock);
        let Some(message) = client.pieces.add(message) else { return };
        match Answer::decode(&message).unwrap() {
            Answer::Welcome(welcome) => {
                (client.key, client.id, client.reached) = (welcome.key, welcome.id, false);
                if !welcome.resumed {
                    assert!(client.machine.is_none(), "nobody was late");
                    client.mid = welcome.mid;
                    client.machine = Some(Machine::joining(welcome.mid, MACHINES, &small(), welcome.epoch));
                }
            }
            Answer::Protocol(message) => {
                self.call(at, coordinator_of(MACHINES, &Params::default()), &message);
            }
            Answer::Named { id, lid } => {
                client.named.insert(id as usize, lid);
                if let Some((name, shared)) = client.asked.take() {
                    self.lock(at, name, lid, shared);
                }
            }
            Answer::Refused { why, .. } => panic!("{why}"),
            _ => {}
        }
    }

    fn timer(&mut self, at: usize) {
        let client = &mut self.clients[at];
        if let Some(machine) = &mut client.machine
            && !client.timers.is_empty()
        {
            let id = client.timers.swap_remove(self.dice.below(client.timers.len()));
            let mut out = Outbox::default();
            machine.on_timer(Time(0), id, &mut out);
            self.dispatch(at, out);
        }
    }

    fn packet(&mut self) {
        if self.network.is_empty() {
            return;
        }
        let at = self.dice.below(self.network.len());
        let (to, from, bytes) = match self.dice.below(20) {
            0 => return drop(self.network.swap_remove(at)),
            1 => self.network[at].clone(),
            _ => self.network.swap_remove(at),
        };
        if to == decider() {
            let mut sends = Vec::new();
            self.core.datagram(&bytes, from, &mut sends);
            assert!(sends.iter().all(|(to, _)| *to != stranger()), "a repeated packet was answered");
            if from != stranger() && self.dice.below(10) == 0 {
                self.network.push((decider(), stranger(), bytes));
            }
            self.network.extend(sends.into_iter().map(|(to, bytes)| (to, decider(), bytes)));
        } else if let Some(at) = self.clients.iter().position(|client| address(client.session) == to) {
            let client = &mut self.clients[at];
            let Ok((ends, message)) = datagram::decode(&bytes, client.key, LIMITS) else { return };
            assert_eq!(ends.to, client.mid);
            if message.kind == HELLO {
                client.reached = true;
            } else {
                self.call(at, PeerId::role(usize::from(MACHINES)), &message);
            }
        }
    }

    fn step(&mut self, active: bool) {
        let clients = self.clients.len();
        match self.dice.below(1000) {
            0 if active && clients > 1 => {
                let client = self.dice.below(clients);
                self.die(client);
            }
            1..4 if active && clients < 4 => self.join(),
            4 if active && self.dice.below(4) == 0 => self.restart(),
            5..40 if clients > 0 => {
                let at = self.dice.below(clients);
                self.timer(at);
            }
            40..400 if clients > 0 => {
                let at = self.dice.below(clients);
                self.client_step(at, active);
            }
            400..405 => self.core.look_for_locks(),
            _ => self.packet(),
        }
    }
}

#[test]
fn clients_that_come_and_go_and_restarts_break_no_rule_and_leave_nobody_waiting() {
    for seed in 1..=300 {
        let mut world = World::new(seed);
        for _ in 0..30_000 {
            world.step(true);
        }
        assert!(world.grants > 100, "seed {seed}: {} grants", world.grants);
        let waits = |world: &World| {
            world.clients.iter().any(|client| client.task.is_some() || client.asked.is_some())
        };
        let mut left = 400_000;
        while waits(&world) {
            left -= 1;
            if left == 0 {
                let status = world.core.report().json();
                let machines: Vec<_> = world.clients.iter().map(|client| &client.machine).collect();
                panic!("seed {seed}: a client waits for ever: {status}\n{machines:#?}");
            }
            world.step(false);
        }
    }
}

//! Clients' tables and a dispatcher, with everything that they say on its way for as long as chance has it: upgrades and downgrades that
//! are given up cross their answers, connections break, sessions are lost, locks are broken, the server dies and hears claims.
//! At no time may two clients believe what cannot be true together, and in the end nothing may be left.

mod shard;

use self::shard::Registry;
use super::dispatcher::{Admission, Dispatcher, client_of};
use super::durable::Durable;
use super::lock_table::LockTable;
use lockwright::LockName;
use lockwright::internal::{Origin, Stage, Table, Upgrade};
use lockwright::wire::Kind;
use lockwright::wire::{Request, RequestId, Response, SERVER, Units};
use lockwright_fabric::backend::tcp::{Inbox, SessionEnd, VerbHost};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::random::SplitMix;
use lockwright_fabric::{Message, PeerId};
use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};

const CLIENTS: usize = 4;
/// Handles: a keyed lock, and a range lock.
const KEYED: u64 = 0;
const RANGES: u64 = 1;

/// A lock, as its guard and the future that changes it know it.
#[derive(Clone, Copy, Debug)]
struct Held {
    id: RequestId,
    units: Units,
    token: u64,
    /// An upgrade was said, and nobody has seen what came of it.
    upgrades: bool,
}

/// A client: its table, and what is on its way to and from the server.
#[derive(Default)]
struct Far {
    table: Table,
    peer: Option<PeerId>,
    to_server: VecDeque<Message>,
    to_client: Arc<Mutex<VecDeque<Message>>>,
    wanted: Vec<(RequestId, Units)>,
    held: Vec<Held>,
}

impl Far {
    fn say(&mut self, ask: &Request) {
        if self.peer.is_some() {
            let message = self.table.say(ask);
            self.to_server.push_back(message);
        }
    }

    /// Looks at what the futures and guards would see.
    fn look(&mut self, seen: &mut Seen) {
        let origin = self.table.origin;
        for (id, units) in std::mem::take(&mut self.wanted) {
            match self.table.stage(id) {
                Some(Stage::Wanted { .. }) => self.wanted.push((id, units)),
                Some(stage @ Stage::Granted { .. }) => {
                    let Stage::Granted { token } = *stage else { unreachable!("just seen") };
                    *stage = Stage::Held { token, origin };
                    self.held.push(Held { id, units, token, upgrades: false });
                }
                _ => drop(self.table.take(id)),
            }
        }
        for held in &mut self.held {
            if held.upgrades {
                match self.table.upgrade(held.id, held.token) {
                    Upgrade::Done { token } => {
                        assert!(token > held.token, "a new token");
                        (held.upgrades, held.token, held.units.mode) = (false, token, Mode::Exclusive);
                        seen.upgrades += 1;
                    }
                    Upgrade::Failed(_) => held.upgrades = false,
                    Upgrade::Waiting => {}
                    Upgrade::Said(_) => unreachable!("it was said before"),
                }
            }
        }
        // The guards of what is lost are dropped.
        let lost: Vec<_> = self.held.iter().map(|held| held.id).collect();
        for id in lost.into_iter().filter(|id| self.table.token(*id).is_none()).collect::<Vec<_>>() {
            self.unlock(id);
        }
    }

    fn unlock(&mut self, id: RequestId) {
        self.held.retain(|held| held.id != id);
        if self.table.take(id).is_some() {
            self.say(&Request::Unlock { id, answer: false });
        }
    }

    /// Does something that a user could do.
    fn act(&mut self, dice: &mut SplitMix, seen: &mut Seen) {
        let some = |dice: &mut SplitMix, held: &[Held]| dice.below(held.len().max(1) as u64) as usize;
        let at = some(dice, &self.held);
        match (dice.below(8), self.held.get(at).copied()) {
            (0 | 1, _) if self.wanted.len() + self.held.len() < 3 => {
                let mode = if dice.below(3) == 0 { Mode::Exclusive } else { Mode::Shared };
                let start = dice.below(6);
                let units = if dice.below(3) == 0 {
                    Units { handle: KEYED, mode, start: 0, end: u64::MAX, thread: None }
                } else {
                    Units { handle: RANGES, mode, start, end: start + 1 + dice.below(5), thread: None }
                };
                let wait = dice.below(4) > 0;
                let id = self.table.open(Some(units), Stage::Wanted { wait });
                self.say(&Request::Lock { id, units, wait });
                self.wanted.push((id, units));
            }
            (2, _) if !self.wanted.is_empty() => {
                let (id, _) = self.wanted.swap_remove(0);
                self.table.take(id);
                self.say(&Request::Unlock { id, answer: false });
            }
            (3, Some(held)) if !held.upgrades => self.unlock(held.id),
            (4..7, Some(held)) if held.upgrades => {
                // Given up; it may have been granted long ago.
                self.held[at].upgrades = false;
                if let Some(ask) = self.table.give_up_upgrade(held.id) {
                    self.say(&ask);
                    seen.given_up += 1;
                }
            }
            (4 | 5, Some(held)) if held.units.mode == Mode::Shared => {
                if let Upgrade::Said(ask) = self.table.begin_upgrade(held.id, dice.below(4) > 0, held.token) {
                    self.held[at].upgrades = true;
                    self.held[at].token = self.table.token(held.id).unwrap();
                    self.say(&ask);
                }
            }
            (4 | 5, Some(held)) => {
                if let Some(ask) = self.table.begin_downgrade(held.id) {
                    self.held[at].units.mode = Mode::Shared;
                    self.say(&ask);
                    seen.downgrades += 1;
                }
            }
            (6, Some(held)) if !held.upgrades && held.units.handle == RANGES => {
                let Units { start, end, .. } = held.units;
                let from = start + dice.below(end - start);
                let to = (from + 1 + dice.below(2)).min(end);
                if (from, to) == (start, end) {
                    return;
                }
                let Some((ask, rest)) = self.table.cut(held.id, from, to) else { return };
                let right = Units { start: to, ..held.units };
                let kept = if start < from { Units { end: from, ..held.units } } else { right };
                self.held[at].units = kept;
                self.held.extend(rest.map(|id| Held { id, units: right, ..held }));
                self.say(&ask);
                seen.parts += 1;
            }
            _ => {}
        }
    }
}

/// What has come about, so that something was shown.
#[derive(Debug, Default)]
struct Seen {
    upgrades: u64,
    given_up: u64,
    downgrades: u64,
    parts: u64,
    restarts: u64,
    /// Claims that were accepted.
    claims: u64,
    /// Times that the table went to another server, as a whole.
    moves: u64,
}

struct World {
    path: PathBuf,
    dispatcher: Option<Dispatcher>,
    /// Of a shard of a cluster: what etcd has of it.
    registry: Option<Registry>,
    epoch: u64,
    keys: u128,
    clients: Vec<Far>,
    dice: SplitMix,
    seen: Seen,
}

impl World {
    fn new(seed: u64) -> Self {
        Self::of(seed, None)
    }

    fn of(seed: u64, registry: Option<Registry>) -> Self {
        // Every line of a server's state is written to the disk, if it is one.
        let memory = Some(PathBuf::from("/dev/shm")).filter(|folder| folder.is_dir());
        let folder = memory.unwrap_or_else(std::env::temp_dir);
        let path = folder.join(format!("lockwright-crossing-{}-{seed}", std::process::id()));
        let _ = std::fs::remove_file(&path);
        let clients: Vec<_> = (0..CLIENTS).map(|_| Far::default()).collect();
        let (dice, seen) = (SplitMix::new(seed), Seen::default());
        let dispatcher = None;
        let mut world = Self { path, dispatcher, registry, epoch: 0, keys: 0, clients, dice, seen };
        for client in &mut world.clients {
            for (kind, name) in [(Kind::Keyed, "keyed"), (Kind::Ranges, "ranges")] {
                client.table.name(kind, &LockName::new(name).unwrap());
            }
        }
        world.start();
        world
    }

    fn start(&mut self) {
        self.dispatcher = None;
        if self.registry.is_some() {
            return self.take_shard(None);
        }
        let (durable, recovering) = Durable::begin(Some(&self.path), std::time::Duration::ZERO).unwrap();
        self.epoch = durable.epoch;
        self.dispatcher =
            Some(Dispatcher::new(LockTable::new(durable, recovering, vec![], vec![]), Admission::Secret));
    }

    fn dispatcher(&self) -> &Dispatcher {
        self.dispatcher.as_ref().expect("there is one but for a moment")
    }

    /// A client's session is over; both sides know, or only the client does, and the server has died.
    fn end_session(&mut self, at: usize) {
        let client = &mut self.clients[at];
        if let Some(peer) = client.peer.take() {
            client.to_server.clear();
            client.to_client = Arc::default();
            client.table.end_session();
            if let Some(dispatcher) = &self.dispatcher {
                dispatcher.on_session_lost(peer, SessionEnd::Lost);
            }
        }
        self.write();
    }

    fn begin_session(&mut self, at: usize) {
        if self.clients[at].peer.is_some() {
            return;
        }
        let peer = self.dispatcher().admit("1 here test").unwrap();
        let inbox = Arc::clone(&self.clients[at].to_client);
        self.dispatcher().attach(
            peer,
            Inbox::new(move |_, message| {
                inbox.lock().unwrap().push_back(message);
                true
            }),
        );
        self.keys += 1;
        let origin = Origin { epoch: self.epoch, key: self.keys };
        let client = &mut self.clients[at];
        client.peer = Some(peer);
        client.to_server = client.table.begin_session(origin, b"", false).into();
        if self.registry.is_some()
            && let Some(ask) = client.table.claimed()
        {
            client.say(&ask);
        }
    }

    /// The server dies, and another one takes its place.
    fn restart(&mut self) {
        self.dispatcher = None;
        (0..CLIENTS).for_each(|at| self.end_session(at));
        self.start();
        self.seen.restarts += 1;
    }

    /// Something that was said arrives.
    fn deliver(&mut self, at: usize, count: u64) {
        let Some(peer) = self.clients[at].peer else { return };
        for _ in 0..count {
            let Some(message) = self.clients[at].to_server.pop_front() else { break };
            self.dispatcher().deliver(peer, SERVER, &message);
        }
        self.dispatcher().drain();
        self.write();
    }

    /// Claims have been waited for long enough.
    fn open(&mut self) {
        match self.registry {
            Some(_) => self.end_wait(),
            None => self.dispatcher().lock_table().open(),
        }
    }

    /// Something that was answered is heard.
    fn hear(&mut self, at: usize, count: u64) {
        let client = &mut self.clients[at];
        for _ in 0..count {
            let Some(message) = client.to_client.lock().unwrap().pop_front() else { break };
            let (taken, answer) = Response::decode(&message).unwrap();
            if let Response::Refused { id: 0, why } = &answer {
                panic!("a sound client was refused: {why}");
            }
            client.table.hear(taken, answer);
        }
        client.look(&mut self.seen);
    }

    fn step(&mut self) {
        let at = self.dice.below(CLIENTS as u64) as usize;
        match self.dice.below(200) {
            0 => self.end_session(at),
            1 if self.registry.is_some() => self.hand_over(),
            1 if self.dice.below(2) == 0 => self.restart(),
            2 => {
                // What was on its way to the server may have arrived, or not; the rest is said again.
                let arrives = self.dice.below(4);
                self.deliver(at, arrives);
                let client = &mut self.clients[at];
                if client.peer.is_some() {
                    client.to_server = client.table.unacked().cloned().collect();
                }
            }
            3 => {
                let broken = self.clients[at].held.first().map(|held| (held.units.handle, held.id));
                if let Some((handle, id)) = broken
                    && let Some(token) = self.clients[at].table.token(id)
                {
                    let name = LockName::new(if handle == KEYED { "keyed" } else { "ranges" }).unwrap();
                    self.clients[at].say(&Request::Break { id: 1 << 63, token, name });
                }
            }
            4..12 => self.begin_session(at),
            12..16 => {
                let open = self.dispatcher().lock_table().is_recovering() || self.registry.is_some();
                if open {
                    let claimed = self.dispatcher().lock_table().totals.claimed;
                    self.seen.claims += claimed;
                    self.open();
                }
            }
            16..70 => {
                let count = 1 + self.dice.below(4);
                self.deliver(at, count);
            }
            70..130 => {
                let count = 1 + self.dice.below(3);
                self.hear(at, count);
            }
            _ => {
                let Self { clients, dice, seen, .. } = self;
                clients[at].act(dice, seen);
            }
        }
        self.check();
    }

    /// Nobody in a session of this server believes what cannot be true together with what another one believes.
    fn check(&self) {
        let clients = self.clients.iter().filter_map(|client| Some((client.peer?, client)));
        let beliefs: Vec<_> = clients.map(|(peer, client)| (peer, client.table.believes())).collect();
        for (at, (me, mine)) in beliefs.iter().enumerate() {
            for (peer, theirs) in beliefs[at + 1..].iter() {
                for (a, b) in mine.iter().flat_map(|a| theirs.iter().map(move |b| (a, b))) {
                    let conflict = a.1.handle == b.1.handle
                        && (a.1.mode == Mode::Exclusive || b.1.mode == Mode::Exclusive)
                        && a.1.start < b.1.end
                        && b.1.start < a.1.end;
                    // One of them may have lost it, and not have heard.
                    let gone = |peer: PeerId, id: RequestId| !self.is_in_the_table(peer, id);
                    assert!(!conflict || gone(*me, a.0) || gone(*peer, b.0), "{a:x?} and {b:x?}");
                }
            }
        }
    }

    /// Whether the server knows a request of this client.
    fn is_in_the_table(&self, peer: PeerId, id: RequestId) -> bool {
        let mut table = self.dispatcher().lock_table();
        client_of(peer).and_then(|client| table.session(client)?.request(id)).is_some()
    }

    /// Every client delivers its messages, gives back all it holds, and leaves.
    fn finish(mut self) -> Seen {
        (0..CLIENTS).for_each(|at| self.begin_session(at));
        for _ in 0..400 {
            for at in 0..CLIENTS {
                self.deliver(at, 100);
                self.hear(at, 100);
            }
            if self.dispatcher().lock_table().is_recovering() || self.registry.is_some() {
                self.open();
            }
            for client in &mut self.clients {
                let idle: Vec<_> =
                    client.held.iter().filter(|held| !held.upgrades).map(|held| held.id).collect();
                idle.into_iter().for_each(|id| client.unlock(id));
            }
            self.check();
        }
        for client in &self.clients {
            assert!(client.wanted.is_empty() && client.held.is_empty(), "a client waits for ever");
            assert!(client.table.believes().is_empty());
        }
        assert_eq!(self.dispatcher().lock_table().requests(), 0);
        let now = self.dispatcher().lock_table().totals.now;
        assert_eq!((now.holders, now.waiters), (0, 0));
        self.dispatcher = None;
        let _ = std::fs::remove_file(&self.path);
        let _ = std::fs::remove_file(format!("{}.lock", self.path.display()));
        self.seen
    }
}

#[test]
fn whatever_crosses_on_its_way_nobody_believes_to_have_what_another_one_has() {
    let mut seen = Seen::default();
    for seed in 0..300 {
        let mut world = World::new(seed);
        (0..CLIENTS).for_each(|at| world.begin_session(at));
        for _ in 0..1_500 {
            world.step();
        }
        let some = world.finish();
        seen.upgrades += some.upgrades;
        seen.given_up += some.given_up;
        seen.downgrades += some.downgrades;
        seen.parts += some.parts;
        seen.restarts += some.restarts;
        seen.claims += some.claims;
    }
    println!("{seen:?}");
    let all = [seen.upgrades, seen.given_up, seen.downgrades, seen.parts, seen.restarts, seen.claims];
    assert!(all.iter().all(|times| *times > 200), "{seen:?}");
}

const WHOLE: Units = Units { handle: KEYED, mode: Mode::Shared, start: 0, end: u64::MAX, thread: None };

impl World {
    /// Everything that was said arrives, and everything that was answered is heard.
    fn exchange(&mut self, at: usize) {
        self.deliver(at, 100);
        self.hear(at, 100);
    }

    /// A client takes a lock, and has it.
    fn take(&mut self, at: usize, units: Units) -> Held {
        let client = &mut self.clients[at];
        let id = client.table.open(Some(units), Stage::Wanted { wait: true });
        client.say(&Request::Lock { id, units, wait: true });
        client.wanted.push((id, units));
        self.exchange(at);
        *self.clients[at].held.last().expect("it was free")
    }
}

#[test]
fn a_lock_that_was_broken_before_its_holder_heard_of_its_upgrade_cannot_be_claimed() {
    let mut world = World::new(1 << 40);
    (0..2).for_each(|at| world.begin_session(at));
    let held = world.take(0, WHOLE);
    let Upgrade::Said(ask) = world.clients[0].table.begin_upgrade(held.id, true, held.token) else {
        panic!("it is held")
    };
    world.clients[0].say(&ask);
    world.deliver(0, 1);
    let name = LockName::new("keyed").unwrap();
    let token = held.token + 1;
    world.clients[1].say(&Request::Break { id: 1 << 63, token, name });
    world.deliver(1, 9);
    assert_eq!(world.dispatcher().lock_table().requests(), 0, "it had that token by then");
    // Its holder has heard neither of the upgrade nor of the loss.
    assert_eq!(world.clients[0].table.token(held.id), Some(held.token));
    world.restart();
    world.begin_session(0);
    world.exchange(0);
    assert_eq!(world.clients[0].table.token(held.id), None, "the claim was refused");
    world.finish();
}

#[test]
fn a_false_claim_that_was_downgraded_gives_way_to_the_true_one() {
    let mut world = World::new(2 << 40);
    (0..2).for_each(|at| world.begin_session(at));
    let alone = Units { mode: Mode::Exclusive, ..WHOLE };
    let past = world.take(0, alone);
    let origin = world.clients[0].table.origin;
    world.clients[0].unlock(past.id);
    world.exchange(0);
    let held = world.take(1, alone);
    assert!(held.token > past.token);
    world.restart();
    world.begin_session(0);
    let Origin { epoch, key } = origin;
    let lies = Request::Claim { id: past.id, units: alone, token: past.token, epoch, key };
    world.clients[0].say(&lies);
    world.clients[0].say(&Request::Downgrade { id: past.id, gives_up: false });
    world.exchange(0);
    assert_eq!(world.dispatcher().lock_table().requests(), 1, "nobody knows better yet");
    world.begin_session(1);
    world.exchange(1);
    assert_eq!(world.clients[1].table.token(held.id), Some(held.token));
    assert_eq!(world.dispatcher().lock_table().requests(), 1, "only the true holder is left");
    world.finish();
}

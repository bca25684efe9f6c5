//! The world around two servers, two clients and one etcd: what can happen next, and what must not.

use super::client::{self, Client, Stage};
use super::etcd::Etcd;
use super::server::{self, Purpose, Server};
use super::step::Step;
use lockwright_cluster::Rules;
use lockwright_sim::check::{Checker, Violation};
use lockwright_sim::model::{Model, Part};
use std::hash::{Hash, Hasher};
use std::time::Duration;

/// Time passes so much at once.
pub(super) const TICK: Duration = Duration::from_nanos(1);
/// The clocks of slow machines miss one tick in three, and so much is allowed for.
pub(super) const DRIFT: u32 = 3;
/// The lease of a server in etcd.
pub(super) const TTL: Duration = Duration::from_nanos(3);
/// How long a new owner waits for claims, and a client keeps what it holds.
pub(super) const WAIT: Duration = Duration::from_nanos(3);
pub(super) const LEASE: Duration = Duration::from_nanos(2);
/// Tokens reserved at a time.
pub(super) const BLOCK: u64 = 4;

/// How often the world may do something bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Kill a server.
    pub crashes: u8,
    /// Pause a server for as long as it likes.
    pub pauses: u8,
    /// Let the lease of a server be over that runs, and has not renewed it in time.
    pub expiries: u8,
    /// Move the shard to the other server.
    pub moves: u8,
    /// Kill a client.
    pub deaths: u8,
    /// Suspend the machine of a client.
    pub suspends: u8,
}

/// A case: what may go wrong, and how what is explored differs from what is shipped.
#[derive(Clone, Copy, Debug, Default)]
pub struct Cluster {
    /// In all.
    pub faults: Faults,
    /// Where it is broken.
    pub rules: Rules,
}

/// Everything.
#[derive(Clone, Debug)]
pub struct State {
    etcd: Part<Etcd>,
    servers: [Part<Ticking<Server>>; 2],
    clients: [Part<Ticking<Client>>; 2],
    /// Which third of the ticks slow machines miss.
    phase: u8,
    /// Numbers given to servers.
    ids: u64,
    left: Faults,
    /// The highest token that was believed.
    token: u64,
}

/// Something with a clock, which is left out of what is compared.
#[derive(Clone, Debug)]
struct Ticking<T>(T);

impl Hash for Ticking<Server> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash_into(state);
    }
}

impl Hash for Ticking<Client> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.hash_into(state);
    }
}

impl Hash for State {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.etcd, &self.servers, &self.clients, self.phase, self.ids, self.left, self.token).hash(state);
    }
}

impl State {
    fn server(&self, s: usize) -> &Server {
        &self.servers[s].0
    }

    fn client(&self, c: usize) -> &Client {
        &self.clients[c].0
    }

    fn server_mut(&mut self, s: usize) -> &mut Server {
        &mut self.servers[s].0
    }

    fn client_mut(&mut self, c: usize) -> &mut Client {
        &mut self.clients[c].0
    }

    fn join(&mut self, s: usize) {
        self.ids += 1;
        let id = self.ids;
        let made = self.etcd.join(s, id, TTL.as_nanos() as u64);
        self.server_mut(s).join(id, made);
    }

    /// What servers say is on its way, if the session is still there.
    fn route(&mut self, s: usize) {
        for (c, key, answer) in std::mem::take(&mut self.server_mut(s).said) {
            let session = self.client_mut(c).session.as_mut();
            if let Some(session) = session.filter(|session| session.key == key) {
                session.to_client.push_back(answer);
            }
        }
    }

    /// Whether the session of a client is of no more use, as its connection or the map tells it.
    fn is_past(&self, c: usize) -> bool {
        let Some(session) = &self.client(c).session else { return false };
        let epoch = |s: usize| self.server(s).shard.as_ref().map(|shard| shard.epoch());
        let is_there = epoch(session.server) == Some(session.epoch)
            && self.server(session.server).has_session(session.key)
            && self.server(session.server).life != server::Life::Dead;
        !is_there || epoch(1 - session.server) > Some(session.epoch)
    }

    fn tick(&mut self) {
        for lease in self.etcd.leases.iter_mut().flatten() {
            lease.0 = lease.0.saturating_sub(1);
        }
        self.phase = (self.phase + 1) % DRIFT as u8;
        for at in 0..2 {
            // The first of each is slow.
            if at == 0 && self.phase == 0 {
                continue;
            }
            if self.server(at).life != server::Life::Dead {
                self.server_mut(at).clock += TICK;
            }
            if self.client(at).life == client::Life::Runs {
                self.client_mut(at).clock += TICK;
            }
        }
        for c in 0..2 {
            self.client_mut(c).tick();
        }
    }
}

impl Model for Cluster {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let mut state = State {
            etcd: Part::new(Etcd::new()),
            servers: [(); 2].map(|()| Part::new(Ticking(Server::new(self.rules)))),
            clients: [0, 1].map(|c| Part::new(Ticking(Client::new(c, self.rules)))),
            phase: 0,
            ids: 0,
            left: self.faults,
            token: 0,
        };
        state.join(0);
        state.join(1);
        let taken = state.server(0).take(&state.etcd).expect("it is nobody's");
        state.server_mut(0).send(taken);
        state.execute(0);
        state.answered(0);
        state
    }

    fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        steps.push(Step::Tick);
        (0..2).for_each(|s| self.steps_of_server(state, s, steps));
        (0..2).for_each(|c| self.steps_of_client(state, c, steps));
    }

    fn take(&self, state: &mut State, step: &Step) -> Result<(), Violation> {
        self.apply(state, step);
        for s in 0..2 {
            if state.server(s).unregistered().is_some() && state.server(s).request.is_none() {
                state.server_mut(s).register();
            }
            if !state.server(s).said.is_empty() {
                state.route(s);
            }
        }
        self.check(state, step)
    }

    fn is_final(&self, state: &State) -> bool {
        let is_done = |client: &Client| match client.life {
            client::Life::Dead => true,
            client::Life::Runs => client.done == 2,
            client::Life::Asleep => false,
        };
        (0..2).all(|c| is_done(state.client(c)))
    }

    fn is_progress(&self, step: &Step) -> bool {
        !matches!(step, Step::Pauses(_) | Step::Crashes(_) | Step::Dies(_) | Step::Sleeps(_) | Step::Moves(_))
    }
}

impl State {
    fn execute(&mut self, s: usize) {
        let etcd: &mut Etcd = &mut self.etcd;
        self.servers[s].0.execute(s, etcd);
    }

    fn answered(&mut self, s: usize) {
        let etcd = &self.etcd;
        self.servers[s].0.hear_outcome(etcd);
    }
}

impl Cluster {
    fn steps_of_server(&self, state: &State, s: usize, steps: &mut Vec<Step>) {
        let server = state.server(s);
        let lease = state.etcd.leases[s];
        if lease.is_some_and(|(left, _)| left == 0)
            && (server.life != server::Life::Runs || state.left.expiries > 0)
        {
            steps.push(Step::Expires(s));
        }
        if server.request.as_ref().is_some_and(|request| request.outcome.is_none()) {
            steps.push(Step::Executes(s));
        }
        match server.life {
            server::Life::Dead => return,
            server::Life::Paused => return steps.push(Step::Continues(s)),
            server::Life::Runs => {}
        }
        let is_fresh = lease.is_some_and(|(left, _)| left == TTL.as_nanos() as u64);
        if server.renewal.is_some() {
            steps.push(Step::Renewed(s));
        } else if server.id.is_some() && !is_fresh {
            steps.push(Step::Renews(s));
        }
        if server.id.is_none() {
            steps.push(Step::Rejoins(s));
        }
        let is_certain = server.is_certain();
        if server.request.as_ref().is_some_and(|request| request.outcome.is_some())
            && (is_certain || server.id.is_none())
        {
            steps.push(Step::Answered(s));
        }
        let is_idle = server.request.is_none();
        match &server.shard {
            None if is_idle && is_certain => {
                if server.adopt(&state.etcd).is_some() {
                    steps.push(Step::Adopts(s));
                } else if server.take(&state.etcd).is_some() {
                    steps.push(Step::Takes(s));
                }
            }
            None => {}
            Some(shard) => {
                if !shard.is_still(&state.etcd.map().state(0)) {
                    steps.push(Step::Closes(s));
                }
                let is_over = shard.waits_until().is_some_and(|until| server.clock >= until);
                if is_idle && is_certain && is_over {
                    steps.push(Step::WaitOver(s));
                }
                let other = state.server(1 - s).id;
                if is_idle && state.left.moves > 0 && !shard.is_recovering() && other.is_some() {
                    steps.push(Step::Moves(s));
                }
                for (key, c) in server.sessions().filter(|_| is_idle && is_certain) {
                    let client = state.client(c);
                    let is_its = client.session.as_ref().is_some_and(|session| session.key == key);
                    let holds = matches!(client.stage, Stage::Held { key: of, .. } | Stage::Claimed { key: of, .. } if of == key);
                    if client.life != client::Life::Runs || client.unaware || !is_its && !holds {
                        steps.push(Step::Evicts(s, key));
                    }
                }
            }
        }
        if state.left.pauses > 0 {
            steps.push(Step::Pauses(s));
        }
        // One of them has to be left.
        if state.left.crashes > 0 && state.server(1 - s).life != server::Life::Dead {
            steps.push(Step::Crashes(s));
        }
    }

    fn steps_of_client(&self, state: &State, c: usize, steps: &mut Vec<Step>) {
        let client = state.client(c);
        match client.life {
            client::Life::Dead => return,
            client::Life::Asleep => return steps.push(Step::Wakes(c)),
            client::Life::Runs => {}
        }
        match (client.stage, client.done) {
            (Stage::Idle, 0) | (Stage::Held { .. }, _) => steps.push(Step::Acts(c)),
            _ => {}
        }
        if client.can_look() {
            steps.push(Step::Looks(c));
        }
        if let Some(session) = &client.session {
            let server = state.server(session.server);
            let is_served = server.life == server::Life::Runs && server.has_session(session.key);
            if let Some(ask) = session.to_server.front() {
                let is_probe = matches!(ask, client::Ask::Probe { .. }) && self.rules.answers_uncertain;
                if is_served && (server.is_certain() || is_probe) {
                    steps.push(Step::ToServer(c));
                }
            }
            if !session.to_client.is_empty() {
                steps.push(Step::ToClient(c));
            }
            let cares = matches!(client.stage, Stage::Granted { .. } | Stage::Held { .. });
            if cares && !client.probing {
                steps.push(Step::Probes(c));
            }
            if state.is_past(c) {
                steps.push(Step::Leaves(c));
            }
        } else {
            for s in 0..2 {
                let server = state.server(s);
                let epoch = server.shard.as_ref().map(|shard| shard.epoch());
                let cares = client.stage != Stage::Idle || client.last.0 != 0;
                if server.life == server::Life::Runs && cares && epoch >= Some(client.last.0.max(1)) {
                    steps.push(Step::Connects(c, s));
                }
            }
        }
        if state.left.deaths > 0 {
            steps.push(Step::Dies(c));
        }
        if state.left.suspends > 0 && matches!(client.stage, Stage::Held { .. }) {
            steps.push(Step::Sleeps(c));
        }
    }

    fn apply(&self, state: &mut State, step: &Step) {
        match *step {
            Step::Tick => state.tick(),
            Step::Renews(s) => {
                let id = state.server(s).id.map(|(id, _)| id);
                let lease = state.etcd.leases[s].filter(|(_, of)| Some(*of) == id);
                if lease.is_some() {
                    state.etcd.leases[s] = lease.map(|(_, of)| (TTL.as_nanos() as u64, of));
                }
                let server = state.server_mut(s);
                server.renewal = Some((server.clock, lease.is_some()));
            }
            Step::Renewed(s) => state.server_mut(s).hear_renewal(),
            Step::Expires(s) => {
                if state.server(s).life == server::Life::Runs {
                    state.left.expiries -= 1;
                }
                state.etcd.expire(s);
            }
            Step::Rejoins(s) => state.join(s),
            Step::Takes(s) | Step::Adopts(s) => {
                let server = state.server(s);
                let sent = server.adopt(&state.etcd).or_else(|| server.take(&state.etcd));
                let sent = sent.expect("it was listed");
                state.server_mut(s).send(sent);
            }
            Step::Executes(s) => state.execute(s),
            Step::Answered(s) => state.answered(s),
            Step::Closes(s) => state.server_mut(s).close(),
            Step::WaitOver(s) => {
                let server = state.server_mut(s);
                let now = server.clock;
                let txn = server.shard.as_mut().and_then(|shard| shard.wait_over(now));
                server.send((Purpose::EvictAll, txn.expect("it was listed")));
            }
            Step::Moves(s) => {
                state.left.moves -= 1;
                let (to, _) = state.server(1 - s).id.expect("it was listed");
                let server = state.server_mut(s);
                let shard = server.shard.as_mut().expect("it was listed");
                shard.freeze();
                let txn = shard.hand_over(to);
                server.send((Purpose::HandOver, txn));
            }
            Step::Evicts(s, key) => state.server_mut(s).evict(key),
            Step::ToServer(c) => {
                let session = state.client_mut(c).session.as_mut().expect("it was listed");
                let (s, key) = (session.server, session.key);
                let ask = session.to_server.pop_front().expect("it was listed");
                state.server_mut(s).hear(key, ask);
            }
            Step::ToClient(c) => {
                let client = state.client_mut(c);
                let session = client.session.as_mut().expect("it was listed");
                let answer = session.to_client.pop_front().expect("it was listed");
                client.hear(answer);
            }
            Step::Connects(c, s) => {
                let epoch = state.server(s).shard.as_ref().expect("it was listed").epoch();
                let key = state.client_mut(c).begin(s, epoch);
                state.server_mut(s).admit(key, c);
            }
            Step::Leaves(c) => state.client_mut(c).leave(),
            Step::Probes(c) => state.client_mut(c).probe(),
            Step::Acts(c) => state.client_mut(c).act(),
            Step::Looks(c) => state.client_mut(c).look(),
            Step::Pauses(s) => {
                state.left.pauses -= 1;
                state.server_mut(s).life = server::Life::Paused;
            }
            Step::Continues(s) => state.server_mut(s).life = server::Life::Runs,
            Step::Crashes(s) => {
                state.left.crashes -= 1;
                let request = state.server(s).request.clone();
                let mut dead = Server::new(self.rules);
                (dead.life, dead.request) = (server::Life::Dead, request);
                state.servers[s] = Part::new(Ticking(dead));
            }
            Step::Dies(c) => {
                state.left.deaths -= 1;
                let client = state.client_mut(c);
                (client.life, client.session) = (client::Life::Dead, None);
            }
            Step::Sleeps(c) => {
                state.left.suspends -= 1;
                state.client_mut(c).life = client::Life::Asleep;
            }
            Step::Wakes(c) => {
                let client = state.client_mut(c);
                (client.life, client.unaware) = (client::Life::Runs, true);
                client.leave();
            }
        }
    }

    fn check(&self, state: &mut State, step: &Step) -> Result<(), Violation> {
        if (0..2).all(|c| state.client(c).believes()) {
            return Err(Violation::new(Checker::Exclusion, "both clients believe that they hold the lock"));
        }
        if let Step::Looks(c) = *step
            && let Stage::Held { token, .. } = state.client(c).stage
        {
            if token <= state.token {
                let what = format!("C{c} has token {token}, and {} was there before", state.token);
                return Err(Violation::new(Checker::Tokens, what));
            }
            state.token = token;
        }
        Ok(())
    }
}

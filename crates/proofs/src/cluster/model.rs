//! The world around two servers, two clients and one etcd: what can happen next, and what must not.

use super::client::{self, Client, Stage};
use super::etcd::Etcd;
use super::handed::Table;
use super::server::{self, Purpose, Request, Server};
use super::step::Step;
use lockwright_cluster::Rules;
use lockwright_cluster::txn::Outcome;
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
    /// Cut a server off from etcd, for as long as it likes.
    pub cuts: u8,
    /// Move the shard to the other server.
    pub moves: u8,
    /// Kill a client.
    pub deaths: u8,
    /// Suspend the machine of a client.
    pub suspends: u8,
    /// The shard begins without an owner, and both servers take it.
    pub races: u8,
    /// Break a grant.
    pub breaks: u8,
    /// A table of an earlier change of owner is still on its way.
    pub tables: u8,
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
    pub(super) etcd: Part<Etcd>,
    servers: [Part<Ticking<Server>>; 2],
    clients: [Part<Ticking<Client>>; 2],
    /// What was handed to each server, in order.
    pub(super) tables: [Vec<Table>; 2],
    /// Which third of the ticks slow machines miss.
    phase: u8,
    /// Numbers given to servers.
    ids: u64,
    pub(super) left: Faults,
    /// The highest token that was believed.
    token: u64,
    /// The token of the grant that was broken.
    broken: Option<u64>,
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
        (&self.etcd, &self.servers, &self.clients, &self.tables).hash(state);
        (self.phase, self.ids, self.left, self.token, self.broken).hash(state);
    }
}

impl State {
    pub(super) fn server(&self, s: usize) -> &Server {
        &self.servers[s].0
    }

    pub(super) fn client(&self, c: usize) -> &Client {
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

    /// Whether the session of a client is still its server's.
    pub(super) fn has_server(&self, c: usize) -> bool {
        self.client(c).session.as_ref().is_some_and(|session| {
            let server = self.server(session.server);
            server.shard.as_ref().is_some_and(|shard| shard.epoch() == session.epoch)
                && server.has_session(session.key)
                && server.life != server::Life::Dead
        })
    }

    /// Whether the session of a client is of no more use, as its connection or the map tells it.
    pub(super) fn is_past(&self, c: usize) -> bool {
        let Some(session) = &self.client(c).session else { return false };
        let epoch = |s: usize| self.server(s).shard.as_ref().map(|shard| shard.epoch());
        !self.has_server(c) || epoch(1 - session.server) > Some(session.epoch)
    }

    /// A lease that is renewed in time.
    fn renew(&mut self, s: usize) {
        let server = &mut self.servers[s].0;
        let id = server.id.map(|(id, _)| id);
        if let Some(lease) = self.etcd.leases[s].as_mut().filter(|(_, of)| Some(*of) == id) {
            lease.0 = TTL.as_nanos() as u64;
            server.renewed(server.clock);
        }
    }

    fn tick(&mut self) {
        let prompt = [0, 1].map(|s| self.server(s).is_prompt);
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
        for s in (0..2).filter(|s| prompt[*s]) {
            self.renew(s);
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
            servers: [(); 2].map(|()| Part::new(Ticking(Server::new(self.rules, true)))),
            clients: [0, 1].map(|c| Part::new(Ticking(Client::new(c, self.rules)))),
            tables: [(); 2].map(|()| Vec::from_iter((self.faults.tables > 0).then(Table::old))),
            phase: 0,
            ids: 0,
            left: self.faults,
            token: 0,
            broken: None,
        };
        state.join(0);
        state.join(1);
        if self.faults.races == 0 {
            let taken = state.server(0).take(&state.etcd, false).expect("it is nobody's");
            state.server_mut(0).send(taken);
            state.execute(0);
            state.answered(0);
        }
        state
    }

    fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        if self.is_final(state) {
            return;
        }
        // Before something is wrong, time makes no difference.
        if state.left != self.faults {
            steps.push(Step::Tick);
        }
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
        self.talk(state);
        self.check(state)
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
        !matches!(
            step,
            Step::Pauses(_)
                | Step::Crashes(_)
                | Step::Dies(_)
                | Step::Sleeps(_)
                | Step::Moves(_)
                | Step::Cuts(_)
                | Step::Breaks(_)
        )
    }
}

impl State {
    fn execute(&mut self, s: usize) {
        let etcd: &mut Etcd = &mut self.etcd;
        self.servers[s].0.execute(s, etcd);
        if let Some(Request {
            purpose: Purpose::Break { token, .. }, outcome: Some(Outcome::Done(_)), ..
        }) = self.server(s).request
        {
            self.broken = Some(token);
        }
    }

    /// Whether the holder of this grant is there, and knows of it.
    pub(super) fn is_known(&self, (key, token): (u128, u64)) -> bool {
        (0..2).map(|c| self.client(c)).any(|client| {
            let is_quiet = |session: &client::Session| {
                session.key == key && session.to_client.is_empty() && session.to_server.is_empty()
            };
            client.stage == Stage::Held { token, key } && client.session.as_ref().is_some_and(is_quiet)
        })
    }

    fn answered(&mut self, s: usize) {
        let etcd = &self.etcd;
        self.servers[s].0.hear_outcome(etcd);
        if self.server(s).hands.is_some() && self.server(s).shard.is_none() {
            let table = self.server_mut(s).hands.take();
            self.tables[1 - s].extend(table);
        }
    }
}

impl Cluster {
    /// Whether a server is slow, and not dead. Then the second client asks for the lock when that begins.
    pub(super) const fn is_slow(&self) -> bool {
        self.faults.pauses + self.faults.cuts > 0
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
            Step::Renewed(s) => {
                state.server_mut(s).hear_renewal();
                let server = state.server_mut(s);
                // It was late once, and is in time from now on.
                server.is_prompt = server.is_certain() && !server.is_cut;
            }
            Step::Expires(s) => state.etcd.expire(s),
            Step::Rejoins(s) => {
                state.join(s);
                state.server_mut(s).is_prompt = true;
            }
            Step::Takes(s) | Step::Adopts(s) => {
                let server = state.server(s);
                let sent = server.adopt(&state.etcd);
                let sent = sent.or_else(|| server.take(&state.etcd, self.faults.races > 0));
                let sent = sent.expect("it was listed");
                state.server_mut(s).send(sent);
            }
            Step::Executes(s) => {
                state.execute(s);
                let server = state.server(s);
                if server.is_prompt && server.life == server::Life::Runs {
                    state.answered(s);
                }
            }
            Step::Answered(s) => state.answered(s),
            Step::Closes(s) => state.server_mut(s).close(),
            Step::WaitOver(s) => state.server_mut(s).end_wait(),
            Step::Moves(s) => {
                state.left.moves -= 1;
                let (to, _) = state.server(1 - s).id.expect("it was listed");
                let early = self.rules.table_early;
                let server = state.server_mut(s);
                if early {
                    server.hand_table(to);
                } else {
                    server.shard.as_mut().expect("it was listed").freeze();
                }
                server.hand_over(to);
            }
            Step::Tabled(s, at) => {
                let table = state.tables[s][at].clone();
                state.server_mut(s).hear_table(&table);
            }
            Step::Breaks(s) => {
                state.left.breaks -= 1;
                state.server_mut(s).break_grant();
            }
            Step::Evicts(s, key) => state.server_mut(s).evict(key),
            Step::ToServer(c) => {
                let session = state.client_mut(c).session.as_mut().expect("it was listed");
                let (s, key) = (session.server, session.key);
                // All that is on its way is read at once.
                for ask in std::mem::take(&mut session.to_server) {
                    state.server_mut(s).hear(key, ask);
                }
            }
            Step::ToClient(c) => {
                let client = state.client_mut(c);
                let session = client.session.as_mut().expect("it was listed");
                for answer in std::mem::take(&mut session.to_client) {
                    client.hear(answer);
                }
                client.look();
            }
            Step::Connects(c, s) => {
                let epoch = state.server(s).shard.as_ref().expect("it was listed").epoch();
                let key = state.client_mut(c).begin(s, epoch);
                state.server_mut(s).admit(key, c);
            }
            Step::Leaves(c) => state.client_mut(c).leave(),
            Step::Probes(c) => state.client_mut(c).probe(),
            Step::Acts(c) => state.client_mut(c).act(),
            Step::Pauses(s) => {
                state.left.pauses -= 1;
                let server = state.server_mut(s);
                (server.life, server.is_prompt) = (server::Life::Paused, false);
                // The answer to its last renewal has not come yet.
                server.renewal = Some((server.clock, true));
                state.client_mut(1).act();
            }
            Step::Cuts(s) => {
                state.left.cuts -= 1;
                let server = state.server_mut(s);
                (server.is_cut, server.is_prompt) = (true, false);
                state.client_mut(1).act();
            }
            Step::Heals(s) => {
                state.server_mut(s).is_cut = false;
            }
            Step::Continues(s) => state.server_mut(s).life = server::Life::Runs,
            Step::Crashes(s) => {
                state.left.crashes -= 1;
                let request = state.server(s).request.clone();
                let mut dead = Server::new(self.rules, false);
                (dead.life, dead.request) = (server::Life::Dead, request);
                state.servers[s] = Part::new(Ticking(dead));
                for c in 0..2 {
                    // Their connections are closed.
                    if state.client(c).session.as_ref().is_some_and(|session| session.server == s) {
                        state.client_mut(c).leave();
                    }
                }
            }
            Step::Dies(c) => {
                state.left.deaths -= 1;
                let client = state.client_mut(c);
                (client.life, client.session) = (client::Life::Dead, None);
            }
            Step::Sleeps(c) => {
                state.left.suspends -= 1;
                state.client_mut(c).sleep();
            }
            Step::Wakes(c) => {
                let client = state.client_mut(c);
                (client.life, client.unaware) = (client::Life::Runs, true);
                client.leave();
            }
        }
    }

    /// What the second client and its server say to each other arrives at once, as long as both can.
    fn talk(&self, state: &mut State) {
        const C: usize = 1;
        for _ in 0..4 {
            if state.client(C).life != client::Life::Runs {
                return;
            }
            self.follow(state, C);
            let client = state.client(C);
            let Some(session) = &client.session else { return };
            let s = session.server;
            if client.cares_to_probe() {
                state.client_mut(C).probe();
            }
            let mut steps = Vec::new();
            self.messages(state, C, &mut steps);
            for step in steps {
                self.apply(state, &step);
                state.route(s);
            }
            if state.server(s).unregistered().is_some() {
                state.server_mut(s).register();
            }
        }
    }

    /// The client goes to the newest owner, if it is not there.
    fn follow(&self, state: &mut State, c: usize) {
        if state.is_past(c) {
            state.client_mut(c).leave();
        }
        let (client, epoch) =
            (state.client(c), |s: usize| state.server(s).shard.as_ref().map(|shard| shard.epoch()));
        let newest = if epoch(1) > epoch(0) { 1 } else { 0 };
        let is_wanted = client.session.is_none() && client.stage != Stage::Idle;
        if is_wanted
            && epoch(newest) >= Some(client.last.0.max(1))
            && state.server(newest).life == server::Life::Runs
        {
            self.apply(state, &Step::Connects(c, newest));
        }
    }

    fn check(&self, state: &mut State) -> Result<(), Violation> {
        if (0..2).all(|c| state.client(c).believes(state.broken)) {
            return Err(Violation::new(Checker::Exclusion, "both clients believe that they hold the lock"));
        }
        let is_robbed = |token: u64| state.broken != Some(token);
        if let Some(c) = (0..2).find(|c| state.client(*c).robbed.is_some_and(is_robbed)) {
            let what = format!("C{c} is alive, was told that it lost the lock, and had not let go of it");
            return Err(Violation::new(Checker::Holders, what));
        }
        for c in 0..2 {
            if state.client(c).confirmed.is_none() {
                continue;
            }
            if state.client_mut(c).confirmed.take() == state.broken && state.broken.is_some() {
                let what = format!("a new owner lets C{c} go on with a grant that was broken");
                return Err(Violation::new(Checker::Holders, what));
            }
        }
        for c in 0..2 {
            if state.client(c).news.is_none() {
                continue;
            }
            let token = state.client_mut(c).news.take().expect("just seen");
            if token <= state.token {
                let what = format!("C{c} has token {token}, and {} was there before", state.token);
                return Err(Violation::new(Checker::Tokens, what));
            }
            state.token = token;
        }
        Ok(())
    }
}

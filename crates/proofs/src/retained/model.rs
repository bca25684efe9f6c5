//! The world around a server and the clients that its locks stay with: what can happen next, and what must not.

use super::client::Client;
use lockwright::internal::{LocalGrant, Origin, RetentionRules};
use lockwright::wire::RequestId;
use lockwright_fabric::Message;
use lockwright_fabric::backend::tcp::SessionEnd;
use lockwright_fabric::observe::Mode;
use lockwright_server::{Journal, Machine, MachineRules};
use lockwright_sim::check::{Checker, Violation};
use lockwright_sim::model::{Model, Part};
use std::collections::VecDeque;
use std::fmt;

/// One thing that a user does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Waits for the lock. The next is [`Op::Unlock`].
    Lock(Mode),
    /// Takes it if it is free. The next is [`Op::Unlock`], which is left out if it is not.
    Try(Mode),
    /// Gives it back.
    Unlock,
}

/// How often the world may do something.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Let a client find its lease to be over.
    pub expiries: u8,
    /// Kill the server.
    pub restarts: u8,
    /// Kill a client.
    pub deaths: u8,
    /// Let a user give up what it waits for.
    pub cancels: u8,
    /// Let a client give back what it has not used for a while.
    pub hand_backs: u8,
    /// Break a client's connection, and let it say again what the server may not have taken.
    pub cuts: u8,
    /// Take the lock away from the client that has it, used or not, as an operator does.
    pub broken: u8,
}

/// A case: what every user of every client does, and what may happen.
#[derive(Clone, Debug, Default)]
pub struct Retained {
    /// By client and user.
    pub programs: Vec<Vec<Vec<Op>>>,
    /// In all.
    pub faults: Faults,
    /// Where a broken client differs from what is shipped.
    pub rules: RetentionRules,
    /// Whether the server gives the tokens of a block to others, too.
    pub reuses_tokens: bool,
}

/// A client's session, as the server has it, and what is on its way.
#[derive(Clone, Debug, Default, Hash)]
struct Line {
    /// Its id and its number in the lock table, unless it is over there.
    at_server: Option<(u64, u32)>,
    to_server: VecDeque<Message>,
    to_client: VecDeque<Message>,
}

/// Everything.
#[derive(Clone, Debug, Hash)]
pub struct State {
    server: Option<Part<Machine>>,
    disk: Part<Journal>,
    clients: Vec<Part<Client>>,
    lines: Vec<Part<Line>>,
    sessions: u64,
    left: Faults,
    /// The highest token of a writer, and of any holder.
    tokens: (u64, u64),
    /// Grants that were taken away, by client: what is done under them until the client hears of it is the operator's doing.
    broken: Vec<(usize, RequestId)>,
}

/// One thing that happens. Numbers are of clients and their users.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A user does the next thing of its program.
    Acts(usize, usize),
    /// The future of a user is polled.
    Looks(usize, usize),
    /// A user waits no longer.
    GivesUp(usize, usize),
    /// A client gives back what it has not used for a while.
    HandsBack(usize),
    /// A message arrives at the server.
    ToServer(usize),
    /// A message arrives at a client.
    ToClient(usize),
    /// A client finds its lease to be over.
    Expires(usize),
    /// It hears of the server again.
    Recovers(usize),
    /// The connection of a client breaks, and comes back.
    Cut(usize),
    /// The lock is taken away from the client that has it.
    Broken,
    /// The server gives up a session.
    GivenUp(usize),
    /// A client learns that its session is over.
    Learns(usize),
    /// A client begins a session.
    Begins(usize),
    /// A client is killed.
    Dies(usize),
    /// The server is killed.
    Killed,
    /// It is started again.
    Starts,
    /// It ends its wait for claims.
    ClaimsOver,
    /// It waits no longer for a client's word on what it has recalled.
    DeniesTries,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Acts(c, u) => write!(f, "C{c}: user {u} does the next thing"),
            Step::Looks(c, u) => write!(f, "C{c}: user {u} sees what has come"),
            Step::GivesUp(c, u) => write!(f, "C{c}: user {u} gives up"),
            Step::HandsBack(c) => write!(f, "C{c} gives back what it has not used"),
            Step::ToServer(c) => write!(f, "a message of C{c} arrives"),
            Step::ToClient(c) => write!(f, "a message for C{c} arrives"),
            Step::Expires(c) => write!(f, "the lease of C{c} is over"),
            Step::Recovers(c) => write!(f, "C{c} hears of the server again"),
            Step::Cut(c) => write!(f, "C{c} says again over a new connection what it had said"),
            Step::Broken => write!(f, "the lock is taken away from the client that has it"),
            Step::GivenUp(c) => write!(f, "the server gives up the session of C{c}"),
            Step::Learns(c) => write!(f, "C{c} learns that its session is over"),
            Step::Begins(c) => write!(f, "C{c} begins a session"),
            Step::Dies(c) => write!(f, "C{c} is killed"),
            Step::Killed => write!(f, "the server is killed"),
            Step::Starts => write!(f, "the server is started"),
            Step::ClaimsOver => write!(f, "the server ends its wait for claims"),
            Step::DeniesTries => write!(f, "the server waits no longer for a client's word"),
        }
    }
}

const NO_SERVER: &str = "only a server that runs does anything";
/// When every run begins: a clock that stands still, so that nothing but the disk makes tokens rise.
const NOW: u64 = 1;

impl Model for Retained {
    type State = State;
    type Step = Step;

    /// All clients are in the space, and nobody has asked for anything.
    fn initial(&self) -> State {
        let disk = Journal::default();
        let clients = self.programs.iter().map(|users| Part::new(Client::new(users.len(), self.rules)));
        let mut state = State {
            server: Some(Part::new(self.start(&disk))),
            disk: Part::new(disk),
            clients: clients.collect(),
            lines: self.programs.iter().map(|_| Part::default()).collect(),
            sessions: 0,
            left: self.faults,
            tokens: (0, 0),
            broken: Vec::new(),
        };
        for client in 0..self.programs.len() {
            state.begin(client);
            while !state.lines[client].to_server.is_empty() {
                state.deliver(client);
            }
            while let Some(message) = state.lines[client].to_client.pop_front() {
                state.clients[client].hear(&message).expect("nothing has happened yet");
            }
        }
        state
    }

    fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        let is_up = state.server.is_some();
        for (c, client) in state.clients.iter().enumerate() {
            let line = &state.lines[c];
            if is_up && !line.to_server.is_empty() && line.at_server.is_some() {
                steps.push(Step::ToServer(c));
            }
            if is_up && line.at_server.is_some() && (!client.alive || client.expired) {
                steps.push(Step::GivenUp(c));
            }
            if !client.alive {
                continue;
            }
            for (u, user) in client.users.iter().enumerate() {
                let op = self.programs[c][u].get(user.done);
                match op {
                    Some(Op::Unlock) if user.holds.is_some() => steps.push(Step::Acts(c, u)),
                    Some(Op::Lock(_) | Op::Try(_)) => steps.push(Step::Acts(c, u)),
                    _ => {}
                }
                if client.has_news(u) {
                    steps.push(Step::Looks(c, u));
                } else if user.waits.is_some() && state.left.cancels > 0 {
                    steps.push(Step::GivesUp(c, u));
                }
            }
            let here = line.at_server.map(|(id, _)| id);
            match client.session {
                None if is_up => steps.push(Step::Begins(c)),
                Some(id) if here == Some(id) => {
                    if !client.expired && !line.to_client.is_empty() {
                        steps.push(Step::ToClient(c));
                    }
                    if state.left.cuts > 0 {
                        steps.push(Step::Cut(c));
                    }
                    if client.expired {
                        steps.push(Step::Recovers(c));
                    } else if state.left.expiries > 0 {
                        steps.push(Step::Expires(c));
                    }
                }
                Some(_) if is_up => steps.push(Step::Learns(c)),
                _ => {}
            }
            if state.left.hand_backs > 0 && client.table.idle_grants() > 0 {
                steps.push(Step::HandsBack(c));
            }
            if state.left.deaths > 0 {
                steps.push(Step::Dies(c));
            }
        }
        match &state.server {
            None => steps.push(Step::Starts),
            Some(machine) => {
                if machine.is_recovering() && state.all_have_claimed() {
                    steps.push(Step::ClaimsOver);
                }
                if machine.has_tries() {
                    steps.push(Step::DeniesTries);
                }
                if state.left.restarts > 0 {
                    steps.push(Step::Killed);
                }
                if state.left.broken > 0 && machine.holds_anything() {
                    steps.push(Step::Broken);
                }
            }
        }
    }

    fn take(&self, state: &mut State, step: &Step) -> Result<(), Violation> {
        let before = state.held();
        match *step {
            Step::Acts(c, u) => {
                let op = self.programs[c][u][state.clients[c].users[u].done];
                state.clients[c].act(u, op);
            }
            Step::Looks(c, u) => state.clients[c].look(u),
            Step::GivesUp(c, u) => {
                state.left.cancels -= 1;
                state.clients[c].give_up(u);
            }
            Step::HandsBack(c) => {
                state.left.hand_backs -= 1;
                state.clients[c].hand_back();
            }
            Step::ToServer(c) => state.deliver(c),
            Step::ToClient(c) => {
                let message = state.lines[c].to_client.pop_front().expect("it was listed");
                state.clients[c].hear(&message)?;
            }
            Step::Expires(c) => {
                state.left.expiries -= 1;
                state.clients[c].expire();
            }
            Step::Recovers(c) => state.clients[c].expired = false,
            Step::Cut(c) => {
                state.left.cuts -= 1;
                // What was on its way to the server is lost, or has arrived, and the answer has not.
                let again = state.clients[c].table.unacked().cloned().collect();
                state.lines[c].to_server = again;
            }
            Step::Broken => {
                state.left.broken -= 1;
                let (number, id) =
                    state.server.as_mut().expect(NO_SERVER).break_one().expect("it was listed");
                let of = |line: &Part<Line>| line.at_server.is_some_and(|(_, its)| its == number);
                let client = state.lines.iter().position(of).expect("a holder has a session");
                state.broken.push((client, id));
                state.route();
            }
            Step::GivenUp(c) => {
                let (_, number) = state.lines[c].at_server.take().expect("it was listed");
                state.server.as_mut().expect(NO_SERVER).depart(number, SessionEnd::Lost);
                state.route();
            }
            Step::Learns(c) => {
                let line = &mut state.lines[c];
                (line.to_server, line.to_client) = (VecDeque::new(), VecDeque::new());
                state.clients[c].end();
            }
            Step::Begins(c) => state.begin(c),
            Step::Dies(c) => {
                state.left.deaths -= 1;
                let client = &mut state.clients[c];
                client.alive = false;
                client.users.iter_mut().for_each(|user| user.holds = None);
            }
            Step::Killed => {
                state.left.restarts -= 1;
                let machine = state.server.take().expect(NO_SERVER);
                state.disk = Part::new(machine.journal().after_death());
                for line in &mut state.lines {
                    line.at_server = None;
                    (line.to_server, line.to_client) = (VecDeque::new(), VecDeque::new());
                }
            }
            Step::Starts => state.server = Some(Part::new(self.start(&state.disk))),
            Step::ClaimsOver => {
                state.server.as_mut().expect(NO_SERVER).end_recovery();
                state.route();
            }
            Step::DeniesTries => {
                state.server.as_mut().expect(NO_SERVER).deny_tries();
                state.route();
            }
        }
        state.send();
        self.check(state, &before)
    }

    fn is_final(&self, state: &State) -> bool {
        state.clients.iter().zip(&self.programs).all(|(client, programs)| {
            let done = client.users.iter().zip(programs).all(|(user, program)| {
                user.done >= program.len() && user.waits.is_none() && user.holds.is_none()
            });
            !client.alive || done
        })
    }

    fn answered(&self, state: &State) -> Vec<u64> {
        let users = state.clients.iter().filter(|client| client.alive).flat_map(|client| &client.users);
        users.map(|user| user.done as u64).collect()
    }

    fn is_progress(&self, step: &Step) -> bool {
        !matches!(
            step,
            Step::GivesUp(..)
                | Step::HandsBack(_)
                | Step::Expires(_)
                | Step::Cut(_)
                | Step::Broken
                | Step::Dies(_)
                | Step::Killed
        )
    }
}

impl Retained {
    /// What is shipped, with so many clients of two users each, who go on for long.
    pub fn soak(clients: usize) -> Self {
        use Mode::{Exclusive, Shared};
        use Op::{Lock, Try, Unlock};
        const ROUNDS: usize = 2_000;
        let writes = [Lock(Exclusive), Unlock, Lock(Shared), Unlock].repeat(ROUNDS);
        let reads = [Lock(Shared), Unlock, Try(Exclusive), Unlock].repeat(ROUNDS);
        // The dead are not replaced.
        let faults = Faults {
            expiries: u8::MAX,
            restarts: u8::MAX,
            deaths: 1,
            cancels: u8::MAX,
            hand_backs: u8::MAX,
            cuts: u8::MAX,
            broken: u8::MAX,
        };
        Self { programs: vec![vec![writes, reads]; clients], faults, ..Self::default() }
    }

    fn start(&self, disk: &Journal) -> Machine {
        let mut machine = Machine::start(disk, NOW, MachineRules::default());
        machine.let_everything_stay(!self.reuses_tokens);
        machine
    }

    fn check(&self, state: &mut State, before: &[(usize, usize, u64)]) -> Result<(), Violation> {
        let holders: Vec<_> = state.holders().collect();
        for (n, (one, token, mode)) in holders.iter().enumerate() {
            for (other, rival, rivals_mode) in &holders[n + 1..] {
                if [*mode, *rivals_mode].contains(&Mode::Exclusive) {
                    let ((c, u), (d, v)) = (one, other);
                    let what = format!(
                        "user {u} of C{c} holds the lock with token {token}, and user {v} of C{d} with {rival}"
                    );
                    return Err(Violation::new(Checker::Exclusion, what));
                }
            }
        }
        for ((c, u), token, mode) in holders {
            if before.contains(&(c, u, token)) {
                continue;
            }
            let alone = mode == Mode::Exclusive;
            let floor = if alone { state.tokens.1 } else { state.tokens.0 };
            if token <= floor {
                let what =
                    format!("user {u} of C{c} was granted token {token}, after {floor} was given to others");
                return Err(Violation::new(Checker::Tokens, what));
            }
            state.tokens.1 = state.tokens.1.max(token);
            if alone {
                state.tokens.0 = state.tokens.0.max(token);
            }
        }
        self.is_quiet(state)
    }

    /// When all users are done and all messages delivered, the server keeps what stays with clients, and nothing else.
    fn is_quiet(&self, state: &State) -> Result<(), Violation> {
        let Some(machine) = &state.server else { return Ok(()) };
        let all_here = state.lines.iter().zip(&state.clients).all(|(line, client)| {
            let here = client.alive && client.session.is_some();
            here && line.at_server.map(|(id, _)| id) == client.session
                && line.to_server.is_empty()
                && line.to_client.is_empty()
        });
        let stay: usize = state.clients.iter().map(|client| client.table.idle_grants()).sum();
        if self.is_final(state) && all_here && !machine.is_recovering() && machine.requests() != stay {
            let what = format!(
                "all is given back, {stay} stay with clients, and the server has {}",
                machine.requests()
            );
            return Err(Violation::new(Checker::Quiet, what));
        }
        Ok(())
    }
}

impl State {
    /// Who believes to hold the lock: client and user, token, mode.
    fn holders(&self) -> impl Iterator<Item = ((usize, usize), u64, Mode)> {
        self.clients.iter().enumerate().flat_map(move |(c, client)| {
            let users = client.users.iter().enumerate();
            let sound = move |granted: &LocalGrant| !self.broken.contains(&(c, granted.id));
            users.filter_map(move |(u, user)| {
                let (granted, mode) = user.holds.filter(|(granted, _)| sound(granted))?;
                Some(((c, u), granted.token, mode))
            })
        })
    }

    fn held(&self) -> Vec<(usize, usize, u64)> {
        self.holders().map(|((c, u), token, _)| (c, u, token)).collect()
    }

    /// Sends what clients have said.
    fn send(&mut self) {
        for (client, line) in self.clients.iter_mut().zip(&mut self.lines) {
            if !client.said.is_empty() {
                let said = std::mem::take(&mut client.said);
                if line.at_server.map(|(id, _)| id) == client.session {
                    line.to_server.extend(said);
                }
            }
        }
    }

    fn begin(&mut self, client: usize) {
        self.sessions += 1;
        let machine = self.server.as_mut().expect(NO_SERVER);
        let number = machine.admit().expect("there is room");
        let origin = Origin { epoch: machine.epoch(), key: u128::from(self.sessions) };
        let line = Line { at_server: Some((self.sessions, number)), ..Line::default() };
        self.lines[client] = Part::new(line);
        self.clients[client].begin(self.sessions, origin);
        self.send();
    }

    fn deliver(&mut self, client: usize) {
        let line = &mut self.lines[client];
        let message = line.to_server.pop_front().expect("it was listed");
        let (_, number) = line.at_server.expect("it was listed");
        self.server.as_mut().expect(NO_SERVER).message(number, &message);
        self.route();
    }

    /// Passes on what the lock table said.
    fn route(&mut self) {
        for (number, message) in self.server.as_mut().expect(NO_SERVER).take_sent() {
            let of = |line: &&mut Part<Line>| line.at_server.is_some_and(|(_, its)| its == number);
            if let Some(line) = self.lines.iter_mut().find(of) {
                line.to_client.push_back(message);
            }
        }
    }

    /// Whether nobody alive can still believe to hold what an earlier run granted, but those who said so.
    fn all_have_claimed(&self) -> bool {
        self.clients.iter().zip(&self.lines).all(|(client, line)| {
            let here = line.at_server.map(|(id, _)| id);
            let heard = match client.session {
                Some(session) => here == Some(session) && line.to_server.is_empty(),
                None => client.users.iter().all(|user| user.holds.is_none()),
            };
            !client.alive || client.expired || heard
        })
    }
}

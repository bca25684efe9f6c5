//! The world around a server and its clients: what can happen next, and what must not.

use super::client::{Client, Life};
use super::connection::{Connection, Frame};
use super::sets::{Claim, takes_sets};
use super::state::{NO_SERVER, NOW, Server, State};
use super::step::Step;
use super::values::Value;
use lockwright::internal::TableRules;
use lockwright::wire::Kind;
use lockwright_fabric::backend::tcp::{Arrival, SessionEnd, SessionRules};
use lockwright_fabric::observe::Mode;
use lockwright_server::{Journal, Machine, MachineRules};
use lockwright_sim::check::{Checker, Violation};
use lockwright_sim::model::{Model, Part};
use std::collections::BTreeMap;

/// One thing that a user does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Waits for the lock.
    Lock(Mode),
    /// Waits for these units of a lock of ranges, of `UNITS`; the case has ranges only.
    Range(Mode, u64, u64),
    /// Waits for the locks of these names, each alone; the case has sets only.
    LockSet(&'static [u64]),
    /// Takes it if it is free.
    Try(Mode),
    /// Wants what it holds shared for itself alone. It may be refused, and holds it shared then.
    Upgrade,
    /// Shares with others what it holds alone.
    Downgrade,
    /// Reads the value of the lock, which it holds alone, and sets another one.
    Set,
    /// Gives it back. This and what is before it is left out if there is nothing to give back.
    Unlock,
}

/// Units of a lock of ranges, or names of a case with sets.
pub(super) const UNITS: u64 = 3;

/// How often the world may do something bad.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Break a connection, at either end.
    pub breaks: u8,
    /// Kill the server, between two steps or at a write.
    pub kills: u8,
    /// Kill the server between two steps.
    pub restarts: u8,
    /// Kill a client.
    pub deaths: u8,
    /// Stop a client for as long as it likes.
    pub stops: u8,
    /// The same, and its clock with it: it goes on and knows of nothing.
    pub suspends: u8,
    /// Let a client's lease be over though nothing is wrong with it but its connection.
    pub expiries: u8,
    /// Let a user give up what it waits for.
    pub cancels: u8,
}

/// A case: what every client's user does, and what may go wrong.
#[derive(Clone, Debug, Default)]
pub struct Served {
    /// By client.
    pub programs: Vec<Vec<Op>>,
    /// In all.
    pub faults: Faults,
    /// Where a broken server differs from what is shipped.
    pub rules: MachineRules,
    /// Where a broken client does.
    pub client_rules: TableRules,
    /// Where the server's end of a broken session does.
    pub session_rules: SessionRules,
    /// After so many messages of the server a client acknowledges them; without, only when it resumes its session.
    pub acks_every: Option<u64>,
    /// Whether it goes on for ever: programs begin anew, the dead are replaced, and there is no end of faults.
    pub endless: bool,
}

/// What may be kept: messages of a session, sessions per client, bytes of the disk per client.
const MOST_UNACKED: usize = 32;
const MOST_SESSIONS: usize = 16;
const MOST_BYTES: usize = 1 << 16;

/// Whether the server may write to its disk in a step.
const fn is_of_server(step: &Step) -> bool {
    matches!(step, Step::ToServer(..) | Step::GraceOver(_) | Step::ClaimsOver | Step::Starts)
}

impl Model for Served {
    type State = State;
    type Step = Step;

    fn initial(&self) -> State {
        let machine = Machine::start(&Journal::default(), NOW, self.rules);
        State {
            disk: Part::new(Journal::default()),
            server: Some(Server { machine: Part::new(machine), sessions: Part::new(BTreeMap::new()) }),
            sessions: 0,
            clients: self.programs.iter().map(|_| Part::new(self.client())).collect(),
            connections: Vec::new(),
            left: self.faults,
            tokens: vec![(0, 0); UNITS as usize],
            value: Value::default(),
        }
    }

    fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        let is_up = state.server.is_some();
        for (c, client) in state.clients.iter().enumerate() {
            if client.life == Life::Dead {
                if self.endless {
                    steps.push(Step::Replaced(c));
                }
                continue;
            }
            match client.life {
                Life::Stopped => {
                    steps.push(Step::Continues(c));
                    continue;
                }
                Life::Asleep => {
                    steps.push(Step::Wakes(c));
                    continue;
                }
                Life::Runs | Life::Dead => {}
            }
            let connected = state.has_connection(c);
            match (self.op(c, client), client.holds) {
                (Some(Op::Lock(_) | Op::Range(..) | Op::LockSet(_) | Op::Try(_)), _)
                    if client.request.is_none() =>
                {
                    steps.push(Step::Acts(c));
                }
                (Some(Op::Upgrade), Some(_)) if client.upgrading => {}
                (Some(Op::Set), Some(_)) if client.asks.is_some() || client.session.is_none() => {}
                (Some(Op::Upgrade | Op::Downgrade | Op::Set | Op::Unlock), Some(_)) => {
                    steps.push(Step::Acts(c));
                }
                (Some(Op::Lock(_) | Op::Range(..) | Op::LockSet(_)), None) if state.left.cancels > 0 => {
                    steps.push(Step::GivesUp(c));
                }
                _ => {}
            }
            if client.has_news() {
                steps.push(Step::Looks(c));
            }
            if !connected {
                match client.session {
                    None if is_up => steps.push(Step::Begins(c)),
                    Some(_) if is_up => steps.push(Step::Resumes(c)),
                    _ => {}
                }
            }
            let is_heard = |it: &Part<Connection>| it.client == c && it.open_at_client && it.open_at_server;
            let is_heard = state.connections.iter().any(is_heard);
            if !is_heard && client.session.is_some() && !client.expired && state.left.expiries > 0 {
                steps.push(Step::LeaseOver(c));
            }
            if client.awaits_claims() && !client.claims_late && state.left.expiries > 0 {
                steps.push(Step::ClaimsLate(c));
            }
            if client.expired && client.waits() {
                steps.push(Step::WaitOver(c));
            }
            if state.left.deaths > 0 {
                steps.push(Step::Dies(c));
            }
            if state.left.stops > 0 {
                steps.push(Step::Stops(c));
            }
            if state.left.suspends > 0 {
                steps.push(Step::Sleeps(c));
            }
        }
        for (c, nth, connection) in state.numbered() {
            let runs = state.clients[c].life == Life::Runs;
            let Connection { open_at_client, open_at_server, .. } = *connection;
            if open_at_server && !connection.to_server.is_empty() {
                steps.push(Step::ToServer(c, nth));
            }
            if open_at_client && runs && !connection.to_client.is_empty() {
                steps.push(Step::ToClient(c, nth));
            }
            match (open_at_client, open_at_server) {
                (true, true) if state.left.breaks > 0 => {
                    if runs {
                        steps.push(Step::BreaksAtClient(c));
                    }
                    steps.push(Step::BreaksAtServer(c, nth));
                }
                (true, false) if runs => steps.push(Step::ClientSees(c)),
                (false, true) => steps.push(Step::ServerSees(c, nth)),
                _ => {}
            }
        }
        match &state.server {
            None => steps.push(Step::Starts),
            Some(server) => {
                for (id, host) in server.sessions.iter() {
                    let client = &state.clients[host.client];
                    let is_past = client.session.is_none_or(|session| session.id != *id);
                    let lease_over = client.life != Life::Runs || client.expired || is_past;
                    let given_up = |number: u64| {
                        // The lease of a connection that was replaced is over some time, whatever became of its client.
                        let lease_over = lease_over || number < host.connection;
                        host.state.is_given_up(number, client.life == Life::Dead, lease_over)
                    };
                    if (1..=host.connection).any(given_up) {
                        steps.push(Step::GraceOver(*id));
                    }
                }
                if server.machine.is_recovering() && state.all_have_claimed() {
                    steps.push(Step::ClaimsOver);
                }
            }
        }
        if state.left.kills > 0 {
            for step in steps.clone().into_iter().filter(is_of_server) {
                for write in 1..=self.writes(state, &step) {
                    steps.push(Step::KilledIn(Box::new(step.clone()), write, false));
                    steps.push(Step::KilledIn(Box::new(step.clone()), write, true));
                }
            }
        }
        if is_up && state.left.kills + state.left.restarts > 0 {
            steps.push(Step::Killed);
        }
    }

    fn take(&self, state: &mut State, step: &Step) -> Result<(), Violation> {
        let before: Vec<_> = state.clients.iter().map(|client| client.holds).collect();
        self.apply(state, step, None)?;
        self.leave_out(state);
        state.send();
        state.sweep();
        self.check(state, &before)
    }

    fn is_final(&self, state: &State) -> bool {
        let is_done = |(client, program): (&Part<Client>, &Vec<Op>)| {
            client.life == Life::Dead || client.life == Life::Runs && client.done >= program.len()
        };
        !self.endless && state.clients.iter().zip(&self.programs).all(is_done)
    }

    fn answered(&self, state: &State) -> Vec<u64> {
        state.clients.iter().map(|client| client.done as u64).collect()
    }

    fn takes_ns(&self, step: &Step) -> u64 {
        const US: u64 = 1_000;
        const S: u64 = 1_000_000_000;
        match step {
            // Users think and work.
            Step::Acts(_) => S,
            Step::ToServer(..) | Step::ToClient(..) => 20 * US,
            Step::Begins(_) | Step::Resumes(_) => 500 * US,
            Step::LeaseOver(_)
            | Step::ClaimsLate(_)
            | Step::WaitOver(_)
            | Step::GraceOver(_)
            | Step::ClaimsOver
            | Step::Continues(_) => 8 * S,
            Step::Starts | Step::Replaced(_) => S,
            _ => 0,
        }
    }

    fn weight(&self, step: &Step) -> u64 {
        match step {
            Step::Killed | Step::Dies(_) | Step::Stops(_) | Step::Sleeps(_) => 20,
            step if self.is_progress(step) => 400,
            _ => 10,
        }
    }

    fn is_progress(&self, step: &Step) -> bool {
        !matches!(
            step,
            Step::GivesUp(_)
                | Step::BreaksAtClient(_)
                | Step::BreaksAtServer(..)
                | Step::LeaseOver(_)
                | Step::ClaimsLate(_)
                | Step::WaitOver(_)
                | Step::Killed
                | Step::KilledIn(..)
                | Step::Dies(_)
                | Step::Stops(_)
                | Step::Sleeps(_)
        )
    }
}

impl Served {
    fn client(&self) -> Client {
        let has_ranges = self.programs.iter().flatten().any(|op| matches!(op, Op::Range(..)));
        let kind = if has_ranges { Kind::Ranges } else { Kind::Keyed };
        Client::new(self.client_rules, kind, if takes_sets(&self.programs) { UNITS } else { 1 })
    }

    /// The next thing of a user's program.
    fn op(&self, client: usize, state: &Client) -> Option<Op> {
        let program = &self.programs[client];
        let at = if self.endless { state.done % program.len() } else { state.done };
        program.get(at).copied()
    }

    /// Leaves out of every program what was to be done under a lock that is not held.
    fn leave_out(&self, state: &mut State) {
        for (c, client) in state.clients.iter_mut().enumerate() {
            let needs_lock = |op| matches!(op, Op::Upgrade | Op::Downgrade | Op::Set | Op::Unlock);
            while client.request.is_none() && self.op(c, client).is_some_and(needs_lock) {
                client.done += 1;
            }
        }
    }

    /// One of these is used up.
    fn spend(&self, left: &mut u8) {
        if !self.endless {
            *left -= 1;
        }
    }

    /// How often the server writes to its disk in a step.
    fn writes(&self, state: &State, step: &Step) -> u32 {
        let mut tried = state.clone();
        let _ = self.apply(&mut tried, step, None);
        tried.server.map_or(0, |server| server.machine.journal().writes())
    }

    /// `dies`: at which write of this step the server is killed, and whether it is on the disk.
    fn apply(&self, state: &mut State, step: &Step, dies: Option<(u32, bool)>) -> Result<(), Violation> {
        if is_of_server(step)
            && let Some(server) = &mut state.server
        {
            server.machine.die_at(dies);
        }
        match step {
            Step::Acts(c) => {
                let op = self.op(*c, &state.clients[*c]).expect("it was listed");
                if op == Op::Unlock {
                    state.value.unlocks(&state.clients[*c]);
                }
                state.clients[*c].act(op);
            }
            Step::Looks(c) => {
                state.clients[*c].look();
                let client = &mut *state.clients[*c];
                state.value.seen(*c, client, self.faults == Faults::default())?;
            }
            Step::GivesUp(c) => {
                self.spend(&mut state.left.cancels);
                state.clients[*c].give_up();
            }
            Step::Begins(c) => state.begin(*c, self.session_rules),
            Step::Resumes(c) => state.resume(*c),
            Step::ToServer(c, nth) => {
                let connection = state.connection(*c, *nth);
                let frame = connection.to_server.pop_front().expect("it was listed");
                let session = connection.session;
                let server = state.server.as_mut().expect(NO_SERVER);
                match (frame, server.sessions.get_mut(&session)) {
                    (_, None) => {}
                    (Frame::Message(message), Some(host)) => server.machine.message(host.number, &message),
                    (Frame::Ack(seen), Some(host)) => {
                        if !host.state.ack(seen) {
                            let what = format!("C{c} acknowledged message {seen}, which was never sent");
                            return Err(Violation::new(Checker::Quiet, what));
                        }
                    }
                }
                state.route();
            }
            Step::ToClient(c, nth) => {
                let connection = state.connection(*c, *nth);
                let (seq, message) = connection.to_client.pop_front().expect("it was listed");
                let is_fresh = connection.stale == 0;
                connection.stale = connection.stale.saturating_sub(1);
                let session = state.clients[*c].session.as_mut().expect("a connection has a session");
                match session.received.arrive(seq) {
                    Arrival::Again => {}
                    Arrival::Gap => {
                        let seen = session.received.seen();
                        let what = format!("C{c} got message {seq} of the server after {seen}");
                        return Err(Violation::new(Checker::Quiet, what));
                    }
                    Arrival::New => {
                        let ack = session.received.due(self.acks_every.unwrap_or(u64::MAX));
                        state.connection(*c, *nth).to_server.extend(ack.map(Frame::Ack));
                        state.clients[*c].hear(&message, is_fresh)?;
                    }
                }
            }
            Step::BreaksAtClient(c) => {
                self.spend(&mut state.left.breaks);
                state.believed(*c).expect("it was listed").open_at_client = false;
            }
            Step::ClientSees(c) => state.believed(*c).expect("it was listed").open_at_client = false,
            Step::BreaksAtServer(c, nth) => {
                self.spend(&mut state.left.breaks);
                state.detach(*c, *nth);
            }
            Step::ServerSees(c, nth) => state.detach(*c, *nth),
            Step::LeaseOver(c) => {
                self.spend(&mut state.left.expiries);
                state.clients[*c].expire();
            }
            Step::ClaimsLate(c) => {
                self.spend(&mut state.left.expiries);
                state.clients[*c].expire_claims();
            }
            Step::WaitOver(c) => state.clients[*c].expire_waiter(),
            Step::GraceOver(id) => {
                let server = state.server.as_mut().expect(NO_SERVER);
                let host = server.sessions.get_mut(id).expect("it was listed");
                if host.state.end(host.connection) {
                    let number = host.number;
                    server.sessions.remove(id);
                    server.machine.depart(number, SessionEnd::Lost);
                }
                state.route();
            }
            Step::ClaimsOver => {
                state.server.as_mut().expect(NO_SERVER).machine.end_recovery();
                state.route();
            }
            Step::Killed => {
                let left = &mut state.left;
                self.spend(if left.restarts > 0 { &mut left.restarts } else { &mut left.kills });
                state.kill_server();
            }
            Step::KilledIn(step, write, kept) => {
                self.spend(&mut state.left.kills);
                let heard: Vec<_> = state.connections.iter().map(|c| c.to_client.clone()).collect();
                self.apply(state, step, Some((*write, *kept)))?;
                // Answers leave when a batch is over, which it never was.
                for (connection, heard) in state.connections.iter_mut().zip(heard) {
                    connection.to_client = heard;
                }
                state.kill_server();
            }
            Step::Starts => {
                let mut journal = Journal::clone(&state.disk);
                journal.die_at(dies);
                let machine = Machine::start(&journal, NOW, self.rules);
                state.server =
                    Some(Server { machine: Part::new(machine), sessions: Part::new(BTreeMap::new()) });
            }
            Step::Dies(c) => {
                self.spend(&mut state.left.deaths);
                let client = &mut state.clients[*c];
                (client.life, client.holds) = (Life::Dead, None);
                if let Some(connection) = state.believed(*c) {
                    connection.open_at_client = false;
                }
            }
            Step::Sleeps(c) => {
                self.spend(&mut state.left.suspends);
                state.clients[*c].life = Life::Asleep;
            }
            Step::Wakes(c) => {
                let client = &mut state.clients[*c];
                (client.life, client.unaware) = (Life::Runs, true);
                if let Some(connection) = state.believed(*c) {
                    connection.stale = connection.to_client.len();
                }
            }
            Step::Stops(c) => {
                self.spend(&mut state.left.stops);
                state.clients[*c].life = Life::Stopped;
            }
            Step::Replaced(c) => state.clients[*c] = Part::new(self.client()),
            Step::Continues(c) => {
                // Its lease may be over; if so it finds that out before its user does anything.
                state.clients[*c].life = Life::Runs;
                state.clients[*c].expire();
            }
        }
        Ok(())
    }

    fn check(&self, state: &mut State, before: &[Option<u64>]) -> Result<(), Violation> {
        let holders: Vec<_> = state
            .clients
            .iter()
            .enumerate()
            .filter(|(_, client)| client.life == Life::Runs && client.holds.is_some() && !client.unaware)
            .collect();
        for (n, (one, client)) in holders.iter().enumerate() {
            for (other, rival) in &holders[n + 1..] {
                if client.excludes(rival) {
                    let what = format!(
                        "C{one} believes that it holds the lock with token {}, and C{other} with {}",
                        client.holds.unwrap_or_default(),
                        rival.holds.unwrap_or_default()
                    );
                    return Err(Violation::new(Checker::Exclusion, what));
                }
            }
        }
        for (c, client) in state.clients.iter().enumerate() {
            if client.holds.is_none_or(|token| before[c] == Some(token)) {
                continue;
            }
            for Claim { units, alone, token } in client.claims() {
                let token = token.expect("it holds what it claims");
                for (writers, all) in &mut state.tokens[units] {
                    let floor = if alone { *all } else { *writers };
                    // Of one that has woken up and heard nothing since, the token is what others go by.
                    if token <= floor && !client.unaware {
                        let what =
                            format!("C{c} was granted token {token}, after {floor} was given to others");
                        return Err(Violation::new(Checker::Tokens, what));
                    }
                    *all = token.max(*all);
                    if alone {
                        *writers = token.max(*writers);
                    }
                }
            }
        }
        for (c, client) in state.clients.iter().enumerate() {
            if client.holds.is_none() || client.life != Life::Runs || client.unaware {
                continue;
            }
            for Claim { units, alone, token } in client.claims() {
                let latest =
                    state.tokens[units].iter().map(|(writers, all)| if alone { *all } else { *writers });
                let (token, latest) = (token.unwrap_or_default(), latest.max().unwrap_or_default());
                if token < latest {
                    let what = format!(
                        "C{c} was told that it holds token {token}, after {latest} was given to others"
                    );
                    return Err(Violation::new(Checker::Tokens, what));
                }
            }
        }
        self.is_bounded(state)?;
        self.is_quiet(state)
    }

    /// However long it goes on, what is kept for a client stays within what it has asked for.
    fn is_bounded(&self, state: &State) -> Result<(), Violation> {
        let Some(server) = &state.server else { return Ok(()) };
        let unacked = server.sessions.values().map(|host| host.state.unacked().count()).max();
        let unsaid = state.clients.iter().map(|client| client.table.unacked().count()).max();
        let clients = self.programs.len();
        for (kept, limit, what) in [
            (unacked.unwrap_or(0), MOST_UNACKED, "messages for a client"),
            (unsaid.unwrap_or(0), MOST_UNACKED, "messages for the server"),
            (server.sessions.len(), MOST_SESSIONS * clients, "sessions"),
            (server.machine.requests(), 2 * server.sessions.len(), "requests"),
            (server.machine.journal().bytes(), MOST_BYTES * clients, "bytes on the disk"),
        ] {
            if kept > limit {
                return Err(Violation::new(Checker::Quiet, format!("{kept} {what} are kept, of {limit}")));
            }
        }
        Ok(())
    }

    /// When all clients are done and everything was said, the server keeps nothing.
    fn is_quiet(&self, state: &State) -> Result<(), Violation> {
        let Some(server) = &state.server else { return Ok(()) };
        let said =
            |connection: &Part<Connection>| connection.to_server.is_empty() && connection.open_at_server;
        let all_here = server.sessions.values().all(|host| {
            let client = &state.clients[host.client];
            client.life == Life::Runs && host.connected && state.has_connection(host.client)
        });
        let quiet = self.is_final(state) && all_here && state.connections.iter().all(said);
        if quiet && !server.machine.is_recovering() && server.machine.requests() > 0 {
            let what = "all is given back, and the server still has requests";
            return Err(Violation::new(Checker::Quiet, what));
        }
        Ok(())
    }
}

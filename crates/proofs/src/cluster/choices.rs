//! What can happen next: to a server, to a client, and to what is on its way between them.

use super::client::{self, Stage};
use super::model::{Cluster, State, TTL};
use super::server;
use super::step::Step;

impl Cluster {
    pub(super) fn steps_of_server(&self, state: &State, s: usize, steps: &mut Vec<Step>) {
        let server = state.server(s);
        let lease = state.etcd.leases[s];
        if lease.is_some_and(|(left, _)| left == 0) {
            steps.push(Step::Expires(s));
        }
        if server.is_cut {
            steps.push(Step::Heals(s));
        } else if server.request.as_ref().is_some_and(|request| request.outcome.is_none()) {
            steps.push(Step::Executes(s));
        }
        match server.life {
            server::Life::Dead => return,
            server::Life::Paused => return steps.push(Step::Continues(s)),
            server::Life::Runs => {}
        }
        let is_late = lease.is_none_or(|(left, _)| left < TTL.as_nanos() as u64);
        if server.renewal.is_some() {
            steps.push(Step::Renewed(s));
        } else if server.id.is_some() && is_late && !server.is_prompt && !server.is_cut {
            steps.push(Step::Renews(s));
        }
        if server.id.is_none() && !server.is_cut {
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
            _ if server.is_cut => {}
            None if is_idle && is_certain => {
                if server.adopt(&state.etcd).is_some() {
                    steps.push(Step::Adopts(s));
                } else if server.take(&state.etcd, self.faults.races > 0).is_some() {
                    steps.push(Step::Takes(s));
                }
            }
            None => {}
            Some(shard) => {
                steps.extend((0..state.tables[s].len()).map(|at| Step::Tabled(s, at)));
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
                let grant = server.breakable().filter(|_| is_idle && is_certain && state.left.breaks > 0);
                if grant.is_some_and(|grant| state.is_known(grant)) {
                    steps.push(Step::Breaks(s));
                }
                for (key, c) in server.sessions().filter(|_| is_idle && is_certain) {
                    let client = state.client(c);
                    let is_its = client.session.as_ref().is_some_and(|session| session.key == key);
                    let holds = matches!(client.stage, Stage::Held { key: of, .. } | Stage::Claimed { key: of, .. } if of == key);
                    if !server.is_in_the_way(key) {
                        continue;
                    }
                    if client.life != client::Life::Runs || !is_its && (client.unaware || !holds) {
                        steps.push(Step::Evicts(s, key));
                    }
                }
            }
        }
        // The owner, while the first client wants something of it.
        let is_asked = state.client(0).session.as_ref().is_some_and(|session| session.server == s)
            && state.client(0).stage != Stage::Idle;
        if is_asked && state.left.pauses > 0 {
            steps.push(Step::Pauses(s));
        }
        if is_asked && state.left.cuts > 0 {
            steps.push(Step::Cuts(s));
        }
        // One of them has to be left.
        if state.left.crashes > 0 && state.server(1 - s).life != server::Life::Dead {
            steps.push(Step::Crashes(s));
        }
    }

    pub(super) fn steps_of_client(&self, state: &State, c: usize, steps: &mut Vec<Step>) {
        let client = state.client(c);
        match client.life {
            client::Life::Dead => return,
            client::Life::Asleep => return steps.push(Step::Wakes(c)),
            client::Life::Runs => {}
        }
        let is_early = c == 1 && self.is_slow() && state.left == self.faults && state.client(0).done < 2;
        match (client.stage, client.done) {
            (Stage::Idle, 0) if is_early => {}
            (Stage::Idle, 0) | (Stage::Held { .. }, _) => steps.push(Step::Acts(c)),
            _ => {}
        }
        // The second is always where it should be.
        if c == 0 && client.session.is_some() {
            self.messages(state, c, steps);
            if client.cares_to_probe() {
                steps.push(Step::Probes(c));
            }
            // Nobody tells it of the new owner before the slow one knows itself: what it hears late is the point.
            if state.is_past(c) && (!self.is_slow() || !state.has_server(c)) {
                steps.push(Step::Leaves(c));
            }
        } else if c == 0 && client.stage != Stage::Idle {
            for s in 0..2 {
                let server = state.server(s);
                let epoch = server.shard.as_ref().map(|shard| shard.epoch());
                if server.life == server::Life::Runs && epoch >= Some(client.last.0.max(1)) {
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

    /// What is on its way between a client and its server.
    pub(super) fn messages(&self, state: &State, c: usize, steps: &mut Vec<Step>) {
        let Some(session) = &state.client(c).session else { return };
        let server = state.server(session.server);
        let is_served = server.life == server::Life::Runs && server.has_session(session.key);
        let may_serve = server.is_certain() || self.rules.answers_uncertain;
        if is_served && may_serve && !session.to_server.is_empty() {
            steps.push(Step::ToServer(c));
        }
        if !session.to_client.is_empty() {
            steps.push(Step::ToClient(c));
        }
    }
}

//! What a server of a cluster counts: what the lock tables of its shards count, summed up, and what became of its shards. Counters
//! do not fall when a shard goes to another server: what its table had counted is kept. And what it saw last of the map.

use crate::dispatcher::Dispatcher;
use crate::lock_table::sharded::LeaseClock;
use crate::totals::{Histogram, Totals};
use lockwright_cluster::keys::ServerId;
use lockwright_cluster::map::ShardMap;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// How a shard came to this server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Came {
    /// Nobody had ever served it.
    New,
    /// The lease of its owner was over.
    TakenOver,
    /// Its owner has handed it over.
    Handed,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Counts(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    served: BTreeMap<u16, Dispatcher>,
    /// What those had counted that are served no more.
    past: Totals,
    failovers: u64,
    handed_in: u64,
    handed_out: u64,
    etcd_errors: u64,
    reopen: Histogram,
    lease: Option<Arc<LeaseClock>>,
    /// As it was read last, and this server's number then.
    map: ShardMap,
    me: ServerId,
}

impl Counts {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn counts_on(&self, lease: &Arc<LeaseClock>) {
        self.state().lease = Some(Arc::clone(lease));
    }

    /// The map was read.
    pub(super) fn saw(&self, map: &ShardMap, me: ServerId) {
        let mut state = self.state();
        if state.map != *map {
            state.map.clone_from(map);
        }
        state.me = me;
    }

    /// The map, and this server's number in it.
    pub(super) fn seen(&self) -> (ShardMap, ServerId) {
        let state = self.state();
        (state.map.clone(), state.me)
    }

    /// The shards that are served here.
    pub(super) fn served(&self) -> Vec<(u16, Dispatcher)> {
        self.state().served.iter().map(|(number, dispatcher)| (*number, dispatcher.clone())).collect()
    }

    pub(super) fn came(&self, number: u16, dispatcher: &Dispatcher, how: Came) {
        let mut state = self.state();
        state.failovers += u64::from(how == Came::TakenOver);
        state.handed_in += u64::from(how == Came::Handed);
        state.served.insert(number, dispatcher.clone());
    }

    /// A shard is open, so long after it came.
    pub(super) fn opened(&self, after: Duration) {
        self.state().reopen.add(after);
    }

    pub(super) fn handed_out(&self) {
        self.state().handed_out += 1;
    }

    pub(super) fn etcd_failed(&self) {
        self.state().etcd_errors += 1;
    }

    /// A shard is not served any more.
    pub(super) fn went(&self, number: u16) {
        let mut state = self.state();
        if let Some(dispatcher) = state.served.remove(&number) {
            state.past.add_past(&dispatcher.lock_table().totals);
        }
    }

    /// The metrics of the whole server, as Prometheus reads them; `front` has the sessions that only ask for the map.
    pub(crate) fn metrics(&self, front: &Dispatcher) -> String {
        let state = self.state();
        let mut all = front.lock_table().totals.clone();
        all.add_past(&state.past);
        let (mut names, mut spaces, mut recovering) = (0, 0, 0);
        for dispatcher in state.served.values() {
            let table = dispatcher.lock_table();
            all.add(&table.totals);
            names += table.directory.in_use();
            spaces = spaces.max(table.directory.spaces());
            recovering += u64::from(table.is_recovering());
        }
        let mut out = all.text(names, spaces, recovering > 0, front.started());
        let left = state.lease.as_ref().and_then(|lease| lease.left()).unwrap_or_default();
        let served = state.served.len() as u64;
        for (name, kind, help, value) in [
            ("lockwright_shards_served", "gauge", "Shards that this server serves.", served as f64),
            (
                "lockwright_shards_recovering",
                "gauge",
                "Shards of it that wait for claims.",
                recovering as f64,
            ),
            (
                "lockwright_lease_seconds",
                "gauge",
                "How long the server is certain of its lease in etcd; at 0 it grants nothing.",
                left.as_secs_f64(),
            ),
            (
                "lockwright_failovers_total",
                "counter",
                "Shards taken over from servers whose lease was over.",
                state.failovers as f64,
            ),
            (
                "lockwright_shards_handed_in_total",
                "counter",
                "Shards that other servers have handed to this one.",
                state.handed_in as f64,
            ),
            (
                "lockwright_shards_handed_out_total",
                "counter",
                "Shards that this server has handed to others.",
                state.handed_out as f64,
            ),
            (
                "lockwright_etcd_errors_total",
                "counter",
                "Times that etcd could not be asked, or refused.",
                state.etcd_errors as f64,
            ),
        ] {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        }
        let help = "From when a shard came to this server until it was open.";
        state.reopen.write(&mut out, "lockwright_shard_reopen_seconds", help);
        out
    }
}

//! etcd: one register after the other, and leases that are over some time after their last renewal.

use lockwright_cluster::keys::{BrokenGrants, Keys, Registered, ServerId, parse_broken};
use lockwright_cluster::map::{Item, ShardMap};
use lockwright_cluster::txn::{Compare, Op, Outcome, Revision, Txn};
use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

/// The cluster's name.
const NAME: &str = "a";

/// A value, when it was made and changed, and whose lease it goes with.
type Value = (String, Revision, Revision, Option<usize>);

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Etcd {
    revision: Revision,
    values: BTreeMap<String, Value>,
    /// Ticks left of the lease of each server, and its number; none if it is over.
    pub(super) leases: [Option<(u64, ServerId)>; 2],
    /// What servers read.
    map: ShardMap,
}

impl Hash for Etcd {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (self.revision, &self.values, self.leases).hash(state);
    }
}

pub(super) fn keys() -> Keys {
    Keys::new(NAME)
}

impl Etcd {
    pub(super) fn new() -> Self {
        let mut etcd =
            Self { revision: 0, values: BTreeMap::new(), leases: [None; 2], map: ShardMap::default() };
        let config = vec![Op::Put(keys().config(), ShardMap::config(1, 1))];
        etcd.apply(0, &Txn { when: Vec::new(), then: config });
        etcd
    }

    /// Server `by` has a lease, and its key.
    pub(super) fn join(&mut self, by: usize, server: ServerId, ttl: u64) -> Revision {
        self.leases[by] = Some((ttl, server));
        let put = vec![Op::PutLeased(keys().server(server), "at x:1".to_owned())];
        self.apply(by, &Txn { when: Vec::new(), then: put });
        self.revision
    }

    /// The lease of a server is over.
    pub(super) fn expire(&mut self, by: usize) {
        self.leases[by] = None;
        self.revision += 1;
        self.values.retain(|_, (.., lease)| *lease != Some(by));
        self.map = self.read();
    }

    fn holds(&self, compare: &Compare) -> bool {
        let of = |key| self.values.get(key).map_or((0, 0), |(_, made, changed, _)| (*made, *changed));
        match compare {
            Compare::Changed(key, revision) => of(key).1 == *revision,
            Compare::Made(key, revision) => of(key).0 == *revision,
            Compare::Exists(key) => of(key).0 != 0,
        }
    }

    /// A transaction of server `by`.
    pub(super) fn apply(&mut self, by: usize, txn: &Txn) -> Outcome {
        if !txn.when.iter().all(|compare| self.holds(compare)) {
            return Outcome::Refused;
        }
        // Sessions are compared with nothing: the order in which they come makes no difference.
        let counts = |op: &Op| matches!(op, Op::Put(key, _) | Op::PutLeased(key, _) if key.contains("/map/"));
        self.revision += u64::from(txn.then.iter().any(counts));
        for op in &txn.then {
            match op {
                Op::Put(key, value) => self.put(key, value, None),
                Op::PutLeased(key, value) => self.put(key, value, Some(by)),
                Op::Delete(key) => drop(self.values.remove(key)),
                Op::DeletePrefix(prefix) => self.values.retain(|key, _| !key.starts_with(prefix)),
            }
        }
        self.map = self.read();
        Outcome::Done(self.revision)
    }

    fn put(&mut self, key: &str, value: &str, lease: Option<usize>) {
        let made = self.values.get(key).map_or(self.revision, |(_, made, ..)| *made);
        self.values.insert(key.to_owned(), (value.to_owned(), made, self.revision, lease));
    }

    pub(super) const fn map(&self) -> &ShardMap {
        &self.map
    }

    fn read(&self) -> ShardMap {
        let items: Vec<_> = self
            .values
            .range(keys().map()..)
            .take_while(|(key, _)| key.starts_with(&keys().map()))
            .map(|(key, (value, made, changed, _))| Item {
                key: key.clone(),
                value: value.clone(),
                made: *made,
                changed: *changed,
            })
            .collect();
        ShardMap::read(NAME, self.revision, &items).expect("it has a config")
    }

    /// Grants that were broken.
    pub(super) fn broken(&self) -> BrokenGrants {
        let prefix = keys().brokens(0);
        let of = self.values.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
        of.map(|(key, (value, ..))| parse_broken(&key[prefix.len()..], value).expect("written so")).collect()
    }

    /// The registry.
    pub(super) fn sessions(&self) -> Vec<Registered> {
        let prefix = keys().sessions(0);
        let of = self.values.range(prefix.clone()..).take_while(|(key, _)| key.starts_with(&prefix));
        of.map(|(key, (value, ..))| Registered::parse(&key[prefix.len()..], value).expect("written so"))
            .collect()
    }
}

//! What is in etcd: keys, and what stands behind them.
//!
//! | key, below `/lockwright/NAME/` | value | lease | changed |
//! |---|---|---|---|
//! | `map/config` | `shards S id I` | none | never |
//! | `map/servers/SERVER` | `at HOST:PORT` | the server's | never |
//! | `map/shards/SHARD` | `epoch E owner SERVER` | none | when the shard changes hands |
//! | `map/serving/SHARD` | `epoch E at HOST:PORT STATE` | the owner's | when the shard opens |
//! | `map/tokens/SHARD` | `N`: no token of N or above was given | none | once in 2^22 grants |
//! | `sessions/SHARD/SESSION` | sessions of the same client before this one | none | before the session's first grant |
//! | `broken/SHARD/TOKEN` | the session that it was granted to | none | before a broken lock goes to others; gone with the session |
//! | `handed/SHARD` | `epoch E proof P`: the table of whom it is for is to say this number | none | when the shard is handed over |
//! | `values/SHARD/SPACE/NAME` | the value of a lock, as the servers write it | none | before its holder is told |

use crate::txn::Revision;
use std::collections::{BTreeMap, BTreeSet};

/// A server, one run of it: a number that no other has.
pub type ServerId = u64;
/// A client's session with a shard.
pub type SessionKey = u128;

/// The keys of one cluster.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Keys {
    prefix: String,
}

impl Keys {
    /// Of the cluster called `name`.
    pub fn new(name: &str) -> Self {
        Self { prefix: format!("/lockwright/{name}/") }
    }

    /// Everything about servers and shards begins like this.
    pub fn map(&self) -> String {
        format!("{}map/", self.prefix)
    }

    /// How many shards there are.
    pub fn config(&self) -> String {
        format!("{}map/config", self.prefix)
    }

    /// A server.
    pub fn server(&self, server: ServerId) -> String {
        format!("{}map/servers/{server:016x}", self.prefix)
    }

    /// Who owns a shard.
    pub fn shard(&self, shard: u16) -> String {
        format!("{}map/shards/{shard:04}", self.prefix)
    }

    /// Where a shard is served.
    pub fn serving(&self, shard: u16) -> String {
        format!("{}map/serving/{shard:04}", self.prefix)
    }

    /// The tokens of a shard.
    pub fn tokens(&self, shard: u16) -> String {
        format!("{}map/tokens/{shard:04}", self.prefix)
    }

    /// The sessions of a shard begin like this.
    pub fn sessions(&self, shard: u16) -> String {
        format!("{}sessions/{shard:04}/", self.prefix)
    }

    /// A session.
    pub fn session(&self, shard: u16, session: SessionKey) -> String {
        format!("{}{session:032x}", self.sessions(shard))
    }

    /// Broken grants of a shard begin like this.
    pub fn brokens(&self, shard: u16) -> String {
        format!("{}broken/{shard:04}/", self.prefix)
    }

    /// The values of a shard's locks begin like this.
    pub fn values(&self, shard: u16) -> String {
        format!("{}values/{shard:04}/", self.prefix)
    }

    /// How the table is known that goes with the shard.
    pub fn handed(&self, shard: u16) -> String {
        format!("{}handed/{shard:04}", self.prefix)
    }

    /// What stands there.
    pub fn proof(epoch: u64, proof: u128) -> String {
        format!("epoch {epoch} proof {proof:032x}")
    }

    /// A broken grant.
    pub fn broken(&self, shard: u16, token: u64) -> String {
        format!("{}{token:016x}", self.brokens(shard))
    }
}

/// Who owns a shard.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Owner {
    /// Rises with every change of owner.
    pub epoch: u64,
    /// The owner.
    pub server: ServerId,
}

impl Owner {
    /// As it is written.
    pub fn text(self) -> String {
        format!("epoch {} owner {:016x}", self.epoch, self.server)
    }

    /// As it was written.
    pub fn parse(text: &str) -> Option<Self> {
        let (epoch, server) = text.strip_prefix("epoch ")?.split_once(" owner ")?;
        Some(Self { epoch: epoch.parse().ok()?, server: u64::from_str_radix(server, 16).ok()? })
    }
}

/// What was read about a shard, and when it was last changed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct ShardState {
    /// Its owner, if it ever had one.
    pub owner: Option<Owner>,
    /// When that was changed.
    pub owner_changed: Revision,
    /// No token of this or above was given.
    pub tokens_below: u64,
    /// When that was changed.
    pub tokens_changed: Revision,
}

impl ShardState {
    /// Whether the owner, or who is to be it, was handed the shard. One that took it wrote owner and tokens at once; later it
    /// reserves more of them, and cannot be told from the others any more.
    pub const fn may_be_handed(&self) -> bool {
        self.owner_changed != self.tokens_changed
    }
}

/// Grants that were broken, by their tokens, and the sessions that they were granted to.
pub type BrokenGrants = BTreeMap<u64, SessionKey>;

/// A broken grant, as it was written behind the last part of its key.
pub fn parse_broken(key: &str, text: &str) -> Option<(u64, SessionKey)> {
    Some((u64::from_str_radix(key, 16).ok()?, u128::from_str_radix(text, 16).ok()?))
}

/// A session in the registry of its shard.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Registered {
    /// The session.
    pub key: SessionKey,
    /// Sessions of the same client before it: what was granted in them is claimed under their keys.
    pub before: BTreeSet<SessionKey>,
}

impl Registered {
    /// As it is written, behind its key.
    pub fn text(&self) -> String {
        let before: Vec<_> = self.before.iter().map(|key| format!("{key:032x}")).collect();
        before.join(" ")
    }

    /// As it was written, behind the last part of its key.
    pub fn parse(key: &str, text: &str) -> Option<Self> {
        let number = |text| u128::from_str_radix(text, 16).ok();
        let before = text.split(' ').filter(|text| !text.is_empty()).map(number).collect::<Option<_>>()?;
        Some(Self { key: number(key)?, before })
    }

    /// Whether this is the client that had the session `key`.
    pub fn was(&self, key: SessionKey) -> bool {
        self.key == key || self.before.contains(&key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let owner = Owner { epoch: 7, server: 0xfeed };
        assert_eq!(Owner::parse(&owner.text()), Some(owner));
        let session = Registered { key: 1 << 100, before: [3, 1 << 77].into() };
        let keys = Keys::new("prod");
        let key = keys.session(3, session.key);
        let last = key.strip_prefix(&keys.sessions(3)).unwrap();
        assert_eq!(Registered::parse(last, &session.text()), Some(session));
        assert!(Owner::parse("epoch x owner 1").is_none() && Registered::parse("x", "").is_none());
    }

    #[test]
    fn sessions_and_broken_grants_are_not_in_the_part_that_servers_poll() {
        let keys = Keys::new("prod");
        for key in [keys.session(0, 1), keys.broken(0, 1), keys.values(0), keys.handed(0)] {
            assert!(!key.starts_with(&keys.map()), "{key}");
        }
    }
}

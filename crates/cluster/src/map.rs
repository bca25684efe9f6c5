//! Which shard a lock is in, who serves it, and how that is said to clients.
//!
//! | line | |
//! |---|---|
//! | `cluster NAME id I shards S revision R` | the first |
//! | `server ID at HOST:PORT` | each server |
//! | `shard N epoch E at HOST:PORT STATE` | each shard that is served, `recovering` or `open` |

use crate::keys::{Keys, Owner, ServerId, ShardState};
use crate::txn::Revision;
use std::collections::BTreeMap;
use std::fmt::Write;

/// The shard of a lock, of so many: FNV-1a of space and name, with a zero between them. It must never change.
pub fn shard_of(space: &[u8], name: &[u8], shards: u16) -> u16 {
    let space = if space.is_empty() { b"default" } else { space };
    let bytes = space.iter().chain(&[0]).chain(name);
    let hash = bytes.fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
    });
    // Multiplied once more, so that the upper bits depend on all of them.
    let mixed = (hash ^ hash >> 32).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((u128::from(mixed) * u128::from(shards.max(1))) >> 64) as u16
}

/// Where a shard is served.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serving {
    /// By the owner of this epoch.
    pub epoch: u64,
    /// `host:port`.
    pub at: String,
    /// Whether claims are over.
    pub is_open: bool,
}

impl Serving {
    fn parse(text: &str) -> Option<Self> {
        let words: Vec<_> = text.split(' ').collect();
        let ["epoch", epoch, "at", at, state] = words[..] else { return None };
        Some(Self { epoch: epoch.parse().ok()?, at: at.to_owned(), is_open: state == "open" })
    }
}

/// The map of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ShardMap {
    /// The cluster's name.
    pub name: String,
    /// Its identity, made with it.
    pub id: u128,
    /// How many shards there are.
    pub shards: u16,
    /// As of when.
    pub revision: Revision,
    /// Servers, when their keys were made, and where they listen.
    pub servers: BTreeMap<ServerId, (Revision, String)>,
    /// Who owns what, as etcd has it. Clients are not told.
    pub states: BTreeMap<u16, ShardState>,
    /// Shards that are served.
    pub serving: BTreeMap<u16, Serving>,
}

/// A key and its value, when it was made and when it was changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Item {
    /// The key.
    pub key: String,
    /// Its value.
    pub value: String,
    /// When it was made.
    pub made: Revision,
    /// When it was changed.
    pub changed: Revision,
}

impl ShardMap {
    /// What was read of the cluster `name`, in `revision`. `None` if there is no such cluster yet, or it is not one of ours.
    pub fn read(name: &str, revision: Revision, items: &[Item]) -> Option<Self> {
        let prefix = Keys::new(name).map();
        let mut map = Self { name: name.to_owned(), revision, ..Self::default() };
        for Item { key, value, made, changed } in items {
            let key = key.strip_prefix(&prefix)?;
            let (kind, number) = key.split_once('/').unwrap_or((key, ""));
            let shard = || number.parse::<u16>().ok();
            match kind {
                "config" => {
                    let (shards, id) = value.strip_prefix("shards ")?.split_once(" id ")?;
                    map.shards = shards.parse().ok()?;
                    map.id = u128::from_str_radix(id, 16).ok()?;
                }
                "servers" => {
                    let server = u64::from_str_radix(number, 16).ok()?;
                    map.servers.insert(server, (*made, value.strip_prefix("at ")?.to_owned()));
                }
                "shards" => {
                    let state = map.states.entry(shard()?).or_default();
                    (state.owner, state.owner_changed) = (Some(Owner::parse(value)?), *changed);
                }
                "tokens" => {
                    let state = map.states.entry(shard()?).or_default();
                    (state.tokens_below, state.tokens_changed) = (value.parse().ok()?, *changed);
                }
                "serving" => {
                    map.serving.insert(shard()?, Serving::parse(value)?);
                }
                // Of a later version.
                _ => {}
            }
        }
        (map.shards > 0).then_some(map)
    }

    /// The value of the key that makes a cluster.
    pub fn config(shards: u16, id: u128) -> String {
        format!("shards {shards} id {id:x}")
    }

    /// The shard of a lock.
    pub fn shard_of(&self, space: &[u8], name: &[u8]) -> u16 {
        shard_of(space, name, self.shards)
    }

    /// What is known of a shard.
    pub fn state(&self, shard: u16) -> ShardState {
        self.states.get(&shard).copied().unwrap_or_default()
    }

    /// The shards that a server owns.
    pub fn owned_by(&self, server: ServerId) -> impl Iterator<Item = u16> {
        let is_its = move |state: &ShardState| state.owner.is_some_and(|owner| owner.server == server);
        self.states.iter().filter(move |(_, state)| is_its(state)).map(|(shard, _)| *shard)
    }

    /// As clients are told.
    pub fn text(&self) -> String {
        let Self { name, id, shards, revision, .. } = self;
        let mut text = format!("cluster {name} id {id:x} shards {shards} revision {revision}\n");
        for (server, (_, at)) in &self.servers {
            let _ = writeln!(text, "server {server:016x} at {at}");
        }
        for (shard, Serving { epoch, at, is_open }) in &self.serving {
            let state = if *is_open { "open" } else { "recovering" };
            let _ = writeln!(text, "shard {shard} epoch {epoch} at {at} {state}");
        }
        text
    }

    /// What clients were told.
    pub fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let head: Vec<_> = lines.next()?.split(' ').collect();
        let ["cluster", name, "id", id, "shards", shards, "revision", revision] = head[..] else {
            return None;
        };
        let mut map = Self {
            name: name.to_owned(),
            id: u128::from_str_radix(id, 16).ok()?,
            shards: shards.parse().ok().filter(|shards| *shards > 0)?,
            revision: revision.parse().ok()?,
            ..Self::default()
        };
        for line in lines {
            if let Some(line) = line.strip_prefix("server ") {
                let (server, at) = line.split_once(" at ")?;
                map.servers.insert(u64::from_str_radix(server, 16).ok()?, (0, at.to_owned()));
            } else if let Some(line) = line.strip_prefix("shard ") {
                let (shard, serving) = line.split_once(' ')?;
                map.serving.insert(shard.parse().ok()?, Serving::parse(serving)?);
            }
        }
        Some(map)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn item(key: &str, value: &str, at: Revision) -> Item {
        Item { key: format!("/lockwright/test/map/{key}"), value: value.to_owned(), made: at, changed: at }
    }

    #[test]
    fn the_shard_of_a_lock_never_changes() {
        let of = |space: &str, name: &str| shard_of(space.as_bytes(), name.as_bytes(), 1000);
        let shards = ["a", "b", "orders/42", "backup"].map(|name| of("stock", name));
        assert_eq!((shards, of("", "a")), ([907, 266, 207, 309], of("default", "a")));
    }

    #[test]
    fn names_are_spread_evenly() {
        let mut counts = [0_u32; 16];
        for name in 0..16_000 {
            counts[usize::from(shard_of(b"stock", format!("orders/{name}").as_bytes(), 16))] += 1;
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
    }

    #[test]
    fn what_is_in_etcd_is_read_and_what_clients_are_told_is_understood() {
        let items = [
            item("config", "shards 4 id fe", 1),
            item("servers/0000000000000009", "at a:1", 2),
            item("serving/0003", "epoch 2 at a:5 open", 6),
            item("shards/0003", "epoch 2 owner 0000000000000009", 3),
            item("tokens/0003", "77", 4),
        ];
        let map = ShardMap::read("test", 9, &items).unwrap();
        assert_eq!(map.state(3).tokens_below, 77);
        assert_eq!(map.owned_by(9).collect::<Vec<_>>(), [3]);
        let told = ShardMap::parse(&map.text()).unwrap();
        assert_eq!((told.shards, told.revision, told.id), (4, 9, 0xfe));
        assert_eq!(told.serving, map.serving);
        assert!(ShardMap::read("test", 9, &[]).is_none() && ShardMap::parse("nonsense").is_none());
    }
}

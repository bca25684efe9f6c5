//! Which shards a server should take, and which it should give. Every server computes the same from the same map; where two have
//! read different ones, etcd's transactions decide.

use crate::keys::ServerId;
use crate::map::ShardMap;
use std::collections::BTreeMap;

/// How many shards each server owns.
fn loads(map: &ShardMap) -> BTreeMap<ServerId, usize> {
    map.servers.keys().map(|server| (*server, map.owned_by(*server).count())).collect()
}

/// The server with the fewest shards; of several, the one whose key was made first.
fn idlest(map: &ShardMap, loads: &BTreeMap<ServerId, usize>) -> Option<ServerId> {
    let order = |server: &ServerId| (loads[server], map.servers[server].0);
    loads.keys().copied().min_by_key(order)
}

/// The shards without a living owner that `me` should take.
pub fn takes(map: &ShardMap, me: ServerId) -> Vec<u16> {
    let mut loads = loads(map);
    let mut mine = Vec::new();
    for shard in 0..map.shards {
        let owner = map.state(shard).owner;
        if owner.is_some_and(|owner| map.servers.contains_key(&owner.server)) {
            continue;
        }
        let Some(server) = idlest(map, &loads) else { break };
        *loads.entry(server).or_default() += 1;
        if server == me {
            mine.push(shard);
        }
    }
    mine
}

/// A shard that `me` should hand to another server, which has at least two fewer. Of those that own the most, only the one
/// whose key was made first gives: one moves at a time.
pub fn gives(map: &ShardMap, me: ServerId) -> Option<(u16, ServerId)> {
    let loads = loads(map);
    let order = |server: &ServerId| (loads[server], std::cmp::Reverse(map.servers[server].0));
    let busiest = loads.keys().copied().max_by_key(order)?;
    let idlest = idlest(map, &loads)?;
    if busiest != me || loads[&busiest] < loads[&idlest] + 2 {
        return None;
    }
    let shard = map.owned_by(me).last()?;
    Some((shard, idlest))
}

/// Who should get a shard of a server that leaves: the idlest of the others.
pub fn heir(map: &ShardMap, me: ServerId) -> Option<ServerId> {
    let mut loads = loads(map);
    loads.remove(&me);
    idlest(map, &loads)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::keys::{Owner, ShardState};

    fn map(servers: &[ServerId], owners: &[Option<ServerId>]) -> ShardMap {
        let mut map = ShardMap { shards: owners.len() as u16, ..ShardMap::default() };
        for server in servers {
            map.servers.insert(*server, (*server, String::new()));
        }
        for (shard, owner) in owners.iter().enumerate() {
            let owner = owner.map(|server| Owner { epoch: 1, server });
            map.states.insert(shard as u16, ShardState { owner, ..ShardState::default() });
        }
        map
    }

    #[test]
    fn shards_of_a_dead_server_go_to_the_living_evenly_and_each_to_one() {
        let map = map(&[1, 2], &[Some(1), Some(2), Some(3), Some(3), None, Some(3)]);
        let (one, two) = (takes(&map, 1), takes(&map, 2));
        assert_eq!((one.len(), two.len()), (2, 2));
        let mut all = [one, two].concat();
        all.sort_unstable();
        assert_eq!(all, [2, 3, 4, 5]);
    }

    #[test]
    fn a_server_that_joins_is_given_shards_one_at_a_time_until_they_are_even() {
        let mut owners = vec![Some(1), Some(1), Some(1), Some(1)];
        let mut moves = 0;
        while let Some((shard, to)) = gives(&map(&[1, 2], &owners), 1) {
            owners[usize::from(shard)] = Some(to);
            moves += 1;
            assert_eq!(gives(&map(&[1, 2], &owners), 2), None);
        }
        assert_eq!(moves, 2);
    }

    #[test]
    fn nobody_gives_when_there_is_nobody_to_give_to() {
        assert_eq!(gives(&map(&[1], &[Some(1), Some(1)]), 1), None);
        assert_eq!(heir(&map(&[1], &[Some(1)]), 1), None);
        assert_eq!(heir(&map(&[1, 2], &[Some(1), Some(2)]), 1), Some(2));
    }
}

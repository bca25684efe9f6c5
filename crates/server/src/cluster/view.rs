//! What the page of `serve --http` shows of a cluster: its servers and shards, and the locks of those shards that this server serves.

use super::counts::Counts;
use crate::dispatcher::Dispatcher;
use crate::page::View;
use lockwright_cluster::keys::ServerId;
use lockwright_cluster::map::ShardMap;
use serde_json::{Value, json};
use std::sync::Arc;

/// See the module.
#[derive(Debug)]
pub(crate) struct ClusterView {
    pub(crate) counts: Arc<Counts>,
    /// Has the sessions that only ask for the map.
    pub(crate) front: Dispatcher,
}

impl View for ClusterView {
    fn tables(&self) -> Vec<(u16, Dispatcher)> {
        self.counts.served()
    }

    fn cluster(&self) -> Option<Value> {
        let (map, me) = self.counts.seen();
        Some(said(&map, me))
    }

    fn metrics(&self) -> String {
        self.counts.metrics(&self.front)
    }
}

/// Every server with its shards, and every shard with its owner: those without one, too.
fn said(map: &ShardMap, me: ServerId) -> Value {
    let servers = map.servers.iter().map(|(server, (_, at))| {
        let shards: Vec<_> = map.owned_by(*server).collect();
        json!({ "at": at, "here": *server == me, "shards": shards })
    });
    let shards = (0..map.shards).map(|number| {
        let owner = map.state(number).owner;
        let server = owner.and_then(|owner| map.servers.get(&owner.server));
        let serving = map.serving.get(&number);
        let state = match (server, serving) {
            (Some(_), Some(serving)) if serving.is_open => "open",
            (Some(_), _) => "recovering",
            (None, _) => "no owner",
        };
        json!({
            "shard": number,
            "epoch": owner.map(|owner| owner.epoch),
            "server": server.map(|(_, at)| at),
            "here": owner.is_some_and(|owner| owner.server == me),
            "state": state,
        })
    });
    json!({ "name": map.name, "servers": servers.collect::<Vec<_>>(), "shards": shards.collect::<Vec<_>>() })
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright_cluster::map::Item;

    #[test]
    fn a_shard_is_said_with_its_server_and_one_without_is_said_too() {
        let item = |key: &str, value: &str| Item {
            key: format!("/lockwright/prod/map/{key}"),
            value: value.to_owned(),
            made: 1,
            changed: 1,
        };
        let items = [
            item("config", "shards 4 id fe"),
            item("servers/0000000000000009", "at a:1"),
            item("servers/000000000000000a", "at b:1"),
            item("shards/0000", "epoch 2 owner 0000000000000009"),
            item("serving/0000", "epoch 2 at a:2 open"),
            item("shards/0001", "epoch 3 owner 000000000000000a"),
            item("serving/0001", "epoch 3 at b:3 recovering"),
            // Its server's lease is over.
            item("shards/0002", "epoch 7 owner 000000000000000b"),
        ];
        let said = said(&ShardMap::read("prod", 9, &items).unwrap(), 9);
        assert_eq!(said["servers"][0], json!({ "at": "a:1", "here": true, "shards": [0] }));
        assert_eq!(said["servers"][1], json!({ "at": "b:1", "here": false, "shards": [1] }));
        let states: Vec<_> =
            said["shards"].as_array().unwrap().iter().map(|shard| shard["state"].as_str().unwrap()).collect();
        assert_eq!(states, ["open", "recovering", "no owner", "no owner"]);
        assert_eq!(
            (&said["shards"][1]["server"], &said["shards"][2]["server"]),
            (&json!("b:1"), &Value::Null)
        );
        assert_eq!(said["shards"][2]["epoch"], 7);
    }
}

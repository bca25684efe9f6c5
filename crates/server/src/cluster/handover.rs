//! The table of a shard, from the server that hands it over to the one that goes on with it. Without it, or if it comes too late, the
//! shard's clients claim what they hold.

use super::node::Setup;
use crate::lock_table::handed::{HandedTable, Tables};
use lockwright_cluster::etcd::{Etcd, EtcdError};
use lockwright_cluster::keys::Keys;
use lockwright_cluster::map::ShardMap;
use lockwright_fabric::backend::tcp;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long a server may take to hear a table.
const PATIENCE: Duration = Duration::from_millis(500);
/// How long the new owner of a shard waits for the table that may be on its way.
const ON_ITS_WAY: Duration = Duration::from_millis(250);

/// Shards that other servers have handed to this one, by their epochs: since when it knows that.
#[derive(Debug, Default)]
pub(super) struct Expected(BTreeMap<u16, (u64, Instant)>);

impl Expected {
    /// Those of the shards `handed` whose tables have come, or will not.
    pub(super) fn ready(&mut self, handed: &[u16], map: &ShardMap, tables: &Tables) -> Vec<u16> {
        self.0.retain(|number, _| handed.contains(number));
        let now = Instant::now();
        let is_ready = |number: &u16| {
            let epoch = map.state(*number).owner.map_or(0, |owner| owner.epoch);
            let (of, since) = self.0.entry(*number).or_insert((epoch, now));
            if *of != epoch {
                (*of, *since) = (epoch, now);
            }
            tables.has(*number, epoch) || now.saturating_duration_since(*since) >= ON_ITS_WAY
        };
        handed.iter().copied().filter(is_ready).collect()
    }
}

/// The table of a shard that was handed to this server, if the last owner has said one.
pub(super) async fn table_of(
    etcd: &mut Etcd,
    keys: &Keys,
    tables: &Tables,
    number: u16,
) -> Result<Option<HandedTable>, EtcdError> {
    let (_, items) = etcd.range(&keys.handed(number)).await?;
    let is_proof = |table: &HandedTable| {
        let proof = Keys::proof(table.of.owner.epoch, table.proof);
        items.iter().any(|item| item.key == keys.handed(number) && item.value == proof)
    };
    Ok(tables.take(number, is_proof))
}

/// Tells the server at `at` the table of the shard that is its own now.
pub(super) async fn tell(setup: &Setup, number: u16, at: &str, table: &HandedTable) {
    let host = at.rsplit_once(':').map_or(at, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let tls = setup.certificates.as_ref().map(|roots| tcp::TlsClient::from_pem(roots, host)).transpose();
    let told = match tls {
        Ok(tls) => {
            let (secret, timeout) = (setup.tcp.secret.clone(), PATIENCE);
            let name = lockwright::internal::label();
            let options =
                tcp::ConnectOptions { secret, tls, name, timeout, ..tcp::ConnectOptions::default() };
            let text = table.text();
            let telling = lockwright::internal::hand_table(options, at, text.as_bytes());
            tokio::time::timeout(PATIENCE, telling)
                .await
                .unwrap_or_else(|_| Err("it does not answer".to_owned()))
        }
        Err(why) => Err(why.to_string()),
    };
    if let Err(why) = told {
        tracing::warn!(shard = number, at, "the table could not be handed over: {why}; its clients claim");
    }
}

//! One shard that this server serves: its lock table, and a listener of its own.

use super::counts::{Came, Counts};
use super::node::Setup;
use crate::dispatcher::Dispatcher;
use crate::durable::{Durable, LockValue, ValueKey};
use crate::lock_table::LockTable;
use crate::lock_table::handed::HandedTable;
use crate::lock_table::sharded::{Gate, LeaseClock, Sharded, in_pieces};
use crate::record::Record;
use lockwright_cluster::Shard;
use lockwright_cluster::etcd::{Etcd, EtcdError, LeaseId};
use lockwright_cluster::keys::{ServerId, ShardState};
use lockwright_cluster::txn::{Outcome, Txn};
use lockwright_fabric::backend::tcp;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;
use tokio::sync::Notify;

/// Sessions and others that are written to etcd at a time.
const AT_ONCE: usize = 32;

/// See the module.
pub(super) struct Hosted {
    dispatcher: Dispatcher,
    server: tcp::Server<Dispatcher>,
    gate: Arc<Gate>,
    /// Where clients find it.
    pub(super) at: String,
    /// What etcd says of it: whether it is open.
    announced: Option<bool>,
    /// Takes those out of the registry who did not claim.
    evicting: Option<Txn>,
    /// To whom it is being handed.
    pub(super) moving: Option<ServerId>,
    taken: Instant,
    counts: Arc<Counts>,
}

impl Hosted {
    /// Listens for clients of a shard that was taken, which goes on from the last owner's table if that has come.
    pub(super) async fn start(
        setup: &Setup,
        (shard, values, handed): (Shard, Vec<(ValueKey, LockValue)>, Option<HandedTable>),
        id: u128,
        lease: Arc<LeaseClock>,
        bell: Arc<Notify>,
        counts: &Arc<Counts>,
    ) -> Result<Self, String> {
        let (number, epoch) = (shard.number(), shard.epoch());
        let gate = Arc::new(Gate { lease, ..Gate::default() });
        let new = || {
            let tokens = (shard.first_token(), shard.tokens_below());
            let durable = Durable::of_shard(id, epoch, tokens, setup.tcp.lease().at_server());
            let mut table = LockTable::new(durable, shard.is_recovering(), Vec::new(), Vec::new());
            table.retention.off = true;
            table.has_values(values.clone());
            if setup.keeps_history {
                table.keep_history();
            }
            table.map = Some(Arc::clone(&setup.map));
            table.sharded = Some(Box::new(Sharded::new(shard.clone(), Arc::clone(&gate), Arc::clone(&bell))));
            table
        };
        let dispatcher = {
            let _on = setup.runtime.enter();
            let mut table = new();
            if let Some(Err(why)) = handed.map(|handed| table.inherit(&handed)) {
                tracing::warn!(shard = number, "{why}; its clients have to claim what they hold");
                table = new();
            }
            table.record = setup
                .record
                .as_ref()
                .and_then(|path| Record::open(&path.with_extension(format!("{number}.{epoch}.jsonl"))).ok());
            Dispatcher::new(table, setup.admission)
        };
        let options = tcp::ServerOptions { epoch: Some(epoch), ..setup.tcp.clone() };
        let wanted = setup.front.port().checked_add(number + 1).unwrap_or(0);
        let mut server = bind(setup, wanted, dispatcher.clone(), options.clone()).await;
        if let (Err(why), true) = (&server, wanted != 0) {
            tracing::warn!(shard = number, "{why}; it is served on another port");
            server = bind(setup, 0, dispatcher.clone(), options).await;
        }
        let server = server?;
        let at = format!("{}:{}", setup.advertised(), server.address().port());
        let recovering = dispatcher.lock_table().is_recovering();
        tracing::info!(shard = number, epoch, recovering, at, "serving a shard");
        Ok(Self {
            dispatcher,
            server,
            gate,
            at,
            announced: None,
            evicting: None,
            moving: None,
            taken: Instant::now(),
            counts: Arc::clone(counts),
        })
    }

    pub(super) fn is_counted_as(&self, number: u16, how: Came) {
        self.counts.came(number, &self.dispatcher, how);
    }

    /// Applies what came while the server was not certain of its lease.
    pub(super) fn drain(&self) {
        self.dispatcher.drain();
    }

    fn shard<T>(&self, look: impl FnOnce(&mut Shard) -> T) -> T {
        let mut table = self.dispatcher.lock_table();
        look(&mut table.sharded.as_mut().expect("it is one").shard)
    }

    pub(super) fn is_still(&self, seen: &ShardState) -> bool {
        self.shard(|shard| shard.is_still(seen))
    }

    pub(super) fn is_recovering(&self) -> bool {
        self.shard(|shard| shard.is_recovering())
    }

    /// Ends the wait for claims if it is over, and says in etcd where the shard is served, and how. Whether it said something.
    pub(super) async fn look_after(&mut self, etcd: &mut Etcd, lease: LeaseId) -> Result<bool, EtcdError> {
        if self.evicting.is_none() {
            self.evicting = self.dispatcher.lock_table().end_wait();
        }
        if let Some(txn) = &self.evicting {
            // Refused, the shard is another server's, as the map will say.
            if let Outcome::Done(_) = write_all(etcd, txn, lease).await? {
                self.evicting = None;
                self.dispatcher.lock_table().wait_ended();
            }
        }
        let is_open = !self.is_recovering();
        if self.announced == Some(is_open) {
            return Ok(false);
        }
        let txn = self.shard(|shard| shard.announce(&self.at));
        if let Outcome::Done(_) = etcd.txn(&txn, lease).await? {
            self.announced = Some(is_open);
            if is_open {
                self.counts.opened(self.taken.elapsed());
                tracing::info!(at = self.at, after = ?self.taken.elapsed(), "the shard is open");
            }
        }
        Ok(true)
    }

    /// Writes what has to be in etcd before it happens.
    pub(super) async fn write(&mut self, etcd: &mut Etcd, lease: LeaseId) -> Result<(), EtcdError> {
        loop {
            let work = self.dispatcher.lock_table().work(AT_ONCE);
            if work.is_empty() {
                return Ok(());
            }
            let all = together(work.iter().map(|(_, txn)| txn));
            let outcome = match all.then.is_empty() {
                true => Ok(Outcome::Done(0)),
                false => write_all(etcd, &all, lease).await,
            };
            let is_done = matches!(outcome, Ok(Outcome::Done(_)));
            let mut table = self.dispatcher.lock_table();
            table.begin_batch(Instant::now(), 0);
            match is_done {
                true => work.into_iter().for_each(|(work, _)| table.written(work)),
                false => work.into_iter().rev().for_each(|(work, _)| table.unwritten(work)),
            }
            drop(table);
            if !is_done {
                return outcome.map(drop);
            }
        }
    }

    /// Whether it can be handed over without a wait for a client that may be dead.
    pub(super) fn are_all_clients_here(&self) -> bool {
        self.dispatcher.lock_table().are_all_clients_here(Instant::now())
    }

    /// Nothing is granted any more, so that `to` can go on with it.
    pub(super) fn freeze(&mut self, to: ServerId) -> bool {
        let froze = self.shard(Shard::freeze);
        if froze {
            self.gate.frozen.store(true, SeqCst);
            self.moving = Some(to);
        }
        froze
    }

    /// Tries to hand it over. Once it is another's: whose, and its table. Nothing changes in that any more: the gate is shut, and
    /// what else is to be in etcd first is refused there.
    pub(super) async fn hand_over(
        &self,
        etcd: &mut Etcd,
        lease: LeaseId,
    ) -> Result<Option<(ServerId, Option<HandedTable>)>, EtcdError> {
        let Some(to) = self.moving else { return Ok(None) };
        let proof = lockwright::internal::key();
        let txn = {
            let table = self.dispatcher.lock_table();
            let idle = table.idle_sessions();
            table.sharded.as_ref().expect("it is one").shard.hand_over(to, &idle, proof)
        };
        match etcd.txn(&txn, lease).await? {
            Outcome::Done(_) => {
                Ok(Some((to, self.dispatcher.lock_table().hand_over(to, proof, Instant::now()))))
            }
            Outcome::Refused => Ok(None),
        }
    }

    /// It stays here, as was read from etcd after it could not be handed over.
    pub(super) fn thaw(&mut self) {
        self.shard(Shard::thaw);
        self.gate.frozen.store(false, SeqCst);
        self.moving = None;
        self.drain();
    }

    /// Stops serving it.
    pub(super) async fn close(self) {
        self.gate.frozen.store(true, SeqCst);
        self.server.shut_down().await;
    }
}

/// Transactions of one shard as one. etcd takes no key twice.
fn together<'a>(txns: impl Iterator<Item = &'a Txn>) -> Txn {
    let mut all = Txn::default();
    for txn in txns.filter(|txn| !txn.then.is_empty()) {
        all.when.clone_from(&txn.when);
        for op in &txn.then {
            if !all.then.contains(op) {
                all.then.push(op.clone());
            }
        }
    }
    all
}

/// In pieces, until one is refused.
async fn write_all(etcd: &mut Etcd, all: &Txn, lease: LeaseId) -> Result<Outcome, EtcdError> {
    let mut last = Outcome::Done(0);
    for piece in in_pieces(all) {
        last = etcd.txn(&piece, lease).await?;
        if last == Outcome::Refused {
            break;
        }
    }
    Ok(last)
}

async fn bind(
    setup: &Setup,
    port: u16,
    dispatcher: Dispatcher,
    options: tcp::ServerOptions,
) -> Result<tcp::Server<Dispatcher>, String> {
    let address = SocketAddr::new(setup.front.ip(), port);
    let bound = setup.runtime.spawn(tcp::Server::bind(address, dispatcher, vec![], options)).await;
    bound.map_err(|error| error.to_string())?.map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright_cluster::txn::{Compare, Op};

    #[test]
    fn what_is_written_together_compares_the_owner_and_names_no_key_twice() {
        let owner = Compare::Changed("owner".to_owned(), 7);
        let txn = |key: &str| Txn { when: vec![owner.clone()], then: vec![Op::Delete(key.to_owned())] };
        // The last is about a session that is in no registry.
        let all = together([&txn("a"), &txn("b"), &txn("a"), &Txn::default()].into_iter());
        assert_eq!(all.when, [owner]);
        assert_eq!(all.then, [Op::Delete("a".to_owned()), Op::Delete("b".to_owned())]);
    }
}

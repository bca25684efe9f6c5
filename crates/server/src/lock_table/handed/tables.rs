//! Tables that other servers hand over, until the node takes the shards that they are of.
//!
//! They come from whoever knows the cluster's secret. Which of them is the last owner's the node knows by etcd.

use super::HandedTable;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::Notify;

/// Bytes of tables that are on their way, altogether: some hundred thousand locks.
const MAX_BYTES: usize = 64 << 20;
/// Whole tables that nobody has taken; the oldest make room.
const MAX_TABLES: usize = 64;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct Tables {
    state: Mutex<State>,
    /// Rung when a table is whole.
    pub(crate) arrived: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// By session: what has come so far.
    parts: BTreeMap<u64, Vec<u8>>,
    whole: Vec<HandedTable>,
}

impl Tables {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A part of a table, by the session `serial`.
    pub(super) fn hear(&self, serial: u64, bytes: &[u8], last: bool) -> Result<(), &'static str> {
        let mut state = self.state();
        if state.parts.values().map(Vec::len).sum::<usize>() + bytes.len() > MAX_BYTES {
            state.parts.remove(&serial);
            return Err("there is no room for the table");
        }
        state.parts.entry(serial).or_default().extend_from_slice(bytes);
        if !last {
            return Ok(());
        }
        let text = state.parts.remove(&serial).and_then(|bytes| String::from_utf8(bytes).ok());
        let table = text.and_then(|text| HandedTable::parse(&text)).ok_or("this is no table of a shard")?;
        if state.whole.len() >= MAX_TABLES {
            state.whole.remove(0);
        }
        state.whole.push(table);
        drop(state);
        self.arrived.notify_one();
        Ok(())
    }

    /// The session is over.
    pub(crate) fn forget(&self, serial: u64) {
        self.state().parts.remove(&serial);
    }

    /// Whether there is a table of the shard in this epoch.
    pub(crate) fn has(&self, number: u16, epoch: u64) -> bool {
        self.state().whole.iter().any(|table| (table.of.number, table.of.owner.epoch) == (number, epoch))
    }

    /// The table of the shard that has this proof. Others of the shard are forgotten.
    pub(crate) fn take(&self, number: u16, is_proof: impl Fn(&HandedTable) -> bool) -> Option<HandedTable> {
        let mut state = self.state();
        let of_shard = state.whole.extract_if(.., |table| table.of.number == number).collect::<Vec<_>>();
        of_shard.into_iter().find(|table| is_proof(table))
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str =
        "table 3 7 fe 100 4d\nsession a1 61 62\nheld 0 4294967296 name alone 0 9 5 - - 7 1000 6f\n";

    fn is_proof(proof: u128) -> impl Fn(&HandedTable) -> bool {
        move |table| (table.of.owner.epoch, table.proof) == (7, proof)
    }

    #[test]
    fn a_table_comes_in_parts_and_only_the_one_that_etcd_knows_is_taken() {
        let tables = Tables::default();
        let forged = TABLE.replace(" 4d\n", " 4e\n");
        for (serial, text) in [(1, TABLE), (2, &forged)] {
            let (first, last) = text.as_bytes().split_at(20);
            tables.hear(serial, first, false).unwrap();
            assert_eq!(tables.has(3, 7), serial == 2);
            tables.hear(serial, last, true).unwrap();
        }
        assert!(tables.has(3, 7) && !tables.has(3, 6) && !tables.has(2, 7));
        assert!(tables.take(2, is_proof(0x4d)).is_none());
        let table = tables.take(3, is_proof(0x4d)).expect("it has come");
        assert_eq!((table.text(), table.of.sessions.len()), (TABLE.to_owned(), 1));
        assert!(tables.take(3, is_proof(0x4d)).is_none(), "once");
    }

    #[test]
    fn nonsense_is_no_table_and_what_a_session_left_behind_is_forgotten() {
        let tables = Tables::default();
        for (from, to) in
            [("held", "waits"), ("alone", "all"), (" 7 1000", " x 1000"), ("table", "chair"), ("a1", "-")]
        {
            let text = TABLE.replace(from, to);
            assert!(tables.hear(1, text.as_bytes(), true).is_err(), "{text}");
        }
        assert!(tables.hear(1, &[0xff], true).is_err());
        tables.hear(1, &TABLE.as_bytes()[..20], false).unwrap();
        tables.forget(1);
        assert!(tables.hear(1, &TABLE.as_bytes()[20..], true).is_err(), "the beginning is gone");
        assert!(tables.hear(2, &vec![0; MAX_BYTES + 1], false).is_err() && tables.state().parts.is_empty());
        for number in 0..=MAX_TABLES {
            let text = TABLE.replace("table 3", &format!("table {number}"));
            tables.hear(1, text.as_bytes(), true).unwrap();
        }
        assert!(!tables.has(0, 7) && tables.has(1, 7), "the oldest makes room");
    }
}

//! The holder table of a one-sided space as a client has it: it writes its own records by WRITEs, and reads those of others
//! by READs.
//!
//! A record is posted and not waited for: the verb that takes the lock goes over the same connection, and comes after it. If
//! the connection breaks in between, that order is lost. So a grant counts only if no connection broke since its record was
//! written; whatever such a grant leaves in the lock's word no record vouches for, and the next client to come resets it. What
//! clears a record may be lost as well, and then the record would vouch for what is nobody's as long as its client lives: so
//! after a break records are [cleared again](OneSidedHolders::clear_again), and that is waited for.
//! The record of a range is waited for: what comes after it may be a message to another client, which goes another way.
//!
//! There are no zombies, so nobody is suspected: the server strikes a client off the directory after its connection is
//! gone, and until then its records count.

use super::layout;
use super::local;
use super::reach::Reach;
use lockwright_fabric::{FabricError, NodeId, PeerId, RawVerb, Time, Word64};
use lockwright_locks::citron::member::{Forest, TreeClient, TreeSpace};
use lockwright_locks::holders::record::{ClientWord, First, MAX_RECORDS, RecordWord};
use lockwright_locks::holders::space::{MAX_LOADS, Values};
use lockwright_locks::holders::{HolderClient, HolderSpace, HolderTable, Order, RangeSpace, TableLayout};
use lockwright_locks::qplock::member::{MemberSpace, Side};
use lockwright_locks::shiftlock::Shipped;
use lockwright_locks::shiftlock::versioned_portable::VersionedPortable;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};

/// The table of a one-sided space.
pub type OneSidedTable<E> = HolderTable<OneSidedHolders<E>, VersionedPortable>;
/// A client of the locks of a one-sided space.
pub type OneSidedLocks<E> = HolderClient<E, OneSidedTable<E>, Shipped, VersionedPortable>;

/// Pause before a client looks again whether there is room to post, or a heartbeat was answered.
const PAUSE_NS: u64 = 100_000;
/// How often a waiter for a range looks whether those in its way are alive.
const LOOK_NS: u64 = 30_000_000;
/// Verbs that are posted at a time.
const POSTED: usize = 16;
/// The server cannot be reached, or has given this client up.
const GONE: FabricError = FabricError::NodeLost(NodeId(0));

/// A client of the trees of a one-sided space.
pub type OneSidedTrees<E> = TreeClient<E, OneSidedHolders<E>>;

/// One client's access to the table.
#[derive(Clone, Debug)]
pub struct OneSidedHolders<E> {
    ep: E,
    me: PeerId,
    table: TableLayout,
    shared: Arc<Written>,
}

/// What was written, and over which connection.
#[derive(Debug)]
struct Written {
    /// Connections that had broken when a record was last filled in.
    at: [AtomicU64; MAX_RECORDS as usize],
    /// The first word of every record.
    firsts: [AtomicU64; MAX_RECORDS as usize],
    /// Records that have been in use, as others can read it, and connections that had broken when that was written.
    used: Mutex<(u64, u64)>,
}

impl<E: Reach> OneSidedHolders<E> {
    pub(super) fn new(ep: E, table: TableLayout) -> Self {
        let zeros = || [const { AtomicU64::new(0) }; MAX_RECORDS as usize];
        let me = ep.me();
        let written = Written { at: zeros(), firsts: zeros(), used: Mutex::new((0, 0)) };
        Self { ep, me, table, shared: Arc::new(written) }
    }

    /// The same for the server itself, which has no records.
    pub(super) fn of_server(ep: E, table: TableLayout) -> Self {
        Self { me: PeerId::role(0), ..Self::new(ep, table) }
    }

    fn own(&self, word: ClientWord) -> Word64 {
        self.table.client(self.table.slot(self.me), word)
    }

    /// Posts `verbs`, as soon as there is room.
    async fn post(&self, verbs: &[RawVerb]) -> Result<(), FabricError> {
        while !self.ep.post(verbs) {
            self.pause().await?;
        }
        Ok(())
    }

    /// Connections that have broken so far.
    pub(crate) fn breaks(&self) -> u64 {
        self.ep.breaks()
    }

    /// Clears records, which this client has cleared and does not use, and returns when others can see it.
    ///
    /// # Errors
    /// If the session is over, and so every record of it.
    pub(crate) async fn clear_again(&self, records: &[u8]) -> Result<(), FabricError> {
        for records in records.chunks(POSTED) {
            let clear = |record: &u8| {
                let first = First(self.shared.firsts[usize::from(*record)].load(SeqCst));
                let place = self.table.record(self.table.slot(self.me), u64::from(*record));
                place.word(RecordWord::First).write(first.freed().0).raw()
            };
            let verbs: Vec<_> = records.iter().map(clear).collect();
            while self.ep.go(&verbs[..]).await.is_err() {
                self.pause().await?;
            }
        }
        Ok(())
    }

    pub(crate) async fn pause(&self) -> Result<(), FabricError> {
        if self.ep.is_over() {
            return Err(GONE);
        }
        self.ep.sleep(PAUSE_NS).await;
        Ok(())
    }

    /// Says, once for every record and connection, that it is in use now and then. Posted under the lock, so that what is
    /// written last says most.
    async fn use_record(&self, record: u8) -> Result<(), FabricError> {
        loop {
            let breaks = self.ep.breaks();
            {
                let mut used = self.shared.used.lock().unwrap_or_else(PoisonError::into_inner);
                let with = (used.0 | 1 << record, breaks);
                if *used == with {
                    return Ok(());
                }
                if self.ep.post(&[self.own(ClientWord::Used).write(with.0).raw()]) {
                    *used = with;
                    return Ok(());
                }
            }
            self.pause().await?;
        }
    }
}

impl<E: Reach> HolderSpace for OneSidedHolders<E> {
    const LOADS: usize = MAX_LOADS;

    fn layout(&self) -> &TableLayout {
        &self.table
    }

    fn me(&self) -> PeerId {
        self.me
    }

    async fn load(&self, word: Word64) -> Result<u64, FabricError> {
        self.ep.go(word.read()).await
    }

    async fn load_all(&self, words: &[Word64]) -> Result<Values, FabricError> {
        let verbs: Vec<_> = words.iter().map(|word| word.read().raw()).collect();
        Ok(self.ep.go(&verbs[..]).await?.iter().map(|old| *old as u64).collect())
    }

    async fn store<const N: usize>(
        &self,
        record: u8,
        words: [(Word64, u64); N],
        order: Order,
    ) -> Result<(), FabricError> {
        let place = self.table.record(self.table.slot(self.me), u64::from(record));
        let first = words.iter().find(|(word, _)| *word == place.word(RecordWord::First));
        if let Some((_, first)) = first {
            if First(*first).state().is_some() {
                self.use_record(record).await?;
                self.shared.at[usize::from(record)].store(self.ep.breaks(), SeqCst);
            }
            self.shared.firsts[usize::from(record)].store(*first, SeqCst);
        }
        let verbs = words.map(|(word, value)| word.write(value).raw());
        match order {
            Order::Verbs => self.post(&verbs).await,
            Order::Messages => self.ep.go(&verbs[..]).await.map(drop),
        }
    }

    async fn own_first(&self, record: u8) -> Result<First, FabricError> {
        Ok(First(self.shared.firsts[usize::from(record)].load(SeqCst)))
    }

    /// Its owner stands in the directory: it is.
    async fn is_alive(&self, _: PeerId) -> Result<bool, FabricError> {
        Ok(true)
    }

    /// The verb that brought the lock was executed while this client was in: its queue pair is destroyed before it is
    /// struck off. What is left to see is that it is not struck off just now for a sleep that lies behind it.
    async fn confirm(&self, record: u8) -> Result<(), FabricError> {
        while !self.ep.is_fresh() {
            self.pause().await.map_err(|_| FabricError::Evicted)?;
        }
        let written = self.shared.at[usize::from(record)].load(SeqCst);
        if written == self.ep.breaks() && !self.ep.is_over() { Ok(()) } else { Err(GONE) }
    }

    async fn recent(&self) -> Time {
        self.ep.now().await
    }
}

impl<E: Reach> TreeSpace for OneSidedHolders<E> {
    async fn post(&self, verbs: &[RawVerb]) -> Result<(), FabricError> {
        for some in verbs.chunks(POSTED) {
            OneSidedHolders::post(self, some).await?;
        }
        Ok(())
    }

    /// The server clears away after the dead.
    fn patience_ns(&self) -> Option<u64> {
        None
    }
}

impl<E: Reach> MemberSpace for OneSidedHolders<E> {
    async fn side(&self, peer: PeerId) -> Result<Side, FabricError> {
        Ok(local::side(self.load(self.table.client(self.table.slot(peer), ClientWord::Elsewhere)).await?))
    }

    fn patience_ns(&self) -> u64 {
        LOOK_NS
    }
}

impl<E: Reach> RangeSpace for OneSidedHolders<E> {
    fn gate(&self, lock: u64) -> u64 {
        layout::gate(lock)
    }

    fn changes(&self, lock: u64) -> Word64 {
        layout::changes(lock)
    }

    async fn swap(&self, word: Word64, old: u64, new: u64) -> Result<bool, FabricError> {
        let swapped = self.ep.go(word.cas(old, new)).await? == old;
        if let (true, Some((_, record, RecordWord::First))) = (swapped, layout::TABLE.locate(word)) {
            self.shared.firsts[record as usize].store(new, SeqCst);
        }
        Ok(swapped)
    }

    fn patience_ns(&self, _: u32) -> Option<u64> {
        Some(LOOK_NS)
    }
}

/// A client of the locks that `ep` reaches.
pub fn client<E: Reach + Clone>(ep: E) -> OneSidedLocks<E> {
    let table = HolderTable::new(OneSidedHolders::new(ep.clone(), layout::TABLE));
    HolderClient::new(ep, &layout::SHAPE, &layout::params(), table)
}

/// A client of trees that writes the same records as `client`.
pub(crate) fn trees<E: Reach + Clone>(ep: E, client: &OneSidedLocks<E>, forest: Forest) -> OneSidedTrees<E> {
    TreeClient::new(ep, client.recorder().space().clone(), forest)
}

/// The server's own client of trees, which takes nothing and clears away after the dead.
pub fn server_trees<E: Reach + Clone>(ep: E, forest: Forest) -> OneSidedTrees<E> {
    let space = OneSidedHolders::of_server(ep.clone(), layout::TABLE);
    TreeClient::new(ep, space, forest)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::one_sided::layout::Ranges;
    use lockwright_fabric::backend::block_on;
    use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint};
    use lockwright_fabric::observe::{Claim, Mode};
    use lockwright_fabric::{Batch, Endpoint, delegate};
    use lockwright_locks::citron::member::TreeParams;
    use lockwright_locks::holders::ranges::RangeRecords;

    /// Counts what is waited for, and what is only posted.
    #[derive(Clone, Debug)]
    struct Counted {
        ep: InProcEndpoint,
        trips: Arc<AtomicU64>,
        largest: Arc<AtomicU64>,
        /// The connection breaks after so many round trips, and another one resumes the session.
        breaks_after: u64,
    }

    impl Counted {
        fn new(ep: InProcEndpoint, breaks_after: u64) -> Self {
            Self { ep, trips: Arc::default(), largest: Arc::default(), breaks_after }
        }
    }

    impl Endpoint for Counted {
        delegate!(ep: me home capabilities wait_until send send_datagram recv_by);
        delegate!(ep: now passed alarm is_gone sleep suspects random mark checkpoint observe);

        async fn go<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
            let mut verbs = 0;
            batch.each(&mut |_| {
                verbs += 1;
                0
            });
            self.trips.fetch_add(1, SeqCst);
            self.largest.fetch_max(verbs, SeqCst);
            self.ep.go(batch).await
        }
    }

    impl Reach for Counted {
        fn post(&self, verbs: &[RawVerb]) -> bool {
            assert!(verbs.len() <= POSTED);
            block_on(self.ep.go(verbs)).is_ok()
        }

        fn breaks(&self) -> u64 {
            u64::from(self.trips.load(SeqCst) >= self.breaks_after)
        }

        fn is_fresh(&self) -> bool {
            true
        }

        fn is_over(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_range_whose_connection_breaks_under_it_leaves_no_record_in_the_way_of_others() {
        let claim = Claim { lock: 0, mode: Mode::Exclusive, start: 3, end: 9 };
        let records = RangeRecords { gate: 0, range: 1 };
        let mut failed = 0;
        for trips in 1..20 {
            let memory = InProc::with_regions(1, &Ranges::Exact.regions());
            let broken = client(Counted::new(memory.endpoint(layout::peer(1)), trips));
            match block_on(broken.take_range(records, claim)) {
                Ok(_) => block_on(broken.give_range_back(records.range, claim)).unwrap(),
                Err(_) => failed += 1,
            }
            for record in [records.gate, records.range] {
                let first = block_on(broken.recorder().space().own_first(record)).unwrap();
                assert_eq!(first.state(), None, "record {record} after a break at round trip {trips}");
            }
            let other = client(Counted::new(memory.endpoint(layout::peer(2)), u64::MAX));
            block_on(other.take_range(records, claim)).unwrap();
        }
        assert!(failed > 0);
    }

    #[test]
    fn an_uncontended_range_on_a_tree_takes_one_round_trip_to_lock_and_none_to_unlock() {
        let ranges = Ranges::Tree(TreeParams { unit: 1, ..TreeParams::default() });
        let forest = ranges.forest().unwrap();
        let memory = InProc::with_regions(1, &ranges.regions());
        let counted = Counted::new(memory.endpoint(layout::peer(1)), u64::MAX);
        let keyed = client(counted.clone());
        let trees = trees(counted.clone(), &keyed, forest);
        let claim = |start, end| Claim { lock: 0, mode: Mode::Exclusive, start, end };
        let took = |before| counted.trips.load(SeqCst) - before;
        let mut held = Vec::new();
        // A leaf, two leaves across the middle, an inner node, and a leaf with many others held.
        for (record, (start, end)) in (0..).zip([(7, 8), (2047, 2049), (64, 68), (4095, 4096)]) {
            let before = counted.trips.load(SeqCst);
            let grant = block_on(trees.try_take(record, claim(start, end))).unwrap();
            assert_eq!(took(before), 1, "{start}..{end}");
            held.push(grant);
        }
        assert!(counted.largest.load(SeqCst) <= POSTED as u64, "all of a batch goes at once");
        let before = counted.trips.load(SeqCst);
        for grant in held {
            block_on(trees.give_back(grant)).unwrap();
        }
        assert_eq!(took(before), 0);
        assert!(forest.nodes(0).all(|word| memory.peek(word) == 0), "nothing is left");
    }
}

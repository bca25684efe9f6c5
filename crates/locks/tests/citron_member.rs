//! Citron's tree with membership on real atomics: what ranges cost that nobody else wants. The explorer runs the rest
//! (`lockwright-proofs`, `citron_member/`).

use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint};
use lockwright_fabric::count::{Counted, Counts};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Addr, Endpoint, FabricError, NodeId, PeerId, RawVerb, Time, Word64};
use lockwright_locks::citron::member::{Forest, TreeClient, TreeParams, TreeSpace};
use lockwright_locks::holders::record::{ClientWord, First, RecordWord};
use lockwright_locks::holders::{HolderSpace, Order, TableLayout};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

/// Of every space that is not told otherwise: 4,096 units in seven levels.
const TREES: TreeParams = TreeParams { locks: 1, units: 4096, unit: 1, k: 4, m: 2 };
const CLIENTS: u64 = 2;
const RECORD: u8 = 0;

fn forest() -> Forest {
    Forest::new(Addr::new(NodeId(0), 0), TREES)
}

/// Records in the memory of the trees. What is posted is executed at once, and nobody counts it: it is not waited for.
#[derive(Debug)]
struct Records {
    ep: InProcEndpoint,
    table: TableLayout,
    first: AtomicU64,
    /// Verbs that were posted to trees.
    posted: AtomicU64,
}

impl HolderSpace for Records {
    fn layout(&self) -> &TableLayout {
        &self.table
    }

    fn me(&self) -> PeerId {
        self.ep.me()
    }

    async fn load(&self, word: Word64) -> Result<u64, FabricError> {
        self.ep.go(word.read()).await
    }

    async fn store<const N: usize>(
        &self,
        _: u8,
        words: [(Word64, u64); N],
        _: Order,
    ) -> Result<(), FabricError> {
        let place = self.table.record(self.table.slot(self.me()), u64::from(RECORD));
        if let Some((_, first)) = words.iter().find(|(word, _)| *word == place.word(RecordWord::First)) {
            self.first.store(*first, SeqCst);
        }
        self.ep.go(words.map(|(word, value)| word.write(value))).await.map(drop)
    }

    async fn own_first(&self, _: u8) -> Result<First, FabricError> {
        Ok(First(self.first.load(SeqCst)))
    }

    async fn is_alive(&self, _: PeerId) -> Result<bool, FabricError> {
        Ok(true)
    }

    async fn confirm(&self, _: u8) -> Result<(), FabricError> {
        Ok(())
    }

    async fn recent(&self) -> Time {
        Time(0)
    }
}

impl TreeSpace for Records {
    async fn post(&self, verbs: &[RawVerb]) -> Result<(), FabricError> {
        self.posted.fetch_add(verbs.len() as u64, SeqCst);
        for verbs in verbs.chunks(16) {
            self.ep.go(verbs).await?;
        }
        Ok(())
    }

    fn patience_ns(&self) -> Option<u64> {
        None
    }
}

type Client = TreeClient<Counted<InProcEndpoint>, Records>;

/// Clients, with what each waits for.
struct Group(Vec<(Client, Counted<InProcEndpoint>)>);

fn group() -> Group {
    let table = TableLayout::new(Addr::new(NodeId(0), forest().bytes()), CLIENTS, 1);
    let memory = InProc::new(1, forest().bytes() + table.bytes());
    memory.poke(table.directory(0), (1 << CLIENTS) - 1);
    let clients = (0..CLIENTS as usize).map(|index| {
        let peer = PeerId::client(index);
        memory.poke(table.owner(table.slot(peer)), u64::from(peer.0));
        memory.poke(table.client(table.slot(peer), ClientWord::Used), 1);
        let (ep, counted) = (memory.endpoint(peer), Counted::new(memory.endpoint(peer)));
        let (first, posted) = (AtomicU64::new(0), AtomicU64::new(0));
        (TreeClient::new(counted.clone(), Records { ep, table, first, posted }, forest()), counted)
    });
    Group(clients.collect())
}

impl Group {
    /// What `what` waits for as the first client, and how many verbs it posts.
    fn cost<T>(&self, what: impl FnOnce(&Client) -> T) -> (T, Counts, u64) {
        let (client, counted) = &self.0[0];
        let (before, posted) = (counted.tally().snapshot(), client.space().posted.swap(0, SeqCst));
        assert_eq!(posted, 0, "all were looked at");
        let done = what(client);
        (done, counted.tally().snapshot() - before, client.space().posted.swap(0, SeqCst))
    }
}

const fn claim(start: u64, end: u64, mode: Mode) -> Claim {
    Claim { lock: 0, mode, start, end }
}

/// Range, nodes of its cover, round trips. A batch has 16 verbs, one of which is the token's. A leaf takes seven, a node of 4 units
/// six, one of 16 nine, as it looks at those below.
const COSTS: [(u64, u64, usize, u64); 11] = [
    (5, 6, 1, 1),
    (4, 8, 1, 1),
    (0, 4096, 1, 1),
    (3, 5, 2, 1),
    (4, 12, 2, 1),
    (80, 112, 2, 2),
    (3, 9, 3, 2),
    (2, 5, 3, 2),
    (2, 9, 4, 2),
    (20, 36, 4, 2),
    (80, 144, 4, 4),
];

#[test]
fn a_range_that_is_free_takes_as_many_round_trips_as_its_cover_takes_batches_and_none_to_unlock() {
    for mode in [Mode::Exclusive, Mode::Shared] {
        for (start, end, nodes, trips) in COSTS {
            let group = group();
            let claim = claim(start, end, mode);
            assert_eq!(forest().cover(&claim).unwrap().len(), nodes, "{start}..{end}");
            let (grant, cost, posted) = group.cost(|client| block_on(client.take(RECORD, claim)).unwrap());
            assert_eq!((cost.round_trips, posted), (trips, 0), "{start}..{end} {mode:?}, lock: {cost:?}");
            let (given, cost, posted) = group.cost(|client| block_on(client.give_back(grant)));
            assert_eq!((given, cost.round_trips), (Ok(()), 0), "{start}..{end} {mode:?}, unlock");
            assert!(posted >= nodes as u64);
        }
    }
}

/// However many ranges are held beside it: nobody reads their records.
#[test]
fn ranges_that_others_hold_elsewhere_cost_nothing() {
    let group = group();
    let other = &group.0[1].0;
    let _held = block_on(other.take(RECORD, claim(64, 128, Mode::Exclusive))).unwrap();
    let (grant, cost, _) =
        group.cost(|client| block_on(client.take(RECORD, claim(128, 129, Mode::Exclusive))).unwrap());
    assert_eq!(cost.round_trips, 1);
    block_on(group.0[0].0.give_back(grant)).unwrap();
}

#[test]
fn a_downgrade_waits_for_its_token_alone() {
    let group = group();
    let mut grant = block_on(group.0[0].0.take(RECORD, claim(2, 9, Mode::Exclusive))).unwrap();
    let token = grant.token();
    let other = &group.0[1].0;
    assert!(block_on(other.try_take(RECORD, claim(2, 3, Mode::Shared))).is_err());
    let (changed, cost, posted) = group.cost(|client| block_on(client.downgrade(&mut grant)));
    assert_eq!((changed, cost.round_trips, cost.fetch_adds), (Ok(()), 1, 1));
    assert!(grant.token() > token && posted > 4);
    let shared = block_on(other.try_take(RECORD, claim(2, 3, Mode::Shared))).unwrap();
    assert!(block_on(other.give_back(shared)).is_ok());
    assert!(block_on(other.try_take(RECORD, claim(2, 3, Mode::Exclusive))).is_err());
    block_on(group.0[0].0.give_back(grant)).unwrap();
    assert!(block_on(other.try_take(RECORD, claim(0, 4096, Mode::Exclusive))).is_ok());
}

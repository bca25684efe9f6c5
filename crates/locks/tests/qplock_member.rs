//! The asymmetric lock with membership on real atomics: what a lone client costs, and what becomes of a lock whose holder is
//! gone. The explorer runs the rest (`lockwright-proofs`, `qplock_member/`).

use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint};
use lockwright_fabric::count::{Counted, Counts};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Addr, Endpoint, FabricError, NodeId, PeerId, Time, Word64};
use lockwright_locks::Denied;
use lockwright_locks::holders::record::{ClientWord, First};
use lockwright_locks::holders::{HolderSpace, Order, TableLayout};
use lockwright_locks::qplock::member::{LockTable, MemberClient, MemberSpace, Side};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const CLIENTS: u64 = 4;
/// The first ones are at home with the locks.
const LOCALS: usize = 2;
const LOCKS: LockTable = LockTable::new(Addr::new(NodeId(0), 0), 2);
const TABLE: TableLayout = TableLayout::new(Addr::new(NodeId(0), LOCKS.bytes()), CLIENTS, 1);
const WHOLE: Claim = Claim { lock: 1, mode: Mode::Exclusive, start: 0, end: u64::MAX };
const SHARED: Claim = Claim { mode: Mode::Shared, ..WHOLE };
const RECORD: u8 = 0;

/// Records in the memory of the locks. They are written at once, and nobody counts that.
#[derive(Clone, Debug)]
struct Records {
    ep: InProcEndpoint,
    /// Bit n: client n is gone.
    gone: Arc<AtomicU64>,
}

impl HolderSpace for Records {
    fn layout(&self) -> &TableLayout {
        &TABLE
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
        self.ep.go(words.map(|(word, value)| word.write(value))).await.map(drop)
    }

    async fn own_first(&self, _: u8) -> Result<First, FabricError> {
        Ok(First(0))
    }

    async fn is_alive(&self, peer: PeerId) -> Result<bool, FabricError> {
        Ok(self.gone.load(SeqCst) >> peer.index().0 & 1 == 0)
    }

    async fn confirm(&self, _: u8) -> Result<(), FabricError> {
        Ok(())
    }

    async fn recent(&self) -> Time {
        Time(0)
    }
}

fn side(index: usize) -> Side {
    if index < LOCALS { Side::Local } else { Side::Remote }
}

impl MemberSpace for Records {
    async fn side(&self, peer: PeerId) -> Result<Side, FabricError> {
        Ok(side(peer.index().0))
    }

    fn patience_ns(&self) -> u64 {
        100_000
    }
}

type Client = MemberClient<Counted<InProcEndpoint>, Records>;

/// All clients, with what each sends, and which are gone.
struct Group {
    clients: Vec<(Client, Counted<InProcEndpoint>)>,
    gone: Arc<AtomicU64>,
}

fn group() -> Group {
    let memory = InProc::new(1, LOCKS.bytes() + TABLE.bytes());
    memory.poke(TABLE.directory(0), (1 << CLIENTS) - 1);
    let gone = Arc::new(AtomicU64::new(0));
    let clients = (0..CLIENTS as usize).map(|index| {
        let peer = PeerId::client(index);
        memory.poke(TABLE.owner(TABLE.slot(peer)), u64::from(peer.0));
        memory.poke(TABLE.client(TABLE.slot(peer), ClientWord::Used), 1);
        let (ep, counted) = (memory.endpoint(peer), Counted::new(memory.endpoint(peer)));
        let records = Records { ep, gone: Arc::clone(&gone) };
        (MemberClient::new(counted.clone(), records, LOCKS, side(index), 4), counted)
    });
    Group { clients: clients.collect(), gone }
}

impl Group {
    fn client(&self, index: usize) -> &Client {
        &self.clients[index].0
    }

    /// What `what` sends as client `index`.
    fn cost<T>(&self, index: usize, what: impl FnOnce(&Client) -> T) -> (T, Counts) {
        let (client, counted) = &self.clients[index];
        let before = counted.tally().snapshot();
        let done = what(client);
        (done, counted.tally().snapshot() - before)
    }
}

#[test]
fn a_lock_that_is_free_takes_one_round_trip_to_lock_and_one_to_unlock_on_either_side() {
    let group = group();
    for index in [0, 2, 3, 1] {
        let (grant, cost) = group.cost(index, |client| block_on(client.take(RECORD, WHOLE)).unwrap());
        assert_eq!((cost.round_trips, cost.fetch_adds, cost.cas), (1, 1, 0), "client {index} locks");
        let (given, cost) = group.cost(index, |client| block_on(client.give_back(grant)));
        assert_eq!((given, cost.round_trips, cost.writes), (Ok(()), 1, 1), "client {index} unlocks");
    }
}

#[test]
fn what_the_dead_held_goes_to_either_side_with_larger_tokens() {
    for (dead, heirs) in [(0, [1, 2]), (0, [2, 1]), (2, [3, 0]), (2, [0, 3])] {
        for mode in [WHOLE, SHARED] {
            let group = group();
            let mut token = block_on(group.client(dead).take(RECORD, mode)).unwrap().token();
            assert_eq!(block_on(group.client(heirs[0]).try_take(RECORD, WHOLE)), Err(Denied::Busy));
            group.gone.fetch_or(1 << dead, SeqCst);
            for heir in heirs {
                let grant = block_on(group.client(heir).take(RECORD, WHOLE)).unwrap();
                assert!(grant.token() > token, "{dead} died and {heir} came");
                token = grant.token();
                block_on(group.client(heir).give_back(grant)).unwrap();
            }
            for heir in heirs {
                let grant = block_on(group.client(heir).try_take(RECORD, SHARED)).unwrap();
                assert!(grant.token() > token);
                token = grant.token();
                block_on(group.client(heir).give_back(grant)).unwrap();
            }
        }
    }
}

#[test]
fn an_idle_client_can_pass_over_the_tickets_of_the_dead() {
    let group = group();
    block_on(group.client(2).take(RECORD, WHOLE)).unwrap();
    assert_eq!(block_on(group.client(3).recover(WHOLE.lock)), Ok(false), "it lives");
    group.gone.fetch_or(1 << 2, SeqCst);
    assert_eq!(block_on(group.client(3).recover(WHOLE.lock)), Ok(true));
    let (grant, cost) = group.cost(0, |client| block_on(client.take(RECORD, WHOLE)));
    assert!(grant.is_ok());
    assert_eq!(cost.round_trips, 1, "nothing is left of it");
}

#[test]
fn readers_of_both_sides_share_and_a_writer_is_downgraded_to_one_of_them() {
    let group = group();
    let mut grant = block_on(group.client(2).take(RECORD, WHOLE)).unwrap();
    let token = grant.token();
    assert_eq!(block_on(group.client(0).try_take(RECORD, SHARED)), Err(Denied::Busy));
    block_on(group.client(2).downgrade(&mut grant)).unwrap();
    assert!(grant.token() > token);
    let other = block_on(group.client(0).try_take(RECORD, SHARED)).unwrap();
    assert_eq!(block_on(group.client(1).try_take(RECORD, WHOLE)), Err(Denied::Busy));
    block_on(group.client(2).give_back(grant)).unwrap();
    block_on(group.client(0).give_back(other)).unwrap();
    assert!(block_on(group.client(1).try_take(RECORD, WHOLE)).is_ok());
}

#[test]
fn a_lock_that_is_not_there_is_refused_and_nothing_happens() {
    let group = group();
    let beyond = Claim { lock: LOCKS.locks(), ..WHOLE };
    let (taken, cost) = group.cost(0, |client| block_on(client.take(RECORD, beyond)));
    assert!(matches!(taken, Err(Denied::BadRequest(_))));
    assert_eq!(cost.round_trips, 0);
}

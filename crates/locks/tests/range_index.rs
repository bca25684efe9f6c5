//! Ranges that are found by an index, on real atomics, beside a plain list of what is held: the same answers. The explorer runs
//! what can happen in between (`lockwright-proofs`, `holders/indexed.rs`).

use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint, block_on};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::random::SplitMix;
use lockwright_fabric::{
    Addr, Batch, Endpoint, FabricError, NodeId, PeerId, RegionId, Time, Word64, delegate,
};
use lockwright_locks::holders::index_layout::IndexLayout;
use lockwright_locks::holders::range_changes::NotUpgraded;
use lockwright_locks::holders::ranges::RangeRecords;
use lockwright_locks::holders::record::{ClientWord, First, RecordWord};
use lockwright_locks::holders::{
    HolderClient, HolderSpace, HolderTable, RangeSpace, RecordRules, TableLayout, membership,
};
use lockwright_locks::shiftlock::versioned::Versioned;
use lockwright_locks::shiftlock::{Rules, ShiftLock, ShiftParams, Shipped};
use lockwright_locks::{Denied, Protocol, Space};
use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::rc::Rc;

const LOCKS: u64 = 3;
const SPACE: Space = Space::of(LOCKS);

const fn at(region: u16) -> Addr {
    Addr { offset: 0, node: NodeId(0), region: RegionId(region) }
}

/// A space of so many clients with so many records each.
struct World {
    fabric: InProc,
    table: TableLayout,
    index: IndexLayout,
    dead: Rc<RefCell<BTreeSet<PeerId>>>,
    loads: Rc<Cell<u64>>,
}

/// An endpoint of a client that may die.
#[derive(Clone, Debug)]
struct Mortal {
    ep: InProcEndpoint,
    /// Verbs and stores that it lives to see the end of.
    left: Rc<Cell<u64>>,
}

impl Mortal {
    fn lives_on(&self) -> Result<(), FabricError> {
        self.left.set(self.left.get().checked_sub(1).ok_or(FabricError::Evicted)?);
        Ok(())
    }
}

impl Endpoint for Mortal {
    delegate!(ep: me home capabilities wait_until send send_datagram recv_by);
    delegate!(ep: now passed alarm is_gone sleep suspects random mark checkpoint observe);

    async fn go<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        self.lives_on()?;
        self.ep.go(batch).await
    }
}

/// One client's access to it.
#[derive(Debug)]
struct Direct {
    ep: Mortal,
    table: TableLayout,
    index: IndexLayout,
    dead: Rc<RefCell<BTreeSet<PeerId>>>,
    loads: Rc<Cell<u64>>,
}

type Client<R> = HolderClient<Mortal, HolderTable<Direct, Versioned, R>, R, Versioned>;

/// Believes an index after its gate was reset.
#[derive(Debug)]
struct Aged;

impl RecordRules for Aged {
    const TREES_ARE_OF_A_GENERATION: bool = false;
}

impl Rules for Aged {}

impl World {
    fn new(clients: u64, records: u64, worth: u64) -> Self {
        let table = TableLayout::new(at(1), clients, records);
        let locks = <ShiftLock<Versioned>>::bytes_per_node(&SPACE, &ShiftParams::default());
        let index = IndexLayout { entries: at(2), roots: at(3).plus(8), stride: 16, worth, every: 2 };
        let sizes = [locks, table.bytes(), IndexLayout::bytes(&table), 16 * LOCKS];
        let fabric = InProc::with_regions(1, &sizes);
        Self { fabric, table, index, dead: Rc::default(), loads: Rc::default() }
    }

    fn client<R: Rules + RecordRules>(&self, number: usize) -> Client<R> {
        let ep = self.fabric.endpoint(PeerId::client(number));
        let ep = Mortal { ep, left: Rc::new(Cell::new(u64::MAX)) };
        block_on(membership::join(&ep, &self.table, Time(1), 1)).unwrap();
        let slot = self.table.slot(ep.me());
        let used = self.table.client(slot, ClientWord::Used);
        block_on(ep.go(used.write(u64::MAX >> (64 - self.table.records())))).unwrap();
        let space = Direct {
            ep: ep.clone(),
            table: self.table,
            index: self.index,
            dead: Rc::clone(&self.dead),
            loads: Rc::clone(&self.loads),
        };
        HolderClient::new(ep, &SPACE, &ShiftParams::default(), HolderTable::new(space))
    }
}

impl HolderSpace for Direct {
    const IS_DIRECT: bool = true;

    fn layout(&self) -> &TableLayout {
        &self.table
    }

    fn me(&self) -> PeerId {
        self.ep.me()
    }

    fn loader(&self) -> impl Fn(Word64) -> u64 + Copy {
        |word| {
            self.loads.set(self.loads.get() + 1);
            block_on(self.ep.ep.go(word.read())).expect("memory of this process")
        }
    }

    fn store_now<const N: usize>(&self, _: u8, words: [(Word64, u64); N]) -> Result<(), FabricError> {
        words.into_iter().try_for_each(|(word, value)| block_on(self.ep.go(word.write(value))).map(drop))
    }

    fn own_first_now(&self, record: u8) -> First {
        let at = self.table.record(self.table.slot(self.me()), u64::from(record));
        First(self.load_now(at.word(RecordWord::First)))
    }

    fn is_alive_now(&self, peer: PeerId) -> bool {
        !self.dead.borrow().contains(&peer)
    }

    fn confirm_now(&self, _: u8) -> Result<(), FabricError> {
        Ok(())
    }

    fn recent_now(&self) -> Time {
        Time(1)
    }
}

impl RangeSpace for Direct {
    const HAS_INDEX: bool = true;

    fn index(&self) -> IndexLayout {
        self.index
    }

    fn go_now<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        block_on(self.ep.go(batch))
    }

    fn gate(&self, lock: u64) -> u64 {
        lock
    }

    fn changes(&self, lock: u64) -> Word64 {
        Word64::at(at(3).plus(16 * lock))
    }

    async fn swap(&self, word: Word64, old: u64, new: u64) -> Result<bool, FabricError> {
        Ok(self.go_now(word.cas(old, new))? == old)
    }

    fn patience_ns(&self, _: u32) -> Option<u64> {
        None
    }
}

const CLIENTS: usize = 6;
const RECORDS: u8 = 8;
const GATE: u8 = 0;
const UNITS: u64 = 12;

/// What a client has, and by which record.
type Held = (usize, u8, Claim, u64);

struct Run<R> {
    world: World,
    random: SplitMix,
    clients: Vec<Client<R>>,
    joined: usize,
    held: Vec<Held>,
}

impl<R: Rules + RecordRules> Run<R> {
    fn new(seed: u64) -> Self {
        let mut random = SplitMix::new(seed);
        let world = World::new(CLIENTS as u64, u64::from(RECORDS), random.below(3) * 4);
        let clients = (0..CLIENTS).map(|number| world.client(number)).collect();
        Self { world, random, clients, joined: CLIENTS, held: Vec::new() }
    }

    fn range(&mut self) -> (u64, u64) {
        let start = self.random.below(UNITS);
        match self.random.below(12) {
            0 => (start, u64::MAX),
            1 => (0, 1 + start),
            _ => (start, start + 1 + self.random.below(3)),
        }
    }

    fn free_record(&self, client: usize) -> Option<u8> {
        (1..RECORDS).find(|record| !self.held.iter().any(|held| (held.0, held.1) == (client, *record)))
    }

    fn in_the_way(&self, wanted: &Claim) -> bool {
        self.held.iter().any(|(_, _, claim, _)| claim.conflicts(wanted))
    }

    fn lock(&mut self, dead: Option<usize>) {
        let client = self.random.below(CLIENTS as u64) as usize;
        let range = self.free_record(client).filter(|_| dead != Some(client));
        let Some(range) = range else { return };
        let mode = if self.random.below(2) == 0 { Mode::Shared } else { Mode::Exclusive };
        let ((start, end), lock) = (self.range(), self.random.below(LOCKS));
        let (claim, records) = (Claim { lock, mode, start, end }, RangeRecords { gate: GATE, range });
        let tried = match self.random.below(2) {
            0 => block_on(self.clients[client].try_range(records, claim)),
            _ => block_on(self.clients[client].try_range_fast(records, claim)).expect("the gate is free"),
        };
        match tried {
            Ok(token) => {
                assert!(!self.in_the_way(&claim), "{claim:?} was granted beside {:?}", self.held);
                self.held.push((client, range, claim, token));
            }
            Err(Denied::Busy) => assert!(self.in_the_way(&claim), "{claim:?} is free: {:?}", self.held),
            Err(other) => panic!("{other}"),
        }
    }

    fn pick(&mut self) -> Option<Held> {
        let count = self.held.len() as u64;
        (count > 0).then(|| self.held.swap_remove(self.random.below(count) as usize))
    }

    fn unlock(&mut self) {
        let Some((client, record, claim, _)) = self.pick() else { return };
        block_on(self.clients[client].give_range_back(record, claim)).expect("it was held");
    }

    fn change_mode(&mut self) {
        let Some((client, range, claim, token)) = self.pick() else { return };
        let records = RangeRecords { gate: GATE, range };
        let alone = Claim { mode: Mode::Exclusive, ..claim };
        let (mode, token) = match claim.mode {
            Mode::Exclusive => {
                let token =
                    block_on(self.clients[client].downgrade_range(records, claim)).expect("it was held");
                (Mode::Shared, token)
            }
            Mode::Shared => match block_on(self.clients[client].try_upgrade_range(records, claim)) {
                Ok(token) => {
                    assert!(!self.in_the_way(&alone), "{claim:?} was upgraded beside {:?}", self.held);
                    (Mode::Exclusive, token)
                }
                Err(NotUpgraded::Busy) => {
                    assert!(self.in_the_way(&alone), "{claim:?} is alone: {:?}", self.held);
                    (Mode::Shared, token)
                }
                Err(other) => panic!("{other:?}"),
            },
        };
        self.held.push((client, range, Claim { mode, ..claim }, token));
    }

    fn unlock_part(&mut self) {
        let Some((client, range, claim, token)) = self.pick() else { return };
        let length = (claim.end - claim.start).min(UNITS);
        let start = claim.start + self.random.below(length);
        let end = (start + self.random.below(3)).min(claim.end);
        let pieces =
            [(claim.start, start), (end, claim.end)].map(|(start, end)| Claim { start, end, ..claim });
        let pieces: Vec<_> = pieces.into_iter().filter(|piece| piece.start < piece.end).collect();
        self.held.push((client, range, claim, token));
        let rest = if pieces.len() == 2 { self.free_record(client) } else { None };
        if pieces.is_empty() || pieces.len() == 2 && rest.is_none() {
            return;
        }
        let records = RangeRecords { gate: GATE, range };
        block_on(self.clients[client].shrink_range(records, rest, claim, token, (start, end)))
            .expect("it was held");
        self.held.pop();
        let by = [Some(range), rest].into_iter().flatten();
        self.held.extend(by.zip(pieces).map(|(record, piece)| (client, record, piece, token)));
    }

    /// A client dies: between two requests, or at any verb of one, when it has the gate. Some time later another has its slot.
    fn die(&mut self) {
        let client = self.random.below(CLIENTS as u64) as usize;
        let ((start, end), lock) = (self.range(), self.random.below(LOCKS));
        let claim = Claim { lock, mode: Mode::Shared, start, end };
        if let Some(range) = self.free_record(client) {
            let left = self.random.below(60);
            self.clients[client].lock().endpoint().left.set(left);
            let records = RangeRecords { gate: GATE, range };
            let _ = block_on(self.clients[client].try_range_fast(records, claim));
            self.clients[client].lock().endpoint().left.set(0);
        }
        let peer = self.clients[client].lock().endpoint().me();
        self.world.dead.borrow_mut().insert(peer);
        self.held.retain(|held| held.0 != client);
        for lock in 0..LOCKS {
            let other = (client + 1) % CLIENTS;
            assert_eq!(
                block_on(self.clients[other].lock().recover(lock)),
                Ok(true),
                "only the dead one had it"
            );
        }
        for _ in 0..self.random.below(20) {
            self.step(Some(client));
        }
        self.joined += 1;
        while self.joined % CLIENTS != client {
            self.joined += 1;
        }
        self.clients[client] = self.world.client(self.joined);
    }

    /// Somebody does something, if it is not the one that is dead.
    fn step(&mut self, dead: Option<usize>) {
        match self.random.below(100) {
            0..55 => self.lock(dead),
            55..80 => self.unlock(),
            80..88 => self.change_mode(),
            _ => self.unlock_part(),
        }
    }
}

fn is_as_a_plain_list<R: Rules + RecordRules>() {
    for seed in 0..200 {
        println!("seed {seed}");
        let mut run = Run::<R>::new(seed);
        for _ in 0..1500 {
            if run.random.below(60) == 0 { run.die() } else { run.step(None) }
        }
    }
}

#[test]
fn an_index_of_ranges_gives_the_answers_of_a_plain_list() {
    is_as_a_plain_list::<Shipped>();
}

/// It takes three clients to see, one more than the explorer has for this.
#[test]
#[should_panic(expected = "was granted beside")]
fn an_index_that_is_believed_after_a_death_in_the_middle_of_it_loses_ranges() {
    is_as_a_plain_list::<Aged>();
}

/// Loads of a lock and unlock of a range that nobody else wants, when so many others are held.
fn loads_with(held: usize, worth: u64) -> u64 {
    const EACH: usize = 63;
    let world = World::new(held.div_ceil(EACH) as u64 + 1, 64, worth);
    let range = |number: usize| {
        let start = 10 * number as u64;
        Claim { lock: 0, mode: Mode::Exclusive, start, end: start + 5 }
    };
    let take = |client: &Client<Shipped>, record: usize, claim| {
        let records = RangeRecords { gate: GATE, range: 1 + record as u8 };
        block_on(client.try_range_fast(records, claim)).expect("the gate is free").expect("it is free");
    };
    let clients: Vec<_> = (0..=held.div_ceil(EACH)).map(|number| world.client(number)).collect();
    (0..held).for_each(|number| take(&clients[number / EACH], number % EACH, range(number)));
    let last = &clients[held.div_ceil(EACH)];
    let mut most = 0;
    for free in [held / 2, 7, held, held - 3, 1] {
        let wanted = Claim { start: 10 * free as u64 + 6, end: 10 * free as u64 + 9, ..range(0) };
        world.loads.set(0);
        take(last, 1, wanted);
        block_on(last.give_range_back(2, wanted)).unwrap();
        most = most.max(world.loads.get());
    }
    most
}

#[test]
fn what_a_range_costs_hardly_depends_on_how_many_are_held() {
    let [few, many] = [64, 4096].map(|held| loads_with(held, 32));
    println!("{few} loads with 64 held, {many} with 4,096");
    assert!(many < 6 * few && many < 1500, "{few} loads with 64 held, {many} with 4,096");
    assert!(loads_with(4096, u64::MAX) > 4096, "without an index every record is read");
}

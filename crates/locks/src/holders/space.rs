//! What a space provides besides the words of its locks: the memory of its holder table, and who of its clients is alive.
//!
//! Three spaces do: shared memory (loads and stores of this CPU; pidfds and leases), one-sided RDMA spaces (READs and
//! posted WRITEs; the server says who is in), and the explorer (one step per word; clients that are killed or stopped at any
//! of them).

use super::index_layout::IndexLayout;
use super::record::{First, MAX_RECORDS, TableLayout};
use arrayvec::ArrayVec;
use lockwright_fabric::{Batch, FabricError, PeerId, Time, Word64};
use std::fmt::Debug;

/// The most words that are loaded at a time.
pub const MAX_LOADS: usize = 16;
/// What they hold.
pub type Values = ArrayVec<u64, MAX_LOADS>;

/// One client's access to the holder table of a space.
///
/// A space whose table this CPU reaches by itself provides the methods that end in `_now`, and says so
/// ([`IS_DIRECT`](Self::IS_DIRECT)); a future, however short, costs more than all of these steps. Any other space provides
/// those that have to be waited for.
pub trait HolderSpace {
    /// Whether loads and stores are instructions of this CPU.
    const IS_DIRECT: bool = false;
    /// Words that are loaded at a time: more than one where a load is a round trip.
    const LOADS: usize = 1;

    /// Whether a lock that no client alive holds, but some want, is left to them for a while, if none who wanted it has died:
    /// it may be on its way to one that is slow. Of direct spaces only. Elsewhere a client that is alive may have left the lock
    /// taken without a record, and a reset costs a waiter its place and nothing else.
    const WAITERS_ARE_GIVEN_TIME: bool = false;

    /// Where the table's words are.
    fn layout(&self) -> &TableLayout;

    /// Who this client is in the space.
    fn me(&self) -> PeerId;

    /// Loads a word.
    fn load(&self, word: Word64) -> impl Future<Output = Result<u64, FabricError>> {
        async move { Ok(self.load_now(word)) }
    }

    /// Loads at most [`LOADS`](Self::LOADS) words, in order.
    fn load_all(&self, words: &[Word64]) -> impl Future<Output = Result<Values, FabricError>> {
        async move {
            let mut values = Values::new();
            for word in words {
                values.push(self.load(*word).await?);
            }
            Ok(values)
        }
    }

    /// Stores words of a record of this client's, in order: others see each before the next, and all of them before
    /// anything that this client's verbs change later. With [`Order::Messages`], before its messages, too.
    ///
    /// # Errors
    /// If this client was evicted.
    fn store<const N: usize>(
        &self,
        record: u8,
        words: [(Word64, u64); N],
        order: Order,
    ) -> impl Future<Output = Result<(), FabricError>> {
        async move {
            let _ = order;
            self.store_now(record, words)
        }
    }

    /// The first word of a record of this client's, as it is now or as it last wrote it.
    fn own_first(&self, record: u8) -> impl Future<Output = Result<First, FabricError>> {
        async move { Ok(self.own_first_now(record)) }
    }

    /// Whether `peer` is alive, and so its records count. A client that was silent for longer than its lease is evicted here.
    fn is_alive(&self, peer: PeerId) -> impl Future<Output = Result<bool, FabricError>> {
        async move { Ok(self.is_alive_now(peer)) }
    }

    /// After the verb that brought a lock, written down in `record`: an error if this client was evicted. After this nobody
    /// evicts it for what it did before (slept, mostly).
    fn confirm(&self, record: u8) -> impl Future<Output = Result<(), FabricError>> {
        async move { self.confirm_now(record) }
    }

    /// A time in the recent past that costs little to ask for.
    fn recent(&self) -> impl Future<Output = Time> {
        async move { self.recent_now() }
    }

    /// How often a client looks whether a lock that is taken becomes free before it queues: where a look is a load, a holder
    /// that runs is mostly done within a few of them, and a place in the queue costs more.
    fn spins(&self) -> u32 {
        0
    }

    /// What loads words, if this is direct.
    fn loader(&self) -> impl Fn(Word64) -> u64 + Copy {
        |word| unreachable!("{word:?} has to be waited for")
    }

    /// [`load`](Self::load), likewise.
    #[inline(always)]
    fn load_now(&self, word: Word64) -> u64 {
        (self.loader())(word)
    }

    /// [`store`](Self::store), likewise: before verbs and messages alike.
    ///
    /// # Errors
    /// If this client was evicted.
    fn store_now<const N: usize>(&self, record: u8, words: [(Word64, u64); N]) -> Result<(), FabricError> {
        unreachable!("{words:?} of record {record} have to be waited for")
    }

    /// [`own_first`](Self::own_first), likewise.
    fn own_first_now(&self, record: u8) -> First {
        unreachable!("record {record} has to be waited for")
    }

    /// [`is_alive`](Self::is_alive), likewise.
    fn is_alive_now(&self, peer: PeerId) -> bool {
        unreachable!("what is known of {peer} has to be waited for")
    }

    /// [`confirm`](Self::confirm), likewise.
    ///
    /// # Errors
    /// If this client was evicted.
    fn confirm_now(&self, record: u8) -> Result<(), FabricError> {
        unreachable!("the confirmation of record {record} has to be waited for")
    }

    /// [`recent`](Self::recent), likewise.
    fn recent_now(&self) -> Time {
        unreachable!("the time has to be waited for")
    }
}

/// Before what of a client's later effects others see a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Its verbs.
    Verbs,
    /// Its verbs and messages.
    Messages,
}

/// A space with range locks.
pub trait RangeSpace: HolderSpace {
    /// Whether there is an [index](super::index_layout) of ranges, whose entries are loaded as the table's words are. Of direct spaces only.
    const HAS_INDEX: bool = false;

    /// Where it is.
    fn index(&self) -> IndexLayout {
        unreachable!("ranges are found by a scan of all records")
    }

    /// Executes verbs, of a space with an index.
    ///
    /// # Errors
    /// If this client was evicted.
    fn go_now<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        let _ = batch;
        unreachable!("verbs have to be waited for")
    }

    /// The keyed lock that is the gate of `lock`.
    fn gate(&self, lock: u64) -> u64;

    /// The word that counts changes of `lock`.
    fn changes(&self, lock: u64) -> Word64;

    /// Swaps a word of a record of this client's; says whether it was `old`.
    fn swap(&self, word: Word64, old: u64, new: u64) -> impl Future<Output = Result<bool, FabricError>>;

    /// How long a waiter that has looked so many times waits before it looks again whether those in its way are alive.
    /// `None`: until something changes.
    fn patience_ns(&self, looked: u32) -> Option<u64>;
}

/// Where mutants differ from what is shipped, in the order of what is written and read. The defaults are what is shipped.
pub trait RecordRules: Debug + 'static {
    /// A record is written before the verb that takes its lock.
    const RECORDS_COME_FIRST: bool = true;
    /// A record is cleared after its lock was given back.
    const RECORDS_ARE_CLEARED_LAST: bool = true;
    /// The first word of a record is written after the others.
    const FIRST_WORD_IS_LAST: bool = true;
    /// The mark of the last grant is gone before the record is in use again.
    const MARKS_ARE_WIPED_FIRST: bool = true;
    /// A reader of a record looks at its first word again in the end.
    const RECORDS_ARE_READ_TWICE: bool = true;
    /// Whether it is still in, a client looks after the verb that brought the lock, and not before it.
    const CONFIRMED_AFTER: bool = true;
    /// Who gives up on a range clears its record.
    const LEAVING_CLEARS: bool = true;
    /// Who waits for a range reads the count of changes before it looks, so that none after the look is missed.
    const CHANGES_ARE_READ_FIRST: bool = true;
    /// Whether others bar an upgrade is decided by the holder of the gate.
    const UPGRADES_ARE_JUDGED_INSIDE: bool = true;
    /// An upgrade of a keyed lock is written down before the verb that begins it.
    const UPGRADES_ARE_WRITTEN_FIRST: bool = true;
    /// A reader that waits to be alone counts as a holder.
    const UPGRADING_HOLDS: bool = true;
    /// A range becomes two while its client has the gate.
    const RANGES_ARE_SPLIT_INSIDE: bool = true;
    /// An index is good for one generation of its gate.
    const TREES_ARE_OF_A_GENERATION: bool = true;
    /// A range is entered into the index by the holder of the gate.
    const RANGES_ARE_ENTERED_INSIDE: bool = true;
    /// So is the second of two pieces.
    const SECOND_PIECES_ARE_ENTERED: bool = true;
    /// An entry that is in the index with another range is put where it belongs.
    const ENTRIES_MOVE: bool = true;
    /// An entry that another index has is not taken from it; and whoever reads one sees whether it is in the right tree.
    const ENTRIES_ARE_IN_ONE_TREE: bool = true;
    /// The greatest end below an entry is changed with what is below it.
    const GREATEST_ENDS_FOLLOW: bool = true;
    /// What an entry says is believed only if its record says so.
    const RECORDS_ARE_THE_TRUTH: bool = true;
}

impl RecordRules for crate::shiftlock::Shipped {}

/// The numbers of the bits that are set, from the lowest.
#[inline(always)]
pub fn bits(mut mask: u64) -> impl Iterator<Item = u64> {
    std::iter::from_fn(move || {
        let bit = (mask != 0).then(|| u64::from(mask.trailing_zeros()))?;
        mask &= mask - 1;
        Some(bit)
    })
}

const _: () = assert!(MAX_RECORDS <= u64::BITS as u64 && MAX_LOADS <= lockwright_fabric::MAX_BATCH);

//! Locks with holder records as the explorer runs them: records, liveness words and entries in one memory.

use super::cases;
use super::evictable::Evictable;
use super::memory::{Explored as Memory, InBatches, KEYED, Part};
use crate::Proof;
use lockwright_fabric::{Addr, Endpoint, FabricError, Needs, NodeId, PeerId, Value};
use lockwright_locks::holders::range_changes::NotUpgraded;
use lockwright_locks::holders::{HolderClient, HolderSpace, HolderTable, RecordRules};
use lockwright_locks::shiftlock::layout::{Layout, Member, Stamp};
use lockwright_locks::shiftlock::versioned::{Versioned, VersionedLayout};
use lockwright_locks::shiftlock::{Rules, ShiftGrant, ShiftLock, ShiftParams, Shipped};
use lockwright_locks::{
    Change, Denied, Grant, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, Want,
};
use lockwright_sim::case::Case;
use std::fmt::Debug;
use std::marker::PhantomData;

/// Locks with holder records, the rules of `R`, those shipped or a mutant's, and the entry `L`.
#[derive(Debug)]
pub struct Holders<R = Shipped, L = Versioned>(PhantomData<(R, L)>);

/// The same in the memory of a NIC that has plain 8-byte verbs: nothing is guarded by the generation, so the fabric has to
/// see to it that the dead stay dead. Clients are killed here, and none comes back.
#[derive(Debug)]
pub struct Fenced;

impl RecordRules for Fenced {}

impl Rules for Fenced {
    const NAME: Option<&'static str> = Some("holders-portable");
    const ADDS_ARE_GUARDED: bool = false;
}

impl KeyedRules for Fenced {
    type Space<E: Endpoint> = InBatches<E>;

    fn space<E: Endpoint>(memory: Memory<E>) -> InBatches<E> {
        InBatches(memory)
    }

    fn keyed_cases() -> Vec<Case<HolderParams>> {
        cases::fenced()
    }
}

/// The same with an entry whose generations and tokens come to their ends.
#[derive(Debug)]
pub struct Ending;

impl RecordRules for Ending {}

impl Rules for Ending {
    const NAME: Option<&'static str> = Some("holders-narrow");
}

impl KeyedRules for Ending {
    type Space<E: Endpoint> = Memory<E>;

    fn space<E: Endpoint>(memory: Memory<E>) -> Memory<E> {
        memory
    }

    fn keyed_cases() -> Vec<Case<HolderParams>> {
        cases::ending()
    }
}

/// What a mutant says of itself, beside the rule it breaks.
pub trait KeyedRules: Rules + RecordRules {
    /// How the table is read: word by word, or several at a time.
    type Space<E: Endpoint>: HolderSpace;

    /// What the explorer runs.
    fn keyed_cases() -> Vec<Case<HolderParams>>;

    /// The table in `memory`, read so.
    fn space<E: Endpoint>(memory: Memory<E>) -> Self::Space<E>;
}

impl KeyedRules for Shipped {
    type Space<E: Endpoint> = Memory<E>;

    fn space<E: Endpoint>(memory: Memory<E>) -> Memory<E> {
        memory
    }

    fn keyed_cases() -> Vec<Case<HolderParams>> {
        cases::all()
    }
}

/// Tunables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderParams {
    /// The queue's.
    pub shift: ShiftParams,
    /// Clients that there is a record for.
    pub clients: u64,
    /// Whether a client that will wait tries first, as users do. One that does not gives the explorer less to do.
    pub tries_first: bool,
    /// Of ranges: how often a waiter looks by itself whether those in its way are alive.
    pub looks: u32,
    /// Of ranges: records of a client. For the gate, for the range, and for a second piece if there is a third.
    pub range_records: u64,
    /// Of ranges: whether records are written and read as they are, by nobody's leave. See `observed`.
    pub observed: bool,
    /// Of that: bits of a record's version.
    pub version_bits: u32,
    /// Of ranges: whether they are permits of semaphores.
    pub permits: bool,
    /// Of ranges: with an index, every so many tokens of a gate it is made, and swept.
    pub index_every: u64,
    /// Whether it is there from the beginning.
    pub index_made: bool,
    /// Whether the first lock was left behind by a client that held it and is long dead.
    pub left_by_the_dead: bool,
    /// By how many dead readers, likewise.
    pub left_by_readers: u64,
    /// How often the first lock has been released.
    pub released: u64,
    /// Of clients that come and go: nobody is stopped, so nobody who lives may be evicted.
    pub nobody_stops: bool,
}

impl Default for HolderParams {
    fn default() -> Self {
        let shift = ShiftParams::default();
        Self {
            shift,
            clients: 64,
            tries_first: true,
            looks: u32::MAX,
            range_records: 2,
            observed: false,
            version_bits: 0,
            permits: false,
            index_every: 1,
            index_made: false,
            left_by_the_dead: false,
            left_by_readers: 0,
            released: 0,
            nobody_stops: false,
        }
    }
}

pub(super) fn part<L: Layout>(space: &Space, params: &HolderParams) -> Part {
    Part::new(entries::<L>(space) + 8 * params.clients, params.clients, 1, 0, KEYED)
}

/// Entries first, then liveness words, then records.
pub(super) fn entries<L: Layout>(space: &Space) -> u64 {
    space.table_bytes(L::Word::WIDTH.bytes())
}

impl<R: KeyedRules, L: VersionedLayout> Protocol for Holders<R, L> {
    type Params = HolderParams;
    type Client<E: Endpoint> = Explored<E, R, L>;

    const INFO: Info = Info {
        name: match R::NAME {
            Some(name) => name,
            None => "holders",
        },
        summary: "ShiftLock whose holders are written down and only the dead lose their locks",
        source: "this project",
        offers: Offers {
            shared: true,
            ranges: false,
            tokens: true,
            tries: true,
            timeouts: false,
            recovery: true,
        },
    };

    fn needs(_: &HolderParams) -> Needs {
        L::NEEDS
    }

    fn most_clients(params: &HolderParams) -> usize {
        params.clients as usize
    }

    fn bytes_per_node(space: &Space, params: &HolderParams) -> u64 {
        part::<L>(space, params).bytes() + entries::<L>(space) + 8 * params.clients
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &HolderParams) -> Explored<E, R, L> {
        let ep = Evictable::new(ep, entries::<L>(space));
        let memory = Memory { ep: ep.clone(), part: part::<L>(space, params), ranges: None };
        let table = HolderTable::new(R::space(memory));
        Explored {
            client: HolderClient::new(ep, space, &params.shift, table),
            tries_first: params.tries_first,
        }
    }

    fn initial_memory(_: &Space, params: &HolderParams) -> Vec<(Addr, u64)> {
        // A client without a record: others find no living holder.
        let dead = Member::new::<L>(PeerId::client(params.clients as usize), 0);
        let tail = dead.filter(|_| params.left_by_the_dead).map_or(0, |dead| dead.0);
        let bits = L::TAIL.put(tail.into())
            | L::RDR_CNT.put(params.left_by_readers.into())
            | L::put(Stamp::new(params.released, 0));
        let halves = [(0, bits as u64), (8, (bits >> 64) as u64)].into_iter();
        halves.filter(|(_, half)| *half != 0).map(|(at, half)| (Addr::new(NodeId(0), at), half)).collect()
    }

    /// Records are cleared; liveness words and counts are wherever they came to.
    fn quiet_mask(space: &Space, params: &HolderParams, addr: Addr) -> u64 {
        match addr.offset.checked_sub(entries::<L>(space)) {
            None => <ShiftLock<L> as Protocol>::quiet_mask(space, &params.shift, addr),
            Some(offset) if offset < 8 * params.clients => 0,
            Some(_) => u64::MAX,
        }
    }
}

impl<R: KeyedRules, L: VersionedLayout> Proof for Holders<R, L> {
    fn cases() -> Vec<Case<HolderParams>> {
        R::keyed_cases()
    }
}

type Client<E, R, L> = HolderClient<Evictable<E>, HolderTable<<R as KeyedRules>::Space<E>, L, R>, R, L>;

/// A client of the explorer's: one acquisition at a time, so one record.
pub struct Explored<E: Endpoint, R: KeyedRules, L: VersionedLayout> {
    client: Client<E, R, L>,
    tries_first: bool,
}

impl<E: Endpoint, R: KeyedRules, L: VersionedLayout> Debug for Explored<E, R, L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Explored").finish_non_exhaustive()
    }
}

/// A granted lock.
#[derive(Clone, Copy, Debug)]
pub struct KeyedGrant(ShiftGrant);

impl Grant for KeyedGrant {
    fn token(&self) -> Option<u64> {
        self.0.token()
    }
}

const RECORD: u8 = 0;

impl<E: Endpoint, R: KeyedRules, L: VersionedLayout> LockClient for Explored<E, R, L> {
    type Grant = KeyedGrant;

    async fn acquire(&self, want: Want) -> Result<KeyedGrant, Denied> {
        const NO_DEADLINES: &Reason = &Reason("a client with holder records leaves deadlines to its user");
        let claim = want.claim;
        let granted = match want.patience {
            Patience::Forever if !self.tries_first => self.client.take(RECORD, claim).await,
            Patience::Forever => match self.client.try_take(RECORD, claim).await {
                Err(Denied::Busy) => self.client.take(RECORD, claim).await,
                tried => tried,
            },
            Patience::Until(_) => Err(Denied::Unsupported(NO_DEADLINES)),
            Patience::Try => match self.client.try_take(RECORD, claim).await {
                Err(Denied::Busy) => self.client.try_past_the_dead(RECORD, claim).await,
                tried => tried,
            },
        };
        granted.map(KeyedGrant)
    }

    async fn change(&self, grant: &mut KeyedGrant, change: Change) -> Result<(), Denied> {
        let denied = |why| match why {
            NotUpgraded::Denied(denied) => denied,
            NotUpgraded::Lost => Denied::Fabric(FabricError::Evicted),
            NotUpgraded::Busy | NotUpgraded::WouldDeadlock => Denied::Busy,
        };
        let (client, shared) = (&self.client, Want::shared(grant.0.lock()).claim);
        let changed = match change {
            Change::Upgrade(Patience::Try) => client.try_upgrade(RECORD, shared, grant.0).await,
            Change::Upgrade(Patience::Forever) => {
                client.upgrade_unless(RECORD, shared, grant.0, std::future::pending).await
            }
            Change::Upgrade(Patience::Until(deadline)) => {
                let given_up = || client.lock().endpoint().alarm(deadline);
                client.upgrade_unless(RECORD, shared, grant.0, given_up).await
            }
            Change::Downgrade => {
                client.downgrade(RECORD, Want::exclusive(grant.0.lock()).claim, grant.0).await
            }
            Change::Shrink { .. } => return Err(Denied::Unsupported(&Reason("this is no range"))),
        };
        grant.0 = changed.map_err(denied)?;
        Ok(())
    }

    async fn release(&self, grant: KeyedGrant) -> Result<(), Lost> {
        match self.client.try_give_back(RECORD, grant.0).await {
            Some(given) => given,
            None => self.client.give_back(RECORD, grant.0).await,
        }
    }
}

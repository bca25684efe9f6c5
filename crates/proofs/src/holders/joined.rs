//! Clients that come and go while others look at them: the table as it is shipped, every word of it in the explorer's memory.
//!
//! There are two slots for three clients. The third one comes when the first is dead or has left, takes over its slot, and tries
//! for the lock; the second one waits for the lock meanwhile, and evicts a dead client that is in its way.

use super::HolderParams;
use super::cases::{READ, TRY_READ, TRY_WRITE, WRITE, killed, patient};
use super::evictable::Evictable;
use crate::{Proof, Visitor};
use lockwright_fabric::{Addr, Endpoint, FabricError, Needs, NodeId, PeerId, Time, Value, Word64};
use lockwright_locks::holders::liveness::Liveness;
use lockwright_locks::holders::record::{ClientWord, First};
use lockwright_locks::holders::{
    ClientRecord, HolderClient, HolderSpace, HolderTable, Order, TableLayout, membership,
};
use lockwright_locks::shiftlock::layout::Layout;
use lockwright_locks::shiftlock::versioned::Versioned;
use lockwright_locks::shiftlock::{ShiftGrant, ShiftLock, Shipped};
use lockwright_locks::{Denied, Grant, Info, LockClient, Lost, Offers, Patience, Protocol, Space, Want};
use lockwright_sim::case::Case;
use std::cell::Cell;
use std::fmt::Debug;

const SLOTS: u64 = 2;
const RECORD: u8 = 0;

/// Locks with holder records, whose clients come and go.
#[derive(Debug)]
pub(crate) struct Joined;

/// Shows the protocol to `visitor`.
pub(super) fn visit(visitor: &mut impl Visitor) {
    visitor.model::<Joined>();
}

fn cases() -> Vec<Case<HolderParams>> {
    let three = |name, first, second, third| {
        let case = Case::new(name).tokens().clients(1, &[first]).clients(1, &[second]).clients(1, &[third]);
        // A slot whose client has died stays as it is until the next one comes.
        patient(case)
    };
    vec![
        three("leaves", WRITE, WRITE, TRY_WRITE),
        three("leaves-shared", READ, WRITE, TRY_READ),
        killed(three("killed", WRITE, WRITE, TRY_WRITE)),
        killed(three("killed-reader", READ, WRITE, TRY_READ)),
    ]
}

/// The table as it is shipped, behind the entries.
fn layout(space: &Space) -> TableLayout {
    TableLayout::new(Addr::new(NodeId(0), entries(space)), SLOTS, 1).with_version_bits(0)
}

fn entries(space: &Space) -> u64 {
    space.table_bytes(<Versioned as Layout>::Word::WIDTH.bytes())
}

impl Protocol for Joined {
    type Params = HolderParams;
    type Client<E: Endpoint> = Client<E>;

    const INFO: Info = Info {
        name: "holders-joined",
        summary: "locks with holder records, whose clients come and go",
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
        Versioned::NEEDS
    }

    fn most_clients(_: &HolderParams) -> usize {
        3
    }

    fn bytes_per_node(space: &Space, _: &HolderParams) -> u64 {
        entries(space) + layout(space).bytes()
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &HolderParams) -> Client<E> {
        let layout = layout(space);
        let ep = Evictable::in_table(ep, &layout);
        let table = HolderTable::new(Table { ep: ep.clone(), layout });
        let is_in = Cell::new(u64::from(ep.me().0) <= SLOTS);
        Client { client: HolderClient::new(ep.clone(), space, &params.shift, table), ep, layout, is_in }
    }

    /// The first two are in, and have used their records.
    fn initial_memory(space: &Space, _: &HolderParams) -> Vec<(Addr, u64)> {
        let layout = layout(space);
        let slots = (0..SLOTS).flat_map(|slot| {
            [(layout.owner(slot).addr(), slot + 1), (layout.client(slot, ClientWord::Used).addr(), 1)]
        });
        slots.chain([(layout.directory(0).addr(), (1 << SLOTS) - 1)]).collect()
    }

    /// The lock is free; who is in, and since when, is wherever it came to.
    fn quiet_mask(space: &Space, params: &HolderParams, addr: Addr) -> u64 {
        if addr.offset < entries(space) {
            return <ShiftLock<Versioned> as Protocol>::quiet_mask(space, &params.shift, addr);
        }
        0
    }
}

impl Proof for Joined {
    fn cases() -> Vec<Case<HolderParams>> {
        cases()
    }
}

/// One client's access to the table.
#[derive(Clone, Debug)]
pub(crate) struct Table<E> {
    ep: Evictable<E>,
    layout: TableLayout,
}

impl<E: Endpoint> HolderSpace for Table<E> {
    fn layout(&self) -> &TableLayout {
        &self.layout
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
        let client = ClientRecord {
            peer,
            heartbeat: Time(0),
            lease_ns: 0,
            used: 1,
            dependent: (0, 0),
            liveness: Liveness(0),
        };
        let silent = async |client: &ClientRecord, _| self.ep.suspects(client.peer).await;
        Ok(!membership::evict(&self.ep, &self.layout, &client, silent).await?)
    }

    async fn confirm(&self, _: u8) -> Result<(), FabricError> {
        self.ep.confirm().await
    }

    async fn recent(&self) -> Time {
        Time(0)
    }
}

/// A client that comes when its slot is free, and leaves when it is done.
pub(crate) struct Client<E: Endpoint> {
    client: HolderClient<Evictable<E>, HolderTable<Table<E>, Versioned>, Shipped, Versioned>,
    ep: Evictable<E>,
    layout: TableLayout,
    is_in: Cell<bool>,
}

impl<E: Endpoint> Debug for Client<E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl<E: Endpoint> Client<E> {
    /// Takes over its slot, if that is free: its client has left, or is known to be dead.
    async fn join(&self) -> Result<(), Denied> {
        let before = PeerId(self.ep.me().0 - SLOTS as u32);
        let owner = self.ep.go(self.layout.owner(self.layout.slot(before)).read()).await?;
        if owner != 0 && !self.ep.is_gone(before).await {
            return Err(Denied::Busy);
        }
        membership::join(&self.ep, &self.layout, Time(0), 0).await?;
        let used = self.layout.client(self.layout.slot(before), ClientWord::Used);
        self.ep.go(used.fetch_add(1 << RECORD)).await?;
        self.is_in.set(true);
        Ok(())
    }
}

/// A granted lock.
#[derive(Clone, Copy, Debug)]
pub(crate) struct JoinedGrant(ShiftGrant);

impl Grant for JoinedGrant {
    fn token(&self) -> Option<u64> {
        self.0.token()
    }
}

impl<E: Endpoint> LockClient for Client<E> {
    type Grant = JoinedGrant;

    async fn acquire(&self, want: Want) -> Result<JoinedGrant, Denied> {
        if !self.is_in.get() {
            self.join().await?;
        }
        let granted = match (self.client.try_take(RECORD, want.claim).await, want.patience) {
            (Err(Denied::Busy), Patience::Try) => self.client.try_past_the_dead(RECORD, want.claim).await,
            (Err(Denied::Busy), _) => self.client.take(RECORD, want.claim).await,
            (tried, _) => tried,
        };
        granted.map(JoinedGrant)
    }

    async fn release(&self, grant: JoinedGrant) -> Result<(), Lost> {
        let given = match self.client.try_give_back(RECORD, grant.0).await {
            Some(given) => given,
            None => self.client.give_back(RECORD, grant.0).await,
        };
        given?;
        Ok(membership::leave(&self.ep, &self.layout).await?)
    }
}

//! Clients that come and go while others look at them: the table as it is shipped, every word of it in the explorer's memory.
//!
//! There are two slots for three clients. The third one comes when the first is dead or has left, takes over its slot, and tries
//! for the lock; the second one waits for the lock meanwhile, and evicts a dead client that is in its way.

use super::HolderParams;
use super::cases::{READ, TRY_READ, TRY_WRITE, WRITE, killed, patient, stopped};
use super::evictable::Evictable;
use crate::{Checker, Mutant, Proof, Visitor};
use lockwright_fabric::{Addr, Cond, Endpoint, FabricError, Needs, NodeId, PeerId, Time, Value, Word64};
use lockwright_locks::holders::liveness::Liveness;
use lockwright_locks::holders::membership::MembershipRules;
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
use std::marker::PhantomData;

const SLOTS: u64 = 2;
const RECORD: u8 = 0;

/// Locks with holder records, whose clients come and go by the rules of `R`.
#[derive(Debug)]
pub(crate) struct Joined<R>(PhantomData<R>);

/// Which rules they keep, and their name.
pub(crate) trait JoinedRules: MembershipRules + Debug + 'static {
    const NAME: &'static str;
}

impl JoinedRules for Shipped {
    const NAME: &'static str = "holders-joined";
}

macro_rules! mutants {
    ($($mutant:ident = $name:literal, $checker:ident, $rule:ident, $why:literal;)+) => {
        /// Shows the protocol and its mutants to `visitor`.
        pub(super) fn visit(visitor: &mut impl Visitor) {
            visitor.model::<Joined<Shipped>>();
            $(visitor.mutant::<Joined<$mutant>>(Mutant {
                of: Shipped::NAME,
                caught_by: Checker::$checker,
                why: $why,
            });)+
        }

        $(
            #[derive(Debug)]
            pub(crate) struct $mutant;

            impl MembershipRules for $mutant {
                const $rule: bool = false;
            }

            impl JoinedRules for $mutant {
                const NAME: &'static str = $name;
            }
        )+
    };
}

mutants! {
    SuspicionStays = "holders-suspicion-stays", Deadlock, LIVENESS_IS_RENEWED,
        "the next client of a slot leaves the suspicion of the last one as it is, and is evicted for it";
    ReadBefore = "holders-read-before", Deadlock, SLOTS_ARE_READ_AGAIN,
        "a client is evicted for the silence of the one that had its slot before";
}

fn cases() -> Vec<Case<HolderParams>> {
    let three = |name, first, second, third| {
        let params = HolderParams { nobody_stops: true, ..HolderParams::default() };
        let case = Case::new(name).params(params).tokens();
        let case = case.clients(1, &[first]).clients(1, &[second]).clients(1, &[third]);
        // A slot whose client has died stays as it is until the next one comes.
        patient(case)
    };
    vec![
        three("leaves", WRITE, WRITE, TRY_WRITE),
        three("leaves-shared", READ, WRITE, TRY_READ),
        killed(three("killed", WRITE, WRITE, TRY_WRITE)),
        killed(three("killed-reader", READ, WRITE, TRY_READ)),
        killed(three("killed-and-tried", WRITE, TRY_WRITE, TRY_WRITE)),
        stops(three("stopped", WRITE, WRITE, TRY_WRITE)),
        stops(killed(three("killed-stopped-and-tried", WRITE, TRY_WRITE, TRY_WRITE))),
    ]
}

/// One of them is stopped, may be evicted meanwhile, and goes on.
fn stops(mut case: Case<HolderParams>) -> Case<HolderParams> {
    case.params.nobody_stops = false;
    stopped(case)
}

/// The table as it is shipped, behind the entries.
fn layout(space: &Space) -> TableLayout {
    TableLayout::new(Addr::new(NodeId(0), entries(space)), SLOTS, 1).with_version_bits(0)
}

fn entries(space: &Space) -> u64 {
    space.table_bytes(<Versioned as Layout>::Word::WIDTH.bytes())
}

impl<R: JoinedRules> Protocol for Joined<R> {
    type Params = HolderParams;
    type Client<E: Endpoint> = Client<E, R>;

    const INFO: Info = Info {
        name: R::NAME,
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

    fn client<E: Endpoint>(ep: E, space: &Space, params: &HolderParams) -> Client<E, R> {
        let (layout, inner) = (layout(space), ep.clone());
        let ep = Evictable::in_table(ep, &layout);
        let table = HolderTable::new(Table { ep: ep.clone(), layout, rules: PhantomData });
        let is_in = Cell::new(u64::from(ep.me().0) <= SLOTS);
        let client = HolderClient::new(ep.clone(), space, &params.shift, table);
        Client { client, ep, inner, layout, is_in, nobody_stops: params.nobody_stops }
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

impl<R: JoinedRules> Proof for Joined<R> {
    fn cases() -> Vec<Case<HolderParams>> {
        cases()
    }
}

/// One client's access to the table.
#[derive(Clone, Debug)]
pub(crate) struct Table<E, R> {
    ep: Evictable<E>,
    layout: TableLayout,
    rules: PhantomData<R>,
}

impl<E: Endpoint, R: JoinedRules> HolderSpace for Table<E, R> {
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
        Ok(!membership::evict_by::<R, _>(&self.ep, &self.layout, &client, silent).await?)
    }

    async fn confirm(&self, _: u8) -> Result<(), FabricError> {
        self.ep.confirm().await
    }

    async fn recent(&self) -> Time {
        Time(0)
    }
}

type TableClient<E, R> = HolderClient<Evictable<E>, HolderTable<Table<E, R>, Versioned>, Shipped, Versioned>;

/// A client that comes when its slot is free, and leaves when it is done.
pub(crate) struct Client<E: Endpoint, R: JoinedRules> {
    client: TableClient<E, R>,
    ep: Evictable<E>,
    /// The same, where nobody is refused.
    inner: E,
    layout: TableLayout,
    is_in: Cell<bool>,
    nobody_stops: bool,
}

impl<E: Endpoint, R: JoinedRules> Debug for Client<E, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

impl<E: Endpoint, R: JoinedRules> Client<E, R> {
    /// Takes over its slot, if that is free: its client has left, or is known to be dead.
    async fn join(&self) -> Result<(), Denied> {
        let before = PeerId(self.ep.me().0 - SLOTS as u32);
        let slot = self.layout.slot(before);
        let (owner, bits) = (self.layout.owner(slot), self.layout.directory(slot / 64));
        let (owner, bits) = self.ep.go((owner.read(), bits.read())).await?;
        // One that leaves has done both before its slot is another's.
        if (owner, bits & 1 << slot) != (0, 0) && !self.ep.is_gone(before).await {
            return Err(Denied::Busy);
        }
        membership::join_by::<R, _>(&self.ep, &self.layout, Time(0), 0).await?;
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

impl<E: Endpoint, R: JoinedRules> LockClient for Client<E, R> {
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
        if self.nobody_stops && matches!(granted, Err(Denied::Fabric(FabricError::Evicted))) {
            // Evicted though it lives: says so by never coming to an end.
            let never = Cond::Eq { mask: u128::from(u64::MAX), value: u128::from(u64::MAX) };
            self.inner.wait_until(self.layout.owner(0).until(never)).await?;
        }
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

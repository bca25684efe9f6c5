//! Kept locks as the explorer runs them: book, standings and entries in one memory.

use super::cases;
use super::ledger::Ledger;
use super::mortal::Mortal;
use crate::Proof;
use lockwright_fabric::{Addr, Endpoint, Needs, NodeId, PeerId, Value};
use lockwright_locks::kept::KeptClient;
use lockwright_locks::shiftlock::layout::{Layout, Member, Stamp};
use lockwright_locks::shiftlock::stirred::{Stir, Stirred};
use lockwright_locks::shiftlock::{Rules, ShiftGrant, ShiftLock, ShiftParams, Shipped};
use lockwright_locks::{
    Denied, Grant, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, Want,
};
use lockwright_sim::case::Case;
use std::fmt::Debug;
use std::marker::PhantomData;

/// Kept locks with the rules of `R`, those shipped or a mutant's, and the entry `L`.
#[derive(Debug)]
pub struct Kept<R = Shipped, L = Stirred>(PhantomData<(R, L)>);

/// Kept locks in the memory of a NIC that has plain 8-byte verbs: nothing is guarded by the generation, so the fabric has to
/// see to it that the dead stay dead. Clients are killed here, and none comes back.
#[derive(Debug)]
pub struct Fenced;

impl Rules for Fenced {
    const NAME: Option<&'static str> = Some("kept-portable");
    const ADDS_ARE_GUARDED: bool = false;
}

impl KeptRules for Fenced {
    fn kept_cases() -> Vec<Case<KeptParams>> {
        cases::fenced()
    }
}

/// Kept locks whose generations and tokens come to their ends.
#[derive(Debug)]
pub struct Ending;

impl Rules for Ending {
    const NAME: Option<&'static str> = Some("kept-narrow");
}

impl KeptRules for Ending {
    fn kept_cases() -> Vec<Case<KeptParams>> {
        cases::ending()
    }
}

/// What a mutant says of itself, beside the rule it breaks.
pub trait KeptRules: Rules {
    /// What the explorer runs.
    fn kept_cases() -> Vec<Case<KeptParams>>;
}

impl KeptRules for Shipped {
    fn kept_cases() -> Vec<Case<KeptParams>> {
        cases::all()
    }
}

/// Tunables.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptParams {
    /// The queue's.
    pub shift: ShiftParams,
    /// Clients that there is a card for.
    pub clients: u64,
    /// Whether somebody who will wait tries first, as users do. Whoever does not gives the explorer less to do.
    pub tries_first: bool,
    /// Of ranges: how often a waiter looks by itself whether those in its way are alive.
    pub looks: u32,
    /// Whether the first lock was left behind by somebody who held it and is long dead.
    pub left_by_the_dead: bool,
    /// By how many dead readers, likewise.
    pub left_by_readers: u64,
    /// How often the first lock has been released.
    pub released: u64,
}

impl Default for KeptParams {
    fn default() -> Self {
        let shift = ShiftParams::default();
        Self {
            shift,
            clients: 64,
            tries_first: true,
            looks: u32::MAX,
            left_by_the_dead: false,
            left_by_readers: 0,
            released: 0,
        }
    }
}

/// Entries first, then verdicts, then cards.
fn entries<L: Layout>(space: &Space) -> u64 {
    space.table_bytes(L::Word::WIDTH.bytes())
}

impl<R: KeptRules, L: Stir> Protocol for Kept<R, L> {
    type Params = KeptParams;
    type Client<E: Endpoint> = Explored<E, R, L>;

    const INFO: Info = Info {
        name: match R::NAME {
            Some(name) => name,
            None => "kept",
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

    fn needs(_: &KeptParams) -> Needs {
        L::NEEDS
    }

    fn most_clients(params: &KeptParams) -> usize {
        params.clients as usize
    }

    fn bytes_per_node(space: &Space, params: &KeptParams) -> u64 {
        entries::<L>(space) + 16 * params.clients
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &KeptParams) -> Explored<E, R, L> {
        let clients = params.clients;
        let mortal = Mortal::new(ep, entries::<L>(space));
        let book = Ledger::new(mortal.clone(), entries::<L>(space) + 8 * clients, clients);
        Explored {
            client: KeptClient::new(mortal, space, &params.shift, book),
            tries_first: params.tries_first,
        }
    }

    fn initial_memory(_: &Space, params: &KeptParams) -> Vec<(Addr, u64)> {
        // Somebody without a card: whoever looks finds nobody alive who holds it.
        let dead = Member::new::<L>(PeerId::client(params.clients as usize), 0);
        let tail = dead.filter(|_| params.left_by_the_dead).map_or(0, |dead| dead.0);
        let bits = L::TAIL.put(tail.into())
            | L::RDR_CNT.put(params.left_by_readers.into())
            | L::put(Stamp::new(params.released, 0));
        let halves = [(0, bits as u64), (8, (bits >> 64) as u64)].into_iter();
        halves.filter(|(_, half)| *half != 0).map(|(at, half)| (Addr::new(NodeId(0), at), half)).collect()
    }

    /// Cards are wiped; verdicts and counts are wherever they came to.
    fn quiet_mask(space: &Space, params: &KeptParams, addr: Addr) -> u64 {
        match addr.offset.checked_sub(entries::<L>(space)) {
            None => <ShiftLock<L> as Protocol>::quiet_mask(space, &params.shift, addr),
            Some(offset) if offset < 8 * params.clients => 0,
            Some(_) => u64::MAX,
        }
    }
}

impl<R: KeptRules, L: Stir> Proof for Kept<R, L> {
    fn cases() -> Vec<Case<KeptParams>> {
        R::kept_cases()
    }
}

/// A client of the explorer's: one acquisition at a time, so one card.
pub struct Explored<E, R, L> {
    client: KeptClient<Mortal<E>, Ledger<E, L>, R, L>,
    tries_first: bool,
}

impl<E, R, L> Debug for Explored<E, R, L> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Explored").finish_non_exhaustive()
    }
}

/// A granted kept lock.
#[derive(Clone, Copy, Debug)]
pub struct KeptGrant(ShiftGrant);

impl Grant for KeptGrant {
    fn token(&self) -> Option<u64> {
        self.0.token()
    }
}

const CARD: u8 = 0;

impl<E: Endpoint, R: KeptRules, L: Stir> LockClient for Explored<E, R, L> {
    type Grant = KeptGrant;

    async fn acquire(&self, want: Want) -> Result<KeptGrant, Denied> {
        const NO_DEADLINES: &Reason = &Reason("a kept client leaves deadlines to its user");
        let claim = want.claim;
        let granted = match want.patience {
            Patience::Forever if !self.tries_first => self.client.take(CARD, claim).await,
            Patience::Forever => match self.client.try_take(CARD, claim).await {
                Err(Denied::Busy) => self.client.take(CARD, claim).await,
                tried => tried,
            },
            Patience::Until(_) => Err(Denied::Unsupported(NO_DEADLINES)),
            Patience::Try => match self.client.try_take(CARD, claim).await {
                Err(Denied::Busy) => self.client.try_past_the_dead(CARD, claim).await,
                tried => tried,
            },
        };
        granted.map(KeptGrant)
    }

    async fn release(&self, grant: KeptGrant) -> Result<(), Lost> {
        match self.client.give_back_at_once(CARD, grant.0).await {
            Some(given) => given,
            None => self.client.give_back(CARD, grant.0).await,
        }
    }
}

//! Keyed locks of a space whose memory this CPU reaches by itself, as on shared memory: the fast path takes a free lock and gives
//! it back without a future, and a client is killed or stopped between any two of its loads and stores.
//!
//! A client takes the lock as a user's call does: the fast path, a few looks, then the queue; or, if it only tries, past the dead.

use super::cases::{
    READ, TRY_READ, TRY_WRITE, WRITE, after, hasty, killed, left_by_the_dead, mixed, patient, stopped,
};
use super::evictable::Evictable;
use super::explored::{HolderParams, Holders, entries, part};
use super::memory::Explored as Memory;
use crate::{Checker, Mutant, Proof, Visitor};
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Addr, Batch, Endpoint, FabricError, Needs, PeerId, Time, Word64, delegate};
use lockwright_locks::holders::record::{First, RecordWord};
use lockwright_locks::holders::{HolderClient, HolderSpace, HolderTable, RecordRules, TableLayout};
use lockwright_locks::shiftlock::fast_grant::FastGrant;
use lockwright_locks::shiftlock::layout::Layout;
use lockwright_locks::shiftlock::versioned::Versioned;
use lockwright_locks::shiftlock::{Rules, ShiftGrant, Shipped};
use lockwright_locks::{
    Denied, Grant, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, Want,
};
use lockwright_sim::case::Case;
use lockwright_sim::explore::at_once;
use std::fmt::Debug;
use std::marker::PhantomData;

const RECORD: u8 = 0;

/// An endpoint whose verbs are instructions of the client's CPU.
#[derive(Clone, Debug)]
pub(crate) struct Immediate<E>(pub(super) E);

impl<E: Endpoint> Endpoint for Immediate<E> {
    const IS_IMMEDIATE: bool = true;

    delegate!(0: me home capabilities go wait_until send send_datagram recv_by);
    delegate!(0: now passed alarm is_gone sleep suspects random mark checkpoint observe);

    fn try_go<B: Batch>(&self, batch: B) -> Result<Result<B::Old, FabricError>, B> {
        Ok(at_once(self.0.go(batch)))
    }

    /// A message may still be on its way.
    fn has_no_mail(&self) -> bool {
        true
    }
}

/// The holder table, read and written by instructions.
#[derive(Clone, Debug)]
pub(crate) struct DirectMemory<E>(pub(super) Memory<E>);

impl<E: Endpoint> HolderSpace for DirectMemory<E> {
    const IS_DIRECT: bool = true;
    const WAITERS_ARE_GIVEN_TIME: bool = true;

    fn layout(&self) -> &TableLayout {
        self.0.layout()
    }

    fn me(&self) -> PeerId {
        self.0.me()
    }

    fn loader(&self) -> impl Fn(Word64) -> u64 + Copy {
        |word| at_once(self.0.load_by(self.0.ep.inner(), word)).expect("a load is refused to nobody")
    }

    fn store_now<const N: usize>(&self, _: u8, words: [(Word64, u64); N]) -> Result<(), FabricError> {
        at_once(self.0.part.store(&self.0.ep, words))
    }

    fn own_first_now(&self, record: u8) -> First {
        let layout = self.layout();
        if !layout.has_versions() {
            return First(0);
        }
        First(self.load_now(layout.record(layout.slot(self.me()), u64::from(record)).word(RecordWord::First)))
    }

    fn is_alive_now(&self, peer: PeerId) -> bool {
        // A client that was evicted itself has lost whatever it asks about.
        at_once(self.0.ep.is_evicted(peer)).is_ok_and(|evicted| !evicted)
    }

    fn confirm_now(&self, _: u8) -> Result<(), FabricError> {
        at_once(self.0.ep.confirm())
    }

    fn recent_now(&self) -> Time {
        Time(0)
    }

    fn spins(&self) -> u32 {
        1
    }
}

/// Keyed locks of a direct space, by the rules of `R`.
#[derive(Debug)]
pub(crate) struct Direct<R = Shipped>(PhantomData<R>);

/// What a mutant says of itself, beside the rule it breaks.
pub(crate) trait DirectRules: Rules + RecordRules {
    const DIRECT_NAME: &'static str;

    fn direct_cases() -> Vec<Case<HolderParams>>;
}

impl DirectRules for Shipped {
    const DIRECT_NAME: &'static str = "holders-direct";

    fn direct_cases() -> Vec<Case<HolderParams>> {
        vec![
            patient(mixed("healthy", &[WRITE, WRITE, READ], 1)),
            hasty(mixed("healthy-and-hasty", &[WRITE, WRITE], 1)),
            hasty(mixed("tries", &[WRITE, TRY_WRITE, TRY_READ], 1)),
            asked(3, hasty(mixed("left-to-waiters", &[WRITE, WRITE], 1))),
            patient(killed(mixed("killed", &[WRITE, WRITE, READ], 1))),
            patient(killed(mixed("killed-reader", &[READ, READ, WRITE], 1))),
            hasty(killed(mixed("killed-and-hasty", &[WRITE, WRITE], 2))),
            hasty(killed(mixed("killed-and-tried", &[READ, TRY_READ, TRY_WRITE], 1))),
            never_asked_twice(patient(killed(mixed("killed-and-waited-for", &[WRITE, WRITE, WRITE], 2)))),
            patient(stopped(mixed("stopped", &[WRITE, WRITE, READ], 1))),
            hasty(stopped(mixed("stopped-writers-hasty", &[WRITE, WRITE], 2))),
            hasty(stopped(mixed("stopped-and-tried", &[READ, TRY_READ, TRY_WRITE], 1))),
            stopped_before_it_takes(),
            patient(after(LAST_TOKEN, mixed("spent", &[WRITE, TRY_WRITE, READ], 1))),
        ]
    }
}

/// So often released, no lock has a token left.
const LAST_TOKEN: u64 = Versioned::REL_CNT.max() as u64 - 1;

fn stopped_before_it_takes() -> Case<HolderParams> {
    stopped(left_by_the_dead(mixed("stopped-before-it-takes", &[TRY_WRITE, TRY_WRITE], 1).rounds(2)))
}

/// The same, and a waiter asks so often before it takes a lock from clients that are alive and want it.
fn asked(times: u32, mut case: Case<HolderParams>) -> Case<HolderParams> {
    case.params.shift.asks = times;
    case
}

/// The same, and no waiter ever does: only what the dead have left is reset.
fn never_asked_twice(case: Case<HolderParams>) -> Case<HolderParams> {
    asked(u32::MAX, case)
}

macro_rules! mutants {
    ($($mutant:ident = $name:literal, $checker:ident, $rules:ident::$rule:ident, $why:literal, $case:expr;)+) => {
        /// Shows the protocol and its mutants to `visitor`.
        pub(super) fn visit(visitor: &mut impl Visitor) {
            visitor.model::<Direct>();
            $(visitor.mutant::<Direct<$mutant>>(Mutant {
                of: Shipped::DIRECT_NAME,
                caught_by: Checker::$checker,
                why: $why,
            });)+
        }

        $(
            #[derive(Debug)]
            pub(crate) struct $mutant;

            mutants!(@ $mutant, $rules, $rule);

            impl DirectRules for $mutant {
                const DIRECT_NAME: &'static str = $name;

                fn direct_cases() -> Vec<Case<HolderParams>> {
                    vec![$case]
                }
            }
        )+
    };
    (@ $mutant:ident, Rules, $rule:ident) => {
        impl RecordRules for $mutant {}

        impl Rules for $mutant {
            const $rule: bool = false;
        }
    };
    (@ $mutant:ident, RecordRules, $rule:ident) => {
        impl RecordRules for $mutant {
            const $rule: bool = false;
        }

        impl Rules for $mutant {}
    };
}

mutants! {
    WrittenLate = "holders-direct-written-late", Exclusion, RecordRules::RECORDS_COME_FIRST,
        "the fast path writes its record after the instruction that takes the lock",
        hasty(mixed("two-tries", &[TRY_WRITE, TRY_WRITE], 1));
    Unconfirmed = "holders-direct-unconfirmed", Exclusion, Rules::GRANTED_ARE_ALIVE,
        "the fast path does not look whether its client was evicted",
        stopped_before_it_takes();
    ConfirmedEarly = "holders-direct-confirmed-early", Exclusion, RecordRules::CONFIRMED_AFTER,
        "the fast path looks whether its client was evicted before it takes the lock, and not after it",
        stopped_before_it_takes();
}

impl<R: DirectRules> Protocol for Direct<R> {
    type Params = HolderParams;
    type Client<E: Endpoint> = Client<E, R>;

    const INFO: Info = Info {
        name: R::DIRECT_NAME,
        summary: "locks with holder records whose free locks are taken by instructions",
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

    fn needs(params: &HolderParams) -> Needs {
        <Holders as Protocol>::needs(params)
    }

    fn most_clients(params: &HolderParams) -> usize {
        <Holders as Protocol>::most_clients(params)
    }

    fn bytes_per_node(space: &Space, params: &HolderParams) -> u64 {
        <Holders as Protocol>::bytes_per_node(space, params)
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &HolderParams) -> Client<E, R> {
        let ep = Evictable::new(ep, entries::<Versioned>(space));
        let memory = Memory { ep: ep.clone(), part: part::<Versioned>(space, params), ranges: None };
        let table = HolderTable::new(DirectMemory(memory));
        Client { client: HolderClient::new(Immediate(ep), space, &params.shift, table) }
    }

    fn initial_memory(space: &Space, params: &HolderParams) -> Vec<(Addr, u64)> {
        <Holders as Protocol>::initial_memory(space, params)
    }

    fn quiet_mask(space: &Space, params: &HolderParams, addr: Addr) -> u64 {
        <Holders as Protocol>::quiet_mask(space, params, addr)
    }
}

impl<R: DirectRules> Proof for Direct<R> {
    fn cases() -> Vec<Case<HolderParams>> {
        R::direct_cases()
    }
}

type DirectClient<E, R> =
    HolderClient<Immediate<Evictable<E>>, HolderTable<DirectMemory<E>, Versioned, R>, R, Versioned>;

/// A client of the explorer's: one acquisition at a time, so one record.
pub(crate) struct Client<E: Endpoint, R: DirectRules> {
    client: DirectClient<E, R>,
}

impl<E: Endpoint, R: DirectRules> Debug for Client<E, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Client").finish_non_exhaustive()
    }
}

/// A granted lock, by the fast path or not.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DirectGrant {
    Fast(Claim, FastGrant),
    Slow(ShiftGrant),
}

impl Grant for DirectGrant {
    fn token(&self) -> Option<u64> {
        match self {
            DirectGrant::Fast(_, grant) => Some(grant.token()),
            DirectGrant::Slow(grant) => grant.token(),
        }
    }
}

impl<E: Endpoint, R: DirectRules> LockClient for Client<E, R> {
    type Grant = DirectGrant;

    async fn acquire(&self, want: Want) -> Result<DirectGrant, Denied> {
        const NO_DEADLINES: &Reason = &Reason("a client with holder records leaves deadlines to its user");
        let (client, claim) = (&self.client, want.claim);
        match client.try_take_now(RECORD, claim) {
            Err(Denied::Busy) => {}
            taken => return Ok(DirectGrant::Fast(claim, taken?)),
        }
        let granted = match want.patience {
            Patience::Forever => match client.try_take_spinning_now(RECORD, claim) {
                Err(Denied::Busy) => client.take(RECORD, claim).await,
                taken => return Ok(DirectGrant::Fast(claim, taken?)),
            },
            Patience::Until(_) => Err(Denied::Unsupported(NO_DEADLINES)),
            Patience::Try if client.recorder().is_wanted_now(claim.lock) => Err(Denied::Busy),
            Patience::Try => client.try_past_the_dead(RECORD, claim).await,
        };
        granted.map(DirectGrant::Slow)
    }

    async fn release(&self, grant: DirectGrant) -> Result<(), Lost> {
        let client = &self.client;
        let grant = match grant {
            DirectGrant::Fast(claim, fast) if client.give_back_now(RECORD, claim, fast) => return Ok(()),
            DirectGrant::Fast(claim, fast) => {
                client.lock().grant(DirectClient::<E, R>::slot(RECORD), claim, fast)
            }
            DirectGrant::Slow(grant) => grant,
        };
        match client.try_give_back(RECORD, grant).await {
            Some(given) => given,
            None => client.give_back(RECORD, grant).await,
        }
    }
}

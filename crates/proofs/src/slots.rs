//! The slots of a space in shared memory: clients that join, leave, are killed, stopped and evicted, and processes whose pids
//! are given to others.
//!
//! The steps are those that are shipped (`shm::slot`), on words in the explorer's memory. There is one slot, and being its
//! client is the lock that is explored: two clients at a time exclude each other, and the generations of the slot, which peer
//! ids are made of, rise from client to client. A client that waits for the slot evicts one that is stopped and reaps one that is
//! dead, so that everybody has it in the end.
//!
//! A client that is killed while it joins may not have said when its process began: its slot is free again when no process has the
//! pid. So the third client, which has the pid of the first, does not come if the first died like that.
//!
//! A client writes its name into the slot's memory, as real ones write heartbeats and messages: it looks whether it is still
//! in, and then it writes, which are two steps. One that was evicted in between writes late. A client that is in to the end and
//! does not find its own name there says so in a word that should stay zero.

use crate::{Case, Checker, Mutant, Proof, Visitor};
use lockwright_fabric::backend::shm::Process;
use lockwright_fabric::backend::shm::slot::{self, SlotState, SlotTable};
use lockwright_fabric::{Addr, Cond, Deadline, Endpoint, FabricError, Needs, NodeId, PeerId, Word64};
use lockwright_locks::{
    Denied, Grant, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, Want,
};
use lockwright_sim::case::Timeouts;
use std::fmt::Debug;
use std::marker::PhantomData;

/// The only slot.
const SLOT: u64 = 0;
/// How long a client waits before it looks again who has the slot.
const PATIENCE_NS: u64 = 1_000_000;

const fn word(index: u64) -> Word64 {
    Word64::at(Addr::new(NodeId(0), 8 * index))
}

const STATE: Word64 = word(0);
const START: Word64 = word(1);
/// What its client writes there.
const NAME: Word64 = word(2);
/// Another client has written there meanwhile.
const DAMAGE: Word64 = word(3);
/// The third client has come.
const CAME: Word64 = word(4);

/// Which of the rules are kept: those of [`SlotTable`].
trait Rules: Debug + 'static {
    const NAME: &'static str;
    const GENERATIONS_RISE: bool = true;
    const STARTS_COUNT: bool = true;
    const TOUCHED_ARE_KEPT: bool = true;
    const GONE_IS_SAID: bool = true;
    const STATES_ARE_SWAPPED: bool = true;
}

#[derive(Debug)]
struct Shipped;

impl Rules for Shipped {
    const NAME: &'static str = "shm-slots";
}

macro_rules! mutants {
    ($($mutant:ident = $name:literal, $checker:ident, $rule:ident, $why:literal;)+) => {
        /// Shows the protocol and its mutants to `visitor`.
        pub(crate) fn visit(visitor: &mut impl Visitor) {
            visitor.model::<Slots<Shipped>>();
            $(visitor.mutant::<Slots<$mutant>>(Mutant {
                of: Shipped::NAME,
                caught_by: Checker::$checker,
                why: $why,
            });)+
        }

        $(
            #[derive(Debug)]
            struct $mutant;

            impl Rules for $mutant {
                const NAME: &'static str = $name;
                const $rule: bool = false;
            }
        )+
    };
}

mutants! {
    SameGeneration = "shm-slots-same-generation", Tokens, GENERATIONS_RISE,
        "the next client of a slot has the name of the last one";
    ByPid = "shm-slots-by-pid", Livelock, STARTS_COUNT,
        "a process counts as alive if any process has its pid";
    ReusedEarly = "shm-slots-reused-early", Tokens, TOUCHED_ARE_KEPT,
        "the slot of an evicted client is given to the next while the last one may still write there";
    NeverGone = "shm-slots-never-gone", Livelock, GONE_IS_SAID,
        "an evicted client that is done does not say so, and its slot is lost as long as its process lives";
    Stored = "shm-slots-stored", Livelock, STATES_ARE_SWAPPED,
        "a client is marked dead by a store, when another has the slot already";
}

/// Membership of one slot, as a lock.
#[derive(Debug)]
struct Slots<R>(PhantomData<R>);

impl<R: Rules> Protocol for Slots<R> {
    type Params = ();
    type Client<E: Endpoint> = Client<E, R>;

    const INFO: Info = Info {
        name: R::NAME,
        summary: "client slots of a space in shared memory: joining, leaving, eviction, reaping, pids that come again",
        source: "this project",
        offers: Offers { tokens: true, tries: true, recovery: true, ..Offers::NONE },
    };

    fn needs((): &()) -> Needs {
        Needs::default()
    }

    fn bytes_per_node(_: &Space, (): &()) -> u64 {
        40
    }

    fn client<E: Endpoint>(ep: E, _: &Space, (): &()) -> Client<E, R> {
        Client { ep, rules: PhantomData }
    }

    /// The slot's words are wherever they came to.
    fn quiet_mask(_: &Space, (): &(), addr: Addr) -> u64 {
        if addr == DAMAGE.addr() { u64::MAX } else { 0 }
    }
}

impl<R: Rules> Proof for Slots<R> {
    fn cases() -> Vec<Case<()>> {
        let wait = Want::exclusive(0);
        let late = wait.with(Patience::Try);
        let three = |name| {
            let case = Case::new(name).tokens().clients(2, &[wait]).clients(1, &[late]);
            case.timeouts(Timeouts::WhenStuck)
        };
        let two = |name| Case::new(name).tokens().clients(2, &[wait]).rounds(2).timeouts(Timeouts::WhenStuck);
        vec![
            two("come-and-go"),
            two("killed").crashes(1),
            two("stopped").pauses(1),
            three("stopped-among-three").pauses(1),
            three("pid-comes-again").crashes(1),
            three("killed-and-stopped").crashes(1).pauses(1),
        ]
    }
}

/// A client's process. The third has the pid of the first: it comes when that is dead.
const fn process(peer: PeerId) -> Process {
    let index = peer.index().0 as u64;
    Process { pid: 1 + (index % 2) as u32, start: index + 1 }
}

/// One client. It comes again as often as it takes the lock.
#[derive(Debug)]
struct Client<E, R> {
    ep: E,
    rules: PhantomData<R>,
}

/// Being in: the slot's state, and its generation, counted from one.
#[derive(Clone, Copy, Debug)]
struct Membership(SlotState);

impl Grant for Membership {
    fn token(&self) -> Option<u64> {
        Some(self.0.generation() + 1)
    }
}

/// The words of the slot, in the explorer's memory.
impl<E: Endpoint, R: Rules> SlotTable for Client<E, R> {
    const GENERATIONS_RISE: bool = R::GENERATIONS_RISE;
    const STARTS_COUNT: bool = R::STARTS_COUNT;
    const TOUCHED_ARE_KEPT: bool = R::TOUCHED_ARE_KEPT;
    const GONE_IS_SAID: bool = R::GONE_IS_SAID;
    const STATES_ARE_SWAPPED: bool = R::STATES_ARE_SWAPPED;

    async fn state(&self, _: u64) -> SlotState {
        SlotState(self.go(STATE.read()).await)
    }

    async fn swap(&self, _: u64, from: SlotState, to: SlotState) -> bool {
        self.go(STATE.cas(from.0, to.0)).await == from.0
    }

    async fn start(&self, _: u64) -> u64 {
        self.go(START.read()).await
    }

    async fn set_start(&self, _: u64, start: u64) {
        self.go(START.write(start)).await;
    }

    async fn names(&self, _: u64) -> u32 {
        0
    }

    async fn has_pid_ended(&self, pid: u32) -> bool {
        let peers = (0..2).map(PeerId::client);
        for peer in peers.filter(|peer| process(*peer).pid == pid) {
            if !self.ep.is_gone(peer).await {
                return false;
            }
        }
        let again = PeerId::client(2);
        process(again).pid != pid || self.go(CAME.read()).await == 0 || self.ep.is_gone(again).await
    }

    async fn has_ended(&self, of: Process) -> bool {
        match (0..3).map(PeerId::client).find(|peer| process(*peer) == of) {
            Some(peer) => self.ep.is_gone(peer).await,
            None => true,
        }
    }
}

impl<E: Endpoint, R: Rules> Client<E, R> {
    async fn go(&self, verb: lockwright_fabric::Verb<u64>) -> u64 {
        self.ep.go(verb).await.expect("the memory of this host is there")
    }

    /// Whether nobody has evicted it: a member looks before it touches anything.
    async fn is_in(&self, state: SlotState) -> bool {
        SlotTable::state(self, SLOT).await == state
    }

    /// Takes the slot if it is free.
    async fn join(&self) -> Result<Option<Membership>, Denied> {
        let own = process(self.ep.me());
        let Some(joining) = slot::take(self, SLOT, own.pid).await else { return Ok(None) };
        self.go(NAME.write(0)).await;
        let state = slot::open(self, SLOT, joining, own.start).await.ok_or(FabricError::Evicted)?;
        if self.is_in(state).await {
            self.go(NAME.write(u64::from(self.ep.me().0))).await;
        }
        Ok(Some(Membership(state)))
    }

    /// Begins, if the process that had the pid has ended, and its slot does not have to wait for the pid.
    async fn comes(&self) -> bool {
        let before = PeerId::client(0);
        if !self.ep.is_gone(before).await {
            return false;
        }
        let state = SlotTable::state(self, SLOT).await;
        if state.is_joining() && state.pid() == process(before).pid {
            return false;
        }
        self.go(CAME.write(1)).await;
        true
    }

    /// Evicts the slot's client if it has been silent for too long, marks it dead if its process has ended, and reaps it.
    async fn see_to(&self, state: SlotState) {
        if state.is_alive()
            && let Some(process) = slot::process(self, SLOT, state).await
            && let Some(peer) = (0..3).map(PeerId::client).find(|peer| self::process(*peer) == process)
            && self.ep.suspects(peer).await
        {
            slot::evict(self, SLOT, state).await;
        }
        let probed =
            slot::probe(self, SLOT, state, async |process| SlotTable::has_ended(self, process).await).await;
        if !probed.lives {
            let state = SlotTable::state(self, SLOT).await;
            slot::reap(self, SLOT, state).await;
        }
    }
}

impl<E: Endpoint, R: Rules> LockClient for Client<E, R> {
    type Grant = Membership;

    async fn acquire(&self, want: Want) -> Result<Membership, Denied> {
        const NO_DEADLINES: &Reason = &Reason("a client waits for a slot until there is one");
        match want.patience {
            Patience::Forever => {}
            Patience::Until(_) => return Err(Denied::Unsupported(NO_DEADLINES)),
            Patience::Try if !self.comes().await => return Err(Denied::Busy),
            Patience::Try => {}
        }
        loop {
            self.ep.mark("slots: looks for one", &[]);
            if let Some(membership) = self.join().await? {
                return Ok(membership);
            }
            let state = SlotTable::state(self, SLOT).await;
            if state.is_free() {
                continue;
            }
            self.see_to(state).await;
            let changed = Cond::Ne { mask: u128::from(u64::MAX), value: u128::from(state.0) };
            let again = Deadline::At(self.ep.now().await.plus(PATIENCE_NS));
            self.ep.wait_until(STATE.until(changed).by(again)).await?;
        }
    }

    async fn release(&self, membership: Membership) -> Result<(), Lost> {
        let is_in = self.is_in(membership.0).await;
        if is_in && self.go(NAME.read()).await != u64::from(self.ep.me().0) {
            self.go(DAMAGE.write(1)).await;
        }
        slot::leave(self, SLOT, membership.0).await;
        if is_in { Ok(()) } else { Err(Lost::Recovered) }
    }
}

//! What goes wrong in the explorer really goes wrong: small locks that break under exactly one kind of fault, and
//! their mended twins that do not.

use lockwright_baselines::cas::Cas;
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{
    BoxedRole, Deadline, Endpoint, FabricError, Message, Needs, Outbox, PeerId, Role, Time, Word64,
};
use lockwright_locks::*;
use lockwright_proofs::Proof as _;
use lockwright_sim::case::{Case, Faults, Timeouts};
use lockwright_sim::check::Checker;
use lockwright_sim::explore::{Options, Outcome, explore};
use std::collections::BTreeMap;
use std::fmt::Debug;
use std::marker::PhantomData;

fn violated<P: Protocol>(case: &Case<P::Params>) -> Checker {
    let found = explore::<P>(case, &mut Options::default()).violation.expect("a violation");
    println!("{}\n{}", found.violation, found.trace);
    found.violation.checker
}

fn clean<P: Protocol>(case: &Case<P::Params>) -> Outcome {
    let outcome = explore::<P>(case, &mut Options::default());
    if let Some(found) = &outcome.violation {
        panic!("{}\n{}", found.violation, found.trace);
    }
    assert!(outcome.exhaustive);
    outcome
}

#[test]
fn a_crash_hangs_a_lock_without_recovery() {
    let case = Case::new("two").clients(2, &[Want::exclusive(0)]).crashes(1);
    assert_eq!(violated::<Cas>(&case), Checker::Livelock);
}

#[test]
fn crash_as_an_option_expects_no_recovery_from_a_lock_that_has_none() {
    let case = Case::new("two").clients(2, &[Want::exclusive(0)]);
    let outcome = explore::<Cas>(&case, &mut Options { crash: true, ..Options::default() });
    assert!(outcome.exhaustive && outcome.violation.is_none());
}

#[test]
fn the_number_of_clients_can_be_changed() {
    let case = Case::new("two").clients(2, &[Want::exclusive(0)]);
    let three = explore::<Cas>(&case, &mut Options { clients: Some(3), ..Options::default() });
    assert!(three.states > clean::<Cas>(&case).states);
}

/// A spin lock whose waiters take the lock over when their deadline passes. Release says whose lock it frees, or
/// (the flaw) does not look.
#[derive(Debug)]
struct Leased<const CHECKS_OWNER: bool>;

struct LeasedClient<E, const CHECKS_OWNER: bool>(E);

impl<const CHECKS_OWNER: bool> Protocol for Leased<CHECKS_OWNER> {
    type Params = ();
    type Client<E: Endpoint> = LeasedClient<E, CHECKS_OWNER>;
    const INFO: Info = Info {
        name: "leased",
        summary: "spin lock with leases",
        source: "here",
        offers: Offers { recovery: true, ..Offers::NONE },
    };
    fn needs((): &()) -> Needs {
        Needs::default()
    }
    fn bytes_per_node(_: &Space, (): &()) -> u64 {
        8
    }
    fn client<E: Endpoint>(ep: E, _: &Space, (): &()) -> Self::Client<E> {
        LeasedClient(ep)
    }
}

const WORD: Word64 = Word64::at(lockwright_fabric::Addr::new(lockwright_fabric::NodeId(0), 0));

impl<E: Endpoint, const CHECKS_OWNER: bool> LockClient for LeasedClient<E, CHECKS_OWNER> {
    type Grant = TokenGrant;
    async fn acquire(&self, want: Want) -> Result<TokenGrant, Denied> {
        let me = u64::from(self.0.me().0);
        let mut expect = 0;
        loop {
            self.0.mark("leased attempt", &[expect]);
            let seen = self.0.go(WORD.cas(expect, me)).await?;
            if seen == expect {
                return Ok(TokenGrant { lock: want.claim.lock, token: None });
            }
            expect = if seen != 0 && self.0.passed(Time(1)).await { seen } else { 0 };
        }
    }
    async fn release(&self, _: TokenGrant) -> Result<(), Lost> {
        let me = u64::from(self.0.me().0);
        if !CHECKS_OWNER {
            self.0.go(WORD.write(0)).await?;
        } else if self.0.go(WORD.cas(me, 0)).await? != me {
            return Err(Lost::Recovered);
        }
        Ok(())
    }
}

#[test]
fn a_lease_recovers_from_a_crash() {
    let case = Case::new("three").clients(3, &[Want::exclusive(0)]).crashes(1);
    clean::<Leased<true>>(&case);
}

#[test]
fn a_timeout_without_a_fault_breaks_a_lease() {
    let case = Case::new("two").clients(2, &[Want::exclusive(0)]).timeouts(Timeouts::Any);
    assert_eq!(violated::<Leased<true>>(&case), Checker::Exclusion);
}

#[test]
fn a_zombie_that_frees_without_looking_lets_a_third_in() {
    let case = Case::new("three").clients(3, &[Want::exclusive(0)]).pauses(1);
    assert_eq!(violated::<Leased<false>>(&case), Checker::Exclusion);
    let case = Case::new("three").clients(3, &[Want::exclusive(0)]).pauses(1).timeouts(Timeouts::WhenStuck);
    clean::<Leased<true>>(&case);
}

/// How a lock server and its clients talk over packets that may be lost or doubled.
trait Care: Debug + Clone + Eq + std::hash::Hash + Send + 'static {
    /// Ask again when no answer comes.
    const REPEATS: bool = true;
    /// Number requests, answer only to the current number, and forget nothing about old ones.
    const NUMBERS: bool = true;
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Careful;
impl Care for Careful {}
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct AsksOnce;
impl Care for AsksOnce {
    const REPEATS: bool = false;
}
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct WithoutNumbers;
impl Care for WithoutNumbers {
    const NUMBERS: bool = false;
}

#[derive(Debug)]
struct Packets<C>(PhantomData<C>);
struct PacketClient<E, C> {
    ep: E,
    asked: std::cell::Cell<u64>,
    care: PhantomData<C>,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct PacketServer<C> {
    holder: Option<PeerId>,
    answered: BTreeMap<PeerId, (u64, bool)>,
    care: PhantomData<C>,
}

const ACQUIRE: u32 = 1;
const RELEASE: u32 = 2;
const ANSWER: u32 = 3;

impl<C: Care> Role for PacketServer<C> {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        let number = message.words[0];
        let (last, last_answer) = self.answered.get(&from).copied().unwrap_or((0, false));
        let answer = if C::NUMBERS && number < last {
            return;
        } else if C::NUMBERS && number == last {
            last_answer
        } else if message.kind == ACQUIRE {
            *self.holder.get_or_insert(from) == from
        } else {
            if self.holder == Some(from) {
                self.holder = None;
            }
            true
        };
        if C::NUMBERS {
            self.answered.insert(from, (number, answer));
        }
        out.send_datagram(from, Message::new(0, ANSWER, &[number, u64::from(answer)]));
    }
}

impl<C: Care> Protocol for Packets<C> {
    type Params = ();
    type Client<E: Endpoint> = PacketClient<E, C>;
    const INFO: Info =
        Info { name: "packets", summary: "lock server over packets", source: "here", offers: Offers::NONE };
    fn needs((): &()) -> Needs {
        Needs::default()
    }
    fn bytes_per_node(_: &Space, (): &()) -> u64 {
        0
    }
    fn client<E: Endpoint>(ep: E, _: &Space, (): &()) -> Self::Client<E> {
        PacketClient { ep, asked: std::cell::Cell::new(0), care: PhantomData }
    }
    fn roles(_: &Space, (): &()) -> Vec<BoxedRole> {
        vec![BoxedRole::new(PacketServer::<C> { holder: None, answered: BTreeMap::new(), care: PhantomData })]
    }
}

impl<E: Endpoint, C: Care> PacketClient<E, C> {
    async fn ask(&self, kind: u32) -> Result<bool, FabricError> {
        let number = self.asked.get() + 1;
        self.asked.set(number);
        loop {
            self.ep.mark("ask", &[number, u64::from(kind)]);
            self.ep.send_datagram(PeerId::role(0), Message::new(0, kind, &[number])).await?;
            let mine = |_, m: &Message| (!C::NUMBERS || m.words[0] == number).then_some(m.words[1] == 1);
            let deadline = if C::REPEATS { Deadline::At(Time(1)) } else { Deadline::Never };
            if let Some(answer) = self.ep.recv_by(deadline, mine).await {
                return Ok(answer);
            }
        }
    }
}

impl<E: Endpoint, C: Care> LockClient for PacketClient<E, C> {
    type Grant = TokenGrant;
    async fn acquire(&self, want: Want) -> Result<TokenGrant, Denied> {
        assert_eq!(want.claim.mode, Mode::Exclusive);
        match self.ask(ACQUIRE).await? {
            true => Ok(TokenGrant { lock: 0, token: None }),
            false => Err(Denied::Busy),
        }
    }
    async fn release(&self, _: TokenGrant) -> Result<(), Lost> {
        self.ask(RELEASE).await?;
        Ok(())
    }
    fn locals(&self) -> Vec<u64> {
        vec![self.asked.get()]
    }
}

fn packets(faults: Faults) -> Case<()> {
    let case = Case::new("two").clients(2, &[Want::exclusive(0)]).rounds(2).timeouts(Timeouts::WhenStuck);
    Case { faults, ..case }
}

#[test]
fn a_lost_packet_hangs_a_client_that_asks_once() {
    let faults = Faults { losses: 1, ..Faults::default() };
    assert_eq!(violated::<Packets<AsksOnce>>(&packets(faults)), Checker::Deadlock);
    clean::<Packets<Careful>>(&packets(faults));
    clean::<Packets<AsksOnce>>(&packets(Faults::default()));
}

#[test]
fn a_doubled_packet_grants_a_lock_that_nobody_wants() {
    // Without numbers, the second copy of an answer is taken for the answer to the next question.
    let faults = Faults { duplicates: 1, ..Faults::default() };
    assert_eq!(violated::<Packets<WithoutNumbers>>(&packets(faults)), Checker::Exclusion);
    clean::<Packets<Careful>>(&packets(faults));
}

#[test]
fn packets_that_overtake_each_other_do_not_confuse_a_careful_client() {
    let faults = Faults { losses: 1, duplicates: 1, reorders: true, ..Faults::default() };
    clean::<Packets<Careful>>(&packets(faults));
}

/// Fischer's lock: safe only if a write takes less time than the pause before the second look.
#[derive(Debug)]
struct Fischer;
struct FischerClient<E>(E, u64);

impl Protocol for Fischer {
    /// The pause, in nanoseconds.
    type Params = u64;
    type Client<E: Endpoint> = FischerClient<E>;
    const INFO: Info =
        Info { name: "fischer", summary: "timed lock", source: "Lamport 1987", offers: Offers::NONE };
    fn needs(_: &u64) -> Needs {
        Needs::default()
    }
    fn bytes_per_node(_: &Space, _: &u64) -> u64 {
        8
    }
    fn client<E: Endpoint>(ep: E, _: &Space, pause_ns: &u64) -> Self::Client<E> {
        FischerClient(ep, *pause_ns)
    }
}

impl<E: Endpoint> LockClient for FischerClient<E> {
    type Grant = TokenGrant;
    async fn acquire(&self, _: Want) -> Result<TokenGrant, Denied> {
        let Self(ep, pause_ns) = self;
        let me = u64::from(ep.me().0);
        loop {
            ep.mark("fischer", &[]);
            ep.wait_until(WORD.until(lockwright_fabric::Cond::Eq { mask: u128::MAX, value: 0 })).await?;
            ep.go(WORD.write(me)).await?;
            ep.sleep(*pause_ns).await;
            if ep.go(WORD.read()).await? == me {
                return Ok(TokenGrant { lock: 0, token: None });
            }
        }
    }
    async fn release(&self, _: TokenGrant) -> Result<(), Lost> {
        self.0.go(WORD.write(0)).await?;
        Ok(())
    }
}

#[test]
fn a_lock_that_rests_on_time_is_safe_only_if_it_waits_longer_than_a_verb_takes() {
    let clock = lockwright_sim::case::Clock { tick_ns: 1000, delay_ticks: 2, max_ticks: 40 };
    let case = |pause_ns| Case::new("two").clients(2, &[Want::exclusive(0)]).params(pause_ns).clock(clock);
    assert_eq!(violated::<Fischer>(&case(1000)), Checker::Exclusion);
    let outcome = explore::<Fischer>(&case(3000), &mut Options::default());
    assert!(outcome.violation.is_none(), "{}", outcome.violation.unwrap().trace);
}

#[test]
fn a_lease_does_not_hide_a_hang_that_no_fault_has_caused() {
    let params = shiftlock::ShiftParams { threshold: 1, ..Default::default() };
    let stuck =
        Case::new("stuck").params(params).clients(3, &[Want::exclusive(0)]).clients(1, &[Want::shared(0)]);
    let stuck = stuck.timeouts(Timeouts::WhenStuckByFaults);
    type Literal = shiftlock::ShiftLock<shiftlock::layout::Wide, lockwright_proofs::LiteralEpoch>;
    assert_eq!(violated::<Literal>(&stuck), Checker::Deadlock);
}

#[test]
fn crash_as_an_option_leaves_leases_that_can_be_kept() {
    let both = [Want::exclusive(0), Want::exclusive(1)];
    let case = Case::new("two-locks").clients(3, &both).space(Space::of(2)).bypass(2);
    let case = case.timeouts(Timeouts::WhenStuckByFaults);
    let outcome = explore::<shiftlock::ShiftLock>(&case, &mut Options { crash: true, ..Options::default() });
    if let Some(found) = &outcome.violation {
        panic!("{}\n{}", found.violation, found.trace);
    }
    assert!(outcome.exhaustive);
}

#[test]
fn a_case_without_leases_gets_them_with_the_crash_that_is_added() {
    let params = citron::Params { m: 1, leaf_units: 1, token_level: 0, lease_ns: 0, ..Default::default() };
    let range = |end| Want::range(0, Mode::Exclusive, 0, end);
    let case = Case::new("two").params(params).space(Space::of(1).units(16));
    let case = case.clients(1, &[range(4)]).clients(1, &[range(1)]);
    let with_crash = || Options { crash: true, ..Options::default() };
    let outcome =
        explore::<citron::Citron>(&<citron::Citron>::with_recovery(case.clone()), &mut with_crash());
    assert!(outcome.exhaustive && outcome.violation.is_none());
    assert_eq!(violated::<citron::Citron>(&case.clone().crashes(1)), Checker::Deadlock, "nobody recovers");
    // A user's deadline still comes at any moment; that is not what leases wait for.
    let hasty = range(1).with(Patience::Until(Time(1)));
    let case = <citron::Citron>::with_recovery(case.clients(1, &[hasty]).timeouts(Timeouts::Any));
    let outcome = explore::<citron::Citron>(&case, &mut Options { max_states: Some(50_000), ..with_crash() });
    assert!(outcome.violation.is_none());
}

#[test]
fn a_crash_added_to_dslr_leaves_the_living_time_to_see_their_turn() {
    type Dslr = lockwright_baselines::dslr::Dslr;
    let tries = Dslr::cases().into_iter().find(|case| case.name == "tries").expect("a case of DSLR");
    let with_crash = || Options { crash: true, ..Options::default() };
    // A reader whose turn has come has not looked yet, and the word is cleared: no lease is so short.
    let hasty = explore::<Dslr>(&tries, &mut with_crash()).violation.expect("a violation");
    assert_eq!(hasty.violation.checker, Checker::Exclusion);
    let outcome = explore::<Dslr>(&Dslr::with_recovery(tries), &mut with_crash());
    assert!(outcome.exhaustive && outcome.violation.is_none());
}

#[test]
fn a_pause_that_ends_lets_a_search_with_a_clock_come_to_an_end() {
    let params = shiftlock::ShiftParams::default().with_lease(4);
    let clock = lockwright_sim::case::Clock { tick_ns: 1, delay_ticks: 1, max_ticks: 80 };
    let case = Case::new("two").params(params).clients(2, &[Want::shared(0)]).clock(clock).pauses(1);
    let endless = explore::<shiftlock::ShiftLock>(&case, &mut Options::default());
    assert!(endless.violation.is_none() && !endless.exhaustive, "a client may sleep to the end of time");
    clean::<shiftlock::ShiftLock>(&case.for_ticks(16));
}

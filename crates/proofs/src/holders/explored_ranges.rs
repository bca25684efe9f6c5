//! Ranges by holder records as the explorer runs them: gates, records and liveness words in one memory, and what is run.

use super::cases::{hasty, killed, patient, stopped};
use super::evictable::Evictable;
use super::explored::HolderParams;
use super::memory::{Explored as Memory, Part, RANGES, Ranges};
use super::observed;
use crate::{Checker, Mutant, Proof, Visitor};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Addr, Endpoint, FabricError, Needs, Time};
use lockwright_locks::holders::range_changes::NotUpgraded;
use lockwright_locks::holders::ranges::RangeRecords;
use lockwright_locks::holders::record::{RecordWord, semaphore};
use lockwright_locks::holders::{HolderClient, HolderTable, RangeSpace, RecordRules};
use lockwright_locks::shiftlock::layout::Layout;
use lockwright_locks::shiftlock::versioned::Versioned;
use lockwright_locks::shiftlock::{Rules, ShiftLock, Shipped};
use lockwright_locks::{
    Change, Denied, Grant, Info, LockClient, Lost, Offers, Patience, Protocol, Space, Want,
};
use lockwright_sim::case::{Case, Timeouts};
use std::fmt::Debug;
use std::marker::PhantomData;

/// Ranges by holder records with the rules of `R`: those shipped, or a mutant's.
#[derive(Debug)]
pub struct HolderRanges<R = Shipped>(PhantomData<R>);

/// What a mutant says of itself, beside the rule it breaks.
pub trait RangeRules: Rules + RecordRules {
    /// What the explorer runs.
    fn range_cases() -> Vec<Case<HolderParams>> {
        cases()
    }
}

impl RangeRules for Shipped {}

/// Where things are: gates, liveness words, records, counts of changes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Places {
    pub(super) liveness: u64,
    pub(super) part: Part,
    pub(super) changes: u64,
    pub(super) end: u64,
}

impl Places {
    pub(super) fn new(space: &Space, params: &HolderParams) -> Self {
        let liveness = space.table_bytes(16);
        let records = liveness + 8 * params.clients;
        let part = match params.observed {
            true => Part::new(records, params.clients, 1, params.version_bits, &RecordWord::ALL),
            false => Part::new(records, params.clients, params.range_records, 0, RANGES),
        };
        let changes = records + part.bytes();
        Self { liveness, part, changes, end: changes + 8 * space.locks }
    }
}

impl<R: RangeRules> Protocol for HolderRanges<R> {
    type Params = HolderParams;
    type Client<E: Endpoint> = Explored<E, R>;

    const INFO: Info = Info {
        name: match R::NAME {
            Some(name) => name,
            None => "holders-ranges",
        },
        summary: "ranges written down under a keyed lock; only the dead lose theirs",
        source: "this project",
        offers: Offers {
            shared: true,
            ranges: true,
            tokens: true,
            tries: true,
            timeouts: true,
            recovery: true,
        },
    };

    fn needs(_: &HolderParams) -> Needs {
        Versioned::NEEDS
    }

    fn most_clients(params: &HolderParams) -> usize {
        params.clients as usize
    }

    fn bytes_per_node(space: &Space, params: &HolderParams) -> u64 {
        Places::new(space, params).end
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &HolderParams) -> Explored<E, R> {
        let Places { liveness, part, changes, .. } = Places::new(space, params);
        let ep = Evictable::new(ep, liveness);
        let ranges = Some(Ranges { changes, looks: params.looks, index: None });
        let table = HolderTable::new(Memory { ep: ep.clone(), part, ranges });
        let observed = params.observed.then_some(params.clients);
        let client = HolderClient::new(ep, space, &params.shift, table);
        Explored { ranges: RangeClient::new(client, params), observed }
    }

    /// Records are cleared by their first words; everything else is wherever it came to.
    fn quiet_mask(space: &Space, params: &HolderParams, addr: Addr) -> u64 {
        let places = Places::new(space, params);
        match addr.offset {
            offset if offset < places.liveness => {
                <ShiftLock<Versioned> as Protocol>::quiet_mask(space, &params.shift, addr)
            }
            offset if places.part.is_first_word(offset) => u64::MAX,
            _ => 0,
        }
    }
}

impl<R: RangeRules> Proof for HolderRanges<R> {
    fn cases() -> Vec<Case<HolderParams>> {
        R::range_cases()
    }

    /// Users' waiters look for as long as they wait, the explorer's only `LOOKS` times.
    fn refuses_crash(case: &Case<HolderParams>) -> Option<&'static str> {
        let why =
            "its waiters look a limited number of times, all of which may go to the client that is paused";
        (case.faults.pauses > 0 && case.checks.finish).then_some(why)
    }
}

pub(crate) type Table<E, R> = HolderTable<Memory<E>, Versioned, R>;

/// A client of the explorer's: one acquisition at a time, so one record of each kind.
pub(crate) struct RangeClient<E, S, R> {
    client: HolderClient<E, HolderTable<S, Versioned, R>, R>,
    records: RangeRecords,
    /// Whether locks are semaphores.
    permits: bool,
}

impl<E, S, R> RangeClient<E, S, R> {
    pub(super) fn new(
        client: HolderClient<E, HolderTable<S, Versioned, R>, R>,
        params: &HolderParams,
    ) -> Self {
        let gate = if params.range_records > 2 { 2 } else { 0 };
        Self { client, records: RangeRecords { gate, range: RANGE }, permits: params.permits }
    }
}

/// The same, or one that only writes records, or looks at them.
pub struct Explored<E, R> {
    ranges: RangeClient<Evictable<E>, Memory<E>, R>,
    /// Of how many clients the records are only observed.
    observed: Option<u64>,
}

impl<E, R> Debug for Explored<E, R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Explored").finish_non_exhaustive()
    }
}

/// A granted range.
#[derive(Clone, Copy, Debug)]
pub struct RangeGrant {
    claim: Claim,
    token: u64,
    /// The second piece, of a range that was split.
    rest: Option<Claim>,
}

impl Grant for RangeGrant {
    fn token(&self) -> Option<u64> {
        Some(self.token)
    }
}

/// The record of a range.
const RANGE: u8 = 1;
/// Of a second piece, where there are three: a scan comes to it before it comes to the first's.
const REST: u8 = 0;

impl<E: Endpoint, R: RangeRules> LockClient for Explored<E, R> {
    type Grant = RangeGrant;

    async fn acquire(&self, want: Want) -> Result<RangeGrant, Denied> {
        let Some(clients) = self.observed else { return self.ranges.acquire(want).await };
        observed::acquire(self.ranges.client.recorder(), clients, want).await?;
        Ok(RangeGrant { claim: want.claim, token: 0, rest: None })
    }

    async fn change(&self, grant: &mut RangeGrant, change: Change) -> Result<(), Denied> {
        self.ranges.change(grant, change).await
    }

    async fn release(&self, grant: RangeGrant) -> Result<(), Lost> {
        match self.observed {
            Some(_) => Ok(observed::release(self.ranges.client.recorder()).await?),
            None => self.ranges.release(grant).await,
        }
    }
}

impl<E: Endpoint, S: RangeSpace, R: RangeRules> LockClient for RangeClient<E, S, R> {
    type Grant = RangeGrant;

    async fn acquire(&self, want: Want) -> Result<RangeGrant, Denied> {
        let mut claim = want.claim;
        if self.permits {
            claim.lock = semaphore(claim.lock);
        }
        let token = match want.patience {
            Patience::Forever => self.client.take_range(self.records, claim).await?,
            // As a user's try where the gate is near: at once, and only then by a place in its queue.
            Patience::Try => match self.client.try_range_fast(self.records, claim).await {
                Some(tried) => tried?,
                None => self.client.try_range(self.records, claim).await?,
            },
            Patience::Until(deadline) => {
                let given_up = || self.client.lock().endpoint().alarm(deadline);
                self.client.take_range_unless(self.records, claim, given_up).await?
            }
        };
        Ok(RangeGrant { claim, token, rest: None })
    }

    async fn change(&self, grant: &mut RangeGrant, change: Change) -> Result<(), Denied> {
        let denied = |why| match why {
            NotUpgraded::Denied(denied) => denied,
            NotUpgraded::Lost => Denied::Fabric(FabricError::Evicted),
            NotUpgraded::Busy | NotUpgraded::WouldDeadlock => Denied::Busy,
        };
        let claim = grant.claim;
        match change {
            Change::Upgrade(patience) => {
                let upgraded = match patience {
                    Patience::Try => self.client.try_upgrade_range(self.records, claim).await,
                    Patience::Forever => {
                        self.client.upgrade_range_unless(self.records, claim, std::future::pending).await
                    }
                    Patience::Until(deadline) => {
                        let given_up = || self.client.lock().endpoint().alarm(deadline);
                        self.client.upgrade_range_unless(self.records, claim, given_up).await
                    }
                };
                grant.token = upgraded.map_err(denied)?;
                grant.claim.mode = Mode::Exclusive;
            }
            Change::Downgrade => {
                grant.token = self.client.downgrade_range(self.records, claim).await.map_err(denied)?;
                grant.claim.mode = Mode::Shared;
            }
            Change::Shrink { start, end } => {
                let (left, right) = (Claim { end: start, ..claim }, Claim { start: end, ..claim });
                let two = left.start < left.end && right.start < right.end;
                let rest = two.then_some(REST);
                let part = (start, end);
                self.client
                    .shrink_range(self.records, rest, claim, grant.token, part)
                    .await
                    .map_err(denied)?;
                grant.claim = if left.start < left.end { left } else { right };
                grant.rest = two.then_some(right);
            }
        }
        Ok(())
    }

    async fn release(&self, grant: RangeGrant) -> Result<(), Lost> {
        if let Some(rest) = grant.rest {
            self.client.give_range_back(REST, rest).await?;
        }
        self.client.give_range_back(RANGE, grant.claim).await
    }
}

pub(super) const LEFT: Want = Want::range(0, Mode::Exclusive, 0, 2);
pub(super) const MIDDLE: Want = Want::range(0, Mode::Exclusive, 1, 3);
pub(super) const RIGHT: Want = Want::range(0, Mode::Exclusive, 2, 4);
pub(super) const READ: Want = Want::range(0, Mode::Shared, 1, 4);
pub(super) const TRY_MIDDLE: Want = MIDDLE.with(Patience::Try);
pub(super) const TRY_READ: Want = READ.with(Patience::Try);
pub(super) const TRY_LAST: Want = Want::range(0, Mode::Exclusive, 3, 4).with(Patience::Try);
const SOON: Time = Time(1);
pub(super) const MIDDLE_SOON: Want = MIDDLE.with(Patience::Until(SOON));

/// Looks of a waiter, after which it waits for a change. Every look counts at the gate, so the explorer would never see an
/// end of it.
const LOOKS: u32 = 2;

/// Each of these once, with records for each.
pub(super) fn mixed(name: &'static str, wants: &[Want]) -> Case<HolderParams> {
    let params = HolderParams { clients: wants.len() as u64, looks: LOOKS, ..HolderParams::default() };
    let case = Case::new(name).params(params).space(Space::of(1).units(4)).tokens();
    wants.iter().fold(case, |case, want| case.clients(1, &[*want]))
}

/// Permits of a semaphore, for whom each of these is a weight: two there are.
fn permits(name: &'static str, weights: &[u64]) -> Case<HolderParams> {
    let wants: Vec<_> = weights.iter().map(|weight| Want::range(0, Mode::Shared, *weight, 3)).collect();
    let mut case = mixed(name, &wants).permits();
    (case.params.permits, case.checks.tokens) = (true, false);
    case
}

/// Who does not wait for long gives up at any moment; else as the patient.
pub(super) fn gives_up(case: Case<HolderParams>) -> Case<HolderParams> {
    case.timeouts(Timeouts::AnyUntil(SOON))
}

/// Nobody looks again by itself: every waiter is woken by a change, or waits for ever.
pub(super) fn woken(mut case: Case<HolderParams>) -> Case<HolderParams> {
    case.params.looks = 0;
    patient(case)
}

pub(super) const ALL: Want = Want::range(0, Mode::Exclusive, 0, 4);
/// Reads some of what [`READ`] does.
pub(super) const BESIDE: Want = Want::range(0, Mode::Shared, 0, 2);
pub(super) const UPGRADE: Change = Change::Upgrade(Patience::Forever);
const TRY_UPGRADE: Change = Change::Upgrade(Patience::Try);
/// Leaves one piece.
pub(super) const SHRINK: Change = Change::Shrink { start: 2, end: 4 };
/// Leaves two.
pub(super) const SPLIT: Change = Change::Shrink { start: 3, end: 3 };

/// The first client, and all that want the same, change what they have.
pub(super) fn changed(name: &'static str, wants: &[Want], change: Change) -> Case<HolderParams> {
    let mut case = mixed(name, wants);
    case.params.range_records = if change == SPLIT { 3 } else { 2 };
    // What is left of a range keeps the token of the whole.
    case.checks.tokens &= !matches!(change, Change::Shrink { .. });
    for (script, want) in case.clients.iter_mut().zip(wants) {
        if *want == wants[0] {
            script.rounds.iter_mut().for_each(|round| round.changes.push((0, change)));
        }
    }
    case
}

fn cases() -> Vec<Case<HolderParams>> {
    vec![
        patient(mixed("healthy", &[LEFT, MIDDLE])),
        woken(mixed("woken", &[LEFT, MIDDLE])),
        patient(mixed("apart", &[LEFT, RIGHT])),
        patient(mixed("readers", &[READ, READ])),
        patient(mixed("reader-and-writer", &[READ, LEFT])),
        hasty(mixed("tries", &[LEFT, TRY_MIDDLE])),
        gives_up(mixed("gives-up", &[LEFT, MIDDLE_SOON])),
        gives_up(killed(mixed("gives-up-or-killed", &[LEFT, MIDDLE_SOON]))),
        gives_up(stopped(mixed("gives-up-or-stopped", &[LEFT, MIDDLE_SOON]))),
        patient(killed(mixed("killed", &[LEFT, MIDDLE]))),
        hasty(killed(mixed("killed-and-tried", &[READ, TRY_MIDDLE]))),
        patient(stopped(mixed("stopped", &[LEFT, MIDDLE]))),
        hasty(stopped(mixed("stopped-and-hasty", &[LEFT, MIDDLE]))),
        hasty(stopped(mixed("stopped-reader", &[READ, TRY_MIDDLE]))),
        patient(changed("upgraded-beside-a-writer", &[READ, LEFT], UPGRADE)),
        patient(changed("upgrade-tried", &[READ, BESIDE], TRY_UPGRADE)),
        gives_up(changed("upgrade-given-up", &[READ, BESIDE], Change::Upgrade(Patience::Until(SOON)))),
        patient(killed(changed("upgraded-and-killed", &[READ, BESIDE], UPGRADE))),
        patient(changed("downgraded", &[MIDDLE, READ], Change::Downgrade)),
        patient(killed(changed("downgraded-and-killed", &[MIDDLE, READ], Change::Downgrade))),
        patient(changed("shrunk", &[ALL, RIGHT], SHRINK)),
        patient(killed(changed("shrunk-and-killed", &[ALL, RIGHT], SHRINK))),
        hasty(killed(changed("split-and-killed", &[ALL, TRY_LAST], SPLIT))),
        patient(permits("permits", &[2, 1])),
        woken(permits("permits-woken", &[2, 1])),
        patient(killed(permits("permits-killed", &[2, 1]))),
        patient(permits("permits-together", &[1, 1])),
        patient(observed::case("observed")),
        patient(killed(observed::case("observed-and-killed"))),
    ]
}

/// Shows the mutants to `visitor`.
pub(crate) fn visit_mutants(visitor: &mut impl Visitor) {
    let mutant = |caught_by, why| Mutant { of: "holders-ranges", caught_by, why };
    visitor.mutant::<HolderRanges<Outside>>(mutant(
        Checker::Exclusion,
        "a range is written down after the gate is given back",
    ));
    visitor.mutant::<HolderRanges<PermitsOutside>>(mutant(
        Checker::Exclusion,
        "permits are written down after the gate is given back",
    ));
    visitor.mutant::<HolderRanges<Unconfirmed>>(mutant(
        Checker::Tokens,
        "a client believes that a range is its without looking whether it is still in",
    ));
    visitor.mutant::<HolderRanges<StaysInTheWay>>(mutant(
        Checker::Quiet,
        "who gives up leaves its record as it is, in the others' way",
    ));
    visitor.mutant::<HolderRanges<LooksFirst>>(mutant(
        Checker::Deadlock,
        "who waits looks first, and misses the change between that and reading the count of changes",
    ));
    visitor.mutant::<HolderRanges<JudgedOutside>>(mutant(
        Checker::Exclusion,
        "an upgrade looks at the others' records without the gate",
    ));
    visitor.mutant::<HolderRanges<SplitOutside>>(mutant(
        Checker::Exclusion,
        "a range becomes two without the gate",
    ));
}

/// Two readers look, and each has passed the other's record before that became a writer's.
#[derive(Debug)]
pub struct JudgedOutside;

impl RecordRules for JudgedOutside {
    const UPGRADES_ARE_JUDGED_INSIDE: bool = false;
}

impl Rules for JudgedOutside {
    const NAME: Option<&'static str> = Some("holders-ranges-judged-outside");
}

impl RangeRules for JudgedOutside {
    fn range_cases() -> Vec<Case<HolderParams>> {
        vec![hasty(changed("upgrade-beside-a-try", &[READ, TRY_READ], Change::Upgrade(Patience::Try)))]
    }
}

/// A scan has passed the second piece's record before it was written, and comes to the first's when that is shorter.
#[derive(Debug)]
pub struct SplitOutside;

impl RecordRules for SplitOutside {
    const RANGES_ARE_SPLIT_INSIDE: bool = false;
}

impl Rules for SplitOutside {
    const NAME: Option<&'static str> = Some("holders-ranges-split-outside");
}

impl RangeRules for SplitOutside {
    fn range_cases() -> Vec<Case<HolderParams>> {
        vec![hasty(changed("split", &[ALL, TRY_LAST], SPLIT))]
    }
}

/// Two look, see nothing of each other, and both write that they hold.
#[derive(Debug)]
pub struct Outside;

impl RecordRules for Outside {}

impl Rules for Outside {
    const NAME: Option<&'static str> = Some("holders-ranges-outside");
    const RANGES_ARE_WRITTEN_INSIDE: bool = false;
}

impl RangeRules for Outside {
    fn range_cases() -> Vec<Case<HolderParams>> {
        vec![patient(mixed("healthy", &[LEFT, MIDDLE]))]
    }
}

/// Two count, see nothing of each other, and both take what is left.
#[derive(Debug)]
pub struct PermitsOutside;

impl RecordRules for PermitsOutside {}

impl Rules for PermitsOutside {
    const NAME: Option<&'static str> = Some("holders-permits-outside");
    const RANGES_ARE_WRITTEN_INSIDE: bool = false;
}

impl RangeRules for PermitsOutside {
    fn range_cases() -> Vec<Case<HolderParams>> {
        vec![patient(permits("permits", &[2, 1]))]
    }
}

/// A zombie writes down its range, or gives its gate back, with its last verb.
#[derive(Debug)]
pub struct Unconfirmed;

impl RecordRules for Unconfirmed {}

impl Rules for Unconfirmed {
    const NAME: Option<&'static str> = Some("holders-ranges-unconfirmed");
    const GRANTED_ARE_ALIVE: bool = false;
}

impl RangeRules for Unconfirmed {
    fn range_cases() -> Vec<Case<HolderParams>> {
        vec![hasty(stopped(mixed("last-verb", &[LEFT, MIDDLE])))]
    }
}

/// Others wait behind a request that nobody makes any more.
#[derive(Debug)]
pub struct StaysInTheWay;

impl RecordRules for StaysInTheWay {
    const LEAVING_CLEARS: bool = false;
}

impl Rules for StaysInTheWay {
    const NAME: Option<&'static str> = Some("holders-ranges-stays-in-the-way");
}

impl RangeRules for StaysInTheWay {
    fn range_cases() -> Vec<Case<HolderParams>> {
        vec![gives_up(mixed("gives-up", &[LEFT, MIDDLE_SOON]))]
    }
}

/// A holder gives back between a waiter's look and the moment from which the waiter notices changes.
#[derive(Debug)]
pub struct LooksFirst;

impl RecordRules for LooksFirst {
    const CHANGES_ARE_READ_FIRST: bool = false;
}

impl Rules for LooksFirst {
    const NAME: Option<&'static str> = Some("holders-ranges-looks-first");
}

impl RangeRules for LooksFirst {
    fn range_cases() -> Vec<Case<HolderParams>> {
        vec![woken(mixed("woken", &[LEFT, MIDDLE]))]
    }
}

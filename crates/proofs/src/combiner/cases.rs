//! What the explorer runs for the combiner.
//!
//! First come, first served is looked at where clients know when they came: [`fairness`] and [`fair_queue`] have them
//! poll and count as waiting from the server's note. From then on at most one conflicting grant to each other client is
//! seen, that of a request that stood before.

use lockwright_fabric::Time;
use lockwright_fabric::observe::Mode::{Exclusive, Shared};
use lockwright_locks::combiner::Params;
use lockwright_locks::{Change, Patience, Space, Want};
use lockwright_sim::case::{Case, Timeouts};

/// A lock with a few units.
const RANGED: Space = Space::of(1).units(8);

const fn write(start: u64, end: u64) -> Want {
    Want::range(0, Exclusive, start, end)
}

const fn read(start: u64, end: u64) -> Want {
    Want::range(0, Shared, start, end)
}

const SOON: Patience = Patience::Until(Time(1));

/// Where the server answers when a lock is granted.
pub(crate) fn pushed() -> Vec<Case<Params>> {
    let key = Want::exclusive(0);
    vec![
        Case::new("keyed").clients(3, &[key]).rounds(2).tokens(),
        Case::new("keyed-readers").clients(2, &[key]).clients(2, &[Want::shared(0)]).tokens(),
        // Each overlaps the next; the first and the last have nothing to do with each other.
        Case::new("chain")
            .clients(1, &[write(0, 3)])
            .clients(1, &[read(2, 5)])
            .clients(1, &[write(4, 7)])
            .clients(1, &[read(6, 8)])
            .space(RANGED)
            .tokens(),
        Case::new("overlapping")
            .clients(1, &[write(0, 4)])
            .clients(1, &[read(1, 6)])
            .clients(1, &[write(2, 3)])
            .rounds(2)
            .space(RANGED)
            .tokens(),
        // In order, like every client that takes more than one range at a time.
        Case::new("many-ranges")
            .clients(2, &[write(0, 2), read(3, 5), write(6, 8)])
            .clients(1, &[read(1, 4), write(7, 8)])
            .space(RANGED)
            .tokens(),
        Case::new("tries")
            .clients(2, &[write(0, 4)])
            .clients(1, &[read(2, 6).with(Patience::Try)])
            .rounds(2)
            .space(RANGED),
        Case::new("timeouts")
            .clients(2, &[write(0, 4)])
            .clients(1, &[read(2, 6).with(SOON)])
            .rounds(2)
            .timeouts(Timeouts::Any)
            .space(RANGED)
            .tokens(),
        Case::new("cancel")
            .clients(2, &[write(0, 4)])
            .cancellable()
            .clients(1, &[read(2, 6)])
            .rounds(2)
            .space(RANGED),
        crash(),
        Case::new("crash-again").clients(3, &[key]).rounds(2).crashes(1).tokens(),
        all_wait(),
        upgrades(),
        Case::new("upgrade-in-time")
            .clients(1, &[read(0, 4)])
            .then(Change::Upgrade(SOON))
            .clients(1, &[read(2, 6)])
            .then(Change::Upgrade(Patience::Try))
            .clients(1, &[write(3, 5)])
            .rounds(2)
            .timeouts(Timeouts::Any)
            .space(RANGED)
            .tokens(),
        Case::new("downgrade")
            .clients(1, &[write(0, 4)])
            .then(Change::Downgrade)
            .clients(1, &[read(2, 6)])
            .clients(1, &[write(3, 5)])
            .rounds(2)
            .space(RANGED)
            .tokens(),
        Case::new("shrink")
            .clients(1, &[write(0, 8)])
            .then(Change::Shrink { start: 2, end: 5 })
            .clients(1, &[write(1, 4)])
            .clients(1, &[read(3, 7)])
            .rounds(2)
            .space(RANGED),
        Case::new("changes-and-crash")
            .clients(1, &[read(0, 8)])
            .then(Change::Upgrade(Patience::Forever))
            .then(Change::Shrink { start: 2, end: 5 })
            .then(Change::Downgrade)
            .clients(1, &[read(1, 4)])
            .clients(1, &[write(3, 7)])
            .crashes(1)
            .space(RANGED),
        Case::new("shards")
            .clients(1, &[write(0, 8)])
            .clients(1, &[read(2, 6)])
            .clients(1, &[write(5, 7)])
            .space(RANGED.over(2))
            .tokens(),
        Case::new("shards-and-crash")
            .clients(2, &[write(0, 8)])
            .clients(1, &[write(2, 3)])
            .crashes(1)
            .space(RANGED.over(2))
            .tokens(),
        Case::new("shards-in-time")
            .clients(1, &[write(0, 8)])
            .clients(1, &[read(2, 6).with(SOON)])
            .clients(1, &[write(5, 7)])
            .timeouts(Timeouts::Any)
            .space(RANGED.over(2))
            .tokens(),
    ]
}

/// Two readers want to upgrade, and a writer is in the queue.
pub(crate) fn upgrades() -> Case<Params> {
    Case::new("upgrade")
        .clients(1, &[read(0, 4)])
        .then(Change::Upgrade(Patience::Forever))
        .clients(1, &[read(2, 6)])
        .then(Change::Upgrade(Patience::Forever))
        .clients(1, &[write(3, 5)])
        .rounds(2)
        .space(RANGED)
        .tokens()
}

/// Clients die, waiting or holding more than one range.
pub(crate) fn crash() -> Case<Params> {
    Case::new("crash")
        .clients(1, &[write(0, 4), write(6, 8)])
        .clients(1, &[read(2, 5)])
        .clients(1, &[write(7, 8)])
        .crashes(2)
        .space(RANGED)
        .tokens()
}

/// Several wait for one.
pub(crate) fn all_wait() -> Case<Params> {
    Case::new("all-wait")
        .clients(1, &[write(0, 8)])
        .clients(1, &[read(0, 4)])
        .clients(1, &[read(2, 8)])
        .space(RANGED)
}

/// Readers and writers come and go; nobody is overtaken by a request that came later.
pub(crate) fn fairness() -> Case<Params> {
    Case::new("fairness")
        .clients(2, &[read(0, 4)])
        .clients(1, &[write(2, 6)])
        .rounds(2)
        .space(RANGED)
        .params(Params { waits_from_note: true, ..Params::default() })
        .bypass(2)
}

/// The same for three that all conflict.
pub(crate) fn fair_queue() -> Case<Params> {
    Case::new("fair-queue")
        .clients(1, &[write(0, 4)])
        .clients(1, &[read(2, 6)])
        .clients(1, &[write(3, 5)])
        .rounds(2)
        .space(RANGED)
        .params(Params { waits_from_note: true, ..Params::default() })
        .bypass(2)
}

/// Where clients poll.
pub(crate) fn polled(params: &Params) -> Vec<Case<Params>> {
    let key = Want::exclusive(0);
    vec![
        Case::new("keyed").clients(3, &[key]).rounds(2).tokens(),
        Case::new("overlapping")
            .clients(1, &[write(0, 4)])
            .clients(1, &[read(1, 6)])
            .clients(1, &[write(2, 3)])
            .space(RANGED)
            .tokens(),
        Case::new("two-each").clients(2, &[write(0, 2), read(4, 6)]).clients(1, &[read(1, 5)]).space(RANGED),
        Case::new("tries")
            .clients(2, &[write(0, 4)])
            .clients(1, &[read(2, 6).with(Patience::Try)])
            .space(RANGED),
        Case::new("timeouts")
            .clients(2, &[write(0, 4)])
            .clients(1, &[read(2, 6).with(SOON)])
            .timeouts(Timeouts::Any)
            .space(RANGED),
        Case::new("crash").clients(2, &[write(0, 4)]).clients(1, &[read(2, 6)]).crashes(1).space(RANGED),
        Case::new("changes")
            .clients(1, &[read(0, 4)])
            .then(Change::Upgrade(Patience::Forever))
            .clients(1, &[read(2, 6)])
            .clients(1, &[write(3, 5)])
            .then(Change::Downgrade)
            .space(RANGED),
    ]
    .into_iter()
    .map(|case| case.params(params.clone()))
    .collect()
}

/// The same flags, each on a line of its own.
pub(crate) fn padded(params: &Params) -> Case<Params> {
    Case::new("padded")
        .clients(1, &[write(0, 4)])
        .clients(1, &[read(2, 6)])
        .rounds(2)
        .space(RANGED)
        .params(params.clone())
}

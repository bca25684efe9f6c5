//! What the explorer runs for the asymmetric lock. Every case has weak scope: a remote read-modify-write is a read and
//! a later write to the clients at home on the node.
//!
//! The properties of the appendix: mutual exclusion is always checked; deadlock, livelock and (with finitely many rounds)
//! starvation are what "all clients can finish" rules out; fairness is a bound on how often a client is overtaken.

use lockwright_fabric::{NodeId, Time};
use lockwright_locks::qplock::QpParams;
use lockwright_locks::{Patience, Space, Want};
use lockwright_sim::case::Case;

/// Where the lock is, and so its local clients.
const HERE: NodeId = NodeId(0);
/// Another node with memory: clients at home there are remote to the lock and have their descriptors there.
const ELSEWHERE: NodeId = NodeId(1);

/// How many clients take part, and where they are.
#[derive(Clone, Copy)]
pub(crate) struct Clients {
    pub(crate) locals: usize,
    /// Remote clients with a descriptor in memory.
    pub(crate) remotes: usize,
    /// Remote clients at home nowhere.
    pub(crate) homeless: usize,
}

impl Clients {
    pub(crate) const fn new(locals: usize, remotes: usize, homeless: usize) -> Self {
        Self { locals, remotes, homeless }
    }

    /// A case in which the clients do `wants`, `rounds` times.
    pub(crate) fn case(
        self,
        name: &'static str,
        params: QpParams,
        wants: &[Want],
        rounds: usize,
    ) -> Case<QpParams> {
        let Self { locals, remotes, homeless } = self;
        let nodes = if remotes > 0 { 2 } else { 1 };
        Case::new(name)
            .params(QpParams { clients: (locals + remotes) as u32, ..params })
            .space(Space::of(1).over(nodes))
            .clients(locals, wants)
            .at_home(HERE)
            .clients(remotes, wants)
            .at_home(ELSEWHERE)
            .clients(homeless, wants)
            .rounds(rounds)
            .weak_scope()
    }
}

/// One descriptor each, which is all that a client needs that wants one lock at a time.
pub(crate) const fn budget(budget: u16) -> QpParams {
    QpParams { budget, clients: 0, slots: 1, swap: false, waits_from_ticket: false }
}

/// As [`budget`], enqueueing with one verb: then the order of the queue is the order of the first verbs, and bounds on
/// overtaking can be exact.
pub(crate) const fn queueing(budget: u16) -> QpParams {
    QpParams { swap: true, ..self::budget(budget) }
}

/// Two clients of one side, again and again, against one of the other side that comes once.
pub(crate) fn crowd_and_one(
    name: &'static str,
    params: QpParams,
    crowd: NodeId,
    rounds: usize,
) -> Case<QpParams> {
    let want = [Want::exclusive(0)];
    let one = if crowd == HERE { ELSEWHERE } else { HERE };
    Case::new(name)
        .params(QpParams { clients: 3, ..params })
        .space(Space::of(1).over(2))
        .clients(2, &want)
        .at_home(crowd)
        .rounds(rounds)
        .clients(1, &want)
        .at_home(one)
        .weak_scope()
}

/// Cases of the mutex.
pub(crate) fn mutex() -> Vec<Case<QpParams>> {
    let want = [Want::exclusive(0)];
    let mut cases = vec![Clients::new(1, 1, 0).case("one-each", budget(1), &want, 3)];
    let shapes = [
        (Clients::new(2, 1, 0), 2, ["two-local-b1", "two-local-b2", "two-local-b3"]),
        (Clients::new(1, 2, 0), 2, ["two-remote-b1", "two-remote-b2", "two-remote-b3"]),
        (Clients::new(2, 2, 0), 1, ["two-each-b1", "two-each-b2", "two-each-b3"]),
        (Clients::new(3, 1, 0), 1, ["three-local-b1", "three-local-b2", "three-local-b3"]),
        (Clients::new(1, 3, 0), 1, ["three-remote-b1", "three-remote-b2", "three-remote-b3"]),
    ];
    for (clients, rounds, names) in shapes {
        cases.extend((1..).zip(names).map(|(b, name)| clients.case(name, budget(b), &want, rounds)));
    }
    cases.extend([
        // Remote clients on nodes of their own, so that the links of their queue are remote writes.
        Case::new("remote-apart")
            .params(QpParams { clients: 3, ..budget(1) })
            .space(Space::of(1).over(3))
            .clients(1, &want)
            .at_home(HERE)
            .clients(1, &want)
            .at_home(ELSEWHERE)
            .clients(1, &want)
            .at_home(NodeId(2))
            .rounds(2)
            .weak_scope(),
        Clients::new(1, 0, 2).case("mailboxes", budget(1), &want, 2),
        Clients::new(1, 1, 1).case("memory-and-mailbox", budget(1), &want, 2),
    ]);
    cases.extend(fairness());
    cases.extend(uses());
    cases
}

/// CohortFairness and GlobalFairness of the appendix, as bounds. Those with both sides are tight: one less, and the
/// explorer finds a client overtaken more often.
fn fairness() -> Vec<Case<QpParams>> {
    let want = [Want::exclusive(0)];
    vec![
        // First come, first served within a side: at most the others are ahead.
        Clients::new(3, 0, 0).case("cohort-fifo-local", queueing(1), &want, 2).bypass(2),
        Clients::new(0, 3, 0).case("cohort-fifo-remote", queueing(1), &want, 2).bypass(2),
        Clients::new(2, 2, 0).case("two-each-fair", queueing(1), &want, 1).bypass(3),
        // Who comes alone is overtaken 2 × budget − 1 times at most: by what is left of the other side's turn, and by
        // one more turn if it became the victim last. With budget 1 the bound is that of the crowd, 2.
        fair_to_one_remote(),
        crowd_and_one("fair-to-one-remote-b2", queueing(2), HERE, 4).bypass(3),
        crowd_and_one("fair-to-one-remote-b3", queueing(3), HERE, 4).bypass(5),
        crowd_and_one("fair-to-one-local", queueing(1), ELSEWHERE, 4).bypass(2),
        crowd_and_one("fair-to-one-local-b2", queueing(2), ELSEWHERE, 4).bypass(3),
    ]
}

/// Budget 1, and a single remote client.
pub(crate) fn fair_to_one_remote() -> Case<QpParams> {
    crowd_and_one("fair-to-one-remote", queueing(1), HERE, 4).bypass(2)
}

/// What users do with a lock: try, nest, give up, crash.
fn uses() -> Vec<Case<QpParams>> {
    let want = [Want::exclusive(0)];
    let tries = [want[0].with(Patience::Try)];
    let both = [want[0], Want::exclusive(1)];
    let nested = QpParams { slots: 2, clients: 2, ..budget(1) };
    vec![
        Clients::new(1, 1, 0)
            .case("tries", budget(1), &want, 1)
            .params(QpParams { clients: 4, ..budget(1) })
            .clients(1, &tries)
            .at_home(HERE)
            .clients(1, &tries)
            .at_home(ELSEWHERE),
        // Local to one lock, remote to the other, and holding both.
        Case::new("two-locks-in-order")
            .params(nested)
            .space(Space::of(2).over(2))
            .clients(1, &both)
            .at_home(HERE)
            .clients(1, &both)
            .at_home(ELSEWHERE)
            .clients(1, &both)
            .weak_scope(),
        // An acquire that was given up keeps its descriptor until it is through; the next one has another.
        cancel("cancel-remote", ELSEWHERE),
        cancel("cancel-local", HERE),
        timeout("timeout-remote", ELSEWHERE),
        timeout("timeout-local", HERE),
        // The paper has no recovery: a crash may hang the lock, but must never break it.
        Clients::new(2, 1, 0).case("crash", budget(1), &want, 1).crashes(1).may_hang(),
    ]
}

/// A client at home on `node` that may give up and then comes again, and one of the other side.
fn cancel(name: &'static str, node: NodeId) -> Case<QpParams> {
    let want = [Want::exclusive(0)];
    let mut case = Case::new(name)
        .params(QpParams { slots: 2, clients: 2, ..budget(1) })
        .space(Space::of(1).over(2))
        .clients(1, &want)
        .at_home(node)
        .cancellable()
        .rounds(2)
        .clients(1, &want)
        .at_home(if node == HERE { ELSEWHERE } else { HERE })
        .weak_scope();
    case.clients[0].rounds[1].cancellable = false;
    case
}

/// A client at home on `node` that times out at some time and then comes again, and one of the other side.
fn timeout(name: &'static str, node: NodeId) -> Case<QpParams> {
    let mut case = cancel(name, node);
    let first = &mut case.clients[0].rounds[0];
    first.cancellable = false;
    first.wants[0] = first.wants[0].with(Patience::Until(Time(1)));
    case
}

/// Cases of strict order; budgets mean nothing here. Who is alone on its side is overtaken by every other at most once:
/// a client that comes again comes later. Bounds count from the first verb, and clients that share a side may lose races for its
/// tail before they are in the queue; so where there are two, the bound is all that these can lose.
pub(crate) fn in_order() -> Vec<Case<QpParams>> {
    let want = [Want::exclusive(0)];
    let tries = [want[0].with(Patience::Try)];
    vec![
        Clients::new(1, 1, 0).case("one-each", budget(1), &want, 4).bypass(1),
        Clients::new(2, 1, 0).case("two-local", budget(1), &want, 1),
        Clients::new(1, 2, 0).case("two-remote", budget(1), &want, 1),
        Clients::new(3, 0, 0).case("three-local", budget(1), &want, 1),
        Clients::new(1, 0, 2).case("mailboxes", budget(1), &want, 1),
        fair_in_order(),
        fair_from_the_ticket(),
        Clients::new(1, 1, 0)
            .case("tries", budget(1), &want, 1)
            .params(QpParams { clients: 3, ..budget(1) })
            .clients(1, &tries)
            .at_home(HERE),
        Clients::new(1, 1, 0).case("cancel", budget(1), &want, 1).cancellable(),
    ]
}

/// A crowd of two that comes twice, and one of the other side. Each of the crowd can lose to the other twice and to the one
/// once; the one alone would be passed over four times if tickets did not count.
pub(crate) fn fair_in_order() -> Case<QpParams> {
    crowd_and_one("fair-to-one-remote", budget(8), HERE, 2).bypass(3)
}

/// The same, counted from when one has its ticket: a client that comes again has a later one, so each of the others passes once.
pub(crate) fn fair_from_the_ticket() -> Case<QpParams> {
    let params = QpParams { waits_from_ticket: true, ..budget(8) };
    crowd_and_one("fair-from-the-ticket", params, HERE, 2).bypass(2)
}

/// Cases of the reader-writer lock. Writers alone are those of the mutex, with tokens.
pub(crate) fn extended() -> Vec<Case<QpParams>> {
    let (write, read) = ([Want::exclusive(0)], [Want::shared(0)]);
    let (try_write, try_read) = ([write[0].with(Patience::Try)], [read[0].with(Patience::Try)]);
    let mix = |name, local: [&[Want]; 2], remote: [&[Want]; 2], b, rounds| {
        let mut case =
            Case::new(name).params(QpParams { clients: 4, ..budget(b) }).space(Space::of(1).over(2));
        for (node, wants) in [(HERE, local), (ELSEWHERE, remote)] {
            for wants in wants.into_iter().filter(|wants| !wants.is_empty()) {
                case = case.clients(1, wants).at_home(node);
            }
        }
        case.rounds(rounds).weak_scope().tokens()
    };
    vec![
        Clients::new(1, 1, 0).case("writers", budget(1), &write, 2).tokens(),
        Clients::new(2, 1, 0).case("writers-b2", budget(2), &write, 2).tokens(),
        Clients::new(1, 0, 2).case("writers-by-mailbox", budget(2), &write, 1).tokens(),
        mix("local-writer-remote-reader", [&write, &[]], [&read, &[]], 1, 2),
        mix("remote-writer-local-reader", [&read, &[]], [&write, &[]], 1, 2),
        mix("reader-and-writer-each", [&write, &read], [&write, &read], 1, 1),
        mix("readers-and-a-writer", [&read, &read], [&read, &write], 2, 1),
        mix("tries", [&write, &try_read], [&read, &try_write], 1, 1),
        mix("cancel", [&write, &[]], [&read, &write], 1, 1)
            .params(QpParams { slots: 2, clients: 3, ..budget(1) })
            .cancellable(),
    ]
}

/// A writer of each side, readers on both.
pub(crate) fn reader_of_the_other_side() -> Case<QpParams> {
    Case::new("local-writer-remote-reader")
        .params(QpParams { clients: 2, ..budget(1) })
        .space(Space::of(1).over(2))
        .clients(1, &[Want::exclusive(0)])
        .at_home(HERE)
        .clients(1, &[Want::shared(0)])
        .at_home(ELSEWHERE)
        .weak_scope()
        .tokens()
}

/// A turn ends by a pass with an empty budget, and the other side has the lock before it goes on.
pub(crate) fn turn_that_ends_in_a_queue() -> Case<QpParams> {
    Clients::new(2, 1, 0).case("writers", budget(1), &[Want::exclusive(0)], 1).tokens()
}

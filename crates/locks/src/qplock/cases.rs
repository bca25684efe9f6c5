//! What the explorer runs for the asymmetric lock. Every case has weak scope: a remote read-modify-write is a read and
//! a later write to the clients at home on the node.
//!
//! The properties of the appendix: mutual exclusion is always checked; deadlock, livelock and (with finitely many
//! rounds) starvation are what "everybody can finish" rules out; fairness is a bound on how often somebody is
//! overtaken.

use super::QpParams;
use crate::case::Case;
use crate::protocol::{Patience, Space, Want};
use lockwright_fabric::NodeId;

/// Where the lock is, and so its local clients.
const HERE: NodeId = NodeId(0);
/// Another node with memory: clients at home there are remote to the lock and have their descriptors there.
const ELSEWHERE: NodeId = NodeId(1);

/// Who takes part.
#[derive(Clone, Copy)]
pub(super) struct Cast {
    pub(super) locals: usize,
    /// Remote clients with a descriptor in memory.
    pub(super) remotes: usize,
    /// Remote clients at home nowhere.
    pub(super) homeless: usize,
}

impl Cast {
    pub(super) const fn new(locals: usize, remotes: usize, homeless: usize) -> Self {
        Self { locals, remotes, homeless }
    }

    /// A case in which everybody does `wants`, `rounds` times.
    pub(super) fn play(
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
pub(super) const fn budget(budget: u16) -> QpParams {
    QpParams { budget, clients: 0, slots: 1, swap: false }
}

/// As [`budget`], enqueueing with one verb: then the order of the queue is the order of the first verbs, and bounds on
/// overtaking can be exact.
pub(super) const fn queueing(budget: u16) -> QpParams {
    QpParams { swap: true, ..self::budget(budget) }
}

/// Cases of the mutex.
pub(super) fn mutex() -> Vec<Case<QpParams>> {
    let want = [Want::exclusive(0)];
    let tries = [want[0].with(Patience::Try)];
    vec![
        Cast::new(1, 1, 0).play("one-each", budget(1), &want, 3),
        Cast::new(2, 1, 0).play("two-local-one-remote", budget(1), &want, 2),
        Cast::new(1, 2, 0).play("one-local-two-remote", budget(2), &want, 2),
        Cast::new(2, 2, 0).play("two-each-budget-1", budget(1), &want, 1),
        Cast::new(2, 2, 0).play("two-each-budget-2", budget(2), &want, 1),
        Cast::new(2, 2, 0).play("two-each-budget-3", budget(3), &want, 1),
        Cast::new(1, 0, 2).play("remote-by-mailbox", budget(1), &want, 2),
        Cast::new(1, 1, 1).play("memory-and-mailbox", budget(1), &want, 2),
        Cast::new(1, 1, 0).play("tries", budget(1), &want, 2).clients(1, &tries).at_home(HERE),
    ]
}

/// Cases of the reader-writer lock.
pub(super) fn extended() -> Vec<Case<QpParams>> {
    let write = [Want::exclusive(0)];
    vec![Cast::new(1, 1, 0).play("one-each", budget(1), &write, 2).tokens()]
}

//! FARLock: its cases and mutants. Every case has weak scope: a remote read-modify-write is a read and a later write to the
//! clients at home on the node.

use crate::{Case, Proof, Visitor};
use lockwright_baselines::farlock::{FarLock, FarParams, Rules};
use lockwright_fabric::NodeId;
use lockwright_locks::{Space, Want};

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<FarLock>();
    visit_mutants(visitor);
}

/// The lock's node, and another.
const HERE: NodeId = NodeId(0);
const ELSEWHERE: NodeId = NodeId(1);

/// So many clients of each side, all of which want one lock `rounds` times.
fn sides(name: &'static str, locals: usize, remotes: usize, rounds: usize) -> Case<FarParams> {
    let want = [Want::exclusive(0)];
    Case::new(name)
        .params(params(locals + remotes))
        .space(Space::of(1).over(2))
        .clients(locals, &want)
        .at_home(HERE)
        .clients(remotes, &want)
        .at_home(ELSEWHERE)
        .rounds(rounds)
        .weak_scope()
}

fn params(clients: usize) -> FarParams {
    FarParams { clients: clients as u32, ..FarParams::default() }
}

/// A crowd of two at `crowd` that comes again, and one of the other side. Counted from when a client asks for its ticket, each of
/// the others passes it once at most: one that comes again has a later ticket.
fn strict(name: &'static str, crowd: NodeId, rounds: usize) -> Case<FarParams> {
    let want = [Want::exclusive(0)];
    let one = if crowd == HERE { ELSEWHERE } else { HERE };
    Case::new(name)
        .params(FarParams { waits_from_draw: true, ..params(3) })
        .space(Space::of(1).over(2))
        .clients(2, &want)
        .at_home(crowd)
        .rounds(rounds)
        .clients(1, &want)
        .at_home(one)
        .weak_scope()
        .bypass(2)
}

impl<R: Rules> Proof for FarLock<R> {
    fn cases() -> Vec<Case<FarParams>> {
        let both = [Want::exclusive(0)];
        vec![
            sides("one-each", 1, 1, 3),
            sides("two-local", 2, 1, 1),
            sides("two-remote", 1, 2, 1),
            sides("three-local", 3, 0, 1),
            sides("one-each-in-order", 1, 1, 3)
                .params(FarParams { waits_from_draw: true, ..params(2) })
                .bypass(1),
            strict("two-local-in-order", HERE, 2),
            strict("two-remote-in-order", ELSEWHERE, 2),
            // Clients at home nowhere have their descriptors on node 0.
            Case::new("homeless").params(params(2)).clients(2, &both).rounds(2).weak_scope(),
            sides("crash", 1, 1, 1).crashes(1).may_hang(),
        ]
    }
}

crate::mutants! { FarLock: Rules, FarParams, &'static str;
    mutant DrawsTogether = "farlock-draws-together", "farlock", Exclusion, { EXCLUDES_OTHER_SIDE: false },
        "both sides count the next ticket up at once, and draw the same one";
    mutant StartsOver = "farlock-starts-over", "farlock", Bypass, { STAYS: false },
        "a client that finds the other side drawing takes its flag back and starts over";
    mutant DrawsOutOfOrder = "farlock-draws-out-of-order", "farlock", Exclusion, { DRAWS_IN_ORDER: false },
        "a client draws its ticket before its predecessor has one, so that two of a side are in Peterson's lock";
    mutant IgnoresTicket = "farlock-ignores-ticket", "farlock", Exclusion, { MINDS_TICKET: false },
        "the head of a queue enters although the ticket of the other side's is the current one";
    mutant LeavesEarly = "farlock-leaves-early", "farlock", Deadlock, { WAITS_FOR_SUCCESSOR: false },
        "a client uses its descriptor again while its successor still looks for the ticket in it";
}

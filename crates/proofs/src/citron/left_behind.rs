//! Citron where clients have died before the others come: one in a leaf, one in the queue of the node above it. So those who clean
//! up after them can be stopped in the midst of it, and others clean up meanwhile.

use super::cases::{INNER, LEAF, case, sleeping, small};
use crate::{Case, Proof, Visitor};
use lockwright_fabric::{Addr, Endpoint, Needs, NodeId};
use lockwright_locks::citron::{Citron, Params, Rules, Shipped};
use lockwright_locks::{Info, Protocol, Space};
use std::marker::PhantomData;

/// See the module.
#[derive(Debug)]
pub(crate) struct LeftBehind<R>(PhantomData<R>);

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.model::<LeftBehind<Shipped>>();
    visit_mutants(visitor);
}

crate::mutants! { LeftBehind: Rules, Params, &'static str;
    mutant TakesWhatMoves = "citron-takes-what-moves", "citron-left-behind", Exclusion, { TAKING_AWAY_STOPS: false },
        "a client that was stopped while it took tickets away takes those away that have come since",
        cases();
}

impl Proof for LeftBehind<Shipped> {
    fn cases() -> Vec<Case<Params>> {
        cases()
    }
}

/// A request for the leaf, and one for the node above it; one of them is stopped until the other has taken away what it left.
fn cases() -> Vec<Case<Params>> {
    let case = case("stopped-at-the-leaf-or-above", small(1)).space(Space::of(1).units(4));
    let mut case = sleeping(case).clients(1, &[LEAF]).clients(1, &[INNER]);
    // What nobody has come across is there in the end.
    case.checks.quiet = false;
    vec![case]
}

impl<R: Rules> Protocol for LeftBehind<R> {
    type Params = Params;
    type Client<E: Endpoint> = <Citron<R> as Protocol>::Client<E>;

    const INFO: Info = Info {
        name: if R::TAKING_AWAY_STOPS { "citron-left-behind" } else { R::NAME },
        summary: "Citron after clients have died in it",
        ..<Citron<R> as Protocol>::INFO
    };

    fn needs(params: &Params) -> Needs {
        Citron::<R>::needs(params)
    }

    fn bytes_per_node(space: &Space, params: &Params) -> u64 {
        Citron::<R>::bytes_per_node(space, params)
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &Params) -> Self::Client<E> {
        Citron::<R>::client(ep, space, params)
    }

    /// A tree of two levels: the era, the root, the leaves.
    fn initial_memory(_: &Space, _: &Params) -> Vec<(Addr, u64)> {
        const TICKET: u64 = 1 << 26;
        const TAKEN: u64 = 1;
        let word = |at: u64| Addr::new(NodeId(0), 8 * at);
        vec![(word(1), TICKET), (word(2), TAKEN)]
    }
}

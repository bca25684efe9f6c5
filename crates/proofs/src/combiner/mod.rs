//! Cases and mutants of the combiner, as shipped and in the variants of the thesis.

mod cases;
mod mutants;
mod semaphores;

use crate::{Case, Proof, Visitor};
use lockwright_locks::combiner::{Combiner, IntervalTree, Params, PollFlag, PollRpc, Semaphore};

/// Shows the protocols and their mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<Combiner>();
    visitor.protocol::<Combiner<PollRpc>>();
    visitor.protocol::<Combiner<PollFlag>>();
    visitor.protocol::<Combiner<IntervalTree>>();
    visitor.model::<Combiner<Semaphore>>();
    visitor.model::<Combiner<semaphores::Polled>>();
    mutants::visit(visitor);
}

impl Proof for Combiner {
    fn cases() -> Vec<Case<Params>> {
        cases::pushed()
    }
}

impl Proof for Combiner<PollRpc> {
    fn cases() -> Vec<Case<Params>> {
        let mut cases = cases::polled(&Params::default());
        cases.extend([cases::fairness(), cases::fair_queue()]);
        cases
    }
}

impl Proof for Combiner<IntervalTree> {
    fn cases() -> Vec<Case<Params>> {
        cases::polled(&Params::default())
    }
}

impl Proof for Combiner<Semaphore> {
    fn cases() -> Vec<Case<Params>> {
        semaphores::cases()
    }
}

impl Proof for Combiner<semaphores::Polled> {
    fn cases() -> Vec<Case<Params>> {
        vec![semaphores::fairness()]
    }
}

impl Proof for Combiner<PollFlag> {
    fn cases() -> Vec<Case<Params>> {
        let few = |padded| Params { flag_clients: 3, flags_each: 2, padded, ..Params::default() };
        let mut cases = cases::polled(&few(false));
        cases.push(cases::padded(&few(true)));
        cases
    }
}

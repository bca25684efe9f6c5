//! Cases and mutants of the baselines, one file each.

pub(crate) mod cas;
pub(crate) mod cas_backoff;
pub(crate) mod declock;
pub(crate) mod drtm;
pub(crate) mod dslr;
pub(crate) mod farlock;
pub(crate) mod filter;
pub(crate) mod lld;
pub(crate) mod mcs;
pub(crate) mod rma_rw;
pub(crate) mod rpc;
pub(crate) mod served;
pub(crate) mod srvlock;
pub(crate) mod ss;

use crate::Visitor;

/// Shows every baseline, each followed by its mutants, to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    cas::visit(visitor);
    cas_backoff::visit(visitor);
    mcs::visit(visitor);
    dslr::visit(visitor);
    drtm::visit(visitor);
    declock::visit(visitor);
    rma_rw::visit(visitor);
    rpc::visit(visitor);
    filter::visit(visitor);
    farlock::visit(visitor);
    ss::visit(visitor);
    lld::visit(visitor);
    served::visit(visitor);
    srvlock::visit(visitor);
}

//! CAS with backoff: the same cases as CAS.

use super::cas::spin_cases;
use crate::{Case, Proof, Visitor};
use lockwright_baselines::cas_backoff::{Backoff, CasBackoff};

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<CasBackoff>();
}

impl Proof for CasBackoff {
    fn cases() -> Vec<Case<Backoff>> {
        spin_cases()
    }
}

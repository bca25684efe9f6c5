//! What somebody waits for, without its type: where waiters of all kinds are kept together.

use crate::addr::{Addr, Width};
use crate::wait::Cond;

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend) struct Sought {
    pub(in crate::backend) addr: Addr,
    pub(in crate::backend) width: Width,
    pub(in crate::backend) cond: Cond,
    pub(in crate::backend) or: Option<Cond>,
}

impl Sought {
    /// Whether the wait is over; also if its word is out of reach. `look` reads a word.
    pub(in crate::backend) fn is_over(&self, look: impl FnOnce(Addr, Width) -> Option<u128>) -> bool {
        look(self.addr, self.width)
            .is_none_or(|word| self.cond.holds(word) || self.or.is_some_and(|or| or.holds(word)))
    }
}

//! What the explorer runs for ShiftLock.

use super::ShiftParams;
use crate::case::{Case, Timeouts};
use crate::protocol::{Patience, Want};

const WRITE: Want = Want::exclusive(0);
const READ: Want = Want::shared(0);

fn params(threshold: u32) -> ShiftParams {
    ShiftParams { threshold, ..ShiftParams::default() }
}

/// `writers` and `readers` with a change of mode after `threshold` writers.
pub(super) fn mixed(name: &'static str, writers: usize, readers: usize, threshold: u32) -> Case<ShiftParams> {
    Case::new(name).params(params(threshold)).clients(writers, &[WRITE]).clients(readers, &[READ]).tokens()
}

/// All of them.
pub(super) fn all() -> Vec<Case<ShiftParams>> {
    vec![
        mixed("two-two", 2, 2, 1),
        mixed("three-writers-one-reader", 3, 1, 1),
        mixed("three-writers-one-reader-two", 3, 1, 2),
        mixed("tries", 1, 1, 1)
            .clients(1, &[WRITE.with(Patience::Try)])
            .clients(1, &[READ.with(Patience::Try)]),
        mixed("crash", 2, 1, 1).crashes(1).timeouts(Timeouts::WhenStuck),
    ]
}

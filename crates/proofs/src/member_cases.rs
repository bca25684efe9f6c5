//! What the cases of protocols with membership have in common: when waiters look after the dead, and users give up.

use crate::Case;
use lockwright_fabric::Time;
use lockwright_locks::{Patience, Want};
use lockwright_sim::case::Timeouts;

/// After which a waiter looks after the dead.
pub(crate) const PATIENCE_NS: u64 = 1_000_000;
/// When users give up.
const SOON: Time = Time(1);

/// Its user gives up.
pub(crate) const fn soon(want: Want) -> Want {
    want.with(Patience::Until(SOON))
}

/// One client is killed.
pub(crate) fn killed<P>(case: Case<P>) -> Case<P> {
    case.crashes(1)
}

/// Waiters look after the dead at any moment, and as often as they like.
pub(crate) fn hasty<P>(case: Case<P>) -> Case<P> {
    case.timeouts(Timeouts::AnyUntil(Time(PATIENCE_NS)))
}

/// Users' timeouts come at any moment; who looks after the dead waits until nothing moves.
pub(crate) fn gives_up<P>(case: Case<P>) -> Case<P> {
    case.timeouts(Timeouts::AnyUntil(SOON))
}

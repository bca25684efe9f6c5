//! Observations: what a client reports to checkers and recorders. No lock depends on them.

use std::fmt;

/// How a lock is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Mode {
    /// By one holder.
    Exclusive,
    /// By any number of shared holders.
    Shared,
}

/// What a client acquires: a lock, a mode, and its units `start..end`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Claim {
    /// The lock.
    pub lock: u64,
    /// The mode.
    pub mode: Mode,
    /// First unit.
    pub start: u64,
    /// One past the last unit.
    pub end: u64,
}

impl Claim {
    /// Whether two clients may not hold these at the same time.
    pub const fn conflicts(&self, other: &Claim) -> bool {
        self.lock == other.lock
            && (matches!(self.mode, Mode::Exclusive) || matches!(other.mode, Mode::Exclusive))
            && self.start < other.end
            && other.start < self.end
    }
}

impl fmt::Display for Claim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            Mode::Exclusive => "x",
            Mode::Shared => "s",
        };
        write!(f, "L{}{mode}", self.lock)?;
        if (self.start, self.end) == (0, u64::MAX) {
            Ok(())
        } else {
            write!(f, "[{}..{})", self.start, self.end)
        }
    }
}

/// What a client does with a claim.
///
/// The tag has a byte of its own, so that the claim has the same offset in all variants.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Observation {
    /// It starts to acquire. It counts as waiting once its first verb or message took effect.
    Waiting(Claim),
    /// It holds the claim, with this fencing token if the protocol has tokens.
    Granted(Claim, Option<u64>),
    /// It starts to release. It counts as holding until the release's first verb or message takes effect.
    Releasing(Claim),
    /// It no longer waits: denied, timed out, or cancelled.
    GaveUp(Claim),
    /// It knows that its grant is void: its lease ran out and other clients may hold the lock.
    Lost(Claim),
    /// It tried to acquire, failed, and tries again: counted, never checked.
    Retried(Claim),
    /// It undid a half-made acquire and starts over (Citron's aborts): counted, never checked.
    Aborted(Claim),
    /// It reset the lock after another client's crash: counted, never checked.
    Recovered(Claim),
}

impl Observation {
    /// Its claim.
    #[inline]
    pub const fn claim(&self) -> &Claim {
        match self {
            Observation::Waiting(claim)
            | Observation::Granted(claim, _)
            | Observation::Releasing(claim)
            | Observation::GaveUp(claim)
            | Observation::Lost(claim)
            | Observation::Retried(claim)
            | Observation::Aborted(claim)
            | Observation::Recovered(claim) => claim,
        }
    }
}

impl fmt::Display for Observation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Observation::Waiting(claim) => write!(f, "wants {claim}"),
            Observation::Granted(claim, None) => write!(f, "HOLDS {claim}"),
            Observation::Granted(claim, Some(token)) => write!(f, "HOLDS {claim} token {token}"),
            Observation::Releasing(claim) => write!(f, "releases {claim}"),
            Observation::GaveUp(claim) => write!(f, "gives up {claim}"),
            Observation::Lost(claim) => write!(f, "learns it lost {claim}"),
            Observation::Retried(claim) => write!(f, "retries {claim}"),
            Observation::Aborted(claim) => write!(f, "aborts {claim}"),
            Observation::Recovered(claim) => write!(f, "recovers {claim}"),
        }
    }
}

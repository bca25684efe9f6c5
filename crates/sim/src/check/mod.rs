//! Checkers that know nothing of protocols: they see what clients say they do with their claims, and object.
//!
//! [`Watch`] holds them all. The simulator feeds it as things happen; the explorer keeps it as part of every
//! state, which is why it is small, comparable and hashable; a [`history`] merged from what real processes noted is
//! replayed through it afterwards.

use crate::case::Checks;
use lockwright_fabric::PeerId;
use lockwright_fabric::observe::{Claim, Observation};
use std::fmt;

mod bypass;
mod checker;
mod exclusion;
pub mod history;
mod tokens;

pub use bypass::Bypass;
pub use checker::Checker;
pub use exclusion::Exclusion;
pub use tokens::Tokens;

/// What a checker objects to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Violation {
    /// Which checker.
    pub checker: Checker,
    /// What it saw, in one line.
    pub what: String,
}

impl Violation {
    /// An objection of `checker`.
    pub fn new(checker: Checker, what: impl Into<String>) -> Self {
        Self { checker, what: what.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.checker.name(), self.what)
    }
}

/// All checkers that follow what clients do.
///
/// ```
/// use lockwright_fabric::{PeerId, observe::*};
/// use lockwright_locks::Want;
/// use lockwright_sim::case::Checks;
/// use lockwright_sim::check::Watch;
///
/// let checks = Checks { finish: true, quiet: true, tokens: false, permits: false, bypass: None };
/// let mut watch = Watch::new(checks);
/// let claim = Want::exclusive(0).claim;
/// watch.on(PeerId::client(0), Observation::Granted(claim, None)).unwrap();
/// let violation = watch.on(PeerId::client(1), Observation::Granted(claim, None)).unwrap_err();
/// assert_eq!(violation.to_string(), "mutual exclusion: C1 was granted L0x while C0 holds L0x");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Watch {
    exclusion: Exclusion,
    tokens: Option<Tokens>,
    bypass: Option<Bypass>,
}

impl Watch {
    /// The checkers that `checks` asks for, and mutual exclusion.
    pub fn new(checks: Checks) -> Self {
        Self {
            exclusion: Exclusion::new(checks.permits),
            tokens: checks.tokens.then(Tokens::default),
            bypass: checks.bypass.map(Bypass::new),
        }
    }

    /// Takes note of what `client` did.
    ///
    /// # Errors
    /// What a checker objects to.
    pub fn on(&mut self, client: PeerId, what: Observation) -> Result<(), Violation> {
        if let Some(bypass) = &mut self.bypass {
            bypass.on(client, what)?;
        }
        if let Some(tokens) = &mut self.tokens {
            tokens.on(client, what)?;
        }
        self.exclusion.on(client, what)
    }

    /// `client` is gone: it holds and wants nothing any more, as far as a lease can tell.
    pub fn forget(&mut self, client: PeerId) {
        self.exclusion.forget(client);
        if let Some(bypass) = &mut self.bypass {
            bypass.forget(client);
        }
    }

    /// `client` waits for nothing any more, but keeps what it holds: a crash that no other client knows of.
    pub fn forget_waiting(&mut self, client: PeerId) {
        if let Some(bypass) = &mut self.bypass {
            bypass.forget(client);
        }
    }

    /// Whether no client holds `lock` or, if that is watched, waits for it.
    pub fn is_idle(&self, lock: u64) -> bool {
        !self.exclusion.is_held(lock) && !self.bypass.as_ref().is_some_and(|bypass| bypass.is_wanted(lock))
    }

    /// Who holds what.
    pub fn holders(&self) -> impl Iterator<Item = (PeerId, Claim)> + '_ {
        self.exclusion.holders()
    }

    /// The most often a client was overtaken so far, if that is watched.
    pub fn longest_bypass(&self) -> Option<u32> {
        self.bypass.as_ref().map(Bypass::longest)
    }
}

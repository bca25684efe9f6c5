//! Spans of waits and holds, for traces: with the feature `tracing`. Without it they are nothing, and cost nothing.

use super::core::Core;
use lockwright_fabric::observe::{Claim, Mode};

/// A span that is open for as long as this lives.
#[derive(Debug)]
pub(super) struct Span {
    #[cfg(feature = "tracing")]
    _open: tracing::Span,
}

impl Span {
    /// A caller waits for the lock.
    #[inline(always)]
    pub(super) fn wait(core: &Core, claim: &Claim) -> Self {
        let _ = (core, claim);
        Self {
            #[cfg(feature = "tracing")]
            _open: tracing::info_span!(target: "lockwright", "lock.wait", lock = %core.name, mode = mode(claim)),
        }
    }

    /// A caller holds the lock.
    #[inline(always)]
    pub(super) fn hold(core: &Core, claim: &Claim, token: impl FnOnce() -> u64) -> Self {
        let _ = (core, claim, &token);
        Self {
            #[cfg(feature = "tracing")]
            _open: tracing::info_span!(
                target: "lockwright",
                "lock.hold",
                lock = %core.name,
                mode = mode(claim),
                token = token()
            ),
        }
    }
}

#[cfg_attr(not(feature = "tracing"), expect(dead_code, reason = "only spans name it"))]
const fn mode(claim: &Claim) -> &'static str {
    match claim.mode {
        Mode::Shared => "shared",
        Mode::Exclusive => "exclusive",
    }
}

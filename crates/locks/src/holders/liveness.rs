//! Evicting a client that may only have been asleep, and waking up in time: one word on which both sides agree.
//!
//! | bits | holds |
//! |---|---|
//! | 0–1 | 0: alive; 1: suspected; 2: evicted, for good |
//! | 2– | when it was last suspected; rises with every suspicion |
//!
//! | who | step | |
//! |---|---|---|
//! | another client | finds the client silent, and swaps *alive* for *suspected* | or finds it suspected by a third one |
//! | another client | finds it still silent, *since it was suspected*, and swaps exactly this suspicion for *evicted* | |
//! | the client | reads the word after the verb that grants it a lock | *alive*: the lock is its |
//! | the client | swaps *suspected* for *alive* | the same; *evicted*: it is not |
//!
//! A client that reads *alive* has its lock before it is suspected. If it loses the lock nevertheless, it has been silent all
//! the while from then on, with the lock in its hands: that is what a lease is about. A client that was asleep until a moment
//! ago reads *suspected*, and its swap and the evicting client's are on the same word.
//!
//! So a grant costs one load, and no heartbeat has to be written for it: those who evict wait instead, who have time.

use lockwright_fabric::{Endpoint, FabricError, Time, Word64};

/// The liveness word of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Liveness(pub u64);

const SUSPECTED: u64 = 1;
const EVICTED: u64 = 2;
const WHEN_SHIFT: u32 = 2;

impl Liveness {
    /// Whether nobody suspects it.
    #[inline(always)]
    pub const fn is_alive(self) -> bool {
        self.0 & (SUSPECTED | EVICTED) == 0
    }

    /// Whether it was evicted.
    #[inline(always)]
    pub const fn is_evicted(self) -> bool {
        self.0 & EVICTED != 0
    }

    /// When it was last suspected.
    pub const fn when(self) -> Time {
        Time(self.0 >> WHEN_SHIFT)
    }

    /// The word of the next client that has the slot: alive, and no suspicion of the last one comes back.
    #[must_use]
    pub const fn renewed(self) -> Self {
        Self((self.0 | SUSPECTED | EVICTED).wrapping_add(1))
    }

    fn suspected(self, now: Time) -> Self {
        Self(self.renewed().0.max(now.0 << WHEN_SHIFT) | SUSPECTED)
    }

    const fn cleared(self) -> Self {
        Self(self.0 & !SUSPECTED)
    }

    const fn evicted(self) -> Self {
        Self(self.0 & !SUSPECTED | EVICTED)
    }
}

/// What a client does that has found `seen` in `word`, its own liveness, after it was granted a lock or wrote a heartbeat.
///
/// # Errors
/// [`FabricError::Evicted`] if it was evicted.
pub async fn refute<E: Endpoint>(ep: &E, word: Word64, mut seen: Liveness) -> Result<(), FabricError> {
    while !seen.is_alive() {
        if seen.is_evicted() {
            return Err(FabricError::Evicted);
        }
        let found = Liveness(ep.go(word.cas(seen.0, seen.cleared().0)).await?);
        if found == seen {
            return Ok(());
        }
        ep.mark("holders: suspected again", &[found.0]);
        seen = found;
    }
    Ok(())
}

/// Whether a client is evicted. One that is `silent` is suspected, and if it is silent still, having been suspected at the time
/// that is given, it is evicted.
///
/// # Errors
/// If the memory cannot be reached, or the calling client was evicted itself.
pub async fn evict<E: Endpoint>(
    ep: &E,
    word: Word64,
    silent: impl AsyncFn(Option<Time>) -> bool,
) -> Result<bool, FabricError> {
    let mut seen = Liveness(ep.go(word.read()).await?);
    if seen.is_alive() {
        if !silent(None).await {
            return Ok(false);
        }
        let suspected = seen.suspected(ep.now().await);
        let found = Liveness(ep.go(word.cas(seen.0, suspected.0)).await?);
        seen = if found == seen { suspected } else { found };
    }
    // Alive: another client suspected it meanwhile, and it refuted that.
    if seen.is_alive() || seen.is_evicted() || !silent(Some(seen.when())).await {
        return Ok(seen.is_evicted());
    }
    let found = Liveness(ep.go(word.cas(seen.0, seen.evicted().0)).await?);
    Ok(found == seen || found.is_evicted())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_suspicion_that_is_raised_again_is_another_one() {
        let first = Liveness(0).suspected(Time(5));
        let second = first.cleared().suspected(Time(5));
        assert!(first != second && !first.is_alive() && !first.is_evicted());
        assert!(second.cleared().is_alive() && second.evicted().is_evicted());
        assert_eq!((first.when(), second.when()), (Time(5), Time(6)));
        assert!(
            second.evicted().renewed().is_alive() && second.evicted().renewed().suspected(Time(5)) != second
        );
    }
}

//! Declaring somebody dead who may only have been asleep, and waking up in time: one word on which both sides agree.
//!
//! | bits | holds |
//! |---|---|
//! | 0–1 | 0: it is in; 1: it is accused of being dead; 2: it is out, for good |
//! | 2– | when it was last accused; rises with every accusation |
//!
//! | who | step | |
//! |---|---|---|
//! | accuser | finds the client silent, and swaps *in* for *accused* | or finds it accused by somebody else |
//! | accuser | finds the client still silent, *since it was accused*, and swaps exactly this accusation for *out* | |
//! | client | reads the verdict after the verb that grants it a lock | *in*: the lock is its |
//! | client | swaps *accused* for *in* | the same; *out*: it is not |
//!
//! A client that reads *in* has its lock before it is accused. If it loses the lock nevertheless, it has been silent all the
//! while from then on, with the lock in its hands: that is what a lease is about. A client that was asleep until a moment ago
//! reads *accused*, and its swap and the accuser's are on the same word.
//!
//! So a grant costs one load, and no sign of life has to be written for it: accusers wait instead, who have time.

use lockwright_fabric::{Endpoint, FabricError, Time, Word64};

/// What is said of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Verdict(pub u64);

const ACCUSED: u64 = 1;
const OUT: u64 = 2;
const WHEN_SHIFT: u32 = 2;

impl Verdict {
    /// Whether nothing is said against it.
    #[inline(always)]
    pub const fn is_in(self) -> bool {
        self.0 & (ACCUSED | OUT) == 0
    }

    /// Whether it is out.
    #[inline(always)]
    pub const fn is_out(self) -> bool {
        self.0 & OUT != 0
    }

    /// When it was last accused.
    pub const fn when(self) -> Time {
        Time(self.0 >> WHEN_SHIFT)
    }

    /// The verdict on the next client that has this word: in, and no accusation of the last one comes back.
    #[must_use]
    pub const fn renewed(self) -> Self {
        Self((self.0 | ACCUSED | OUT).wrapping_add(1))
    }

    fn accused(self, now: Time) -> Self {
        Self(self.renewed().0.max(now.0 << WHEN_SHIFT) | ACCUSED)
    }

    const fn cleared(self) -> Self {
        Self(self.0 & !ACCUSED)
    }

    const fn sentenced(self) -> Self {
        Self(self.0 & !ACCUSED | OUT)
    }
}

/// What a client does that has found `seen` in `word`, the verdict on itself, after it was granted a lock or showed life
/// otherwise.
///
/// # Errors
/// [`FabricError::Evicted`] if it is out.
pub async fn defend<E: Endpoint>(ep: &E, word: Word64, mut seen: Verdict) -> Result<(), FabricError> {
    while !seen.is_in() {
        if seen.is_out() {
            return Err(FabricError::Evicted);
        }
        let found = Verdict(ep.go(word.cas(seen.0, seen.cleared().0)).await?);
        if found == seen {
            return Ok(());
        }
        ep.mark("kept: accused again", &[found.0]);
        seen = found;
    }
    Ok(())
}

/// Whether a client is out. One that is `silent` is accused, and if it is silent still, having been accused at the time that
/// is given, it is out from now on.
///
/// # Errors
/// If the memory cannot be reached, or the judge is out itself.
pub async fn judge<E: Endpoint>(
    ep: &E,
    word: Word64,
    silent: impl AsyncFn(Option<Time>) -> bool,
) -> Result<bool, FabricError> {
    let mut seen = Verdict(ep.go(word.read()).await?);
    if seen.is_in() {
        if !silent(None).await {
            return Ok(false);
        }
        let accused = seen.accused(ep.now().await);
        let found = Verdict(ep.go(word.cas(seen.0, accused.0)).await?);
        seen = if found == seen { accused } else { found };
    }
    // In: somebody else accused it meanwhile, and it showed life.
    if seen.is_in() || seen.is_out() || !silent(Some(seen.when())).await {
        return Ok(seen.is_out());
    }
    let found = Verdict(ep.go(word.cas(seen.0, seen.sentenced().0)).await?);
    Ok(found == seen || found.is_out())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_accusation_that_is_made_again_is_another_one() {
        let first = Verdict(0).accused(Time(5));
        let second = first.cleared().accused(Time(5));
        assert!(first != second && !first.is_in() && !first.is_out());
        assert!(second.cleared().is_in() && second.sentenced().is_out());
        assert_eq!((first.when(), second.when()), (Time(5), Time(6)));
        assert!(
            second.sentenced().renewed().is_in() && second.sentenced().renewed().accused(Time(5)) != second
        );
    }
}

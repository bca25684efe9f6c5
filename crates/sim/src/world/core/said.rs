//! What a client said that is not in effect yet. It goes with the verb or message that brings it into effect.
//!
//! Nearly always that is one thing, so one lies here, and a list is only looked at where there are more: an operation
//! and what was said before it are a few cache lines side by side.

use lockwright_fabric::observe::Observation;

/// Observations in the order in which they were made.
#[derive(Debug, Default)]
pub(crate) struct Said {
    first: Option<Observation>,
    /// Empty where there is no first.
    more: Vec<Observation>,
}

impl Said {
    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    #[inline]
    pub(super) fn push(&mut self, what: Observation) {
        if self.first.is_none() {
            self.first = Some(what);
        } else {
            self.more.push(what);
        }
    }

    /// Takes over all that `others` has; there is nothing here yet.
    #[inline]
    pub(super) fn take_from(&mut self, others: &mut Said) {
        debug_assert!(self.is_empty(), "what was said before has taken effect");
        if others.first.is_some() {
            self.first = others.first.take();
            if !others.more.is_empty() {
                std::mem::swap(&mut self.more, &mut others.more);
            }
        }
    }

    /// Takes out the first. Whoever does takes the others too.
    #[inline]
    pub(super) fn take_first(&mut self) -> Option<Observation> {
        self.first.take()
    }

    /// Takes out what is left after the first, if anything is.
    #[inline]
    pub(super) fn take_more(&mut self) -> Option<Vec<Observation>> {
        if self.more.is_empty() { None } else { Some(std::mem::take(&mut self.more)) }
    }

    #[inline]
    pub(super) fn clear(&mut self) {
        self.first = None;
        self.more.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright_locks::Want;

    #[test]
    fn what_was_said_goes_on_in_order_and_leaves_nothing_behind() {
        let claim = |lock| Want::exclusive(lock).claim;
        let (mut client, mut verb) = (Said::default(), Said::default());
        for lock in 0..3 {
            client.push(Observation::Waiting(claim(lock)));
        }
        verb.take_from(&mut client);
        assert!(client.is_empty() && client.take_first().is_none() && client.take_more().is_none());
        assert_eq!(verb.take_first(), Some(Observation::Waiting(claim(0))));
        assert_eq!(verb.take_more().unwrap(), [1, 2].map(|lock| Observation::Waiting(claim(lock))));
        assert!(verb.is_empty());
    }
}

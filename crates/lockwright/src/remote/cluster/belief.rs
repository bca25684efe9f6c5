//! Whether what the owner of a shard says counts: only while it is known to be certain that it is the owner.
//!
//! A server that was paused may grant a lock after another one has taken its shard over. So answers that grant something are kept
//! back here until a probe was answered that was sent not too long ago. See `lockwright_cluster::certainty`.

use crate::wire::{Request, Response};
use lockwright_cluster::Belief;
use lockwright_fabric::backend::since_boot;
use std::time::Duration;

/// A probe that was not answered for so long is sent again.
const UNANSWERED: Duration = Duration::from_millis(500);

/// What is known of the owner's certainty.
#[derive(Debug)]
pub(crate) struct ShardBelief {
    /// One that goes on while the machine is suspended, as the server's does.
    clock: fn() -> Duration,
    belief: Belief,
    /// When the last probe was sent, if it was not answered.
    probed: Option<Duration>,
    /// The longest certainty that was heard of.
    longest: Duration,
    /// Answers that do not count yet, in order; with each how far the server got.
    kept_back: Vec<(u64, Response)>,
}

impl ShardBelief {
    pub(crate) fn new() -> Self {
        Self::by(since_boot)
    }

    /// By another clock.
    fn by(clock: fn() -> Duration) -> Self {
        let (belief, longest) = (Belief::default(), Duration::ZERO);
        Self { clock, belief, probed: None, longest, kept_back: Vec::new() }
    }

    fn now(&self) -> Duration {
        (self.clock)()
    }

    /// A session begins: what an earlier owner said is no reason to believe this one.
    pub(crate) fn begin(&mut self) {
        self.belief.begin();
        self.probed = None;
        self.kept_back.clear();
    }

    pub(crate) fn is_certain(&self) -> bool {
        self.belief.is_certain(self.now())
    }

    /// How long ago any owner was last certain.
    pub(crate) fn uncertain_for(&self) -> Duration {
        self.belief.uncertain_for(self.now())
    }

    /// The probe that is to be sent now, if one is: when a quarter of the certainty is over.
    pub(crate) fn probe(&mut self) -> Option<Request> {
        let now = self.now();
        let is_fresh = self.belief.left(now) > self.longest * 3 / 4;
        let is_asked = self.probed.is_some_and(|sent| now.saturating_sub(sent) < UNANSWERED);
        if is_fresh || is_asked {
            return None;
        }
        self.probed = Some(now);
        Some(Request::Probe { sent: u64::try_from(now.as_nanos()).unwrap_or(u64::MAX) })
    }

    /// Keeps an answer back that does not count yet, and all behind it.
    pub(crate) fn keep_back(&mut self, taken: u64, answer: Response) -> Option<Response> {
        let grants =
            matches!(answer, Response::Granted { .. } | Response::Changed { .. } | Response::Retained { .. });
        if self.kept_back.is_empty() && (!grants || self.is_certain()) {
            return Some(answer);
        }
        self.kept_back.push((taken, answer));
        None
    }

    /// A probe was answered. What counts now, in order.
    pub(crate) fn heard(&mut self, sent: u64, left: u64) -> Vec<(u64, Response)> {
        let left = Duration::from_nanos(left);
        self.probed = None;
        if !left.is_zero() {
            self.longest = self.longest.max(left);
            self.belief.heard(Duration::from_nanos(sent), left);
        }
        if self.is_certain() { std::mem::take(&mut self.kept_back) } else { Vec::new() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const SECOND: u64 = 1_000_000_000;

    fn probe(belief: &mut ShardBelief) -> u64 {
        let Some(Request::Probe { sent }) = belief.probe() else { panic!("a probe is due") };
        sent
    }

    thread_local! {
        static NOW: Cell<Duration> = const { Cell::new(Duration::from_secs(100)) };
    }

    #[test]
    fn a_grant_that_was_on_its_way_while_the_machine_was_suspended_does_not_count() {
        let suspended_for = |secs| NOW.set(NOW.get() + Duration::from_secs(secs));
        let mut belief = ShardBelief::by(|| NOW.get());
        let sent = probe(&mut belief);
        assert_eq!(belief.heard(sent, 2 * SECOND), []);
        let grant = Response::Granted { id: 1, token: 5 };
        assert!(belief.is_certain());
        suspended_for(3600);
        assert_eq!(belief.keep_back(1, grant), None, "its server may have lost the shard");
        assert!(belief.uncertain_for() > Duration::from_secs(3500), "and so may its client what it holds");
    }

    #[test]
    fn a_grant_counts_only_once_its_server_is_known_to_be_certain_and_what_is_behind_it_too() {
        let mut belief = ShardBelief::new();
        let (grant, ack) = (Response::Granted { id: 1, token: 5 }, Response::Ack);
        assert_eq!(belief.keep_back(1, ack.clone()), Some(ack.clone()));
        assert_eq!(belief.keep_back(2, grant.clone()), None);
        assert_eq!(belief.keep_back(3, ack.clone()), None);
        let sent = probe(&mut belief);
        assert_eq!(belief.probe(), None, "one is on its way");
        // One that is not certain any more.
        assert_eq!(belief.heard(sent, 0), []);
        let sent = probe(&mut belief);
        assert_eq!(belief.heard(sent, 60 * SECOND), [(2, grant.clone()), (3, ack)]);
        assert_eq!(belief.keep_back(4, grant.clone()), Some(grant.clone()));
        assert_eq!(belief.probe(), None, "it is certain for long");
        belief.begin();
        assert_eq!(belief.keep_back(1, grant), None, "another session");
    }
}

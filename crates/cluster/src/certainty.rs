//! How long a server is certain that it still has its lease, and how long a client may believe it.
//!
//! ```text
//! server   renewal sent ├──────── TTL − margin ────────┤ stops granting
//! etcd            received ├─────────────── TTL ───────────────┤ others may take over
//! client       probe sent ├── what the server said is left − margin ──┤ stops believing
//! server          received ├───────────── left ────────────┤ stops granting
//! ```
//!
//! Everything counts from when something was *sent*: it arrived later, whatever the network did. The margin covers clocks
//! whose rates differ, and nothing else. Times are spans since some moment of the machine's own monotonic clock.

use std::time::Duration;

/// Clock rates differ by at most one part in so many. NTP corrects a clock by 1 in 2,000 at most.
pub const DRIFT: u32 = 64;

/// A span, shortened so that it is over on every clock that differs by at most one part in `drift`.
fn shortened(span: Duration, drift: u32) -> Duration {
    let part = span / drift;
    // Rounded up.
    let part = if part * drift < span { part + Duration::from_nanos(1) } else { part };
    span.saturating_sub(part)
}

/// A server's certainty that its lease in etcd is not over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ownership {
    until: Option<Duration>,
}

impl Ownership {
    /// A renewal that was sent at `sent` has succeeded, for `ttl`.
    pub fn renewed(&mut self, sent: Duration, ttl: Duration) {
        self.renewed_within(sent, ttl, DRIFT);
    }

    /// [`renewed`](Self::renewed), with clocks that differ by one part in `drift`.
    pub fn renewed_within(&mut self, sent: Duration, ttl: Duration, drift: u32) {
        let until = sent + shortened(ttl, drift);
        self.until = self.until.max(Some(until));
    }

    /// The lease is over, or given up.
    pub const fn end(&mut self) {
        self.until = None;
    }

    /// For how long it is certain from `now` on; `None` if it is not.
    pub fn left(&self, now: Duration) -> Option<Duration> {
        self.until?.checked_sub(now).filter(|left| !left.is_zero())
    }

    /// As it looks when times are counted from `now`: what is over is over.
    #[must_use]
    pub fn counted_from(&self, now: Duration) -> Self {
        Self { until: self.left(now) }
    }
}

/// What a client believes of the server that owns a shard.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Belief {
    /// Of this session.
    until: Option<Duration>,
    /// Of this session or of an earlier one: what is held is kept for a lease after that.
    last: Option<Duration>,
}

impl Belief {
    /// A session begins: what earlier ones said is no reason to believe a grant of this one.
    pub const fn begin(&mut self) {
        self.until = None;
    }

    /// A probe that was sent at `sent` was answered: the server was certain for `left` more when it arrived.
    pub fn heard(&mut self, sent: Duration, left: Duration) {
        self.heard_within(sent, left, DRIFT);
    }

    /// [`heard`](Self::heard), with clocks that differ by one part in `drift`.
    pub fn heard_within(&mut self, sent: Duration, left: Duration, drift: u32) {
        let until = sent + shortened(left, drift);
        self.until = self.until.max(Some(until));
        self.last = self.last.max(self.until);
    }

    /// Whether a grant of this session counts at `now`.
    pub fn is_certain(&self, now: Duration) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// For how long a grant of this session counts from `now` on.
    pub fn left(&self, now: Duration) -> Duration {
        self.until.map_or(Duration::ZERO, |until| until.saturating_sub(now))
    }

    /// As it looks when times are counted from `now`, in which what was over for `long` is over for good. The second is how long
    /// it has been over.
    #[must_use]
    pub fn counted_from(&self, now: Duration, long: Duration) -> (Self, Duration) {
        let left = |until: Duration| until.checked_sub(now).filter(|left| !left.is_zero());
        let counted = Self { until: self.until.and_then(left), last: self.last.and_then(left) };
        (counted, self.uncertain_for(now).min(long))
    }

    /// How long ago it was last certain of any session; zero if it is, or never was.
    pub fn uncertain_for(&self, now: Duration) -> Duration {
        self.last.map_or(Duration::ZERO, |last| now.saturating_sub(last))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn a_server_is_certain_from_when_it_sent_the_renewal_and_for_less_than_the_lease() {
        let mut ownership = Ownership::default();
        assert_eq!(ownership.left(S), None);
        ownership.renewed(10 * S, 2 * S);
        let end = 10 * S + 2 * S - 2 * S / DRIFT;
        assert_eq!(ownership.left(11 * S), Some(end - 11 * S));
        assert_eq!(ownership.left(end), None);
    }

    #[test]
    fn an_answer_that_comes_late_takes_nothing_back() {
        let mut ownership = Ownership::default();
        ownership.renewed(10 * S, 2 * S);
        let before = ownership;
        ownership.renewed(9 * S, 2 * S);
        assert_eq!(ownership, before);
    }

    #[test]
    fn a_client_believes_no_longer_than_the_server_is_certain_by_clocks_of_any_allowed_rate() {
        for (client, server) in [(1.0, 1.0), (127.0 / 128.0, 128.0 / 127.0), (128.0 / 127.0, 127.0 / 128.0)] {
            let mut ownership = Ownership::default();
            let ttl = 2.0_f64;
            ownership.renewed(Duration::ZERO, Duration::from_secs_f64(ttl));
            // The probe is sent and received at a true time of one second.
            let left = ownership.left(Duration::from_secs_f64(server)).unwrap();
            let mut belief = Belief::default();
            let sent = Duration::from_secs_f64(client);
            belief.heard(sent, left);
            let over = Duration::from_secs_f64(ttl * client);
            assert!(belief.is_certain(sent) && !belief.is_certain(over), "{client} {server}");
        }
    }

    #[test]
    fn a_new_session_starts_without_belief_but_keeps_what_is_held() {
        let mut belief = Belief::default();
        belief.heard(S, S);
        belief.begin();
        assert!(!belief.is_certain(S));
        assert_eq!(belief.uncertain_for(S), Duration::ZERO);
        assert!(belief.uncertain_for(3 * S) > S);
    }
}

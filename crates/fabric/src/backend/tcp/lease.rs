//! The lease of a client: how long it may believe that it holds its locks, and how long the server keeps them for it.
//!
//! ```text
//! client   sent p ├──── at_client(stop) ────┤ NOTICE ┤── stop ──┤ stopped
//! server     received r ├──────────────── at_server ───────────────┤ given to others
//! ```
//!
//! `p` is when the client sent the last message that the server has answered, so `p ≤ r` whatever the network did. Both
//! lengths are computed here and nowhere else, from the heartbeat and grace period of the server, such that the client has
//! stopped before the server gives anything away, by clocks whose rates differ by at most 1/[`DRIFT`].
//!
//! A session also ends when its client says so, or when the server sees that the client's process has ended. That a connection
//! was closed ends nothing: proxies do that, too, and may do it on one side only.

use std::time::Duration;

/// Heartbeat intervals without a frame after which a connection is given up.
pub(super) const MISSED_HEARTBEATS: u32 = 3;
/// Clock rates differ by at most one part in so many. NTP corrects a clock by 1 in 2,000 at most.
const DRIFT: u32 = 128;
/// From the end of the lease until the client acts on it: clients look at their guards ten times a second.
const NOTICE: Duration = Duration::from_millis(150);
/// A lease of fewer heartbeats would be lost whenever one of them is late.
const HEARTBEATS: u32 = 2;

/// See the module.
///
/// ```
/// use lockwright_fabric::backend::tcp::Lease;
/// use std::time::Duration;
/// let lease = Lease { heartbeat: Duration::from_secs(1), grace: Duration::from_secs(5) };
/// assert_eq!(lease.at_server(), Duration::from_secs(8));
/// assert!(lease.at_client(Duration::from_secs(2)).unwrap() < Duration::from_secs(6));
/// assert_eq!(lease.at_client(Duration::from_secs(7)), None);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lease {
    /// How often an idle client pings.
    pub heartbeat: Duration,
    /// How long a session outlives a connection that went silent.
    pub grace: Duration,
}

impl Lease {
    /// After how much silence the server gives up a connection.
    pub const fn silence(self) -> Duration {
        self.heartbeat.saturating_mul(MISSED_HEARTBEATS)
    }

    /// How long the server keeps the locks of a client from which it receives nothing.
    pub const fn at_server(self) -> Duration {
        self.silence().saturating_add(self.grace)
    }

    /// How long a client that needs `stop` to end its work may believe that it holds its locks, from just before it sent a
    /// message that the server has answered. `None` if that would be less than two heartbeats.
    pub fn at_client(self, stop: Duration) -> Option<Duration> {
        let at_server = self.at_server();
        let certain = at_server.saturating_sub(at_server / DRIFT);
        let lease = certain.checked_sub(NOTICE)?.checked_sub(stop)?;
        (lease >= self.heartbeat.saturating_mul(HEARTBEATS)).then_some(lease)
    }

    /// The time to end its work that a client has if it asked for at most `stop`: no more than a quarter of the lease.
    pub fn stop_at_most(self, stop: Duration) -> Duration {
        stop.min(self.at_server() / 4)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::SplitMix;

    fn all() -> impl Iterator<Item = Lease> {
        let ms = [1, 10, 50, 100, 333, 1_000, 5_000, 30_000, 600_000, 86_400_000];
        ms.into_iter().flat_map(move |heartbeat| {
            ms.into_iter().chain([0]).map(move |grace| Lease {
                heartbeat: Duration::from_millis(heartbeat),
                grace: Duration::from_millis(grace),
            })
        })
    }

    #[test]
    fn a_client_has_stopped_before_the_server_gives_away_whatever_the_lease_and_the_rates_of_clocks() {
        for lease in all() {
            let longest = lease.at_server();
            for stop in (0..=64).map(|part| longest / 64 * part) {
                let Some(at_client) = lease.at_client(stop) else { continue };
                let stopped = (at_client + NOTICE + stop).as_secs_f64();
                // The slowest clock that is allowed, against the fastest.
                let by_server = stopped * (1.0 + 1.0 / f64::from(DRIFT));
                assert!(by_server < longest.as_secs_f64(), "{lease:?}, {stop:?}");
                assert!(at_client >= 2 * lease.heartbeat, "{lease:?}, {stop:?}");
            }
        }
    }

    #[test]
    fn the_usual_leases_leave_time_to_stop() {
        for (heartbeat, grace) in [(1_000, 5_000), (100, 1_000), (100, 700), (50, 400)] {
            let (heartbeat, grace) = (Duration::from_millis(heartbeat), Duration::from_millis(grace));
            let lease = Lease { heartbeat, grace };
            let stop = lease.stop_at_most(Duration::from_secs(5));
            assert!(lease.at_client(stop).is_some(), "{lease:?}");
        }
        let extreme = Lease { heartbeat: Duration::MAX, grace: Duration::MAX };
        assert_eq!((extreme.at_server(), extreme.at_client(Duration::ZERO)), (Duration::MAX, None));
    }

    /// One run: a client that pings and a server that answers, each by its own clock, over a link with delays that is cut at
    /// some time, in each direction. `counts`: whether the lease counts from the sent ping, or from its answer.
    struct Run {
        lease: Lease,
        stop: Duration,
        client_rate: f64,
        server_rate: f64,
        cut_to: f64,
        cut_back: f64,
        counts: Counts,
    }

    #[derive(Clone, Copy, PartialEq)]
    enum Counts {
        FromSent,
        FromAnswer,
    }

    impl Run {
        /// When the client has stopped, and when the server gives away, in true time.
        fn end(&self, next: &mut impl FnMut() -> f64) -> (f64, f64) {
            let heartbeat = self.lease.heartbeat.as_secs_f64();
            let at_client = self.lease.at_client(self.stop).unwrap().as_secs_f64();
            let at_server = self.lease.at_server().as_secs_f64();
            let (mut certain, mut received, mut sent) = (0.0, 0.0, 0.0);
            while sent < self.cut_to.max(self.cut_back) && sent < certain + at_client / self.client_rate {
                let arrives = sent + next() * heartbeat;
                if arrives < self.cut_to {
                    received = arrives;
                    let answered = arrives + next() * heartbeat;
                    if answered < self.cut_back && answered < certain + at_client / self.client_rate {
                        certain = if self.counts == Counts::FromSent { sent } else { answered };
                    }
                }
                sent += heartbeat / self.client_rate;
            }
            let stopped = certain + (at_client + (NOTICE + self.stop).as_secs_f64()) / self.client_rate;
            (stopped, received + at_server / self.server_rate)
        }
    }

    /// Runs in which the client had not stopped when the server gave away, of all.
    fn unsafe_runs(counts: Counts) -> (usize, usize) {
        let mut random = SplitMix::new(20_261_116);
        let mut next = || (random.next() >> 33) as f64 / (1_u64 << 31) as f64;
        let (mut wrong, mut runs) = (0, 0);
        for lease in all().filter(|lease| lease.grace < 1000 * lease.heartbeat) {
            let stop = lease.stop_at_most(Duration::from_secs(5));
            if lease.at_client(stop).is_none() {
                continue;
            }
            for (client_rate, server_rate) in [(1.0, 1.0), (0.9961, 1.0039), (1.0039, 0.9961)] {
                for _ in 0..40 {
                    let [cut_to, cut_back] = [0; 2].map(|_| next() * 3.0 * lease.at_server().as_secs_f64());
                    let run = Run { lease, stop, client_rate, server_rate, cut_to, cut_back, counts };
                    let (stopped, given) = run.end(&mut next);
                    wrong += usize::from(stopped >= given);
                    runs += 1;
                }
            }
        }
        (wrong, runs)
    }

    #[test]
    fn over_links_that_are_cut_and_with_clocks_of_different_rates_nothing_is_held_twice() {
        let (wrong, runs) = unsafe_runs(Counts::FromSent);
        assert_eq!(wrong, 0, "of {runs}");
        assert!(unsafe_runs(Counts::FromAnswer).0 > 0, "a lease that counts from the answer is caught");
    }
}

//! What a server counts, and how Prometheus wants to hear it: base units, `_total` for what only rises, no lock's name.

use std::fmt::Write;
use std::time::Duration;

/// Upper bounds of the histograms' buckets, in microseconds.
const BOUNDS_US: [u64; 10] = [10, 100, 500, 1_000, 5_000, 10_000, 100_000, 1_000_000, 10_000_000, 60_000_000];

/// Times, counted by how long they were.
#[derive(Clone, Debug, Default)]
pub(super) struct Histogram {
    buckets: [u64; BOUNDS_US.len()],
    count: u64,
    sum: Duration,
}

impl Histogram {
    #[inline]
    pub(super) fn add(&mut self, time: Duration) {
        let us = time.as_micros() as u64;
        if let Some(at) = BOUNDS_US.iter().position(|bound| us <= *bound) {
            self.buckets[at] += 1;
        }
        self.count += 1;
        self.sum += time;
    }

    #[cfg(feature = "cluster")]
    fn merge(&mut self, other: &Self) {
        for (count, more) in self.buckets.iter_mut().zip(other.buckets) {
            *count += more;
        }
        self.count += other.count;
        self.sum += other.sum;
    }

    pub(super) fn write(&self, out: &mut String, name: &str, help: &str) {
        let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} histogram");
        let mut below = 0;
        for (bound, count) in BOUNDS_US.iter().zip(self.buckets) {
            below += count;
            let _ = writeln!(out, "{name}_bucket{{le=\"{}\"}} {below}", *bound as f64 / 1e6);
        }
        let _ = writeln!(out, "{name}_bucket{{le=\"+Inf\"}} {}", self.count);
        let _ = writeln!(out, "{name}_sum {}\n{name}_count {}", self.sum.as_secs_f64(), self.count);
    }
}

/// Who holds and who waits now: of one lock, or of all.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Now {
    pub(super) holders: u64,
    pub(super) waiters: u64,
}

impl Now {
    #[inline]
    pub(super) fn asked(&mut self) {
        self.waiters += 1;
    }

    #[inline]
    pub(super) fn granted(&mut self) {
        self.waiters -= 1;
        self.holders += 1;
    }

    /// Held without having been asked for: since an earlier run of the server.
    pub(super) fn claimed(&mut self) {
        self.holders += 1;
    }

    /// A request is over that was held until now, or only waited.
    #[inline]
    pub(super) fn ended(&mut self, was_held: bool) {
        *(if was_held { &mut self.holders } else { &mut self.waiters }) -= 1;
    }
}

/// All counts.
#[derive(Clone, Debug, Default)]
pub(super) struct Totals {
    pub(super) sessions: u64,
    pub(super) sessions_begun: u64,
    pub(super) sessions_lost: u64,
    pub(super) now: Now,
    grants_exclusive: u64,
    grants_shared: u64,
    pub(super) busy: u64,
    pub(super) refused: u64,
    pub(super) lost: u64,
    pub(super) claimed: u64,
    pub(super) broken: u64,
    upgrades: u64,
    pub(super) downgrades: u64,
    pub(super) parts: u64,
    pub(super) exported_grants: u64,
    /// Grants that stay with their clients now; and recalls of such.
    pub(super) retained: u64,
    pub(super) recalls: u64,
    /// Batches of the combiner, and the requests in them.
    pub(super) passes: u64,
    pub(super) messages: u64,
    wait: Histogram,
    pub(super) hold: Histogram,
}

/// Some of them, for the page.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    pub(super) grants: u64,
    pub(super) waits: u64,
    pub(super) waited: Duration,
}

impl Totals {
    #[inline]
    pub(super) fn grant(&mut self, shared: bool, waited: Duration) {
        *(if shared { &mut self.grants_shared } else { &mut self.grants_exclusive }) += 1;
        self.now.granted();
        self.wait.add(waited);
    }

    /// A shared lock has become exclusive, which is a grant; who waited for it is counted elsewhere.
    pub(super) fn upgraded(&mut self, waited: Duration) {
        self.grants_exclusive += 1;
        self.upgrades += 1;
        self.wait.add(waited);
    }

    /// Adds what another table counts.
    #[cfg(feature = "cluster")]
    pub(super) fn add(&mut self, other: &Self) {
        self.sessions += other.sessions;
        self.now.holders += other.now.holders;
        self.now.waiters += other.now.waiters;
        self.retained += other.retained;
        self.add_past(other);
    }

    /// Adds what another table has counted: all but how things are now.
    #[cfg(feature = "cluster")]
    pub(super) fn add_past(&mut self, other: &Self) {
        let Self {
            sessions: _,
            sessions_begun,
            sessions_lost,
            now: _,
            grants_exclusive,
            grants_shared,
            busy,
            refused,
            lost,
            claimed,
            broken,
            upgrades,
            downgrades,
            parts,
            exported_grants,
            retained: _,
            recalls,
            passes,
            messages,
            wait,
            hold,
        } = other;
        for (count, more) in [
            (&mut self.sessions_begun, sessions_begun),
            (&mut self.sessions_lost, sessions_lost),
            (&mut self.grants_exclusive, grants_exclusive),
            (&mut self.grants_shared, grants_shared),
            (&mut self.busy, busy),
            (&mut self.refused, refused),
            (&mut self.lost, lost),
            (&mut self.claimed, claimed),
            (&mut self.broken, broken),
            (&mut self.upgrades, upgrades),
            (&mut self.downgrades, downgrades),
            (&mut self.parts, parts),
            (&mut self.exported_grants, exported_grants),
            (&mut self.recalls, recalls),
            (&mut self.passes, passes),
            (&mut self.messages, messages),
        ] {
            *count += more;
        }
        self.wait.merge(wait);
        self.hold.merge(hold);
    }

    /// What the page shows: grants, those that took a while, and how long altogether.
    pub(super) fn counts(&self) -> Counts {
        let grants = self.grants_exclusive + self.grants_shared;
        Counts { grants, waits: self.wait.count, waited: self.wait.sum }
    }

    /// As Prometheus reads it; `names` and `spaces` are those in use.
    pub(super) fn text(&self, names: usize, spaces: usize, recovering: bool, start: f64) -> String {
        let mut out = String::with_capacity(4096);
        let mut put = |name: &str, kind: &str, help: &str, value: String| {
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{value}");
        };
        let plain = |name: &str, value: u64| format!("{name} {value}");
        for (name, help, value) in [
            (
                "lockwright_sessions",
                "Clients that are connected or within their grace period.",
                self.sessions,
            ),
            (
                "lockwright_locks_held",
                "Grants that are held now, but for those that stay with their clients.",
                self.now.holders - self.retained,
            ),
            ("lockwright_locks_retained", "Grants that stay with their clients now.", self.retained),
            ("lockwright_lock_waiters", "Requests that wait now.", self.now.waiters),
            ("lockwright_names", "Names of locks in use.", names as u64),
            ("lockwright_spaces", "Spaces that live in this server.", spaces as u64),
            ("lockwright_recovering", "1 while claims are heard after a restart.", u64::from(recovering)),
        ] {
            put(name, "gauge", help, plain(name, value));
        }
        let grants = "lockwright_grants_total";
        let modes = format!(
            "{grants}{{mode=\"exclusive\"}} {}\n{grants}{{mode=\"shared\"}} {}",
            self.grants_exclusive, self.grants_shared
        );
        put(grants, "counter", "Locks granted; an upgrade counts as an exclusive one.", modes);
        let changes = "lockwright_changes_total";
        let kinds = format!(
            "{changes}{{change=\"upgrade\"}} {}\n{changes}{{change=\"downgrade\"}} {}\n{changes}{{change=\"part\"}} {}",
            self.upgrades, self.downgrades, self.parts
        );
        put(changes, "counter", "Held locks that were upgraded, downgraded, or given back in part.", kinds);
        for (name, help, value) in [
            ("lockwright_sessions_total", "Sessions begun.", self.sessions_begun),
            ("lockwright_sessions_lost_total", "Sessions that ended without a goodbye.", self.sessions_lost),
            ("lockwright_busy_total", "Tries that found the lock busy.", self.busy),
            ("lockwright_refused_total", "Requests refused as nonsense or too much.", self.refused),
            ("lockwright_broken_total", "Locks broken by administrators.", self.broken),
            (
                "lockwright_recalls_total",
                "Grants that were wanted back from clients they stayed with.",
                self.recalls,
            ),
            ("lockwright_lost_total", "Grants taken away, or claimed in vain.", self.lost),
            (
                "lockwright_exported_grants_total",
                "Locks of shared memory taken for sessions.",
                self.exported_grants,
            ),
            ("lockwright_passes_total", "Times that what waited was served together.", self.passes),
            ("lockwright_messages_total", "Messages of clients that were served.", self.messages),
            ("lockwright_claims_total", "Grants claimed again after a restart.", self.claimed),
        ] {
            put(name, "counter", help, plain(name, value));
        }
        let started = "process_start_time_seconds";
        put(
            started,
            "gauge",
            "When the server was started, in seconds since 1970.",
            format!("{started} {start}"),
        );
        self.wait.write(
            &mut out,
            "lockwright_lock_wait_seconds",
            "From a request to its grant, in the server.",
        );
        self.hold.write(&mut out, "lockwright_lock_hold_seconds", "From a grant to its end.");
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_is_what_prometheus_reads() {
        let mut totals = Totals { now: Now { holders: 0, waiters: 2 }, ..Totals::default() };
        totals.grant(false, Duration::from_micros(7));
        totals.grant(true, Duration::from_secs(100));
        let text = totals.text(3, 1, false, 1.5);
        for line in [
            "lockwright_grants_total{mode=\"exclusive\"} 1",
            "lockwright_lock_wait_seconds_bucket{le=\"0.00001\"} 1",
            "lockwright_lock_wait_seconds_bucket{le=\"60\"} 1",
            "lockwright_lock_wait_seconds_bucket{le=\"+Inf\"} 2",
            "lockwright_lock_wait_seconds_count 2",
            "lockwright_names 3",
        ] {
            assert!(text.lines().any(|found| found == line), "{line} is missing in\n{text}");
        }
        for line in text.lines().filter(|line| line.starts_with("# TYPE") && line.ends_with(" counter")) {
            assert!(line.contains("_total "), "{line}");
        }
    }
}

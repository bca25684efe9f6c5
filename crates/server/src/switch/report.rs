//! How a decider is: as JSON for `switch --status`, and as Prometheus reads it.

use super::core::Counts;
use lockwright::internal::fiss::MACHINES;
use serde_json::json;
use std::fmt::Write;

/// What it is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    Waiting,
    Recovering,
    Open,
}

/// A moment's figures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report<'a> {
    pub(super) phase: Phase,
    /// Where packets are decided.
    pub(super) place: &'a str,
    pub(super) epoch: u32,
    pub(super) clients: usize,
    pub(super) names: usize,
    pub(super) locks: u64,
    /// Of locks, and of what makes packets count once.
    pub(super) register_bits: (u64, u64),
    pub(super) counts: Counts,
}

impl Report<'_> {
    pub(super) fn json(&self) -> String {
        let Counts { received, sent, grants, passed_on, malformed, forged, astray, recoveries } = self.counts;
        let (lock_bits, lane_bits) = self.register_bits;
        json!({
            "state": match self.phase {
                Phase::Waiting => "waiting for the clients of the last run",
                Phase::Open => "open",
                Phase::Recovering => "recovering",
            },
            "by": self.place,
            "epoch": self.epoch,
            "clients": self.clients,
            "max_clients": MACHINES,
            "names": self.names,
            "locks": self.locks,
            "register_bits": { "locks": lock_bits, "lanes": lane_bits },
            "packets": {
                "received": received,
                "sent": sent,
                "grants": grants,
                "passed_on": passed_on,
                "malformed": malformed,
                "forged": forged,
                "astray": astray,
            },
            "recoveries": recoveries,
        })
        .to_string()
    }

    pub(super) fn prometheus(&self) -> String {
        let Counts { received, sent, grants, passed_on, malformed, forged, astray, recoveries } = self.counts;
        let mut out = String::new();
        let mut one = |name: &str, kind: &str, help: &str, value: u64| {
            let name = format!("lockwright_decider_{name}");
            let _ = writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}\n{name} {value}");
        };
        one("open", "gauge", "1 if requests are decided", u64::from(self.phase == Phase::Open));
        one("epoch", "gauge", "The epoch, which rises with every recovery", self.epoch.into());
        one("clients", "gauge", "Clients that have joined", self.clients as u64);
        one("names", "gauge", "Names in use", self.names as u64);
        one("locks", "gauge", "Names that can be in use", self.locks);
        one("packets_received_total", "counter", "Packets received", received);
        one("packets_sent_total", "counter", "Packets sent", sent);
        one("grants_total", "counter", "Grants sent", grants);
        one("packets_passed_on_total", "counter", "Acknowledgements between clients", passed_on);
        one("packets_malformed_total", "counter", "Packets dropped since they are none", malformed);
        one("packets_forged_total", "counter", "Packets dropped for their checksum or sender", forged);
        one(
            "packets_astray_total",
            "counter",
            "Packets dropped that came past the decider in the kernel",
            astray,
        );
        one("recoveries_total", "counter", "Recoveries", recoveries);
        out
    }
}

//! `--fault SPEC`: what goes wrong in a simulated run, one thing per flag.

use lockwright_fabric::{NodeId, PeerId};
use lockwright_sim::fault::{ClientFault, CrashPoint, FaultPlan, Pause};
use lockwright_term::units::{duration_ns, rate};
use std::str::FromStr;

/// What the help says about the flag.
pub(crate) const HELP: &str = "\
Faults (--fault, any number of them):
  crash=3@120:before         client 3 stops for good at its verb 120, before it takes effect (or :after)
  pause=2@50:after:10ms      client 2 stops at its verb 50 for 10 ms and comes back
  crash-rate=1e-5            any verb is its client's last with this chance
  pause-rate=1e-4:1ms        a client pauses at any verb with this chance, for so long
  node-death=0@5ms           memory node 0 is gone from that time on
  restart=8@5ms              role 8 (counted from 0; a switch comes after the nodes) loses its volatile memory then
  loss=0.01 dup=0.01 reorder=0.05    chances for a datagram to be lost, doubled, overtaken (one per flag)
  delay=5us                  datagrams take up to so much longer
  drift=100ppm               clocks run fast or slow by up to so much";

/// One `--fault`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Fault {
    Crash(ClientFault),
    Pause(Pause),
    CrashRate(f64),
    PauseRate(f64, u64),
    NodeDeath(NodeId, u64),
    Restart(usize, u64),
    Loss(f64),
    Duplication(f64),
    Reorder(f64),
    Delay(u64),
    Drift(u32),
}

impl Fault {
    /// Adds this fault to `plan`.
    pub(crate) fn add_to(self, plan: &mut FaultPlan) {
        match self {
            Fault::Crash(fault) => plan.crashes.push(fault),
            Fault::Pause(pause) => plan.pauses.push(pause),
            Fault::CrashRate(rate) => plan.crash_rate = rate,
            Fault::PauseRate(rate, ns) => (plan.pause_rate, plan.pause_ns) = (rate, ns),
            Fault::NodeDeath(node, at) => plan.node_deaths.push((node, at)),
            Fault::Restart(role, at) => plan.restarts.push((role, at)),
            Fault::Loss(rate) => plan.network.loss = rate,
            Fault::Duplication(rate) => plan.network.duplication = rate,
            Fault::Reorder(rate) => plan.network.reorder = rate,
            Fault::Delay(ns) => plan.network.extra_delay_ns = ns,
            Fault::Drift(ppm) => plan.clock_drift_ppm = ppm,
        }
    }
}

impl FromStr for Fault {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some((kind, value)) = text.split_once('=') else {
            return Err(format!("a fault is KIND=VALUE, for example crash=3@120:before; kinds: {KINDS}"));
        };
        match kind {
            "crash" => client_fault(value).map(Fault::Crash),
            "pause" => {
                let (at, ns) =
                    value.rsplit_once(':').ok_or("a pause is CLIENT@VERB:before|after:DURATION")?;
                Ok(Fault::Pause(Pause { at: client_fault(at)?, ns: duration_ns(ns)? }))
            }
            "crash-rate" => rate(value).map(Fault::CrashRate),
            "pause-rate" => {
                let (chance, ns) = value.split_once(':').ok_or("a pause rate is RATE:DURATION")?;
                Ok(Fault::PauseRate(rate(chance)?, duration_ns(ns)?))
            }
            "node-death" => {
                let (node, at) = value.split_once('@').ok_or("a node death is NODE@TIME")?;
                Ok(Fault::NodeDeath(NodeId(number(node, "a node")?), duration_ns(at)?))
            }
            "restart" => {
                let (role, at) = value.split_once('@').ok_or("a restart is ROLE@TIME")?;
                Ok(Fault::Restart(number(role, "a role")?, duration_ns(at)?))
            }
            "loss" => rate(value).map(Fault::Loss),
            "dup" => rate(value).map(Fault::Duplication),
            "reorder" => rate(value).map(Fault::Reorder),
            "delay" => duration_ns(value).map(Fault::Delay),
            "drift" => number(value.strip_suffix("ppm").unwrap_or(value), "a drift in ppm").map(Fault::Drift),
            _ => Err(format!("{kind:?} is no kind of fault; kinds: {KINDS}")),
        }
    }
}

const KINDS: &str =
    "crash, pause, crash-rate, pause-rate, node-death, restart, loss, dup, reorder, delay, drift";

/// `CLIENT@VERB:before` or `CLIENT@VERB:after`.
fn client_fault(text: &str) -> Result<ClientFault, String> {
    let parts = || {
        let (client, rest) = text.split_once('@')?;
        let (verb, when) = rest.split_once(':')?;
        Some((client, verb, when))
    };
    let (client, verb, when) =
        parts().ok_or(format!("{text:?} is not CLIENT@VERB:before or CLIENT@VERB:after"))?;
    let when = match when {
        "before" => CrashPoint::Before,
        "after" => CrashPoint::After,
        _ => return Err(format!("{when:?} is neither before nor after")),
    };
    let client: u16 = number(client, "a client")?;
    Ok(ClientFault { client: PeerId::client(client.into()), verb: number(verb, "a verb")?, when })
}

fn number<T: FromStr>(text: &str, what: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not {what}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(specs: &[&str]) -> FaultPlan {
        let mut plan = FaultPlan::default();
        for spec in specs {
            spec.parse::<Fault>().unwrap().add_to(&mut plan);
        }
        plan
    }

    #[test]
    fn every_kind_finds_its_place_in_the_plan() {
        let plan = plan(&[
            "crash=3@120:before",
            "pause=2@50:after:10ms",
            "crash-rate=1e-5",
            "pause-rate=1e-4:1ms",
            "node-death=1@5ms",
            "restart=2@6ms",
            "loss=0.01",
            "dup=0.02",
            "reorder=0.03",
            "delay=5us",
            "drift=100ppm",
        ]);
        let crash = ClientFault { client: PeerId::client(3), verb: 120, when: CrashPoint::Before };
        let pause = ClientFault { client: PeerId::client(2), verb: 50, when: CrashPoint::After };
        assert_eq!(plan.crashes, [crash]);
        assert_eq!(plan.pauses, [Pause { at: pause, ns: 10_000_000 }]);
        assert_eq!((plan.crash_rate, plan.pause_rate, plan.pause_ns), (1e-5, 1e-4, 1_000_000));
        assert_eq!(plan.node_deaths, [(NodeId(1), 5_000_000)]);
        assert_eq!(plan.restarts, [(2, 6_000_000)]);
        assert_eq!((plan.network.loss, plan.network.duplication, plan.network.reorder), (0.01, 0.02, 0.03));
        assert_eq!((plan.network.extra_delay_ns, plan.clock_drift_ppm), (5_000, 100));
    }

    #[test]
    fn nonsense_is_refused_in_one_line() {
        let nonsense = [
            "",
            "crash",
            "crash=",
            "crash=x@1:before",
            "crash=1@1",
            "crash=1@1:during",
            "pause=1@1:after",
            "loss=2",
            "delay=-1ms",
            "node-death=0",
            "restart=0",
            "drift=fast",
            "meteor=1",
        ];
        for text in nonsense {
            let error = text.parse::<Fault>().unwrap_err();
            assert!(!error.is_empty() && !error.contains('\n'), "{text:?}: {error:?}");
        }
    }
}

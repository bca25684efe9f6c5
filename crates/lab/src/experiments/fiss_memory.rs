//! FissLock §7.2: how many locks fit into a switch. Arithmetic over the very register arrays that the decider runs on.

use super::prelude::*;
use lockwright_locks::fisslock::pipeline::Switch;
use lockwright_locks::fisslock::{Decider, Params, Shipped, pipeline::Preference};

pub(super) const EXPERIMENT: Experiment = Experiment {
    id: "fiss-memory",
    title: "Switch memory per lock",
    source: "FissLock (OSDI '24) §7.2",
    run,
};

fn run(_: &Context) -> Result<Findings, LabError> {
    let switch = Switch::TOFINO;
    let mut table =
        Table::new("memory", &["locks", "preference", "bits_per_lock", "maus", "numbering_bytes"]);
    let decider = |locks, preference| {
        Decider::<Shipped>::new(locks, 8, &Params { preference, ..Params::default() }).bits()
    };
    let sizes = [10_000, 1_000_000, switch.capacity()];
    let preferences = [
        ("readers-always", Preference::ReadersAlways),
        ("readers", Preference::Readers),
        ("writers", Preference::Writers),
    ];
    for locks in sizes {
        for (name, preference) in preferences {
            let (bits, once) = decider(locks, preference);
            table.row([
                locks.to_string(),
                name.to_owned(),
                format!("{:.2}", bits as f64 / locks as f64),
                switch.maus_for(locks).to_string(),
                (once / 8).to_string(),
            ]);
        }
    }
    let (bits, once) = decider(switch.capacity(), Preference::ReadersAlways);
    let claims = vec![
        Claim::new("bits-per-lock", 18.0, bits as f64 / switch.capacity() as f64),
        Claim::new("million-locks-in-a-tofino", 1.68, switch.capacity() as f64 / 1e6),
        Claim::new("maus-of-a-tofino", 12.0, switch.maus_for(switch.capacity()) as f64),
        statement("numbering-takes-less-than-one-percent", once * 100 < bits),
    ];
    Ok(Findings { tables: vec![table], plots: Vec::new(), claims })
}

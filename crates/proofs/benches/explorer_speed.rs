//! How fast the explorer is: states per second on one core, MCS with four clients and two rounds each first.
//!
//! `cargo bench -p lockwright-sim --bench explorer_speed`

use lockwright_baselines::mcs::Mcs;
use lockwright_baselines::rpc::Rpc;
use lockwright_locks::{Protocol, Want};
use lockwright_sim::case::Case;
use lockwright_sim::explore::{Options, explore};

fn main() {
    println!("measured: explorer, one core, exhaustive");
    let want = [Want::exclusive(0)];
    report::<Mcs>(&Case::new("mcs, 4 clients x 2 rounds").clients(4, &want).rounds(2));
    report::<Mcs>(
        &Case::new("mcs, 4 clients x 2 rounds, one crash").clients(4, &want).rounds(2).crashes(1).may_hang(),
    );
    report::<Mcs>(&Case::new("mcs, 4 clients x 3 rounds").clients(4, &want).rounds(3));
    report::<Rpc>(&Case::new("rpc, 4 clients x 2 rounds").clients(4, &want).rounds(2));
}

fn report<P: Protocol>(case: &Case<P::Params>) {
    let outcome = explore::<P>(case, &mut Options::default());
    assert!(outcome.violation.is_none());
    println!(
        "{:40} {:>9} states {:>10} transitions {:>6.2} s  {:>5.2} million states/s  exhaustive={}",
        case.name,
        outcome.states,
        outcome.transitions,
        outcome.seconds,
        outcome.states as f64 / outcome.seconds / 1e6,
        if outcome.exhaustive { "yes" } else { "no" },
    );
}

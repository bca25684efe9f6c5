//! The explorer on every protocol and mutant of the catalog.

use lockwright_locks::Protocol;
use lockwright_locks::catalog::{self, Mutant, Visitor};
use lockwright_sim::explore::{Options, Outcome, explore};

struct Clean;

impl Visitor for Clean {
    fn protocol<P: Protocol>(&mut self) {
        for case in P::cases() {
            let outcome = explore::<P>(&case, &mut Options::default());
            println!("{} {}: {}", P::INFO.name, case.name, summary(&outcome));
            if let Some(found) = &outcome.violation {
                panic!("{} {}: {}\n{}", P::INFO.name, case.name, found.violation, found.trace);
            }
        }
    }
    fn mutant<P: Protocol>(&mut self, _: Mutant) {}
}

struct Caught;

impl Visitor for Caught {
    fn protocol<P: Protocol>(&mut self) {}
    fn mutant<P: Protocol>(&mut self, mutant: Mutant) {
        for case in P::cases() {
            let outcome = explore::<P>(&case, &mut Options::default());
            let Some(found) = outcome.violation else { continue };
            println!("{} {}: {}\n{}", P::INFO.name, case.name, found.violation, found.trace);
            assert_eq!(
                found.violation.checker,
                mutant.caught_by,
                "{} is caught by another checker",
                P::INFO.name
            );
            assert!(!found.trace.rows.is_empty());
            return;
        }
        panic!("{} was not caught", P::INFO.name);
    }
}

fn summary(outcome: &Outcome) -> String {
    let Outcome { states, transitions, depth, local_nodes, exhaustive, seconds, .. } = outcome;
    let speed = *states as f64 / seconds / 1e6;
    format!(
        "{states} states, {transitions} transitions, depth {depth}, {local_nodes} local nodes, exhaustive {exhaustive}, {seconds:.2} s, {speed:.2} M/s"
    )
}

#[test]
fn every_protocol_is_clean() {
    catalog::visit(&mut Clean);
}

#[test]
fn every_mutant_is_caught_by_its_checker() {
    catalog::visit(&mut Caught);
}

//! A lock that two clients take by a message each, and what is wrong with it, is found.

use super::fingerprint::fingerprint;
use super::{Model, Part, explore, shrink, soak};
use crate::check::{Checker, Violation};
use std::fmt;

/// Two clients, each of which looks whether the lock is free and then takes it. `atomic`: in one step.
struct Toy {
    atomic: bool,
    releases: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum At {
    Before,
    Looked,
    Inside,
    Done,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Moves(usize);

impl fmt::Display for Moves {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "client {} moves", self.0)
    }
}

impl Model for Toy {
    type State = ([At; 2], u8);
    type Step = Moves;

    fn initial(&self) -> Self::State {
        ([At::Before; 2], 0)
    }

    fn steps(&self, (clients, _): &Self::State, steps: &mut Vec<Moves>) {
        let moves = |at: &At| *at != At::Done && (self.releases || *at != At::Inside);
        steps.extend((0..2).filter(|client| moves(&clients[*client])).map(Moves));
    }

    fn take(&self, (clients, held): &mut Self::State, step: &Moves) -> Result<(), Violation> {
        clients[step.0] = match clients[step.0] {
            At::Before if *held > 0 => At::Before,
            At::Before if !self.atomic => At::Looked,
            At::Before | At::Looked => {
                *held += 1;
                At::Inside
            }
            At::Inside | At::Done => {
                *held -= 1;
                At::Done
            }
        };
        if *held > 1 { Err(Violation::new(Checker::Exclusion, "both are inside")) } else { Ok(()) }
    }

    fn is_final(&self, (clients, _): &Self::State) -> bool {
        *clients == [At::Done; 2]
    }

    fn is_progress(&self, _: &Moves) -> bool {
        true
    }
}

/// Two clients count; one of them stops for ever after a fault.
struct Counters;

impl Model for Counters {
    type State = ([u64; 2], bool);
    /// That of a third one is the fault.
    type Step = Moves;

    fn initial(&self) -> Self::State {
        ([0; 2], false)
    }

    fn steps(&self, (_, stopped): &Self::State, steps: &mut Vec<Moves>) {
        steps.extend([0, 1, 2].into_iter().filter(|client| *client == 0 || !stopped).map(Moves));
    }

    fn take(&self, (counts, stopped): &mut Self::State, step: &Moves) -> Result<(), Violation> {
        match counts.get_mut(step.0) {
            Some(count) => *count += 1,
            None => *stopped = true,
        }
        Ok(())
    }

    fn is_final(&self, _: &Self::State) -> bool {
        false
    }

    fn is_progress(&self, step: &Moves) -> bool {
        step.0 < 2
    }

    fn answered(&self, (counts, _): &Self::State) -> Vec<u64> {
        counts.to_vec()
    }
}

#[test]
fn a_client_that_is_never_answered_is_found_at_random_and_the_fault_is_all_that_is_left() {
    let found = soak(&Counters, 1, 10_000, |_, _| {}).found.unwrap();
    assert!(found.violation.what.starts_with("client 1 was not answered"), "{}", found.violation);
    assert_eq!(shrink(&Counters, found).trace, [Moves(2)]);
}

#[test]
fn a_part_is_shared_until_it_is_changed_and_then_hashed_anew() {
    let one = Part::new(vec![1, 2]);
    let mut other = one.clone();
    assert_eq!(fingerprint(&one), fingerprint(&other));
    other.push(3);
    assert_eq!((one.len(), other.len()), (2, 3));
    assert_ne!(fingerprint(&one), fingerprint(&other));
    assert_eq!(fingerprint(&other), fingerprint(&Part::new(vec![1, 2, 3])));
}

#[test]
fn a_right_model_is_explored_to_its_end() {
    let explored = explore(&Toy { atomic: true, releases: true }, 1000, None);
    assert!(explored.found.is_none() && explored.exhaustive);
    assert_eq!((explored.states, explored.depth), (8, 4));
    assert!(!explore(&Toy { atomic: true, releases: true }, 4, None).exhaustive);
}

#[test]
fn a_violation_has_the_shortest_trace_and_a_random_one_is_shrunk_to_it() {
    let toy = Toy { atomic: false, releases: true };
    let found = explore(&toy, 1000, None).found.unwrap();
    assert_eq!((found.violation.checker, found.trace.len()), (Checker::Exclusion, 4));
    let found = (0..100).find_map(|seed| soak(&toy, seed, 100, |_, _| {}).found).unwrap();
    let shrunk = shrink(&toy, found);
    assert_eq!((shrunk.violation.checker, shrunk.trace.len()), (Checker::Exclusion, 4));
}

#[test]
fn a_state_from_which_nobody_can_finish_is_found() {
    let found = explore(&Toy { atomic: true, releases: false }, 1000, None).found.unwrap();
    assert_eq!(found.violation.checker, Checker::Livelock);
    let soaked = soak(&Toy { atomic: true, releases: true }, 7, 100, |_, _| {});
    assert!(soaked.finished && soaked.found.is_none());
}

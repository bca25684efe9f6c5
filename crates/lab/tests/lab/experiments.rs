//! Experiments and the runs they are made of.

use lockwright_lab::experiments::{ALL, find};
use lockwright_lab::{Context, Run};
use lockwright_proofs::subject;
use lockwright_sim::Plan;

#[test]
fn an_id_picks_one_experiment_and_can_name_a_file() {
    for (index, experiment) in ALL.iter().enumerate() {
        let twin = ALL[..index].iter().find(|other| other.id == experiment.id);
        assert!(twin.is_none(), "{} is there twice", experiment.id);
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        assert!(experiment.id.chars().all(plain), "{} cannot name a file", experiment.id);
    }
}

fn runs() -> Vec<Run> {
    let plan = |clients| Plan { clients, locks: 4, ops: 500, ..Plan::default() };
    [1, 2, 3, 8].map(|clients| Run::new("mcs", plan(clients))).into()
}

#[test]
fn reports_come_in_the_order_of_the_runs_whatever_the_number_of_threads() {
    let one = Context::new(true, 1).simulate(&runs()).unwrap();
    let many = Context::new(true, 3).simulate(&runs()).unwrap();
    assert_eq!(one, many);
    assert_eq!(one.iter().map(|report| report.clients).collect::<Vec<_>>(), [1, 2, 3, 8]);
}

#[test]
fn an_unknown_protocol_is_an_error_before_anything_runs() {
    let run = Run::new("no-such-lock", Plan::default());
    let error = Context::new(true, 1).simulate(&[run]).unwrap_err();
    assert_eq!(error.to_string(), "there is no protocol called no-such-lock");
}

#[test]
fn names_are_unique_so_that_a_name_picks_one_subject() {
    let subjects = subject::all();
    for (index, subject) in subjects.iter().enumerate() {
        let twin = subjects[..index].iter().find(|other| other.info.name == subject.info.name);
        assert!(twin.is_none(), "{} is there twice", subject.info.name);
    }
}

#[test]
fn cases_of_one_subject_have_different_names() {
    for subject in subject::all() {
        assert!(!subject.cases.is_empty(), "{} has no cases", subject.info.name);
        for (index, case) in subject.cases.iter().enumerate() {
            let twin = subject.cases[..index].iter().find(|other| other.name == case.name);
            assert!(twin.is_none(), "{} has two cases called {}", subject.info.name, case.name);
        }
    }
}

#[test]
fn every_mutant_is_of_a_protocol_that_exists() {
    let subjects = subject::all();
    for subject in &subjects {
        let Some(mutant) = subject.mutant else { continue };
        let of = subjects.iter().find(|other| other.info.name == mutant.of);
        assert!(of.is_some_and(|of| of.mutant.is_none()), "{}", subject.info.name);
    }
}

#[test]
fn two_nodes_waste_nothing_on_small_ranges_and_little_on_large_ones() {
    let experiment = find("citron-fig11").expect("it is listed");
    let findings = (experiment.run)(&Context::new(true, 1)).unwrap();
    let claim = |id: &str| findings.claims.iter().find(|claim| claim.id == id).unwrap().ours;
    assert!(claim("k2-false-conflicts-up-to-64-units").abs() < f64::EPSILON);
    assert!((0.0..100.0).contains(&claim("k2-percent-of-k1")));
}

//! The explorer on every protocol and mutant of the catalog.

use lockwright_locks::baseline::mcs::Mcs;
use lockwright_locks::case::Case;
use lockwright_locks::catalog::{self, Checker, Mutant, Visitor};
use lockwright_locks::mutant::{Flawed, Torn};
use lockwright_locks::{Protocol, Want};
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

#[test]
fn every_checker_has_a_mutant_it_catches() {
    struct Covered(Vec<Checker>);
    impl Visitor for Covered {
        fn protocol<P: Protocol>(&mut self) {}
        fn mutant<P: Protocol>(&mut self, mutant: Mutant) {
            self.0.push(mutant.caught_by);
        }
    }
    let mut covered = Covered(Vec::new());
    catalog::visit(&mut covered);
    for checker in Checker::ALL {
        assert!(covered.0.contains(&checker), "no mutant shows that {} is checked", checker.name());
    }
}

#[test]
fn a_search_that_hits_its_limit_is_not_called_exhaustive() {
    let case = Case::new("four").clients(4, &[Want::exclusive(0)]).rounds(2).max_states(100);
    let outcome = explore::<Mcs>(&case, &mut Options::default());
    assert!(!outcome.exhaustive && outcome.violation.is_none());
}

#[test]
fn the_violation_of_a_torn_lock_has_the_shortest_trace() {
    let case = Case::new("two").clients(2, &[Want::exclusive(0)]);
    let outcome = explore::<Flawed<Torn>>(&case, &mut Options::default());
    let found = outcome.violation.expect("it is broken");
    // Both look, both take, both read their tokens: six steps, and no way with fewer.
    assert_eq!(found.trace.rows.len(), 6, "{}", found.trace);
    assert!(!outcome.exhaustive, "a search that ended early has not seen everything");
}

/// A lock whose retry mark leaves out a local that decides what comes next.
mod forgetful {
    use lockwright_fabric::{Addr, Endpoint, Needs, NodeId, Word64};
    use lockwright_locks::case::Case;
    use lockwright_locks::*;

    #[derive(Debug)]
    pub(super) struct Forgetful;
    pub(super) struct Client<E>(E);

    impl Protocol for Forgetful {
        type Params = ();
        type Client<E: Endpoint> = Client<E>;
        const INFO: Info = Info { name: "forgetful", summary: "", source: "", offers: Offers::NONE };
        fn needs((): &()) -> Needs {
            Needs::default()
        }
        fn bytes_per_node(_: &Space, (): &()) -> u64 {
            16
        }
        fn client<E: Endpoint>(ep: E, _: &Space, (): &()) -> Client<E> {
            Client(ep)
        }
        fn cases() -> Vec<Case<()>> {
            vec![Case::new("two").clients(2, &[Want::exclusive(0)])]
        }
    }

    impl<E: Endpoint> LockClient for Client<E> {
        type Grant = TokenGrant;
        async fn acquire(&self, want: Want) -> Result<TokenGrant, Denied> {
            let word = Word64::at(Addr::new(NodeId(0), 0));
            let seen = self.0.go(word.fetch_add(1)).await?;
            self.0.mark("forgets what it saw", &[]);
            self.0.go(word.read()).await?;
            if seen == 0 {
                self.0.go(word.read()).await?;
            }
            Ok(TokenGrant { lock: want.claim.lock, token: None })
        }
        async fn release(&self, _: TokenGrant) -> Result<(), Lost> {
            Ok(())
        }
    }
}

#[test]
#[should_panic(expected = "forgets something that still matters")]
fn a_mark_that_forgets_a_live_local_is_found_out() {
    let case = Case::new("two").clients(2, &[Want::shared(0)]).may_hang();
    explore::<forgetful::Forgetful>(&case, &mut Options::default());
}

//! What the explorer promises whatever it explores: bounds are owned up to, traces are short, marks are verified.
//!
//! That every protocol of the catalog is clean and every mutant caught is tested in the lab, where all of them are compiled
//! once.

use lockwright_baselines::mcs::Mcs;
use lockwright_locks::Want;
use lockwright_proofs::{Flawed, Torn};
use lockwright_sim::case::Case;
use lockwright_sim::explore::{Options, explore};

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

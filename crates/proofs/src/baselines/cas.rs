//! The CAS spin lock: its cases, and variations of it with one [`Flaw`] each, at least one for every checker. A checker
//! that does not catch its mutant is not a checker.

use crate::{Case, Checker, Mutant, Proof, Visitor};
use lockwright_baselines::cas::Cas;
use lockwright_fabric::{Endpoint, FabricError, Needs, NodeId, Time, Word64};
use lockwright_locks::{Denied, Info, LockClient, Lost, Offers, Patience, Protocol, Space, TokenGrant, Want};
use lockwright_sim::case::Timeouts;
use std::fmt::Debug;
use std::marker::PhantomData;

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<Cas>();
    let mutant = |of, caught_by, why| Mutant { of, caught_by, why };
    visitor.coarse_mutant::<Flawed<Torn>>(mutant(
        "cas",
        Checker::Exclusion,
        "looks and then takes, in two verbs",
    ));
    visitor.coarse_mutant::<Flawed<WeakScope>>(mutant(
        "cas",
        Checker::Exclusion,
        "one CAS word for local and remote clients where CPU and NIC atomics do not exclude each other",
    ));
    visitor.coarse_mutant::<Flawed<NeverFrees>>(mutant(
        "cas",
        Checker::Livelock,
        "release only reads the word",
    ));
    visitor.mutant::<Flawed<Unfair>>(mutant(
        "cas",
        Checker::Bypass,
        "claims a bound on overtaking, has none",
    ));
    visitor.coarse_mutant::<Flawed<EarlyToken>>(mutant(
        "cas",
        Checker::Tokens,
        "reads its token before it has the lock",
    ));
    visitor.coarse_mutant::<Flawed<LeavesMark>>(mutant("cas", Checker::Quiet, "release leaves a bit behind"));
}

/// The cases of every lock that spins with CAS: they differ in time, which the explorer does not see.
pub(crate) fn spin_cases<P: Default>() -> Vec<Case<P>> {
    let want = Want::exclusive(0);
    vec![
        Case::new("four-clients").clients(4, &[want]).rounds(2),
        Case::new("two-locks-in-order").clients(3, &[want, Want::exclusive(1)]).space(Space::of(2)),
        Case::new("two-nodes").clients(3, &[want, Want::exclusive(1)]).space(Space::of(2).over(2)),
        Case::new("tries").clients(2, &[want]).clients(2, &[want.with(Patience::Try)]).rounds(2),
        Case::new("timeouts")
            .clients(2, &[want])
            .clients(2, &[want.with(Patience::Until(Time(0)))])
            .timeouts(Timeouts::Any),
        // Nobody recovers a CAS lock: a crash may hang it, but must never break it.
        Case::new("crash").clients(3, &[want]).rounds(2).crashes(1).may_hang(),
    ]
}

impl Proof for Cas {
    fn cases() -> Vec<Case<()>> {
        spin_cases()
    }
}

/// What is wrong with a spin lock. The defaults are a lock in order, with tokens.
pub trait Flaw: Debug + 'static {
    /// The name on the command line.
    const NAME: &'static str;
    /// Takes the lock in one verb.
    const ONE_VERB: bool = true;
    /// Reads the token while it holds the lock.
    const TOKEN_UNDER_LOCK: bool = true;
    /// Release frees the word.
    const FREES: bool = true;
    /// What release leaves in the second word beyond the count of grants.
    const LEFTOVER: u64 = 0;

    /// The case that shows it.
    fn case() -> Case<()>;
}

/// Looks at the word and, if it is free, takes it with a second verb.
#[derive(Debug)]
pub struct Torn;

impl Flaw for Torn {
    const NAME: &'static str = "cas-torn";
    const ONE_VERB: bool = false;
    fn case() -> Case<()> {
        Case::new("two-clients").clients(2, &[Want::exclusive(0)])
    }
}

/// One word for local and remote clients, on a fabric with `Nic` scope.
#[derive(Debug)]
pub(crate) struct WeakScope;

impl Flaw for WeakScope {
    const NAME: &'static str = "cas-weak-scope";
    fn case() -> Case<()> {
        let want = [Want::exclusive(0)];
        Case::new("local-and-remote").clients(1, &want).at_home(NodeId(0)).clients(1, &want).weak_scope()
    }
}

/// Release does not free the word, so that everybody else tries for ever.
#[derive(Debug)]
pub(crate) struct NeverFrees;

impl Flaw for NeverFrees {
    const NAME: &'static str = "cas-never-frees";
    const FREES: bool = false;
    fn case() -> Case<()> {
        Case::new("two-clients").clients(2, &[Want::exclusive(0)])
    }
}

/// A spin lock that promises nobody is overtaken more than twice.
#[derive(Debug)]
pub(crate) struct Unfair;

impl Flaw for Unfair {
    const NAME: &'static str = "cas-unfair";
    fn case() -> Case<()> {
        Case::new("overtaking").clients(2, &[Want::exclusive(0)]).rounds(4).bypass(2)
    }
}

/// The token is read before the lock is taken: somebody else's grant can come in between.
#[derive(Debug)]
pub(crate) struct EarlyToken;

impl Flaw for EarlyToken {
    const NAME: &'static str = "cas-early-token";
    const TOKEN_UNDER_LOCK: bool = false;
    fn case() -> Case<()> {
        Case::new("two-clients").clients(2, &[Want::exclusive(0)]).tokens()
    }
}

/// Release leaves a bit set that nobody ever clears.
#[derive(Debug)]
pub(crate) struct LeavesMark;

impl Flaw for LeavesMark {
    const NAME: &'static str = "cas-leaves-mark";
    const LEFTOVER: u64 = 1 << 63;
    fn case() -> Case<()> {
        Case::new("two-clients").clients(2, &[Want::exclusive(0)])
    }
}

/// A spin lock with a count of grants beside its word, and one thing wrong.
///
/// | offset | word |
/// |---|---|
/// | 0 | 0 free, n held by peer n |
/// | 8 | grants so far (bits 0–31): the next holder's token |
#[derive(Debug)]
pub struct Flawed<F>(PhantomData<F>);

const STRIDE: u64 = 16;

impl<F: Flaw> Protocol for Flawed<F> {
    type Params = ();
    type Client<E: Endpoint> = FlawedClient<E, F>;

    const INFO: Info = Info {
        name: F::NAME,
        summary: "spin lock with one thing wrong",
        source: "here",
        offers: Offers { tokens: true, ..Offers::NONE },
    };

    fn needs((): &()) -> Needs {
        Needs::default()
    }

    fn bytes_per_node(space: &Space, (): &()) -> u64 {
        space.table_bytes(STRIDE)
    }

    fn client<E: Endpoint>(ep: E, space: &Space, (): &()) -> FlawedClient<E, F> {
        FlawedClient { ep, space: *space, flaw: PhantomData }
    }

    fn quiet_mask(_: &Space, (): &(), addr: lockwright_fabric::Addr) -> u64 {
        if addr.offset.is_multiple_of(STRIDE) { u64::MAX } else { !0xffff_ffff }
    }
}

impl<F: Flaw> Proof for Flawed<F> {
    fn cases() -> Vec<Case<()>> {
        vec![F::case()]
    }
}

/// A client of the flawed lock.
#[derive(Debug)]
pub struct FlawedClient<E, F> {
    ep: E,
    space: Space,
    flaw: PhantomData<F>,
}

impl<E: Endpoint, F: Flaw> LockClient for FlawedClient<E, F> {
    type Grant = TokenGrant;

    async fn acquire(&self, want: Want) -> Result<TokenGrant, Denied> {
        let lock = want.claim.lock;
        let (word, count) = self.words(lock);
        let mut token = 0;
        if !F::TOKEN_UNDER_LOCK {
            token = self.ep.go(count.read()).await?;
        }
        while !self.take(word).await? {
            self.ep.mark("flawed retry", &[token]);
        }
        if F::TOKEN_UNDER_LOCK {
            token = self.ep.go(count.read()).await?;
        }
        Ok(TokenGrant { lock, token: Some(token) })
    }

    async fn release(&self, grant: TokenGrant) -> Result<(), Lost> {
        let (word, count) = self.words(grant.lock);
        let next = (grant.token.unwrap_or(0) + 1) | F::LEFTOVER;
        if F::FREES {
            self.ep.go((count.write(next), word.write(0))).await?;
        } else {
            self.ep.go(word.read()).await?;
        }
        Ok(())
    }
}

impl<E: Endpoint, F: Flaw> FlawedClient<E, F> {
    fn words(&self, lock: u64) -> (Word64, Word64) {
        let addr = self.space.place(lock, STRIDE);
        (Word64::at(addr), Word64::at(addr.plus(8)))
    }

    async fn take(&self, word: Word64) -> Result<bool, FabricError> {
        let me = u64::from(self.ep.me().0);
        if F::ONE_VERB {
            return Ok(self.ep.go(word.cas(0, me)).await? == 0);
        }
        let free = self.ep.go(word.read()).await? == 0;
        if free {
            self.ep.go(word.write(me)).await?;
        }
        Ok(free)
    }
}

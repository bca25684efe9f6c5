//! The CAS spin lock: its cases, and variations of it with one [`Flaw`] each, at least one for every checker. A checker
//! that does not catch its mutant is not a checker.

use crate::{Case, Proof, Visitor};
use lockwright_baselines::cas::Cas;
use lockwright_fabric::{Endpoint, FabricError, Needs, NodeId, Time, Word64};
use lockwright_locks::{Denied, Info, LockClient, Lost, Offers, Patience, Protocol, Space, TokenGrant, Want};
use lockwright_sim::case::Timeouts;
use std::fmt::Debug;
use std::marker::PhantomData;

/// Shows the protocol and its mutants to `visitor`.
pub(crate) fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<Cas>();
    visit_mutants(visitor);
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
    /// Release leaves nothing in the second word but the count of grants.
    const CLEARS: bool = true;
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
        let leftover = if F::CLEARS { 0 } else { 1 << 63 };
        let next = (grant.token.unwrap_or(0) + 1) | leftover;
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

fn two_clients() -> Case<()> {
    Case::new("two-clients").clients(2, &[Want::exclusive(0)])
}

fn local_and_remote() -> Case<()> {
    let want = [Want::exclusive(0)];
    Case::new("local-and-remote").clients(1, &want).at_home(NodeId(0)).clients(1, &want).weak_scope()
}

crate::mutants! { Flawed: Flaw, (), &'static str;
    coarse_mutant Torn = "cas-torn", "cas", Exclusion, { ONE_VERB: false },
        "looks and then takes, in two verbs",
        vec![two_clients()];
    coarse_mutant WeakScope = "cas-weak-scope", "cas", Exclusion, {},
        "one CAS word for local and remote clients where CPU and NIC atomics do not exclude each other",
        vec![local_and_remote()];
    coarse_mutant NeverFrees = "cas-never-frees", "cas", Livelock, { FREES: false },
        "release only reads the word",
        vec![two_clients()];
    mutant Unfair = "cas-unfair", "cas", Bypass, {},
        "claims a bound on overtaking, has none",
        vec![Case::new("overtaking").clients(2, &[Want::exclusive(0)]).rounds(4).bypass(2)];
    coarse_mutant EarlyToken = "cas-early-token", "cas", Tokens, { TOKEN_UNDER_LOCK: false },
        "reads its token before it has the lock",
        vec![two_clients().tokens()];
    coarse_mutant LeavesMark = "cas-leaves-mark", "cas", Quiet, { CLEARS: false },
        "release leaves a bit behind",
        vec![two_clients()];
}

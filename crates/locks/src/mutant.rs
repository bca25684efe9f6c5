//! Broken locks, one for each checker. A checker that does not catch its mutant is not a checker.
//!
//! Mutants of a protocol that differ from it in one rule stand with that protocol's rules (see [`mcs::Rules`]);
//! those here are variations of a spin lock, each with one [`Flaw`].

use crate::baseline::drtm::{self, Drtm};
use crate::baseline::dslr::{Dslr, rules as dslr};
use crate::baseline::mcs::{self, Mcs};
use crate::baseline::rma_rw::{self, RmaRw};
use crate::case::Case;
use crate::catalog::{Checker, Mutant, Visitor};
use crate::citron;
use crate::protocol::{Denied, Info, LockClient, Lost, Offers, Protocol, Space, TokenGrant, Want};
use crate::shiftlock;
use lockwright_fabric::{Endpoint, FabricError, Needs, NodeId, Word64};
use std::fmt::Debug;
use std::marker::PhantomData;

/// Shows every mutant to `visitor`.
pub fn visit(visitor: &mut impl Visitor) {
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
    visitor.coarse_mutant::<Mcs<ForgetsSuccessor>>(mutant(
        "mcs",
        Checker::Deadlock,
        "release does not wait for the Successor message (Alg. 1 line 10)",
    ));
    visitor.coarse_mutant::<Mcs<JumpsQueue>>(mutant(
        "mcs",
        Checker::Exclusion,
        "a queued client does not wait for the handover (Alg. 1 line 5)",
    ));
    shiftlock::mutants::visit(visitor);
    visitor.mutant::<Drtm<TrustsClocks>>(mutant(
        "drtm",
        Checker::Exclusion,
        "leaves no room for clocks that differ, and they do",
    ));
    visitor.mutant::<Drtm<JoinsLate>>(mutant(
        "drtm",
        Checker::Exclusion,
        "a reader joins a lease that ends before it is done",
    ));
    visitor.coarse_mutant::<RmaRw<ReaderIgnoresMode>>(mutant(
        "rma-rw",
        Checker::Exclusion,
        "a reader that counted itself in does not check the mode",
    ));
    visitor.coarse_mutant::<RmaRw<LooksOnce>>(mutant(
        "rma-rw",
        Checker::Exclusion,
        "a writer does not look again for readers that came before it set write mode",
    ));
    visitor.coarse_mutant::<RmaRw<StaysInWriteMode>>(mutant(
        "rma-rw",
        Checker::Deadlock,
        "the last writer leaves write mode on",
    ));
    visitor.mutant::<RmaRw<SetsBackBlindly>>(mutant(
        "rma-rw",
        Checker::Exclusion,
        "a reader sets the counts back without a CAS, and takes away the write mode of a writer that came meanwhile",
    ));
    visitor.coarse_mutant::<Dslr<dslr::ReaderIgnoresWriters>>(mutant(
        "dslr",
        Checker::Exclusion,
        "a reader does not wait for the writers before it",
    ));
    visitor.mutant::<Dslr<dslr::ResetsAtOnce>>(mutant(
        "dslr",
        Checker::Exclusion,
        "a full word is set back while others hold the lock",
    ));
    visitor.mutant::<Dslr<dslr::ReaderClearsOwn>>(mutant(
        "dslr",
        Checker::Exclusion,
        "a reader that clears a stuck lock passes over itself and those before it (as in ShiftLock's artifact)",
    ));
    citron::mutants::visit(visitor);
}

/// DrTM on clocks that agree, it believes.
#[derive(Debug)]
pub(crate) struct TrustsClocks;

impl drtm::Rules for TrustsClocks {
    const NAME: &'static str = "drtm-trusts-clocks";
    const LEAVES_ROOM_FOR_DRIFT: bool = false;
}

/// DrTM whose readers join a lease that is about to end.
#[derive(Debug)]
pub(crate) struct JoinsLate;

impl drtm::Rules for JoinsLate {
    const NAME: &'static str = "drtm-joins-late";
    const LEAVES_ROOM_TO_HOLD: bool = false;
}

/// RMA-RW whose readers come in whatever the mode.
#[derive(Debug)]
pub(crate) struct ReaderIgnoresMode;

impl rma_rw::Rules for ReaderIgnoresMode {
    const NAME: &'static str = "rma-rw-reader-ignores-mode";
    const READER_CHECKS_MODE: bool = false;
}

/// RMA-RW whose writers look for readers only before they set write mode.
#[derive(Debug)]
pub(crate) struct LooksOnce;

impl rma_rw::Rules for LooksOnce {
    const NAME: &'static str = "rma-rw-looks-once";
    const WRITER_LOOKS_AGAIN: bool = false;
}

/// RMA-RW that stays in write mode when the queue is empty.
#[derive(Debug)]
pub(crate) struct StaysInWriteMode;

impl rma_rw::Rules for StaysInWriteMode {
    const NAME: &'static str = "rma-rw-stays-in-write-mode";
    const GOES_BACK_TO_READ_MODE: bool = false;
}

/// RMA-RW whose readers set the counts back without looking whether a writer has come.
#[derive(Debug)]
pub(crate) struct SetsBackBlindly;

impl rma_rw::Rules for SetsBackBlindly {
    const NAME: &'static str = "rma-rw-sets-back-blindly";
    const SETS_BACK_BY_CAS: bool = false;
}

/// MCS whose release, when somebody queued behind it, does not wait to learn who.
#[derive(Debug)]
pub(crate) struct ForgetsSuccessor;

impl mcs::Rules for ForgetsSuccessor {
    const NAME: &'static str = "mcs-forgets-successor";
    const WAITS_FOR_SUCCESSOR: bool = false;
}

/// MCS whose queued client does not wait for the handover.
#[derive(Debug)]
pub(crate) struct JumpsQueue;

impl mcs::Rules for JumpsQueue {
    const NAME: &'static str = "mcs-jumps-queue";
    const WAITS_FOR_HANDOVER: bool = false;
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

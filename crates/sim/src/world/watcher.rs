//! What clients say, brought to the checkers: fast for locks that one client alone is after, and fair to
//! clients that crash or pause.
//!
//! **Alone.** While one client alone wants or holds a lock, no checker can object, so the checkers are not told;
//! when a second one comes they are told everything, until no client wants the lock any more. Almost all of a
//! large run's locks never get there. Tokens are the exception: they order grants that are far apart, and are
//! checked for the first [`TOKEN_LOCKS`] locks, which are also the most wanted ones.
//!
//! **Crashed.** A dead client does no harm in its critical section, but no other can know that it is dead: its
//! claim stands until another client is granted a conflicting one. A protocol that cannot recover must never do that.
//! One that can may, if a client says that it recovered the lock, at any time of the run: the word may be reset
//! and granted again before the one that reset it learns so. (Not asked where a server's role may have done it, which
//! says nothing here, or clients that crashed.)
//!
//! **Paused.** A client that paused since it was granted a claim may have lost it the same way. One that paused
//! while it waited may believe in a grant that was void before it looked; with tokens, its token tells.

use super::interest::{Interest, Interests};
use super::overtaken::Overtaken;
use crate::case::Checks;
use crate::check::Checker;
use crate::check::{Tokens, Violation, Watch};
use lockwright_fabric::PeerId;
use lockwright_fabric::observe::{Claim, Mode, Observation};
use std::collections::BTreeSet;

/// Tokens are checked for locks below this: a table of all would outgrow the lock memory.
pub(crate) const TOKEN_LOCKS: u64 = 1 << 16;

/// An objection, and the clients it is about.
#[derive(Clone, Debug)]
pub(crate) struct Objection {
    pub(crate) violation: Violation,
    pub(crate) clients: Vec<u32>,
}

#[derive(Clone, Debug, Default)]
struct Health {
    crashed: bool,
    last_pause_ends_ns: u64,
    waits_since_ns: u64,
    held_since_ns: Vec<(Claim, u64)>,
}

#[derive(Debug)]
pub(crate) struct Watcher {
    watch: Watch,
    /// The longest bypass is always measured, where no bound is set.
    overtaken: Overtaken,
    tokens: Option<Tokens>,
    interests: Interests,
    recovers: bool,
    /// Whether a client crashed or paused so far.
    faulty: bool,
    track_health: bool,
    health: Vec<Health>,
    /// Claims that were overridden, and the locks that a client said it recovered.
    overridden: Vec<(u64, Objection)>,
    recovered: BTreeSet<u64>,
    crashes: usize,
    pub(crate) objection: Option<Objection>,
}

impl Watcher {
    pub(crate) fn new(checks: Checks, recovers: bool, clients_fail: bool) -> Self {
        let tokens = checks.tokens.then(Tokens::default);
        Self {
            watch: Watch::new(Checks { tokens: false, ..checks }),
            overtaken: Overtaken::default(),
            tokens,
            interests: Interests::new(),
            recovers,
            faulty: false,
            track_health: clients_fail,
            health: Vec::new(),
            overridden: Vec::new(),
            recovered: BTreeSet::new(),
            crashes: 0,
            objection: None,
        }
    }

    pub(crate) fn longest_bypass(&self) -> u32 {
        self.watch.longest_bypass().unwrap_or(0).max(self.overtaken.longest())
    }

    pub(crate) fn crashed(&mut self, client: u32) {
        self.faulty = true;
        self.crashes += 1;
        self.health_of(client).crashed = true;
        self.watch.forget_waiting(peer(client));
        self.overtaken.forget(client);
    }

    pub(crate) fn paused(&mut self, client: u32, until_ns: u64) {
        self.faulty = true;
        self.health_of(client).last_pause_ends_ns = until_ns;
    }

    /// Takes note of what `client` did.
    #[inline]
    pub(crate) fn on(&mut self, now_ns: u64, client: u32, what: &Observation) {
        let claim = what.claim();
        if let Observation::Retried(_) | Observation::Aborted(_) | Observation::Recovered(_) = what {
            if let Observation::Recovered(_) = what {
                self.recovered.insert(claim.lock);
            }
            return;
        }
        if self.track_health {
            self.keep_health(now_ns, client, *what);
        }
        if let Observation::Granted(_, token) = what
            && let Some(violation) = self.token_objection(client, claim, *token)
        {
            if self.recovers && self.paused_while_waiting(client) {
                // Void before it looked, and its token says so wherever it is shown.
                return self.tell_if_contended(client, claim, &Observation::GaveUp(*claim));
            }
            // Two holders at once are worse than a token that does not rise: they are named first.
            self.tell_if_contended(client, claim, what);
            return self.object(violation, vec![client]);
        }
        self.tell_if_contended(client, claim, what);
    }

    /// The end of the run: claims that were overridden must have been recovered.
    pub(crate) fn at_end(&mut self, has_roles: bool) {
        if has_roles || self.crashes > 1 {
            return;
        }
        let recovered = &self.recovered;
        let unexplained = self.overridden.iter().find(|(lock, _)| !recovered.contains(lock));
        if let (None, Some((_, objection))) = (&self.objection, unexplained) {
            self.objection = Some(objection.clone());
        }
    }

    #[inline]
    fn token_objection(&mut self, client: u32, claim: &Claim, token: Option<u64>) -> Option<Violation> {
        let tokens = self.tokens.as_mut().filter(|_| claim.lock < TOKEN_LOCKS)?;
        tokens.on(peer(client), Observation::Granted(*claim, token)).err()
    }

    #[inline]
    fn tell_if_contended(&mut self, client: u32, claim: &Claim, what: &Observation) {
        let whole = claim.start == 0 && claim.end == u64::MAX;
        let place = self.interests.find(claim.lock);
        match self.interests.at(place) {
            Interest::Alone { client: first, waiting, holding } => {
                let mine = |waiting, holding| Interest::Alone { client, waiting, holding };
                if first == client && whole {
                    match what {
                        Observation::Granted(..) if holding.is_none() => {
                            return self.interests.change(place, mine(None, Some(claim.mode)));
                        }
                        Observation::Releasing(_) | Observation::Lost(_) if holding == Some(claim.mode) => {
                            // Where it already waits again, its release was a message that the wait overtook.
                            if waiting.is_some() {
                                return self.interests.change(place, mine(waiting, None));
                            }
                            return self.interests.remove(place);
                        }
                        Observation::Waiting(_) if waiting.is_none() => {
                            return self.interests.change(place, mine(Some(claim.mode), holding));
                        }
                        Observation::GaveUp(_) if holding.is_none() => return self.interests.remove(place),
                        _ => {}
                    }
                }
                self.interests.change(place, Interest::Watched);
                self.replay_first_client(first, claim.lock, waiting, holding);
            }
            Interest::Nobody => {
                let (waiting, holding) = match what {
                    Observation::Waiting(_) => (Some(claim.mode), None),
                    Observation::Granted(..) => (None, Some(claim.mode)),
                    _ => return,
                };
                if whole {
                    let alone = Interest::Alone { client, waiting, holding };
                    return self.interests.add(place, claim.lock, alone);
                }
                self.interests.add(place, claim.lock, Interest::Watched);
            }
            Interest::Watched => {}
        }
        self.tell_watched(client, *claim, *what);
    }

    /// A second client came: the checkers hear what the first one did.
    fn replay_first_client(&mut self, first: u32, lock: u64, waiting: Option<Mode>, holding: Option<Mode>) {
        let all = |mode| Claim { lock, mode, start: 0, end: u64::MAX };
        if let Some(mode) = holding {
            self.tell(first, Observation::Granted(all(mode), None));
        }
        if let Some(mode) = waiting
            && !self.has_crashed(first)
        {
            self.tell(first, Observation::Waiting(all(mode)));
        }
    }

    /// Tells the checkers of a lock that they are told about, until no client is after it any more.
    fn tell_watched(&mut self, client: u32, claim: Claim, what: Observation) {
        self.tell(client, what);
        if !matches!(what, Observation::Waiting(_) | Observation::Granted(..))
            && self.watch.is_idle(claim.lock)
            && !self.overtaken.is_wanted(claim.lock)
        {
            self.interests.remove(self.interests.find(claim.lock));
        }
    }

    fn tell(&mut self, client: u32, what: Observation) {
        self.overtaken.on(client, what);
        let Observation::Granted(claim, _) = what else {
            if let Err(violation) = self.watch.on(peer(client), what) {
                self.object(violation, vec![client]);
            }
            return;
        };
        if self.faulty {
            self.override_the_faulty(client, claim);
        }
        if let Err(violation) = self.watch.on(peer(client), what) {
            let clients = self.concerned(client, claim);
            if self.recovers && self.tokens.is_none() && self.paused_while_waiting(client) {
                self.overridden.push((claim.lock, Objection { violation, clients }));
            } else {
                self.object(violation, clients);
            }
        }
    }

    /// Claims of crashed or paused clients give way to `claim`, where the protocol can recover.
    #[cold]
    fn override_the_faulty(&mut self, client: u32, claim: Claim) {
        if !self.recovers {
            return;
        }
        let in_the_way: Vec<_> = self
            .watch
            .holders()
            .filter(|(other, theirs)| *other != peer(client) && theirs.conflicts(&claim))
            .collect();
        for (other, theirs) in in_the_way {
            let index = other.index().0 as u32;
            let health = &self.health[index as usize];
            let since_ns =
                health.held_since_ns.iter().find(|(held, _)| *held == theirs).map_or(0, |held| held.1);
            if health.crashed || health.last_pause_ends_ns > since_ns {
                let state = if health.crashed { "crashed" } else { "paused" };
                let what = format!(
                    "{} was granted {claim} while {other}, which {state}, holds {theirs}, and nobody recovered it",
                    peer(client)
                );
                let violation = Violation::new(Checker::Exclusion, what);
                self.overridden.push((claim.lock, Objection { violation, clients: vec![client, index] }));
                self.watch.on(other, Observation::Lost(theirs)).expect("giving up a claim offends nobody");
            }
        }
    }

    fn concerned(&self, client: u32, claim: Claim) -> Vec<u32> {
        let holders = self.watch.holders().filter(|(_, theirs)| theirs.conflicts(&claim));
        std::iter::once(client).chain(holders.map(|(other, _)| other.index().0 as u32)).collect()
    }

    fn object(&mut self, violation: Violation, clients: Vec<u32>) {
        self.objection.get_or_insert(Objection { violation, clients });
    }

    fn keep_health(&mut self, now_ns: u64, client: u32, what: Observation) {
        let health = self.health_of(client);
        match what {
            Observation::Waiting(_) => health.waits_since_ns = now_ns,
            Observation::Granted(claim, _) => health.held_since_ns.push((claim, now_ns)),
            Observation::Releasing(claim) | Observation::Lost(claim) => {
                health.held_since_ns.retain(|(held, _)| *held != claim);
            }
            _ => {}
        }
    }

    fn paused_while_waiting(&self, client: u32) -> bool {
        let health = self.health.get(client as usize);
        health.is_some_and(|health| health.last_pause_ends_ns > health.waits_since_ns)
    }

    fn has_crashed(&self, client: u32) -> bool {
        self.health.get(client as usize).is_some_and(|health| health.crashed)
    }

    fn health_of(&mut self, client: u32) -> &mut Health {
        if self.health.len() <= client as usize {
            self.health.resize(client as usize + 1, Health::default());
        }
        &mut self.health[client as usize]
    }
}

fn peer(client: u32) -> PeerId {
    PeerId::client(client as usize)
}

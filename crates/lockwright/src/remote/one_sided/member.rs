//! One membership of a one-sided space: a client that takes locks behind a server by verbs of its own.
//!
//! It lives as long as its session: what it holds is free as soon as the session is over, whatever the reason, and nothing is
//! claimed. A member is trusted: it could write anything into any lock's word.

use super::endpoint::OneSidedEndpoint;
use super::rooms::Rooms;
use super::trees::Tree;
use crate::backend::holders::RECORDS;
use crate::backend::{BoxFuture, GivenUp, Granted, Kind, ProtocolGrant, RecordId, Refused};
use crate::error::LockError;
use crate::one_sided::asymmetric::{self, RemoteLocks};
use crate::one_sided::backend;
use crate::one_sided::holders::{self, OneSidedLocks};
use crate::one_sided::layout::{self, Ranges, SETTINGS, setting};
use lockwright_fabric::observe::{Claim, Mode};
use lockwright_fabric::{Endpoint, FabricError, RawVerb};
use lockwright_locks::holders::Recorder;
use lockwright_locks::holders::ranges::{RangeRecorder, RangeRecords};
use lockwright_locks::shiftlock::ShiftGrant;
use lockwright_locks::{Denied, Lost};
use std::sync::{Arc, OnceLock};

/// See the module. It ends with its session, and everything it held with it.
#[derive(Debug)]
pub(super) struct OneSidedMember {
    /// Which of this client's memberships.
    pub(super) number: u32,
    pub(super) client: OneSidedLocks<OneSidedEndpoint>,
    pub(super) rooms: Rooms,
    /// What the space runs, once it is known.
    protocols: OnceLock<Protocols>,
}

/// Which protocols a one-sided space runs.
#[derive(Debug)]
enum Protocols {
    /// ShiftLock, and exact ranges.
    Exact,
    /// ShiftLock, and ranges on trees.
    Trees(Tree),
    /// The asymmetric lock.
    Asymmetric(RemoteLocks<OneSidedEndpoint>),
}

const OTHER_RELEASE: &str =
    "the server's space runs what this client does not know: it is of another release";

impl OneSidedMember {
    pub(super) fn new(number: u32, ep: OneSidedEndpoint) -> Self {
        Self { number, client: holders::client(ep), rooms: Rooms::default(), protocols: OnceLock::new() }
    }

    /// What its memory says of the space, by one round trip.
    async fn settings(&self) -> Result<Option<Ranges>, FabricError> {
        let words: [RawVerb; SETTINGS] = std::array::from_fn(|index| setting(index).read().raw());
        let olds = self.client.lock().endpoint().go(&words[..]).await?;
        Ok(Ranges::from_settings(std::array::from_fn(|index| olds[index] as u64)))
    }

    /// How the space keeps its ranges, and so which protocols it runs.
    pub(super) async fn ranges(self: Arc<Self>) -> Result<Ranges, LockError> {
        let settings = self.settings().await.map_err(LockError::from_fabric)?;
        settings.ok_or_else(|| LockError::Disconnected(OTHER_RELEASE.to_owned()))
    }

    /// What the space runs. Asked once.
    async fn protocols(&self, claim: Claim) -> Result<&Protocols, Refused> {
        if let Some(known) = self.protocols.get() {
            return Ok(known);
        }
        let ep = self.client.lock().endpoint();
        let settings = self.settings().await.map_err(|error| Refused::new(Denied::Fabric(error), claim))?;
        let found = match settings {
            Some(Ranges::Exact) => Protocols::Exact,
            Some(Ranges::None { budget }) => Protocols::Asymmetric(asymmetric::client(ep.clone(), budget)),
            Some(ranges @ Ranges::Tree(_)) => {
                Protocols::Trees(Tree::new(self, ranges.forest().expect("there are trees")))
            }
            None => {
                return Err(Refused::Error(LockError::Disconnected(OTHER_RELEASE.to_owned())));
            }
        };
        Ok(self.protocols.get_or_init(|| found))
    }

    fn asymmetric(&self) -> Option<&RemoteLocks<OneSidedEndpoint>> {
        match self.protocols.get()? {
            Protocols::Asymmetric(locks) => Some(locks),
            _ => None,
        }
    }

    fn tree(&self) -> Option<&Tree> {
        match self.protocols.get()? {
            Protocols::Trees(tree) => Some(tree),
            _ => None,
        }
    }

    /// Takes a lock or a range: now or never, or however long it takes unless that is given up.
    pub(super) fn take(
        self: Arc<Self>,
        kind: Kind,
        claim: Claim,
        given_up: Option<GivenUp>,
    ) -> BoxFuture<Result<Granted, Refused>> {
        match kind {
            Kind::Keyed => Box::pin(async move {
                match self.protocols(claim).await? {
                    Protocols::Asymmetric(locks) => self.take_asymmetric(locks, claim, given_up).await,
                    _ => self.take_lock(claim, given_up.is_some()).await,
                }
            }),
            Kind::Ranges => Box::pin(async move { self.take_range(claim, given_up).await }),
            Kind::Semaphores => unreachable!("a one-sided space has no semaphores"),
        }
    }

    /// Gives a lock or a range back.
    pub(super) fn give_back(self: Arc<Self>, claim: Claim, granted: Granted) -> BoxFuture<Result<(), Lost>> {
        let record = granted.record.index();
        match granted.grant {
            ProtocolGrant::Shift(grant) => Box::pin(async move { self.give_lock_back(record, grant).await }),
            ProtocolGrant::Range { token } => {
                Box::pin(async move { self.give_range_back(record, claim, token).await })
            }
            ProtocolGrant::Asymmetric { .. } => {
                Box::pin(async move { self.give_asymmetric_back(claim, &granted).await })
            }
            _ => unreachable!("a space gets back the grants that it gave out"),
        }
    }

    /// Makes an exclusive grant of an asymmetric lock, or of a range on a tree, shared. `None`: it is no such lock.
    pub(super) fn downgrade(
        self: Arc<Self>,
        claim: Claim,
        granted: Granted,
    ) -> Option<BoxFuture<Result<Granted, Lost>>> {
        if let ProtocolGrant::Range { token } = granted.grant {
            self.tree()?;
            return Some(Box::pin(async move {
                let tree = self.tree().ok_or(Lost::Recovered)?;
                self.downgrade_on_tree(tree, granted.record.index(), claim, token).await
            }));
        }
        self.asymmetric()?;
        Some(Box::pin(async move {
            let locks = self.asymmetric().ok_or(Lost::Recovered)?;
            let mut grant = backend::grant_of(Claim { mode: Mode::Exclusive, ..claim }, &granted);
            locks.downgrade(&mut grant).await?;
            Ok(backend::granted(self.number, &grant))
        }))
    }

    /// Whether a grant is still good: one READ.
    pub(super) fn holds(
        self: Arc<Self>,
        claim: Claim,
        granted: Granted,
    ) -> BoxFuture<Result<bool, FabricError>> {
        match granted.grant {
            ProtocolGrant::Shift(grant) => Box::pin(async move { self.client.lock().holds(&grant).await }),
            // It is this member's until its session is over.
            ProtocolGrant::Asymmetric { .. } => Box::pin(std::future::ready(Ok(true))),
            _ => Box::pin(async move { self.holds_range(granted.record.index(), claim).await }),
        }
    }

    /// Connections that have broken so far.
    fn breaks(&self) -> u64 {
        self.client.recorder().space().breaks()
    }

    /// Whether something that this client gave back, or gave up, may not have been executed: the connection broke.
    pub(super) fn has_doubtful(&self) -> bool {
        self.rooms.has_doubtful(self.breaks()) || self.tree().is_some_and(Tree::has_broken)
    }

    /// Clears away what is doubtful: as long as this client lives, its records vouch for what they name.
    pub(super) fn clear_doubtful(self: Arc<Self>) -> BoxFuture<()> {
        Box::pin(async move {
            if let Some(tree) = self.tree() {
                self.disown_broken(tree).await;
            }
            loop {
                let breaks = self.breaks();
                let doubtful = self.rooms.take_doubtful(breaks);
                // After an error the session is over, and its records with it.
                if doubtful.is_empty() || self.client.recorder().space().clear_again(&doubtful).await.is_err()
                {
                    return;
                }
                for record in doubtful {
                    self.rooms.free(record, breaks);
                }
            }
        })
    }

    /// Takes a keyed lock: now or never, or however long it takes.
    async fn take_lock(&self, claim: Claim, wait: bool) -> Result<Granted, Refused> {
        let record = self.rooms.claim(claim.lock, wait).await?;
        let breaks = self.breaks();
        let client = &self.client;
        let granted = match client.try_take(record, claim).await {
            Err(Denied::Busy) if wait => client.take(record, claim).await,
            Err(Denied::Busy) => client.try_past_the_dead(record, claim).await,
            tried => tried,
        };
        match granted {
            Ok(grant) => Ok(self.granted(record, ProtocolGrant::Shift(grant))),
            Err(denied) => {
                // Whatever the attempt left in the lock's word, nobody's record says that it is held.
                let _ = client.recorder().write(record, None).await;
                self.rooms.free(record, breaks);
                Err(Refused::new(denied, claim))
            }
        }
    }

    /// Gives a keyed lock back.
    async fn give_lock_back(&self, record: u8, grant: ShiftGrant) -> Result<(), Lost> {
        let breaks = self.breaks();
        let given = self.client.give_back(record, grant).await;
        self.rooms.free(record, breaks);
        given
    }

    async fn take_range(&self, claim: Claim, given_up: Option<GivenUp>) -> Result<Granted, Refused> {
        match self.protocols(claim).await? {
            Protocols::Exact => self.take_exactly(claim, given_up).await,
            Protocols::Trees(tree) => self.take_on_tree(tree, claim, given_up).await,
            Protocols::Asymmetric(_) => Err(Refused::Error(LockError::Unsupported(backend::NO_RANGES))),
        }
    }

    /// Takes an asymmetric lock.
    async fn take_asymmetric(
        &self,
        locks: &RemoteLocks<OneSidedEndpoint>,
        claim: Claim,
        given_up: Option<GivenUp>,
    ) -> Result<Granted, Refused> {
        let record = self.rooms.spare().ok_or_else(full)?;
        let breaks = self.breaks();
        let taken = match given_up {
            Some(given_up) => locks.take_unless(record, claim, || given_up.clone().wait()).await,
            None => locks.try_take(record, claim).await,
        };
        match taken {
            Ok(grant) => Ok(backend::granted(self.number, &grant)),
            Err(denied) => {
                self.rooms.free(record, breaks);
                Err(Refused::new(denied, claim))
            }
        }
    }

    async fn give_asymmetric_back(&self, claim: Claim, granted: &Granted) -> Result<(), Lost> {
        let locks = self.asymmetric().ok_or(Lost::Recovered)?;
        let breaks = self.breaks();
        let given = locks.give_back(backend::grant_of(claim, granted)).await;
        self.rooms.free(granted.record.index(), breaks);
        given
    }

    /// Takes a range, under the lock that is its gate.
    async fn take_exactly(&self, claim: Claim, given_up: Option<GivenUp>) -> Result<Granted, Refused> {
        let rooms = &self.rooms;
        let gate = rooms.claim(layout::gate(claim.lock), given_up.is_some()).await?;
        let breaks = self.breaks();
        let Some(range) = rooms.spare() else {
            rooms.free(gate, breaks);
            return Err(full());
        };
        let records = RangeRecords { gate, range };
        let taken = match given_up {
            Some(given_up) => self.client.take_range_unless(records, claim, || given_up.clone().wait()).await,
            None => self.client.try_range(records, claim).await,
        };
        self.rooms.free(gate, breaks);
        match taken {
            Ok(token) => Ok(self.granted(range, ProtocolGrant::Range { token })),
            Err(denied) => {
                self.rooms.free(range, breaks);
                Err(Refused::new(denied, claim))
            }
        }
    }

    async fn give_range_back(&self, record: u8, claim: Claim, token: u64) -> Result<(), Lost> {
        if let Some(trees) = self.tree() {
            return self.give_back_on_tree(trees, record, claim, token).await;
        }
        let breaks = self.breaks();
        let given = self.client.give_range_back(record, claim).await;
        self.rooms.free(record, breaks);
        given
    }

    async fn holds_range(&self, record: u8, claim: Claim) -> Result<bool, FabricError> {
        match self.tree() {
            Some(tree) => self.holds_on_tree(tree, record, claim).await,
            None => self.client.recorder().is_range_held(record, claim).await,
        }
    }

    pub(super) fn granted(&self, record: u8, grant: ProtocolGrant) -> Granted {
        Granted { grant, record: RecordId::new(self.number, record) }
    }
}

/// There is no record left.
pub(super) fn full() -> Refused {
    Refused::Error(LockError::TooManyLocks(format!(
        "a client of a one-sided space can hold and want {RECORDS} locks at a time, not more"
    )))
}

//! Taking and giving back a kept lock: the order in which cards, entry and standing are written and read.

use crate::protocol::{Denied, Lost, Space};
use crate::shiftlock::shared::SharedClient;
use crate::shiftlock::stirred::Stirred;
use crate::shiftlock::witness::Witness;
use crate::shiftlock::{Rules, ShiftGrant, ShiftLock, ShiftParams, Shipped};
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Endpoint, FabricError};

/// What a card says its owner is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// It tries, and holds the lock from the moment its verb succeeds: counts as holding.
    Taking = 1,
    /// It queues.
    Waiting = 2,
    /// It was handed the lock: counts as holding.
    Held = 3,
}

impl State {
    /// Whether nobody may reset the lock while the card's owner is alive.
    #[inline(always)]
    pub const fn holds(self) -> bool {
        matches!(self, Self::Taking | Self::Held)
    }
}

/// What is written on a card.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Says {
    /// What its owner is doing.
    pub state: State,
    /// With what.
    pub claim: Claim,
}

/// A space in which clients write down what they do: one client's view of it.
pub trait Book: Witness {
    /// Writes on a card of this client's; `None` wipes it. Others see it before they see anything this client does later.
    fn write(&self, card: u8, says: Option<Says>) -> impl Future<Output = Result<(), FabricError>>;

    /// A sign of life; an error if this client has been declared dead. Whoever was about to declare it dead, for what it
    /// saw before this, cannot do so any more.
    fn show_life(&self) -> impl Future<Output = Result<(), FabricError>>;
}

/// A client of kept locks. A card is one acquisition at a time; which cards are free is its user's business.
#[derive(Debug)]
pub struct KeptClient<E, B, R = Shipped> {
    lock: SharedClient<E, Stirred, R, B>,
}

impl<E: Endpoint, B: Book, R: Rules> KeptClient<E, B, R> {
    /// A client that talks through `ep` and writes into `book`.
    pub fn new(ep: E, space: &Space, params: &ShiftParams, book: B) -> Self {
        Self { lock: ShiftLock::<Stirred, R>::kept_client(ep, space, params, book) }
    }

    /// The lock below: for looking at grants, recovering, taking away.
    #[inline(always)]
    pub fn lock(&self) -> &SharedClient<E, Stirred, R, B> {
        &self.lock
    }

    #[inline(always)]
    fn book(&self) -> &B {
        self.lock.witness()
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// [`Denied::Busy`] if it is not; the card is free again.
    #[inline(always)]
    pub async fn try_take(&self, card: u8, claim: Claim) -> Result<ShiftGrant, Denied> {
        self.book().write(card, Some(Says { state: State::Taking, claim })).await?; // rule 1
        match self.lock.try_as(card, claim).await {
            Ok(grant) => self.believe(grant).await,
            Err(denied) => self.wipe(card, denied).await,
        }
    }

    /// Takes the lock, however long it takes.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached or this client is declared dead; the card is free again.
    pub async fn take(&self, card: u8, claim: Claim) -> Result<ShiftGrant, Denied> {
        loop {
            self.book().write(card, Some(Says { state: State::Waiting, claim })).await?;
            let grant = match self.lock.queue_as(card, claim).await {
                Ok(grant) => grant,
                Err(denied) => return self.wipe(card, denied).await,
            };
            self.book().write(card, Some(Says { state: State::Held, claim })).await?; // rule 1
            if !R::GRANTS_ARE_MADE_SURE || self.lock.make_sure(&grant).await? {
                return self.believe(grant).await;
            }
            // Reset, just when the lock came: start again.
            self.lock.endpoint().mark("kept: starts again", &[]);
        }
    }

    /// Rule 3.
    #[inline(always)]
    async fn believe(&self, grant: ShiftGrant) -> Result<ShiftGrant, Denied> {
        if R::GRANTED_ARE_ALIVE {
            self.book().show_life().await?;
        }
        Ok(grant)
    }

    async fn wipe(&self, card: u8, denied: Denied) -> Result<ShiftGrant, Denied> {
        self.book().write(card, None).await?;
        Err(denied)
    }

    /// Gives the lock back. Until it is done the card says that the lock is held, which at worst delays a reset.
    ///
    /// # Errors
    /// If the lock had been lost, or its memory cannot be reached.
    #[inline(always)]
    pub async fn give_back(&self, card: u8, grant: ShiftGrant) -> Result<(), Lost> {
        let given = self.lock.give_back(grant).await;
        // Whoever was declared dead after its last verb has nothing to wipe.
        let _ = self.book().write(card, None).await;
        given
    }

    /// Gives the lock back if nobody has to be waited for. `None`: nothing has happened.
    #[inline(always)]
    pub async fn give_back_at_once(&self, card: u8, grant: ShiftGrant) -> Option<Result<(), Lost>> {
        if grant.is_shared() {
            return Some(self.give_back(card, grant).await);
        }
        match self.lock.free_at_once(grant).await {
            Ok(true) => {
                let _ = self.book().write(card, None).await;
                Some(Ok(()))
            }
            Ok(false) => None,
            Err(lost) => Some(Err(lost.into())),
        }
    }
}

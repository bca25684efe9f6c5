//! Taking and giving back a kept lock: the order in which cards, entry and standing are written and read.

use crate::protocol::{Denied, Lost, Space};
use crate::shiftlock::prompt::Prompt;
use crate::shiftlock::shared::SharedClient;
use crate::shiftlock::stirred::{Stir, Stirred};
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

    /// After the verb that brought the lock: adds the grant's [mark](ShiftGrant::mark) to the card, for others to read, and
    /// looks whether this client is still in. An error if it has been declared dead. Whoever was about to declare it dead for what it
    /// did before this (slept, mostly) cannot do so any more.
    fn granted(&self, card: u8, mark: u64) -> impl Future<Output = Result<(), FabricError>>;

    /// How often somebody looks whether a lock that is taken becomes free before it queues: where a look is a load, a
    /// holder that runs is mostly done within a few of them, and a place in the queue costs more.
    fn looks(&self) -> u32 {
        0
    }
}

/// A book in memory that this CPU reaches by itself: nothing has to be waited for.
pub trait PromptBook: Book {
    /// [`Book::write`].
    ///
    /// # Errors
    /// If this client is out.
    fn write_now(&self, card: u8, says: Option<Says>) -> Result<(), FabricError>;

    /// [`Book::granted`].
    ///
    /// # Errors
    /// If this client is out.
    fn granted_now(&self, card: u8, mark: u64) -> Result<(), FabricError>;
}

/// Taking a lock that is free, step by step: once for those who have to wait for each step, as the explorer does, and once
/// for those who do not. A future, however short, costs more than all of these steps.
macro_rules! try_in_steps {
    ($client:ident, $card:ident, $claim:ident: $write:ident $try:ident $believe:ident $wipe:ident $(, .$await:tt)?) => {{
        let says = Says { state: State::Taking, claim: $claim };
        $client.book().$write($card, Some(says))$(.$await)??; // rule 1
        match $client.lock.$try(Self::slot($card), $claim)$(.$await)? {
            Ok(grant) => $client.$believe($card, grant)$(.$await)?, // rule 3
            Err(denied) => $client.$wipe($card, denied)$(.$await)?,
        }
    }};
}

/// A client of kept locks. A card is one acquisition at a time; which cards are free is its user's business.
///
/// An acquisition's slot in the queue is its card's number, or the low bits of that where the entry has no room for more:
/// then cards that are in use for one lock must differ in those.
#[derive(Debug)]
pub struct KeptClient<E, B, R = Shipped, L = Stirred> {
    lock: SharedClient<E, L, R, B>,
}

impl<E: Endpoint, B: Book, R: Rules, L: Stir> KeptClient<E, B, R, L> {
    /// A client that talks through `ep` and writes into `book`.
    pub fn new(ep: E, space: &Space, params: &ShiftParams, book: B) -> Self {
        Self { lock: ShiftLock::<L, R>::kept_client(ep, space, params, book) }
    }

    /// The slot of an acquisition by `card`.
    #[inline(always)]
    pub const fn slot(card: u8) -> u8 {
        card & L::SLOT.max() as u8
    }

    /// The lock below: for looking at grants, recovering, taking away.
    #[inline(always)]
    pub fn lock(&self) -> &SharedClient<E, L, R, B> {
        &self.lock
    }

    /// The book that it writes.
    #[inline(always)]
    pub fn book(&self) -> &B {
        self.lock.witness()
    }

    /// Takes the lock if it is free.
    ///
    /// # Errors
    /// [`Denied::Busy`] if it is not; the card is free again.
    #[inline(always)]
    pub async fn try_take(&self, card: u8, claim: Claim) -> Result<ShiftGrant, Denied> {
        try_in_steps!(self, card, claim: write try_as believe wipe, .await)
    }

    /// After a try that found the lock busy: takes it if it is the dead who have it. Who only tries would never outwait them.
    ///
    /// # Errors
    /// [`Denied::Busy`] if somebody lives who has it.
    pub async fn try_past_the_dead(&self, card: u8, claim: Claim) -> Result<ShiftGrant, Denied> {
        if self.lock.recover(claim.lock).await? {
            self.try_take(card, claim).await
        } else {
            Err(Denied::Busy)
        }
    }

    /// Takes the lock, however long it takes.
    ///
    /// # Errors
    /// If the lock's memory cannot be reached or this client is declared dead; the card is free again.
    pub async fn take(&self, card: u8, claim: Claim) -> Result<ShiftGrant, Denied> {
        match self.take_soon(card, claim).await {
            Err(Denied::Busy) => self.take_in_turn(card, claim).await,
            taken => taken,
        }
    }

    /// Takes the lock if it becomes free within a moment. Nobody who queues is overtaken by this: with somebody in the
    /// queue, the lock is never free.
    pub(super) async fn take_soon(&self, card: u8, claim: Claim) -> Result<ShiftGrant, Denied> {
        for _ in 0..self.book().looks() {
            std::hint::spin_loop();
            if self.lock.looks_free(claim).await? {
                match self.try_take(card, claim).await {
                    Err(Denied::Busy) => {}
                    taken => return taken,
                }
            }
        }
        Err(Denied::Busy)
    }

    pub(super) async fn take_in_turn(&self, card: u8, claim: Claim) -> Result<ShiftGrant, Denied> {
        loop {
            self.book().write(card, Some(Says { state: State::Waiting, claim })).await?;
            let grant = match self.lock.queue_as(Self::slot(card), claim).await {
                Ok(grant) => grant,
                Err(denied) => return self.wipe(card, denied).await,
            };
            self.book().write(card, Some(Says { state: State::Held, claim })).await?; // rule 1
            if !R::GRANTS_ARE_MADE_SURE || self.lock.make_sure(&grant).await? {
                return self.believe(card, grant).await;
            }
            // Reset, just when the lock came: start again.
            self.lock.endpoint().mark("kept: starts again", &[]);
        }
    }

    /// Rule 3.
    #[inline(always)]
    async fn believe(&self, card: u8, grant: ShiftGrant) -> Result<ShiftGrant, Denied> {
        if R::GRANTED_ARE_ALIVE {
            self.book().granted(card, grant.mark()).await?;
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

impl<E: Endpoint, B: PromptBook, R: Rules, L: Stir> KeptClient<E, B, R, L> {
    /// [`try_take`](Self::try_take), where nothing has to be waited for.
    ///
    /// # Errors
    /// [`Denied::Busy`] also where a second look might have settled it; the card is free again.
    #[inline(always)]
    pub fn try_take_now(&self, card: u8, claim: Claim) -> Result<Prompt, Denied> {
        try_in_steps!(self, card, claim: write_now try_now believe_now wipe_now)
    }

    /// Takes the lock if it becomes free within a moment, where nothing has to be waited for.
    ///
    /// # Errors
    /// [`Denied::Busy`] if it does not; the card is free again.
    pub fn take_soon_now(&self, card: u8, claim: Claim) -> Result<Prompt, Denied> {
        for _ in 0..self.book().looks() {
            std::hint::spin_loop();
            if self.lock.looks_free_now(claim) {
                match self.try_take_now(card, claim) {
                    Err(Denied::Busy) => {}
                    taken => return taken,
                }
            }
        }
        Err(Denied::Busy)
    }

    #[inline(always)]
    fn believe_now(&self, card: u8, grant: Prompt) -> Result<Prompt, Denied> {
        if R::GRANTED_ARE_ALIVE {
            self.book().granted_now(card, grant.mark())?;
        }
        Ok(grant)
    }

    #[cold]
    fn wipe_now(&self, card: u8, denied: Denied) -> Result<Prompt, Denied> {
        self.book().write_now(card, None)?;
        Err(denied)
    }

    /// [`give_back_at_once`](Self::give_back_at_once), where nothing has to be waited for. `false`: nothing has happened.
    #[inline(always)]
    pub fn give_back_now(&self, card: u8, claim: Claim, grant: Prompt) -> bool {
        let given = self.lock.give_back_now(Self::slot(card), claim, grant);
        if given {
            let _ = self.book().write_now(card, None);
        }
        given
    }
}

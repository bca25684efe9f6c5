//! A client of the combiner: sends requests, learns of its grants in the way the space has chosen.
//!
//! A request is known by an id of the client's own, so that a client can hold and want many ranges at once and needs
//! no `flip` to tell an old answer from a new one: an id is used again only after the message that ended it, and
//! messages keep their order. Release sends and does not wait (thesis §4.1).
//!
//! **Shards.** With several combiners, names are dealt out among them and the units of a ranged lock are cut into as many
//! stretches. A range that crosses a border is acquired stretch by stretch, from the left: all clients use the same order, so
//! there is no deadlock. Its token is the largest of the stretches' tokens, and before the lock is handed to the user the
//! other combiners are told to stay above it.
//!
//! **Cancel safety.** An acquire that is dropped must be kept as an abandoned one (see [`abandoned`](crate::abandoned)). One whose time runs
//! out cancels its request and waits for the answer, one round trip: if the grant was under way, it is given back.

use super::core::{Answer, Refusal, Request};
use super::ids::Ids;
use super::message::{self, Kind, ServerAnswer};
use super::server::Learning;
use super::{Params, Variant};
use crate::protocol::{Change, Denied, Grant, LockClient, Lost, Patience, Reason, Space, Want};
use lockwright_fabric::observe::{Claim, Mode, Observation};
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError, PeerId};
use std::marker::PhantomData;

/// A client of the combiner.
#[derive(Debug)]
pub struct CombinerClient<E, V> {
    pub(super) ep: E,
    pub(super) space: Space,
    pub(super) params: Params,
    pub(super) ids: Ids,
    variant: PhantomData<V>,
}

/// What is held: one stretch of units, or several where shards or earlier changes cut it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CombinerGrant {
    pub(super) stretches: Vec<Stretch>,
    pub(super) token: u64,
}

/// What one combiner holds for a client under one id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stretch {
    pub(super) shard: u16,
    pub(super) id: u32,
    pub(super) start: u64,
    pub(super) end: u64,
    pub(super) token: u64,
}

impl Grant for CombinerGrant {
    fn token(&self) -> Option<u64> {
        Some(self.token)
    }
}

impl<E: Endpoint, V: Variant> LockClient for CombinerClient<E, V> {
    type Grant = CombinerGrant;

    async fn acquire(&self, want: Want) -> Result<CombinerGrant, Denied> {
        let Want { claim: Claim { mode, .. }, patience } = want;
        let wanted = super::shards::stretches(&self.space, want.claim)?;
        let mut grant = CombinerGrant { stretches: Vec::with_capacity(wanted.len()), token: 0 };
        if self.params.waits_from_note {
            self.ep.observe(Observation::GaveUp(want.claim));
        }
        for (shard, lock, start, end) in wanted {
            let id = self.ids.take();
            let wait = patience != Patience::Try;
            let request = match V::PERMITS {
                true => Request::Permits { id, lock, weight: start, limit: end - 1, wait },
                false => Request::Lock { id, lock, mode, start, end, wait },
            };
            match self.ask(shard, request, id, patience, want.claim, &grant).await {
                Ok(token) => grant.stretches.push(Stretch { shard, id, start, end, token }),
                Err(denied) => {
                    self.ids.free(id);
                    // Why it was denied is what the user has to know, even if nobody hears of the rest any more.
                    let _ = self.give_back(&grant).await;
                    return Err(denied);
                }
            }
        }
        self.agree_on_token(&mut grant).await?;
        Ok(grant)
    }

    async fn release(&self, grant: CombinerGrant) -> Result<(), Lost> {
        Ok(self.give_back(&grant).await?)
    }

    async fn change(&self, grant: &mut CombinerGrant, change: Change) -> Result<(), Denied> {
        match change {
            Change::Upgrade(patience) => self.upgrade(grant, patience).await,
            Change::Downgrade => self.downgrade(grant).await,
            Change::Shrink { start, end } => self.shrink(grant, start, end).await,
        }
    }

    fn locals(&self) -> Vec<u64> {
        self.ids.in_use()
    }
}

impl<E: Endpoint, V: Variant> CombinerClient<E, V> {
    pub(super) fn new(ep: E, space: Space, params: Params) -> Self {
        Self { ep, space, params, ids: Ids::default(), variant: PhantomData }
    }

    pub(super) fn server(shard: u16) -> PeerId {
        PeerId::role(shard as usize)
    }

    pub(super) async fn tell(&self, shard: u16, request: Request) -> Result<(), FabricError> {
        self.ep.send(Self::server(shard), message::encode(request)).await
    }

    async fn give_back(&self, grant: &CombinerGrant) -> Result<(), FabricError> {
        for stretch in &grant.stretches {
            self.tell(stretch.shard, Request::Unlock { id: stretch.id }).await?;
            self.ids.free(stretch.id);
        }
        Ok(())
    }

    /// The token of the whole is the largest; combiners that gave a smaller one stay above it from now on.
    pub(super) async fn agree_on_token(&self, grant: &mut CombinerGrant) -> Result<(), FabricError> {
        let token = grant.stretches.iter().map(|stretch| stretch.token).max().unwrap_or(grant.token);
        for stretch in &mut grant.stretches {
            if stretch.token < token {
                self.tell(stretch.shard, Request::Raise { token }).await?;
                stretch.token = token;
            }
        }
        grant.token = token;
        Ok(())
    }

    /// Asks for a lock or an upgrade and waits for the grant, as long as patience lasts. `so_far` is what the same
    /// acquire holds already.
    pub(super) async fn ask(
        &self,
        shard: u16,
        request: Request,
        id: u32,
        patience: Patience,
        claim: Claim,
        so_far: &CombinerGrant,
    ) -> Result<u64, Denied> {
        self.tell(shard, request).await?;
        match self.learn(shard, id, patience, claim, so_far).await? {
            Some(Answer::Granted { token }) => Ok(token),
            Some(Answer::Busy) => Err(Denied::Busy),
            Some(Answer::Refused(refusal)) => Err(Denied::BadRequest(reason(refusal))),
            // The server answers a lock request in no other way.
            Some(Answer::Cancelled | Answer::Downgraded { .. }) => {
                Err(Denied::BadRequest(reason(Refusal::NotHeld)))
            }
            None => {
                let (end, done): (_, fn(Answer) -> bool) = match request {
                    Request::Upgrade { .. } => {
                        (Request::Downgrade { id }, |a| matches!(a, Answer::Downgraded { .. }))
                    }
                    _ => (Request::Cancel { id }, |a| a == Answer::Cancelled),
                };
                self.tell(shard, end).await?;
                // A grant that crossed the message on its way comes first, and is void.
                while !done(self.hear(shard, id).await) {}
                Err(Denied::TimedOut)
            }
        }
    }

    /// How a grant is learnt of. `None` when patience ran out first.
    async fn learn(
        &self,
        shard: u16,
        id: u32,
        patience: Patience,
        claim: Claim,
        so_far: &CombinerGrant,
    ) -> Result<Option<Answer>, FabricError> {
        let deadline =
            if let Patience::Until(time) = patience { Deadline::At(time) } else { Deadline::Never };
        match V::learning(&self.params, shard) {
            Learning::Pushed => Ok(self.hear_by(deadline, shard, id).await),
            Learning::PollRpc | Learning::AnswerThenPoll => {
                if let Some(answer) = self.noted(shard, id).await {
                    return Ok(Some(answer));
                }
                if self.params.waits_from_note {
                    self.ep.observe(Observation::Waiting(claim));
                }
                loop {
                    self.ep.send(Self::server(shard), Kind::Poll.message(0, &[u64::from(id)])).await?;
                    let heard = self.ep.recv(|from, message| Self::about(from, message, shard, id)).await;
                    if let ServerAnswer::Answer(answer) = heard {
                        return Ok(Some(answer));
                    }
                    self.mark_poll(shard, id, so_far);
                    if let Patience::Until(time) = patience
                        && self.ep.passed(time).await
                    {
                        return Ok(None);
                    }
                    self.ep.sleep(self.params.poll_ns).await;
                    self.ep.observe(Observation::Retried(claim));
                }
            }
            Learning::PollFlag(flags) => {
                if let Some(answer) = self.noted(shard, id).await {
                    return Ok(Some(answer));
                }
                let flag = flags.word(super::core::ClientId(self.ep.me().0), id);
                let wait = flag.until(Cond::Ne { mask: u128::from(u64::MAX), value: 0 });
                let waited = self.ep.wait_until(wait.by(deadline).pace(self.params.poll_ns)).await?;
                Ok(waited.met.then_some(Answer::Granted { token: waited.value }))
            }
        }
    }

    /// The response to the request itself: nothing where it was only taken note of.
    async fn noted(&self, shard: u16, id: u32) -> Option<Answer> {
        let heard = self.ep.recv(|from, message| Self::about(from, message, shard, id)).await;
        if let ServerAnswer::Answer(answer) = heard { Some(answer) } else { None }
    }

    pub(super) async fn hear(&self, shard: u16, id: u32) -> Answer {
        self.hear_by(Deadline::Never, shard, id).await.expect("without a deadline there is an answer")
    }

    async fn hear_by(&self, deadline: Deadline, shard: u16, id: u32) -> Option<Answer> {
        let answer = |heard| if let ServerAnswer::Answer(answer) = heard { Some(answer) } else { None };
        self.ep
            .recv_by(deadline, |from, message| Self::about(from, message, shard, id).and_then(answer))
            .await
    }

    fn about(
        from: PeerId,
        message: &lockwright_fabric::Message,
        shard: u16,
        id: u32,
    ) -> Option<ServerAnswer> {
        if from == Self::server(shard) { message::decode_answer(id, message) } else { None }
    }

    fn mark_poll(&self, shard: u16, id: u32, so_far: &CombinerGrant) {
        let mut locals = vec![u64::from(shard), u64::from(id), so_far.token];
        for stretch in &so_far.stretches {
            locals.extend([u64::from(stretch.shard), u64::from(stretch.id), stretch.start, stretch.token]);
        }
        self.ep.mark("combiner poll", &locals);
    }
}

/// A refusal as users see it.
pub(super) fn reason(refusal: Refusal) -> &'static Reason {
    match refusal {
        Refusal::EmptyRange => &Reason("the range is empty or reversed"),
        Refusal::IdInUse => &Reason("the request's id is in use"),
        Refusal::TooLarge => &Reason("the server allows no more clients or requests"),
        Refusal::NotHeld => &Reason("the lock is not held"),
        Refusal::StillWaiting => &Reason("the lock is still waited for"),
        Refusal::NotInside => &Reason("the units are not all part of the range that is held"),
        Refusal::SameMode => &Reason("the lock is already held in that mode"),
        Refusal::UpgradeConflict => {
            &Reason("another reader already waits to upgrade, and each would wait for the other")
        }
        Refusal::NotThatMany => &Reason("the semaphore does not have that many permits"),
        Refusal::OtherLimit => &Reason("others use this semaphore with another limit"),
        Refusal::IsPermits => &Reason("permits can be given back, but not changed"),
    }
}

/// A claim that stands for an upgrade in what is observed.
pub(super) const fn upgrade_claim(lock: u64, stretch: &Stretch) -> Claim {
    Claim { lock, mode: Mode::Exclusive, start: stretch.start, end: stretch.end }
}

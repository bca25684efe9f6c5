//! A client: one that calls the lock library of its machine and waits for the answer. Calls do not leave the machine.
//!
//! A try is answered by the decider if the lock can be had, and else by its agent, which does not queue it.
//!
//! **Cancel safety.** An acquire that is dropped must be kept as an abandoned one (see [`abandoned`](crate::abandoned)). One whose time runs
//! out tells the library, which lets go of the lock if it should still come, and the call returns at once.

use super::directory::Known;
use super::packet::call;
use super::{Params, Rules};
use crate::protocol::{Denied, LockClient, Lost, Patience, Space, TokenGrant, Want};
use crate::slots::Slots;
use lockwright_fabric::observe::Mode;
use lockwright_fabric::{Endpoint, FabricError, Message, PeerId, Time};
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::pin;
use std::task::Poll;

/// A client of FissLock.
#[derive(Debug)]
pub struct FissClient<E, R> {
    ep: E,
    machine: PeerId,
    /// Who knows the places of sparse ids.
    coordinator: PeerId,
    params: Params,
    slots: Slots,
    known: Known,
    rules: PhantomData<R>,
}

/// What is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FissGrant {
    held: TokenGrant,
    slot: u64,
}

impl crate::protocol::Grant for FissGrant {
    fn token(&self) -> Option<u64> {
        self.held.token
    }
}

impl<E: Endpoint, R: Rules> FissClient<E, R> {
    pub(super) fn new(ep: E, space: &Space, params: &Params) -> Self {
        let index = ep.me().index().0;
        let machine = ep.home().map_or(index % usize::from(space.nodes), |node| usize::from(node.0));
        Self {
            ep,
            machine: PeerId::role(machine),
            coordinator: super::coordinator_of(space.nodes, params),
            params: params.clone(),
            slots: Slots::default(),
            known: Known::default(),
            rules: PhantomData,
        }
    }

    /// The lock's place in the registers: its id, or what the directory says.
    async fn index_of(&self, id: u64) -> Result<u64, FabricError> {
        if !self.params.sparse_ids {
            return Ok(id);
        }
        if let Some(index) = self.known.get(id) {
            return Ok(index);
        }
        self.ep.send(self.coordinator, Message::new(id, call::RESOLVE, &[])).await?;
        let about_id = |_: PeerId, message: &Message| {
            (message.kind == call::RESOLVED && message.lock == id).then_some(message.words[0])
        };
        let index = self.ep.recv(about_id).await;
        self.known.insert(id, index);
        Ok(index)
    }

    /// What the library says about `slot` next: the token of a grant, or that it gave up.
    async fn hear(&self, lock: u64, slot: u64) -> MachineAnswer {
        let about_slot = |_: PeerId, message: &Message| match message.kind {
            _ if (message.lock, message.words[0]) != (lock, slot) => None,
            call::LOCKED => Some(MachineAnswer::Locked(message.words[1])),
            call::GAVE_UP => Some(MachineAnswer::GaveUp),
            call::DENIED => Some(MachineAnswer::Denied),
            _ => None,
        };
        self.ep.recv(about_slot).await
    }

    /// The same, unless the user's patience ends first. That is an alarm, not a deadline: retransmissions go by those.
    async fn recv_until(&self, until: Option<Time>, lock: u64, slot: u64) -> Option<MachineAnswer> {
        let mut heard = pin!(self.hear(lock, slot));
        let Some(until) = until else { return Some(heard.await) };
        let mut alarm = pin!(self.ep.alarm(until));
        poll_fn(|cx| match heard.as_mut().poll(cx) {
            Poll::Ready(heard) => Poll::Ready(Some(heard)),
            Poll::Pending => alarm.as_mut().poll(cx).map(|()| None),
        })
        .await
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum MachineAnswer {
    Locked(u64),
    GaveUp,
    Denied,
}

impl<E: Endpoint, R: Rules> LockClient for FissClient<E, R> {
    type Grant = FissGrant;

    async fn acquire(&self, want: Want) -> Result<FissGrant, Denied> {
        let until = match want.patience {
            Patience::Forever | Patience::Try => None,
            Patience::Until(time) => Some(time),
        };
        let tries = u64::from(want.patience == Patience::Try);
        let lock = self.index_of(want.claim.lock).await?;
        let slot = self.slots.take();
        let urgent = u64::from(self.ep.me().index().0 < self.params.urgent_clients as usize);
        let shared = u64::from(want.claim.mode == Mode::Shared);
        self.ep.send(self.machine, Message::new(lock, call::LOCK, &[slot, shared, urgent, tries])).await?;
        match self.recv_until(until, lock, slot).await {
            Some(MachineAnswer::Locked(token)) => {
                let token = self.params.tokens.then_some(token);
                return Ok(FissGrant { held: TokenGrant { lock, token }, slot });
            }
            Some(MachineAnswer::Denied) => {
                self.slots.free(slot);
                return Err(Denied::Busy);
            }
            Some(MachineAnswer::GaveUp) | None => {}
        }
        self.ep.send(self.machine, Message::new(lock, call::GIVE_UP, &[slot])).await?;
        // A grant that crossed the call comes before its answer, and is void.
        while self.hear(lock, slot).await != MachineAnswer::GaveUp {}
        self.slots.free(slot);
        Err(Denied::TimedOut)
    }

    async fn release(&self, grant: FissGrant) -> Result<(), Lost> {
        let FissGrant { held, slot } = grant;
        self.ep.send(self.machine, Message::new(held.lock, call::UNLOCK, &[slot])).await?;
        self.slots.free(slot);
        Ok(())
    }

    fn locals(&self) -> Vec<u64> {
        let mut locals = self.slots.in_use();
        // Slots are small numbers; ids come after them, in pairs.
        locals.push(u64::MAX);
        locals.extend(self.known.locals());
        locals
    }
}

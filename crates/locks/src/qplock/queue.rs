//! The links of a cohort's queue: how a client tells its predecessor who it is, and how the lock is passed on.
//!
//! In the paper a descriptor lies in the waiter's own memory, where others reach it by rWrite and its owner spins on
//! it for free. Here that is the memory of the node the client is at home on. A client that is at home nowhere (a
//! machine without registered lock memory) has its mailbox instead: a SEND into it takes the place of the rWrite, one
//! for one, and waiting for it costs the network nothing either. Which of the two it is stands in the descriptor's
//! name, so both kinds of clients can queue behind each other.

use super::layout::{Desc, Pass};
use super::{QpClient, Rules};
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError, Message};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// `rWrite(&(curr->next), &desc)`: word 0 is the receiver's slot, word 1 the sender's descriptor.
pub(super) const SUCCESSOR: u32 = 1;
/// `rWrite(&(desc.next->budget), …)`: word 0 is the receiver's slot, word 1 the pass.
pub(super) const HANDOVER: u32 = 2;

/// Which descriptors of a client are in use. A descriptor stands for one acquisition, not for a client: a client may
/// hold one lock while it waits for another, or while an acquire it gave up still stands in a queue.
#[derive(Debug, Default)]
pub(super) struct Slots(AtomicU32);

impl Slots {
    /// A free slot below `limit`, now taken.
    #[inline(always)]
    pub(super) fn take(&self, limit: u8) -> Option<u8> {
        loop {
            let taken = self.0.load(Relaxed);
            let slot = taken.trailing_ones();
            if slot >= u32::from(limit) {
                return None;
            }
            if self.0.compare_exchange_weak(taken, taken | 1 << slot, Relaxed, Relaxed).is_ok() {
                return Some(slot as u8);
            }
        }
    }

    /// Nobody points to `slot` any more.
    #[inline(always)]
    pub(super) fn give_back(&self, slot: u8) {
        self.0.fetch_and(!(1 << slot), Relaxed);
    }

    /// All of them, as bits.
    pub(super) fn taken(&self) -> u32 {
        self.0.load(Relaxed)
    }
}

impl<E: Endpoint, R: Rules> QpClient<E, R> {
    /// Alg. 2 line 9: `pred` learns who is behind it.
    pub(super) async fn follow(&self, lock: u64, pred: Desc, me: Desc) -> Result<(), FabricError> {
        match pred.next(&self.space, &self.params) {
            Some(next) => self.ep.go(next.write(me.to_word())).await.map(drop),
            None => {
                let words = [u64::from(pred.slot), me.to_word()];
                self.ep.send(pred.owner, Message::new(lock, SUCCESSOR, &words)).await
            }
        }
    }

    /// Alg. 2 line 10: waits, without any traffic, until the lock is passed.
    pub(super) async fn passed(&self, lock: u64, me: Desc) -> Result<Pass, FabricError> {
        let Some(budget) = me.budget(&self.space, &self.params) else {
            let word = self.ep.recv(|_, message| addressed(message, lock, HANDOVER, me)).await;
            return Ok(Pass::from_word(word));
        };
        let wait = budget.until(Cond::Ne { mask: u128::MAX, value: 0 });
        let word = self.ep.wait_until(wait).await?.value;
        self.ep.go(budget.write(0)).await?;
        Ok(Pass::from_word(word))
    }

    /// Alg. 2 lines 16, 18: the successor, if it has made itself known by `deadline`.
    pub(super) async fn successor(
        &self,
        lock: u64,
        me: Desc,
        deadline: Deadline,
    ) -> Result<Option<Desc>, FabricError> {
        let Some(next) = me.next(&self.space, &self.params) else {
            let word = self.ep.recv_by(deadline, |_, message| addressed(message, lock, SUCCESSOR, me)).await;
            return Ok(word.and_then(Desc::from_word));
        };
        let word = match deadline {
            Deadline::Now => self.ep.go(next.read()).await?,
            _ => self.ep.wait_until(next.until(Cond::Ne { mask: u128::MAX, value: 0 })).await?.value,
        };
        if word != 0 {
            self.ep.go(next.write(0)).await?;
        }
        Ok(Desc::from_word(word))
    }

    /// Alg. 2 line 19: the lock is `next`'s.
    pub(super) async fn pass(&self, lock: u64, next: Desc, pass: Pass) -> Result<(), FabricError> {
        match next.budget(&self.space, &self.params) {
            Some(budget) => self.ep.go(budget.write(pass.to_word())).await.map(drop),
            None => {
                let words = [u64::from(next.slot), pass.to_word()];
                self.ep.send(next.owner, Message::new(lock, HANDOVER, &words)).await
            }
        }
    }
}

/// What `message` says to the descriptor `me`, if it is of `kind` and meant for it.
fn addressed(message: &Message, lock: u64, kind: u32, me: Desc) -> Option<u64> {
    let meant = message.lock == lock && message.kind == kind && message.words[0] == u64::from(me.slot);
    meant.then_some(message.words[1])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_given_to_one_acquisition_at_a_time() {
        let slots = Slots::default();
        assert_eq!([slots.take(2), slots.take(2), slots.take(2)], [Some(0), Some(1), None]);
        slots.give_back(0);
        assert_eq!(slots.take(2), Some(0));
        assert_eq!(slots.taken(), 0b11);
    }
}

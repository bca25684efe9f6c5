//! The links of a queue: how an acquisition tells its predecessor who it is, and how it learns that it is its turn.
//!
//! By words in the descriptors of clients that are at home on a memory node, by messages to the others, as in the plain
//! lock. What was written for another acquisition of the same client is passed over. A late write can also fall on top of
//! one that was meant: then a pass is lost, and the lock recovered.

use super::acquire::Attempt;
use super::layout::Member;
use super::{LeasedClient, Rules};
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError, Message};

/// Words: the receiver's number (its low bits), then what stands in `next_number` and `next_name`.
pub(super) const SUCCESSOR: u32 = 1;
/// Words: the receiver's number, then what stands in `pass`.
pub(super) const HANDOVER: u32 = 2;

impl<E: Endpoint, R: Rules> LeasedClient<E, R> {
    /// Alg. 2 line 9: `pred` learns who is behind it.
    pub(super) async fn follow(&self, lock: u64, pred: Member, me: Member) -> Result<(), FabricError> {
        let [number, name] = me.as_next_of(pred);
        let words = (pred.next_number(&self.space, &self.params), pred.next_name(&self.space, &self.params));
        match words {
            (Some(next_number), Some(next_name)) => {
                self.ep.go((next_number.write(number), next_name.write(name))).await.map(drop)
            }
            _ => {
                let message = Message::new(lock, SUCCESSOR, &[pred.tag(), number, name]);
                tolerate(self.ep.send(pred.owner, message).await)
            }
        }
    }

    /// Alg. 2 line 10: waits, without any traffic, until it is this acquisition's turn. The budget; `None` if the
    /// generation is over.
    pub(super) async fn passed(&self, attempt: &mut Attempt) -> Result<Option<u16>, FabricError> {
        let Attempt { place, me, .. } = *attempt;
        loop {
            self.ep.mark("leased queue", &attempt.locals(0));
            let deadline = self.deadline(&attempt.timer);
            let mine = |word: u64| word >> 16 == me.number || (!R::CHECKS_ADDRESS && word != 0);
            let pass = match me.pass(&self.space, &self.params) {
                Some(word) => {
                    let cond = if R::CHECKS_ADDRESS {
                        Cond::Eq { mask: u128::from(u64::MAX << 16), value: u128::from(me.passed(0)) }
                    } else {
                        Cond::Ne { mask: u128::MAX, value: 0 }
                    };
                    let waited = self.ep.wait_until(word.until(cond).by(deadline)).await?;
                    waited.met.then_some(waited.value)
                }
                None => {
                    let pick = |_, message: &Message| {
                        let meant = message.lock == place.lock && message.kind == HANDOVER;
                        (meant && mine(message.words[1])).then_some(message.words[1])
                    };
                    self.ep.recv_by(deadline, pick).await
                }
            };
            if let Some(pass) = pass {
                return Ok(Some(pass as u16));
            }
            if self.is_over(attempt).await? {
                return Ok(None);
            }
        }
    }

    /// Alg. 2 lines 16, 18: the words of the successor, if there is one by `deadline`.
    pub(super) async fn next(
        &self,
        lock: u64,
        me: Member,
        deadline: Deadline,
    ) -> Result<Option<[u64; 2]>, FabricError> {
        let words = (me.next_number(&self.space, &self.params), me.next_name(&self.space, &self.params));
        let (Some(next_number), Some(next_name)) = words else {
            let pick = |_, message: &Message| {
                let meant = message.lock == lock && message.kind == SUCCESSOR && message.words[0] == me.tag();
                meant.then_some([message.words[1], message.words[2]])
            };
            return Ok(self.ep.recv_by(deadline, pick).await);
        };
        let mine = Cond::Eq { mask: u128::from(u64::MAX << 32), value: u128::from(me.tag() << 32) };
        let name = match deadline {
            Deadline::Now => {
                Some(self.ep.go(next_name.read()).await?).filter(|name| mine.holds((*name).into()))
            }
            _ => {
                let waited = self.ep.wait_until(next_name.until(mine).by(deadline)).await?;
                waited.met.then_some(waited.value)
            }
        };
        let Some(name) = name else { return Ok(None) };
        // Written before the name was.
        Ok(Some([self.ep.go(next_number.read()).await?, name]))
    }

    /// Alg. 2 line 19: it is `next`'s turn.
    pub(super) async fn pass(&self, lock: u64, next: Member, budget: u16) -> Result<(), FabricError> {
        match next.pass(&self.space, &self.params) {
            Some(word) => self.ep.go(word.write(next.passed(budget))).await.map(drop),
            None => {
                let message = Message::new(lock, HANDOVER, &[next.tag(), next.passed(budget)]);
                tolerate(self.ep.send(next.owner, message).await)
            }
        }
    }
}

/// A client that waits for what the lost peer should have done will recover the lock.
fn tolerate(told: Result<(), FabricError>) -> Result<(), FabricError> {
    match told {
        Err(FabricError::PeerLost(_)) => Ok(()),
        told => told,
    }
}

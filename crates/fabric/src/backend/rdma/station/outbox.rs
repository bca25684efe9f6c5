//! Letters on their way out of a station: one whose arrival is waited for, several with one doorbell, and those that nobody waits
//! for, which leave when there is room.
//!
//! What this file must not do: know whom a letter is for.

use super::super::dc::Remote;
use super::super::letter::LETTER;
use super::super::wire::Wire;
use super::super::work::{Work, WorkKind};
use super::{BACKLOG, BATCHES, CHUNK, State, Station};
use std::collections::VecDeque;
use std::sync::{Arc, PoisonError, Weak};

impl Station {
    /// The work that sends a letter from slot `index`.
    fn sending(&self, index: usize, bytes: &[u8]) -> Work {
        let place = (index - BATCHES) * LETTER;
        self.outgoing.write(place, bytes);
        let piece = self.outgoing.piece(place, bytes.len());
        Work { id: self.id(index), kind: WorkKind::Send, piece, signal: true, fence: false }
    }

    /// Sends a letter over `wire`, by DC to `to`; whether it has arrived.
    pub(in crate::backend::rdma) async fn send(
        self: &Arc<Self>,
        wire: &Wire,
        to: Option<&Remote>,
        bytes: &[u8],
    ) -> bool {
        let mut ticket = self.slot(true).await;
        let work = self.sending(ticket.index, bytes);
        self.finish(&mut ticket, wire, to, &[work]).await
    }

    /// Sends letters over `wire` with one doorbell, as many as [fit](bundled) together; whether all have arrived.
    pub(in crate::backend::rdma) async fn send_all(
        self: &Arc<Self>,
        wire: &Wire,
        letters: &[Vec<u8>],
    ) -> bool {
        let mut ticket = self.slot(true).await;
        let mut works = Vec::with_capacity(letters.len());
        let (id, mut place) = (self.id(ticket.index), (ticket.index - BATCHES) * LETTER);
        for bytes in letters {
            self.outgoing.write(place, bytes);
            let piece = self.outgoing.piece(place, bytes.len());
            let signal = works.len() + 1 == letters.len();
            works.push(Work { id, kind: WorkKind::Send, piece, signal, fence: false });
            place += bytes.len();
        }
        self.finish(&mut ticket, wire, None, &works).await
    }

    /// Sends a letter over `wire` as soon as there is room. `false` if it cannot be sent, or too many wait.
    pub(in crate::backend::rdma) fn tell(&self, wire: &Arc<Wire>, bytes: Vec<u8>) -> bool {
        let mut backlog = self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
        if wire.number().is_none() || backlog.len() >= BACKLOG {
            return false;
        }
        backlog.push_back((Arc::downgrade(wire), bytes));
        self.tell_waiting(&mut backlog);
        true
    }

    /// Sends what waits, while there is room.
    pub(super) fn tell_waiting(&self, backlog: &mut VecDeque<(Weak<Wire>, Vec<u8>)>) {
        while !backlog.is_empty() {
            let mut slots = self.slots();
            let Some(index) = slots.free_letters.pop() else { return };
            let slot = &mut slots.slots[index];
            slot.turn = slot.turn.wrapping_add(1);
            // As if its future had been dropped: nobody waits. No queue pair that is destroyed just now takes the slot along.
            (slot.state, slot.pair) = (State::Busy { waiter: None, dropped: true }, 0);
            drop(slots);
            let sent = backlog.pop_front().is_some_and(|(wire, bytes)| {
                wire.upgrade().is_some_and(|wire| wire.post(index, &[self.sending(index, &bytes)], None))
            });
            if !sent {
                // Its wire is cut: who told it says it again over the next one.
                Self::free(&mut self.slots(), index);
            }
        }
    }
}

/// How many of these letters fit together into one slot: at least one, of which each fits.
pub(in crate::backend::rdma) fn bundled(sizes: impl Iterator<Item = usize>) -> usize {
    let mut room = LETTER;
    let fits = |size: &usize| room.checked_sub(*size).map(|left| room = left).is_some();
    sizes.take(CHUNK).take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn letters_go_together_as_far_as_a_slot_has_room_and_a_list_of_work_is_long() {
        let of = |sizes: &[usize]| bundled(sizes.iter().copied());
        assert_eq!(of(&[LETTER, 56]), 1);
        assert_eq!(of(&[56, LETTER]), 1);
        assert_eq!(of(&[LETTER - 112, 56, 56, 56]), 3);
        assert_eq!(of(&[56; 3 * CHUNK]), CHUNK);
        assert_eq!(of(&[]), 0);
    }
}

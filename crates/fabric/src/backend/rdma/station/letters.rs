//! A station's letters: those that are sent and waited for, alone or several with one doorbell, those that nobody waits for, and
//! those that come.
//!
//! Letters that nobody waits for keep their order, also where there is no room for them: then they wait here, and whatever
//! makes room sends them.

use super::super::device::DeviceError;
use super::super::ffi::{IBV_WC_RECV, ibv_wc};
use super::super::letter::LETTER;
use super::super::verbs::{Buffer, Domain};
use super::super::wire::Wire;
use super::super::work::{WORD, Work, WorkKind};
use super::slots::{BATCHES, LETTERS, Room, Ticket};
use super::{CHUNK, RECEIVE, Station};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Receives posted.
pub(super) const RECEIVES: usize = 256;
/// Letters that wait for room, at most.
const BACKLOG: usize = 1 << 16;

/// A letter that waits, and the wire it is to go over.
type Waiting = (Weak<Wire>, Vec<u8>);

/// Where letters are.
pub(super) struct Letters {
    outgoing: Buffer,
    incoming: Buffer,
    /// Letters that nobody waits for and that found no room. Locked before a wire, and a wire before the slots.
    backlog: Mutex<VecDeque<Waiting>>,
}

impl Letters {
    pub(super) fn new(domain: &Arc<Domain>) -> Result<Self, DeviceError> {
        Ok(Self {
            outgoing: Buffer::new(domain, LETTERS * LETTER)?,
            incoming: Buffer::new(domain, RECEIVES * LETTER)?,
            backlog: Mutex::default(),
        })
    }

    fn backlog(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Station {
    /// Sends a letter over `wire`; whether it has arrived.
    pub(in super::super) async fn send(self: &Arc<Self>, wire: &Wire, bytes: &[u8]) -> bool {
        let mut ticket = Ticket::take(self, Room::Letter).await;
        let work = self.sending(ticket.index, bytes);
        self.finish(&mut ticket, wire, &[work]).await
    }

    /// Sends letters over `wire` with one doorbell, as many as [fit](bundled) together; whether all have arrived.
    pub(in super::super) async fn send_all(self: &Arc<Self>, wire: &Wire, letters: &[Vec<u8>]) -> bool {
        let mut ticket = Ticket::take(self, Room::Letter).await;
        let mut works = Vec::with_capacity(letters.len());
        let (id, mut place) = (self.slots().id(ticket.index), (ticket.index - BATCHES) * LETTER);
        for bytes in letters {
            self.letters.outgoing.write(place, bytes);
            let piece = self.letters.outgoing.piece(place, bytes.len());
            let signal = works.len() + 1 == letters.len();
            works.push(Work { id, kind: WorkKind::Send, piece, signal, fence: false });
            place += bytes.len().next_multiple_of(WORD);
        }
        self.finish(&mut ticket, wire, &works).await
    }

    /// Sends a letter over `wire` as soon as there is room. `false` if it cannot be sent, or too many wait.
    pub(in super::super) fn tell(&self, wire: &Arc<Wire>, bytes: Vec<u8>) -> bool {
        let mut backlog = self.letters.backlog();
        if wire.number().is_none() || backlog.len() >= BACKLOG {
            return false;
        }
        backlog.push_back((Arc::downgrade(wire), bytes));
        self.tell_waiting(&mut backlog);
        true
    }

    /// There may be room for a letter.
    pub(super) fn tell_on(&self) {
        self.tell_waiting(&mut self.letters.backlog());
    }

    /// Sends what waits, while there is room.
    fn tell_waiting(&self, backlog: &mut VecDeque<Waiting>) {
        while !backlog.is_empty() {
            let Some(index) = self.slots().take(Room::Letter, false) else { return };
            let sent = backlog.pop_front().is_some_and(|(wire, bytes)| {
                wire.upgrade().is_some_and(|wire| wire.post(index, &[self.sending(index, &bytes)]))
            });
            if !sent {
                // Its wire is cut: who told it says it again over the next one.
                self.slots().free(index);
            }
        }
    }

    /// The work that sends a letter from slot `index`.
    fn sending(&self, index: usize, bytes: &[u8]) -> Work {
        let (place, outgoing) = ((index - BATCHES) * LETTER, &self.letters.outgoing);
        outgoing.write(place, bytes);
        let (id, piece) = (self.slots().id(index), outgoing.piece(place, bytes.len()));
        Work { id, kind: WorkKind::Send, piece, signal: true, fence: false }
    }

    /// Makes room for a letter that comes.
    pub(super) fn post_receive(&self, index: usize) {
        let piece = self.letters.incoming.piece(index * LETTER, LETTER);
        self.base.shared.post(RECEIVE | index as u64, piece);
    }

    /// A receive is over. `true` if it brought a letter.
    pub(super) fn received(&self, wc: &ibv_wc, well: bool) -> bool {
        let index = (wc.wr_id & !RECEIVE) as usize;
        if well && wc.opcode == IBV_WC_RECV {
            let mut bytes = vec![0; (wc.byte_len as usize).min(LETTER)];
            self.letters.incoming.read(index * LETTER, &mut bytes);
            self.post_receive(index);
            self.owner.letter(wc.qp_num, &bytes);
            return true;
        }
        self.post_receive(index);
        false
    }
}

/// How many of these letters fit together into one slot: at least one, of which each fits.
pub(in super::super) fn bundled(sizes: impl Iterator<Item = usize>) -> usize {
    let mut room = LETTER;
    let fits = |size: &usize| room.checked_sub(size.next_multiple_of(WORD)).map(|left| room = left).is_some();
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

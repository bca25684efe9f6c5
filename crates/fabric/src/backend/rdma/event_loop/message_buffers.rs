//! Message buffers: sends with a completion to wait for, alone or several with one doorbell; sends without; and receives.
//!
//! Messages sent without waiting keep their order. Those that find no free slot are kept in a backlog, and sent when a slot
//! becomes free.

use super::super::connection::Connection;
use super::super::device::DeviceError;
use super::super::encoding::MAX_MESSAGE;
use super::super::ffi::{IBV_WC_RECV, ibv_wc};
use super::super::verbs::{Buffer, ProtectionDomain};
use super::super::work::{WORD, Work, WorkKind};
use super::slots::{BATCHES, Completion, MESSAGES, SlotKind};
use super::{CHUNK, EventLoop, RECEIVE};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Receives posted.
pub(super) const RECEIVES: usize = 256;
/// Messages that wait for room, at most.
const BACKLOG: usize = 1 << 16;

/// A message that waits, and the connection it is to go over.
type Waiting = (Weak<Connection>, Vec<u8>);

/// Registered memory for messages in both directions.
pub(super) struct MessageBuffers {
    outgoing: Buffer,
    incoming: Buffer,
    /// Messages that found no free slot. Locked before a connection, and a connection before the slots.
    backlog: Mutex<VecDeque<Waiting>>,
}

impl MessageBuffers {
    pub(super) fn new(domain: &Arc<ProtectionDomain>) -> Result<Self, DeviceError> {
        Ok(Self {
            outgoing: Buffer::new(domain, MESSAGES * MAX_MESSAGE)?,
            incoming: Buffer::new(domain, RECEIVES * MAX_MESSAGE)?,
            backlog: Mutex::default(),
        })
    }

    fn backlog(&self) -> MutexGuard<'_, VecDeque<Waiting>> {
        self.backlog.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventLoop {
    /// Sends a message over `connection`; whether it has arrived.
    pub(in super::super) async fn send(self: &Arc<Self>, connection: &Connection, bytes: &[u8]) -> bool {
        let mut completion = Completion::take(self, SlotKind::Message).await;
        let work = self.sending(completion.index, bytes);
        self.finish(&mut completion, connection, &[work]).await
    }

    /// Sends messages over `connection` with one doorbell, as many as [fit](count_fitting) together; whether all have arrived.
    pub(in super::super) async fn send_all(
        self: &Arc<Self>,
        connection: &Connection,
        messages: &[Vec<u8>],
    ) -> bool {
        let mut completion = Completion::take(self, SlotKind::Message).await;
        let mut works = Vec::with_capacity(messages.len());
        let (id, mut place) = (self.slots().id(completion.index), (completion.index - BATCHES) * MAX_MESSAGE);
        for bytes in messages {
            self.messages.outgoing.write(place, bytes);
            let piece = self.messages.outgoing.piece(place, bytes.len());
            let signal = works.len() + 1 == messages.len();
            works.push(Work { id, kind: WorkKind::Send, piece, signal, fence: false });
            place += bytes.len().next_multiple_of(WORD);
        }
        self.finish(&mut completion, connection, &works).await
    }

    /// Sends a message over `connection` as soon as there is room. `false` if it cannot be sent, or too many wait.
    pub(in super::super) fn tell(&self, connection: &Arc<Connection>, bytes: Vec<u8>) -> bool {
        let mut backlog = self.messages.backlog();
        if connection.number().is_none() || backlog.len() >= BACKLOG {
            return false;
        }
        backlog.push_back((Arc::downgrade(connection), bytes));
        self.send_backlog(&mut backlog);
        true
    }

    /// A slot may be free for a message.
    pub(super) fn flush_backlog(&self) {
        self.send_backlog(&mut self.messages.backlog());
    }

    /// Sends what waits, while there is room.
    fn send_backlog(&self, backlog: &mut VecDeque<Waiting>) {
        while !backlog.is_empty() {
            let Some(index) = self.slots().take(SlotKind::Message, false) else { return };
            let sent = backlog.pop_front().is_some_and(|(connection, bytes)| {
                connection
                    .upgrade()
                    .is_some_and(|connection| connection.post(index, &[self.sending(index, &bytes)]))
            });
            if !sent {
                // It is disconnected: the sender repeats what matters over the next queue pair.
                self.slots().free(index);
            }
        }
    }

    /// The work that sends a message from slot `index`.
    fn sending(&self, index: usize, bytes: &[u8]) -> Work {
        let (place, outgoing) = ((index - BATCHES) * MAX_MESSAGE, &self.messages.outgoing);
        outgoing.write(place, bytes);
        let (id, piece) = (self.slots().id(index), outgoing.piece(place, bytes.len()));
        Work { id, kind: WorkKind::Send, piece, signal: true, fence: false }
    }

    /// Posts a receive.
    pub(super) fn post_receive(&self, index: usize) {
        let piece = self.messages.incoming.piece(index * MAX_MESSAGE, MAX_MESSAGE);
        self.base.shared.post(RECEIVE | index as u64, piece);
    }

    /// A receive has completed. `true` if it brought a message.
    pub(super) fn received(&self, wc: &ibv_wc, well: bool) -> bool {
        let index = (wc.wr_id & !RECEIVE) as usize;
        if well && wc.opcode == IBV_WC_RECV {
            let mut bytes = vec![0; (wc.byte_len as usize).min(MAX_MESSAGE)];
            self.messages.incoming.read(index * MAX_MESSAGE, &mut bytes);
            self.post_receive(index);
            self.handler.message(wc.qp_num, &bytes);
            return true;
        }
        self.post_receive(index);
        false
    }
}

/// How many of these messages fit together into one slot: at least one, of which each fits.
pub(in super::super) fn count_fitting(sizes: impl Iterator<Item = usize>) -> usize {
    let mut room = MAX_MESSAGE;
    let fits = |size: &usize| room.checked_sub(size.next_multiple_of(WORD)).map(|left| room = left).is_some();
    sizes.take(CHUNK).take_while(fits).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_go_together_as_far_as_a_slot_has_room_and_a_list_of_work_is_long() {
        let of = |sizes: &[usize]| count_fitting(sizes.iter().copied());
        assert_eq!(of(&[MAX_MESSAGE, 56]), 1);
        assert_eq!(of(&[56, MAX_MESSAGE]), 1);
        assert_eq!(of(&[MAX_MESSAGE - 112, 56, 56, 56]), 3);
        assert_eq!(of(&[56; 3 * CHUNK]), CHUNK);
        assert_eq!(of(&[]), 0);
    }
}

//! Messages that arrive at a client: which peer each is from, and its delivery to the mailbox or to the handler.
//!
//! The sender is the peer at the other end of the queue pair. A message over an unknown queue pair is dropped.

use super::client::Client;
use super::encoding;
use super::event_loop::EventHandler;
use crate::addr::PeerId;
use crate::backend::inproc::mailbox::Mailbox;
use crate::backend::tcp::SessionHandler;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

/// See the module.
#[derive(Default)]
pub(super) struct Incoming {
    pub(super) mailbox: Mailbox,
    senders: RwLock<HashMap<u32, Option<PeerId>>>,
    /// The number of the last message from the host.
    last_number: AtomicU32,
    pub(super) client: OnceLock<Weak<Client>>,
    handler: OnceLock<Weak<dyn SessionHandler>>,
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").finish_non_exhaustive()
    }
}

impl Incoming {
    /// Messages over the queue pair `pair` are from `sender`; `None`: from the host, and they say themselves.
    pub(super) fn set_sender(&self, pair: u32, sender: Option<PeerId>) {
        self.senders.write().unwrap_or_else(PoisonError::into_inner).insert(pair, sender);
    }

    pub(super) fn remove_sender(&self, pair: u32) {
        self.senders.write().unwrap_or_else(PoisonError::into_inner).remove(&pair);
    }

    /// Whether the host's message of this number has arrived before: over a new queue pair the host repeats what may have
    /// arrived over the old one. Called by one thread at a time.
    fn is_duplicate(&self, number: u32) -> bool {
        let last_number = self.last_number.load(Relaxed);
        let duplicate = number.wrapping_sub(last_number).cast_signed() <= 0;
        if !duplicate {
            self.last_number.store(number, Relaxed);
        }
        duplicate
    }

    /// From now on `handler` gets every message. Only the first counts.
    pub(super) fn set_handler(&self, handler: Weak<dyn SessionHandler>) {
        let _ = self.handler.set(handler);
    }

    pub(super) fn handler(&self) -> Option<Arc<dyn SessionHandler>> {
        self.handler.get().and_then(Weak::upgrade)
    }
}

impl EventHandler for Arc<Incoming> {
    fn message(&self, pair: u32, bytes: &[u8]) {
        let sender = self.senders.read().unwrap_or_else(PoisonError::into_inner).get(&pair).copied();
        let Some((named, number, message)) = encoding::decode(bytes) else { return };
        let from = match sender {
            Some(Some(sender)) => sender,
            Some(None) if self.is_duplicate(number) => return,
            Some(None) => named,
            None => return,
        };
        if self.handler.get().is_none() {
            self.mailbox.put(from, message);
        } else if let Some(kept) = self.handler().and_then(|handler| handler.message(from, message)) {
            self.mailbox.put(from, kept);
        }
    }

    fn queue_pair_failed(&self, pair: u32) {
        let Some(client) = self.client.get().and_then(Weak::upgrade) else { return };
        if client.host.mark_failed(pair) {
            // Not on this thread: it polls the completions that the renewal waits for.
            let renew = move || client.renew();
            let _ = std::thread::Builder::new().name("lockwright-rdma-renew".to_owned()).spawn(renew);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::backend::block_on;
    use crate::backend::clock::Clock;
    use crate::backend::inproc::mailbox::Receive;
    use crate::message::Message;
    use crate::wait::Deadline;

    /// The senders of messages, in order.
    fn senders(incoming: &Arc<Incoming>, count: usize) -> Vec<(PeerId, u64)> {
        let clock = Clock::new();
        let next = |_| {
            let pick = |from, message: &Message| Some((from, message.words[0]));
            block_on(Receive::new(&incoming.mailbox, &clock, Deadline::Never, pick)).expect("a message")
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn what_the_host_sends_again_is_taken_once() {
        let incoming = Arc::<Incoming>::default();
        incoming.set_sender(7, None);
        let host = PeerId(5);
        let numbers = [1, 2, 3, 2, 3, 4, 1, 4, 5];
        for number in numbers {
            let message = Message { words: [u64::from(number), 0, 0, 0], ..Message::default() };
            incoming.message(7, &encoding::encode(host, number, &message));
        }
        assert_eq!(senders(&incoming, 5), [1, 2, 3, 4, 5].map(|number| (host, number)));
        assert!(incoming.mailbox.is_empty());
    }

    #[test]
    fn a_message_over_a_connection_is_from_its_other_end_whatever_it_says() {
        let incoming = Arc::<Incoming>::default();
        incoming.set_sender(7, Some(PeerId::client(3)));
        incoming.message(7, &encoding::encode(PeerId::client(4), 1, &Message::default()));
        assert_eq!(senders(&incoming, 1), [(PeerId::client(3), 0)]);
        incoming.message(8, &encoding::encode(PeerId::client(3), 1, &Message::default()));
        assert!(incoming.mailbox.is_empty(), "the queue pair is unknown");
    }
}

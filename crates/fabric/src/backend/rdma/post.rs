//! A client's letters: where those that come are put, and how it is known whom they are from.
//!
//! A letter is from whom the connection is to that it came over. One over a connection that nobody knows is dropped.

use super::client::Client;
use super::letter;
use super::station::Owner;
use crate::addr::PeerId;
use crate::backend::inproc::mailbox::Mailbox;
use crate::backend::tcp::SessionHandler;
use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, Weak};

/// Where letters go, and whom the queue pairs they come over belong to.
#[derive(Default)]
pub(super) struct Post {
    pub(super) mailbox: Mailbox,
    senders: RwLock<HashMap<u32, Option<PeerId>>>,
    /// The number of the last letter of the host.
    taken: AtomicU32,
    pub(super) client: OnceLock<Weak<Client>>,
    ear: OnceLock<Weak<dyn SessionHandler>>,
}

impl fmt::Debug for Post {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Post").finish_non_exhaustive()
    }
}

impl Post {
    /// Letters over the queue pair `pair` are from `sender`; `None`: from the host, and they say themselves.
    pub(super) fn know(&self, pair: u32, sender: Option<PeerId>) {
        self.senders.write().unwrap_or_else(PoisonError::into_inner).insert(pair, sender);
    }

    pub(super) fn forget(&self, pair: u32) {
        self.senders.write().unwrap_or_else(PoisonError::into_inner).remove(&pair);
    }

    /// Whether the host's letter of this number came before. It sends again over a new queue pair what may have arrived over the
    /// old one. One at a time takes letters.
    fn is_known(&self, number: u32) -> bool {
        let taken = self.taken.load(Relaxed);
        let known = number.wrapping_sub(taken).cast_signed() <= 0;
        if !known {
            self.taken.store(number, Relaxed);
        }
        known
    }

    /// From now on `listener` hears every letter. Only the first counts.
    pub(super) fn set_handler(&self, listener: Weak<dyn SessionHandler>) {
        let _ = self.ear.set(listener);
    }

    pub(super) fn listener(&self) -> Option<Arc<dyn SessionHandler>> {
        self.ear.get().and_then(Weak::upgrade)
    }
}

impl Owner for Arc<Post> {
    fn letter(&self, pair: u32, bytes: &[u8]) {
        let sender = self.senders.read().unwrap_or_else(PoisonError::into_inner).get(&pair).copied();
        let Some((named, number, message)) = letter::decode(bytes) else { return };
        let from = match sender {
            Some(Some(sender)) => sender,
            Some(None) if self.is_known(number) => return,
            Some(None) => named,
            None => return,
        };
        if self.ear.get().is_none() {
            self.mailbox.put(from, message);
        } else if let Some(kept) = self.listener().and_then(|listener| listener.message(from, message)) {
            self.mailbox.put(from, kept);
        }
    }

    fn broken(&self, pair: u32) {
        let Some(client) = self.client.get().and_then(Weak::upgrade) else { return };
        if client.host.doubt(pair) {
            // Not here: whoever takes completions must not wait for those that are still to be taken.
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

    /// Whom letters came from, in order.
    fn senders(post: &Arc<Post>, count: usize) -> Vec<(PeerId, u64)> {
        let clock = Clock::new();
        let next = |_| {
            let pick = |from, message: &Message| Some((from, message.words[0]));
            block_on(Receive::new(&post.mailbox, &clock, Deadline::Never, pick)).expect("a letter")
        };
        (0..count).map(next).collect()
    }

    #[test]
    fn what_the_host_sends_again_is_taken_once() {
        let post = Arc::<Post>::default();
        post.know(7, None);
        let host = PeerId(5);
        let numbers = [1, 2, 3, 2, 3, 4, 1, 4, 5];
        for number in numbers {
            let message = Message { words: [u64::from(number), 0, 0, 0], ..Message::default() };
            post.letter(7, &letter::encode(host, number, &message));
        }
        assert_eq!(senders(&post, 5), [1, 2, 3, 4, 5].map(|number| (host, number)));
        assert!(post.mailbox.is_empty());
    }

    #[test]
    fn a_letter_over_a_connection_is_from_its_other_end_whatever_it_says() {
        let post = Arc::<Post>::default();
        post.know(7, Some(PeerId::client(3)));
        post.letter(7, &letter::encode(PeerId::client(4), 1, &Message::default()));
        assert_eq!(senders(&post, 1), [(PeerId::client(3), 0)]);
        post.letter(8, &letter::encode(PeerId::client(3), 1, &Message::default()));
        assert!(post.mailbox.is_empty(), "nobody is known behind that queue pair");
    }
}

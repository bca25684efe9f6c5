//! A server without connections: what clients say goes in by function calls, and answers come out the same way. It is there to
//! measure what a server does beside reading and writing (`benches/dispatcher.rs`), and for nothing else.

use super::dispatcher::{Admission, Dispatcher};
use super::durable::Durable;
use super::lock_table::LockTable;
use lockwright::wire::SERVER;
use lockwright_fabric::backend::tcp::{Inbox, SessionEnd, VerbHost};
use lockwright_fabric::{Message, PeerId};
use std::io;

/// See the module.
#[derive(Clone, Debug)]
pub struct Bare(Dispatcher);

impl Bare {
    /// A server that remembers nothing.
    ///
    /// # Errors
    /// If there is no randomness to be had.
    pub fn new() -> io::Result<Self> {
        let (durable, recovering) = Durable::begin(None, std::time::Duration::ZERO)?;
        Ok(Self(Dispatcher::new(LockTable::new(durable, recovering, vec![], vec![]), Admission::Anyone)))
    }

    /// Lets a client in, which is told what there is to be told by way of `inbox`.
    ///
    /// # Panics
    /// If there are too many.
    pub fn admit(&self, inbox: Inbox) -> PeerId {
        let peer = self.0.admit("0 here bench").expect("there is room");
        self.0.attach(peer, inbox);
        peer
    }

    /// A client says something, in the messages of `lockwright::wire`. It is heard with the next [`settle`](Self::settle).
    pub fn say(&self, from: PeerId, message: &Message) {
        self.0.deliver(from, SERVER, message);
    }

    /// All that was said is served, here or by another thread that is at it.
    pub fn settle(&self) {
        self.0.drain();
    }

    /// A client leaves.
    pub fn leave(&self, peer: PeerId) {
        self.0.on_session_lost(peer, SessionEnd::Goodbye);
    }

    /// Passes so far, and messages that were served in them.
    pub fn passes(&self) -> (u64, u64) {
        let totals = &self.0.lock_table().totals;
        (totals.passes, totals.messages)
    }
}

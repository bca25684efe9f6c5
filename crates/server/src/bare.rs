//! A server without connections: what clients say goes in by function calls, and answers come out the same way. It is there to
//! measure what a server does beside reading and writing (`benches/desk.rs`), and for nothing else.

use super::books::Books;
use super::desk::Desk;
use super::durable::Durable;
use lockwright::wire::DESK;
use lockwright_fabric::backend::tcp::{Inbox, SessionEnd, VerbHost};
use lockwright_fabric::{Message, PeerId};
use std::io;

/// See the module.
#[derive(Clone, Debug)]
pub struct Bare(Desk);

impl Bare {
    /// A server that so many threads will speak to, and that remembers nothing.
    ///
    /// # Errors
    /// If there is no randomness to be had.
    pub fn new(threads: usize) -> io::Result<Self> {
        let (durable, recovering) = Durable::begin(None)?;
        Ok(Self(Desk::new(Books::new(durable, recovering), vec![], vec![], threads)))
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

    /// A client says something, in the words of `remote/talk.rs`. It is heard with the next [`settle`](Self::settle).
    pub fn say(&self, from: PeerId, message: &Message) {
        self.0.deliver(from, DESK, message);
    }

    /// All that was said is served, here or by another thread that is at it.
    pub fn settle(&self) {
        self.0.settle();
    }

    /// A client leaves.
    pub fn leave(&self, peer: PeerId) {
        self.0.on_session_lost(peer, SessionEnd::Goodbye);
    }

    /// Passes so far, and messages that were served in them.
    pub fn passes(&self) -> (u64, u64) {
        let totals = &self.0.books().totals;
        (totals.passes, totals.notes)
    }
}

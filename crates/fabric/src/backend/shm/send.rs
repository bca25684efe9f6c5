//! Sending: put the message into the receiver's mailbox, and ring.
//!
//! A full mailbox makes the sender wait. Meanwhile it empties its own mailbox, so that two clients that write to each
//! other cannot block each other. A reader that takes nothing out for as long as the space's patience counts as lost.

use super::client::Client;
use super::mailbox::{Payload, Posted, cut};
use crate::addr::PeerId;
use crate::backend::clock::Alarm;
use crate::backend::run::rest_on;
use crate::endpoint::FabricError;
use crate::message::Message;
use crate::wait::{Deadline, Time};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// How often a sender looks for room.
const LOOK_NS: u64 = 100_000;

/// The future of `send`. Mostly done before it is polled.
#[derive(Debug)]
pub(super) enum Sending<'a> {
    Done(Result<(), FabricError>),
    Stuck(Box<Stuck<'a>>),
}

/// A message that did not fit.
#[derive(Debug)]
pub(super) struct Stuck<'a> {
    client: &'a Arc<Client>,
    to: PeerId,
    cells: Vec<Payload>,
    sent: usize,
    /// Where the reader was when last seen to move, and when that was.
    head: u64,
    moved: Time,
    alarm: Option<Alarm>,
}

impl<'a> Sending<'a> {
    pub(super) fn new(client: &'a Arc<Client>, to: PeerId, message: &Message) -> Self {
        if !client.is_member() {
            return Self::Done(Err(FabricError::Evicted));
        }
        let number = if message.tail.is_empty() { 0 } else { client.number() };
        for (sent, cell) in cut(to, message, number).enumerate() {
            match deliver(client, to, &cell) {
                Ok(None) => {}
                Err(lost) => return Self::Done(Err(lost)),
                Ok(Some(head)) => {
                    let (cells, moved) = (cut(to, message, number).collect(), client.shared.clock.now());
                    return Self::Stuck(Box::new(Stuck {
                        client,
                        to,
                        cells,
                        sent,
                        head,
                        moved,
                        alarm: None,
                    }));
                }
            }
        }
        Self::Done(Ok(()))
    }
}

/// Puts one cell in: `Some` with the reader's place if there is no room.
fn deliver(client: &Client, to: PeerId, cell: &Payload) -> Result<Option<u64>, FabricError> {
    let shared = &client.shared;
    let lost = FabricError::PeerLost(to);
    let slot = shared.find_alive(to).ok_or(lost)?;
    match shared.post(slot, client.joined.peer, cell) {
        Posted::Full { head } if shared.still_alive(to) => Ok(Some(head)),
        Posted::Full { .. } => Err(lost),
        Posted::In { waits, position } => {
            // A reader that sleeps or has left something unread may be dead, and nobody may have noticed. One that has
            // taken out everything was alive a moment ago. One that took this out and left was not lost.
            let doubtful = shared.ring(slot) || waits;
            if doubtful && !shared.still_alive(to) && !shared.was_read(slot, position) {
                return Err(lost);
            }
            Ok(None)
        }
    }
}

impl Stuck<'_> {
    fn go_on(&mut self, cx: &Context<'_>) -> Poll<Result<(), FabricError>> {
        let shared = &self.client.shared;
        if !self.client.is_member() {
            return Poll::Ready(Err(FabricError::Evicted));
        }
        // Perhaps it is this client's own mailbox, or the reader is stuck on it.
        drop(self.client.pump(false));
        while let Some(cell) = self.cells.get(self.sent) {
            match deliver(self.client, self.to, cell) {
                Err(lost) => return Poll::Ready(Err(lost)),
                Ok(None) => self.sent += 1,
                Ok(Some(head)) => {
                    let now = shared.clock.now();
                    if head != self.head {
                        (self.head, self.moved) = (head, now);
                    }
                    if now.since(self.moved) > shared.layout.shape.patience_ns {
                        return Poll::Ready(Err(FabricError::PeerLost(self.to)));
                    }
                    if !rest_on(cx.waker(), None, Some(LOOK_NS)) {
                        self.alarm = None;
                        shared.clock.keep_alarm(&mut self.alarm, Deadline::At(now.plus(LOOK_NS)), cx);
                    }
                    return Poll::Pending;
                }
            }
        }
        Poll::Ready(Ok(()))
    }
}

impl Future for Sending<'_> {
    type Output = Result<(), FabricError>;

    #[inline(always)]
    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match self.get_mut() {
            Sending::Done(result) => Poll::Ready(*result),
            Sending::Stuck(stuck) => stuck.go_on(cx),
        }
    }
}

//! Sending: store the message in the receiver's mailbox and ring its doorbell.
//!
//! If the mailbox is full, the sender waits. Meanwhile it drains its own mailbox, so that two clients that send to each
//! other cannot block each other. A receiver that takes nothing for the space's patience (5 s) counts as lost.

use super::client::Client;
use super::mailbox::{Payload, Pushed, to_cells};
use crate::addr::PeerId;
use crate::backend::clock::Alarm;
use crate::backend::run::park_on;
use crate::endpoint::FabricError;
use crate::message::Message;
use crate::wait::{Deadline, Time};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// How often a sender checks a full mailbox.
const LOOK_NS: u64 = 100_000;

/// The future of `send`. Usually done before it is polled.
#[derive(Debug)]
pub(super) enum Sending<'a> {
    Done(Result<(), FabricError>),
    Blocked(Box<Blocked<'a>>),
}

/// A message for which there was no room.
#[derive(Debug)]
pub(super) struct Blocked<'a> {
    client: &'a Arc<Client>,
    to: PeerId,
    cells: Vec<Payload>,
    sent: usize,
    /// The receiver's position when it last moved, and when that was.
    head: u64,
    moved: Time,
    alarm: Option<Alarm>,
}

impl<'a> Sending<'a> {
    pub(super) fn new(client: &'a Arc<Client>, to: PeerId, message: &Message) -> Self {
        if !client.is_member() {
            return Self::Done(Err(FabricError::Evicted));
        }
        let number = if message.tail.is_empty() { 0 } else { client.next_message_number() };
        for (sent, cell) in to_cells(to, message, number).enumerate() {
            match deliver(client, to, &cell) {
                Ok(None) => {}
                Err(lost) => return Self::Done(Err(lost)),
                Ok(Some(head)) => {
                    let (cells, moved) = (to_cells(to, message, number).collect(), client.shared.clock.now());
                    return Self::Blocked(Box::new(Blocked {
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

/// Stores one cell: `Some` with the receiver's position if there is no room.
fn deliver(client: &Client, to: PeerId, cell: &Payload) -> Result<Option<u64>, FabricError> {
    let shared = &client.shared;
    let lost = FabricError::PeerLost(to);
    let slot = shared.find_alive(to).ok_or(lost)?;
    match shared.push_cell(slot, client.membership.peer, cell) {
        Pushed::Full { head } if shared.is_alive_cached(to) => Ok(Some(head)),
        Pushed::Full { .. } => Err(lost),
        Pushed::Stored { waits, position } => {
            // A receiver that sleeps or has unread messages may be dead without any process having noticed. One that has read
            // everything was alive a moment ago. One that read this message and left was not lost.
            let doubtful = shared.ring(slot) || waits;
            if doubtful && !shared.is_alive_cached(to) && !shared.was_read(slot, position) {
                return Err(lost);
            }
            Ok(None)
        }
    }
}

impl Blocked<'_> {
    fn poll(&mut self, cx: &Context<'_>, now: impl Fn() -> Time) -> Poll<Result<(), FabricError>> {
        let shared = &self.client.shared;
        if !self.client.is_member() {
            return Poll::Ready(Err(FabricError::Evicted));
        }
        // Perhaps it is this client's own mailbox, or the receiver is blocked on it.
        drop(self.client.drain(false));
        while let Some(cell) = self.cells.get(self.sent) {
            match deliver(self.client, self.to, cell) {
                Err(lost) => return Poll::Ready(Err(lost)),
                Ok(None) => self.sent += 1,
                Ok(Some(head)) => {
                    let now = now();
                    if head != self.head {
                        (self.head, self.moved) = (head, now);
                    }
                    if now.since(self.moved) > shared.layout.shape.patience_ns {
                        return Poll::Ready(Err(FabricError::PeerLost(self.to)));
                    }
                    if !park_on(cx.waker(), None, Some(LOOK_NS)) {
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
            Sending::Blocked(blocked) => {
                let shared = &blocked.client.shared;
                blocked.poll(cx, || shared.clock.now())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::scratch::Scratch;
    use super::*;
    use std::task::Waker;

    const PATIENCE: u64 = 2_000_000_000;

    /// Sends until there is no room.
    fn fill(from: &Arc<Client>, to: PeerId) {
        while matches!(Sending::new(from, to, &Message::default()), Sending::Done(Ok(()))) {}
    }

    /// Polls one for which there was no room, as if it were so many nanoseconds after the time `since`.
    fn poll(sending: &mut Sending<'_>, since: Time, ns: u64) -> Poll<Result<(), FabricError>> {
        let Sending::Blocked(blocked) = sending else { panic!("there was room: {sending:?}") };
        blocked.poll(&Context::from_waker(Waker::noop()), || since.plus(ns))
    }

    /// Since when the receiver has taken nothing.
    fn moved(sending: &Sending<'_>) -> Time {
        let Sending::Blocked(blocked) = sending else { panic!("there was room: {sending:?}") };
        blocked.moved
    }

    #[test]
    fn a_receiver_that_takes_nothing_for_the_spaces_patience_counts_as_lost() {
        let scratch = Scratch::with_patience("patience", PATIENCE);
        let (from, to) = (scratch.client(), scratch.client());
        let peer = to.membership.peer;
        fill(&from, peer);
        let mut sending = Sending::new(&from, peer, &Message::default());
        let start = moved(&sending);
        assert!(poll(&mut sending, start, PATIENCE).is_pending());
        assert_eq!(poll(&mut sending, start, PATIENCE + 1), Poll::Ready(Err(FabricError::PeerLost(peer))));
    }

    #[test]
    fn a_receiver_that_takes_something_now_and_then_is_waited_for() {
        let scratch = Scratch::with_patience("slow", PATIENCE);
        let (from, to) = (scratch.client(), scratch.client());
        let peer = to.membership.peer;
        fill(&from, peer);
        let mut sending = Sending::new(&from, peer, &Message::default());
        let start = moved(&sending);
        assert!(poll(&mut sending, start, 0).is_pending());
        // It has taken all that there was, and others were faster to fill the room.
        drop(to.drain(true));
        fill(&from, peer);
        assert!(poll(&mut sending, start, 2 * PATIENCE).is_pending(), "it has moved a moment ago");
        assert!(poll(&mut sending, start, 3 * PATIENCE).is_pending(), "and may rest as long again");
        drop(to.drain(true));
        assert_eq!(poll(&mut sending, start, 3 * PATIENCE), Poll::Ready(Ok(())));
    }
}

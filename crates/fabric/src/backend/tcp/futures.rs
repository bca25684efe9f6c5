//! The futures of a client's requests.

use super::close_reason::CloseReason;
use super::frame::MAX_VERBS;
use super::link::{Answer, Link};
use crate::addr::{PeerId, Value};
use crate::endpoint::FabricError;
use crate::message::Message;
use crate::verb::{Batch, RawVerb};
use crate::wait::{Wait, Waited};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// The verbs of a batch.
///
/// # Panics
/// If there are more than fit into a frame.
pub(super) fn verbs_of<B: Batch>(batch: B) -> Vec<RawVerb> {
    let mut verbs = Vec::with_capacity(4);
    batch.each(&mut |verb| {
        verbs.push(verb);
        0
    });
    assert!(verbs.len() <= MAX_VERBS, "a batch over tcp has at most {MAX_VERBS} verbs, not {}", verbs.len());
    verbs
}

/// An issued request; abandoned when dropped.
#[derive(Debug)]
struct Issued<'a> {
    link: &'a Link,
    id: Option<u64>,
}

impl<'a> Issued<'a> {
    const fn new(link: &'a Link, id: u64) -> Self {
        Self { link, id: Some(id) }
    }

    fn poll(&mut self, cx: &Context<'_>) -> Poll<Answer> {
        let id = self.id.expect("a finished future is not polled again");
        let answer = ready!(self.link.poll_answer(id, cx));
        self.id = None;
        Poll::Ready(answer)
    }
}

impl Drop for Issued<'_> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.link.abandon(id);
        }
    }
}

/// The future of `go`. Once polled, the verbs are executed, whether or not the future is dropped.
pub(super) struct Go<'a, B> {
    link: &'a Link,
    batch: B,
    issued: Option<Issued<'a>>,
}

impl<'a, B> Go<'a, B> {
    pub(super) const fn new(link: &'a Link, batch: B) -> Self {
        Self { link, batch, issued: None }
    }
}

/// The batch is copied, never pinned.
impl<B> Unpin for Go<'_, B> {}

impl<B: Batch> Future for Go<'_, B> {
    type Output = Result<B::Old, FabricError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let issued = match &mut this.issued {
            Some(issued) => issued,
            none => {
                let verbs = verbs_of(this.batch);
                if verbs.is_empty() {
                    return Poll::Ready(Ok(this.batch.each(&mut |_| 0)));
                }
                none.insert(Issued::new(this.link, this.link.go(&verbs)?))
            }
        };
        Poll::Ready(match ready!(issued.poll(cx)) {
            Answer::Done(olds) => {
                let mut olds = olds.into_iter();
                Ok(this.batch.each(&mut |_| olds.next().unwrap_or_default()))
            }
            Answer::Failed(lost) => Err(lost),
            Answer::Waited { .. } => unreachable!("verbs are not answered like a wait"),
        })
    }
}

/// The future of `send`. Once polled, the message is sent, whether or not the future is dropped.
pub(super) struct Send<'a> {
    link: &'a Link,
    to: PeerId,
    message: Message,
    issued: Option<Issued<'a>>,
}

impl<'a> Send<'a> {
    pub(super) const fn new(link: &'a Link, to: PeerId, message: Message) -> Self {
        Self { link, to, message, issued: None }
    }
}

impl Future for Send<'_> {
    type Output = Result<(), FabricError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let issued = match &mut this.issued {
            Some(issued) => issued,
            none => none.insert(Issued::new(this.link, this.link.send(this.to, &this.message)?)),
        };
        Poll::Ready(match ready!(issued.poll(cx)) {
            Answer::Failed(lost) => Err(lost),
            _ => Ok(()),
        })
    }
}

/// The future of `wait_until`. Cancelled at the server when dropped.
pub(super) struct Waiting<'a, T> {
    link: &'a Link,
    wait: Wait<T>,
    key: Option<u64>,
    issued: Option<Issued<'a>>,
}

impl<'a, T> Waiting<'a, T> {
    pub(super) const fn new(link: &'a Link, wait: Wait<T>) -> Self {
        Self { link, wait, key: None, issued: None }
    }
}

/// The wait is copied, never pinned.
impl<T> Unpin for Waiting<'_, T> {}

impl<T: Value> Future for Waiting<'_, T> {
    type Output = Result<Waited<T>, FabricError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let issued = match &mut this.issued {
            Some(issued) => issued,
            none => {
                let Wait { deadline, .. } = this.wait;
                let id = ready!(this.link.poll_wait(this.wait.raw(), deadline, &mut this.key, cx))?;
                none.insert(Issued::new(this.link, id))
            }
        };
        Poll::Ready(match ready!(issued.poll(cx)) {
            // One round trip, however long it took: the server waited.
            Answer::Waited { met, value } => Ok(Waited { value: T::narrow(value), met, polls: 1 }),
            Answer::Failed(lost) => Err(lost),
            Answer::Done(_) => unreachable!("a wait is not answered like verbs"),
        })
    }
}

impl<T> Drop for Waiting<'_, T> {
    fn drop(&mut self) {
        if self.key.is_some() {
            self.link.leave_wait_queue(&mut self.key);
        }
    }
}

/// The future of `closed`.
pub(super) struct End<'a> {
    link: &'a Link,
    key: Option<u64>,
}

impl<'a> End<'a> {
    pub(super) const fn new(link: &'a Link) -> Self {
        Self { link, key: None }
    }
}

impl Future for End<'_> {
    type Output = CloseReason;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<CloseReason> {
        let this = self.get_mut();
        this.link.poll_closed(&mut this.key, cx)
    }
}

impl Drop for End<'_> {
    fn drop(&mut self) {
        if self.key.is_some() {
            self.link.leave_end(&mut self.key);
        }
    }
}

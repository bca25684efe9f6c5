//! A question that the server answers with bytes: a listing, a look, the place of a lock.

use super::driver::{self, OtherWaiter};
use super::link::{Remote, late};
use super::one_sided::answered::Answered;
use super::table::Stage;
use crate::backend::Refused;
use crate::error::LockError;
use crate::wire::{Request, RequestId};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A question on its way. It is asked when it is first polled; dropped, its answer is of no more interest.
pub(super) struct Inquiry<F> {
    remote: Arc<Remote>,
    ask: Option<F>,
    id: Option<RequestId>,
    elsewhere: Option<OtherWaiter>,
}

impl<F: FnOnce(RequestId) -> Request> Inquiry<F> {
    pub(super) fn new(remote: &Arc<Remote>, ask: F) -> Self {
        Self { remote: Arc::clone(remote), ask: Some(ask), id: None, elsewhere: None }
    }
}

impl<F: FnOnce(RequestId) -> Request + Unpin> Future for Inquiry<F> {
    type Output = Result<Vec<u8>, LockError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let mut line = this.remote.line();
        if let Some(ask) = this.ask.take() {
            if let Some(why) = line.refusal() {
                return Poll::Ready(Err(why));
            }
            if !line.is_in_session() {
                return Poll::Ready(Err(LockError::Disconnected("the server cannot be reached".to_owned())));
            }
            let id = line.table.open(None, Stage::Looking { bytes: Vec::new() });
            this.id = Some(id);
            line.say(&ask(id));
        }
        let id = this.id.expect("a question is not asked again after its answer");
        if let Some(Stage::Looking { .. }) = line.table.stage(id) {
            line.table.keep(id, cx.waker());
            drop(line);
            this.elsewhere = this.elsewhere.take().or_else(|| this.remote.driver().wait_elsewhere());
            return Poll::Pending;
        }
        this.id = None;
        Poll::Ready(match line.table.take(id) {
            Some(Stage::Looked { bytes }) => Ok(bytes),
            Some(Stage::Failed(Refused::Error(error))) => Err(error),
            _ => Err(LockError::Disconnected("the server gave no answer".to_owned())),
        })
    }
}

impl<F> Drop for Inquiry<F> {
    fn drop(&mut self) {
        if let Some(id) = self.id {
            self.remote.line().table.take(id);
        }
    }
}

/// Where the server keeps the lock that `handle` stands for, and from where its tokens are counted. Blocks for a round trip, and not
/// longer than the server may take to answer.
pub(super) fn place_of(remote: &Arc<Remote>, handle: u64) -> Result<(u64, u64), String> {
    let asked = Inquiry::new(remote, move |id| Request::Find { id, handle });
    let found = driver::outcome(remote, Answered::new(remote, asked));
    let found = found.ok_or_else(|| late(remote.timeout()))?.map_err(|error| error.to_string())?;
    let (lock, base) = found.split_first_chunk::<8>().ok_or("it has no place")?;
    Ok((u64::from_le_bytes(*lock), base.try_into().map_or(0, u64::from_le_bytes)))
}

//! Values of held locks: read and set by a question to the server, closed with a word ahead of the unlock.

use super::RemoteGrant;
use super::inquiry::Inquiry;
use super::link::Remote;
use crate::backend::BoxFuture;
use crate::error::{LockError, ValueError};
use crate::lock::Value;
use crate::wire::{Request, RequestId, ValueReport};
use std::sync::Arc;
use std::time::Duration;

fn failed(error: LockError) -> ValueError {
    match error {
        LockError::Refused(why) => ValueError::Refused(why),
        error => ValueError::Disconnected(error.to_string()),
    }
}

fn ask(
    remote: &Arc<Remote>,
    request: impl FnOnce(RequestId) -> Request + Send + Unpin + 'static,
) -> BoxFuture<Result<ValueReport, ValueError>> {
    let inquiry = Inquiry::new(remote, request);
    Box::pin(async move {
        let kept = inquiry.await.map_err(failed)?;
        ValueReport::kept(&kept)
            .ok_or_else(|| ValueError::Disconnected("the server gave no answer".to_owned()))
    })
}

/// The value of what is held.
pub(super) fn read(remote: &Arc<Remote>, held: RemoteGrant) -> BoxFuture<Result<Value, ValueError>> {
    let RemoteGrant { id: of, token } = held;
    let answer = ask(remote, move |id| Request::ReadValue { id, of, token });
    Box::pin(async move {
        let ValueReport { bytes, clean, durable, age_ns } = answer.await?;
        let age = if bytes.is_some() { Duration::from_nanos(age_ns) } else { Duration::ZERO };
        Ok(Value { bytes: bytes.unwrap_or_default(), clean, durable, age })
    })
}

/// Sets the value of what is held.
pub(super) fn set(
    remote: &Arc<Remote>,
    held: RemoteGrant,
    bytes: Vec<u8>,
) -> BoxFuture<Result<(), ValueError>> {
    let RemoteGrant { id: of, token } = held;
    let answer = ask(remote, move |id| Request::SetValue { id, of, token, bytes });
    Box::pin(async move { answer.await.map(drop) })
}

/// What is held is about to be given back. Without a session nothing is said: then the value stays open.
pub(super) fn close(remote: &Remote, held: RemoteGrant) {
    let RemoteGrant { id: of, token } = held;
    let mut line = remote.line();
    line.flush();
    line.say(&Request::CloseValue { of, token });
}

//! Changes of what is held, on their way to the server and back.
//!
//! An upgrade waits for its answer, and is given up when its future is dropped: the lock is shared again, and the server is told.
//! A downgrade counts from when it is said; what is waited for is the new token. Parts are given back as locks are when their
//! guards are dropped: said, and not waited for.

use super::RemoteGrant;
use super::driver::OtherWaiter;
use super::link::Remote;
use super::table::Upgrade;
use crate::backend::{Granted, ProtocolGrant, RecordId};
use crate::error::ChangeError;
use std::ops::Range;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

fn granted(grant: RemoteGrant) -> Granted {
    Granted { grant: ProtocolGrant::Remote(grant), record: RecordId::default() }
}

/// An upgrade on its way. Dropped, it is given up, and the lock stays shared.
pub(super) struct Upgrading {
    remote: Arc<Remote>,
    grant: RemoteGrant,
    wait: bool,
    began: Instant,
    /// It was said, and its outcome has not been seen.
    said: bool,
    elsewhere: Option<OtherWaiter>,
}

impl Upgrading {
    pub(super) fn new(remote: &Arc<Remote>, grant: RemoteGrant, wait: bool) -> Self {
        Self { remote: Arc::clone(remote), grant, wait, began: Instant::now(), said: false, elsewhere: None }
    }
}

impl Future for Upgrading {
    type Output = Result<Granted, ChangeError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let RemoteGrant { id, token } = this.grant;
        let mut line = this.remote.line();
        let stands = if this.said {
            line.table.upgrade(id, token)
        } else {
            line.expire();
            line.table.begin_upgrade(id, this.wait, token)
        };
        let outcome = match stands {
            Upgrade::Said(ask) => {
                this.said = true;
                line.table.keep(id, cx.waker());
                line.flush();
                line.say(&ask);
                None
            }
            // Dropped with what it said.
            Upgrade::Waiting if !this.wait && this.began.elapsed() >= this.remote.timeout() => {
                return Poll::Ready(Err(ChangeError::TimedOut));
            }
            Upgrade::Waiting => {
                line.table.keep(id, cx.waker());
                None
            }
            Upgrade::Done { token } => Some(Ok(granted(RemoteGrant { id, token }))),
            Upgrade::Failed(why) => Some(Err(why)),
        };
        drop(line);
        match outcome {
            Some(outcome) => {
                this.said = false;
                Poll::Ready(outcome)
            }
            None => {
                this.elsewhere = this.elsewhere.take().or_else(|| this.remote.driver().wait_elsewhere());
                Poll::Pending
            }
        }
    }
}

impl Drop for Upgrading {
    fn drop(&mut self) {
        let mut line = self.remote.line();
        line.table.stay_shared(self.grant.id, self.grant.token);
        if self.said
            && let Some(ask) = line.table.give_up_upgrade(self.grant.id)
        {
            line.say(&ask);
        }
    }
}

/// A downgrade on its way. Dropped, it goes on.
pub(super) struct Downgrading {
    remote: Arc<Remote>,
    grant: RemoteGrant,
    said: bool,
    elsewhere: Option<OtherWaiter>,
}

impl Downgrading {
    pub(super) fn new(remote: &Arc<Remote>, grant: RemoteGrant) -> Self {
        Self { remote: Arc::clone(remote), grant, said: false, elsewhere: None }
    }
}

impl Future for Downgrading {
    type Output = Result<Granted, ChangeError>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        let RemoteGrant { id, token } = this.grant;
        let mut line = this.remote.line();
        if !this.said {
            line.expire();
            let Some(ask) = line.table.begin_downgrade(id) else {
                return Poll::Ready(Err(ChangeError::Lost { token }));
            };
            this.said = true;
            line.flush();
            line.say(&ask);
        }
        if let Some(outcome) = line.table.downgrade(id, token) {
            return Poll::Ready(outcome.map(|token| granted(RemoteGrant { id, token })));
        }
        line.table.keep(id, cx.waker());
        drop(line);
        this.elsewhere = this.elsewhere.take().or_else(|| this.remote.driver().wait_elsewhere());
        Poll::Pending
    }
}

/// Gives back `part`, which is neither empty nor all of it nor outside; returns the second piece, if two are left.
pub(super) fn cut(
    remote: &Remote,
    grant: RemoteGrant,
    part: &Range<u64>,
) -> Result<Option<Granted>, ChangeError> {
    let mut line = remote.line();
    line.expire();
    if !line.table.has_room() {
        let why = "the server allows this client no further lock, and two would be left";
        return Err(ChangeError::TooManyLocks(why.to_owned()));
    }
    let Some((ask, rest)) = line.table.cut(grant.id, part.start, part.end) else {
        return Err(ChangeError::Lost { token: grant.token });
    };
    line.say(&ask);
    Ok(rest.map(|id| granted(RemoteGrant { id, token: grant.token })))
}

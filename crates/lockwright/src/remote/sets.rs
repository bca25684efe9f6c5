//! Waiting for a set: several locks of one server, in one message.
//!
//! What this file must not do: let anything be seen of a set before all of it is granted.

use super::driver::OtherWaiter;
use super::link::Remote;
use super::table::SetStage;
use super::{Acquiring, units};
use crate::backend::{Granted, Refused};
use crate::error::LockError;
use crate::wire::{MAX_SET, Request, RequestId};
use lockwright_fabric::observe::Claim;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// A set on its way. Dropped, it is given up.
pub(super) struct AcquiringSet {
    remote: Arc<Remote>,
    claims: Vec<Claim>,
    ids: Vec<RequestId>,
    /// The first lock alone, if this client uses it now.
    first: Option<Acquiring>,
    elsewhere: Option<OtherWaiter>,
}

impl AcquiringSet {
    pub(super) fn new(remote: &Arc<Remote>, claims: &[Claim]) -> Self {
        let claims = claims[..claims.len().min(MAX_SET)].to_vec();
        Self { remote: Arc::clone(remote), claims, ids: Vec::new(), first: None, elsewhere: None }
    }

    /// Asks for it, unless the first lock is waited for here.
    fn begin(&mut self) -> Result<(), Refused> {
        let mut line = self.remote.line();
        if let Some(why) = line.refusal() {
            return Err(Refused::Error(why));
        }
        let certain = line.is_certain();
        if line.table.is_used_here(units(&self.claims[0]), certain) {
            self.first = Some(Acquiring::new(&self.remote, &self.claims[0], true));
            return Ok(());
        }
        let units: Vec<_> = self.claims.iter().map(units).collect();
        self.ids = line.table.lock_set(&units);
        line.flush();
        Ok(())
    }
}

impl Future for AcquiringSet {
    type Output = Result<Vec<Granted>, Refused>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.get_mut();
        if this.ids.is_empty() && this.first.is_none() {
            this.begin()?;
        }
        if let Some(first) = &mut this.first {
            return Pin::new(first).poll(cx).map_ok(|granted| vec![granted]);
        }
        let mut line = this.remote.line();
        // Grants that lay here for longer than the lease are nobody's any more.
        line.expire();
        match line.table.set_stage(&this.ids) {
            SetStage::Wanted => {
                line.table.keep_all(&this.ids, cx.waker());
                drop(line);
                this.elsewhere = this.elsewhere.take().or_else(|| this.remote.driver().wait_elsewhere());
                Poll::Pending
            }
            SetStage::Granted => {
                let granted = line.see_set(&std::mem::take(&mut this.ids));
                let retains = line.table.has_grants();
                drop(line);
                if retains {
                    this.remote.driver().set_retains(true);
                }
                Poll::Ready(Ok(granted.into_iter().map(Granted::from).collect()))
            }
            SetStage::Failed(id) => {
                let refused = line.table.take_failed(id).unwrap_or(Refused::Busy);
                if let Refused::Error(LockError::Disconnected(_)) = refused {
                    // The server may still have it, should the session be resumed.
                    line.say(&Request::Unlock { id, answer: false });
                }
                line.table.give_up_set(&std::mem::take(&mut this.ids));
                line.flush();
                Poll::Ready(Err(refused))
            }
        }
    }
}

impl Drop for AcquiringSet {
    fn drop(&mut self) {
        if !self.ids.is_empty() {
            self.remote.give_up_set(&self.ids);
        }
    }
}

//! Looking into a space behind a server: the server is asked, and answers in pages.

use super::inquiry::Inquiry;
use super::link::{Remote, RemoteOptions};
use crate::error::{LockError, OpenError};
use crate::inspect::{BreakError, Entry, Heat, InspectError};
use crate::name::LockName;
use crate::wire::listing::Reader;
use crate::wire::{Request, RequestId};
use std::sync::Arc;
use std::time::Instant;

/// A client that only looks.
#[derive(Debug)]
pub(crate) struct RemoteInspector(Arc<Remote>);

impl RemoteInspector {
    pub(crate) fn open(options: RemoteOptions) -> Result<Self, OpenError> {
        Remote::open(options).map(Self)
    }

    /// By a link that may not have found its server yet.
    pub(in crate::remote) fn when_ready(remote: Arc<Remote>) -> Result<Self, OpenError> {
        let ready = remote.wait_until_ready(Instant::now() + remote.timeout());
        let inspector = Self(remote);
        ready.map_err(|why| OpenError::Failed {
            space: inspector.0.described(),
            why: why.unwrap_or_else(|| super::link::late(inspector.0.timeout())),
        })?;
        Ok(inspector)
    }

    /// Whether the server is one of a cluster, and has no locks itself.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.0.is_elsewhere()
    }

    /// Asks something that is answered in pages, and waits for all of them.
    fn ask(&self, ask: impl FnOnce(RequestId) -> Request + Unpin) -> Result<Vec<u8>, InspectError> {
        let wrong = |error: LockError| InspectError::Space(error.to_string());
        let looked = super::driver::outcome(&self.0, Inquiry::new(&self.0, ask));
        looked.map_err(wrong)
    }

    /// Of all locks, or of those called by this name.
    pub(crate) fn entries(&self, of: Option<&LockName>) -> Result<Vec<Entry>, InspectError> {
        let of = of.cloned();
        let bytes = self.ask(|id| Request::List { id, of })?;
        Ok(Reader(&bytes).entries())
    }

    pub(crate) fn heat(&self) -> Result<Vec<Heat>, InspectError> {
        let bytes = self.ask(|id| Request::Heat { id })?;
        let mut reader = Reader(&bytes);
        Ok(std::iter::from_fn(|| reader.heat()).collect())
    }

    pub(crate) fn break_grant(&self, name: LockName, token: u64) -> Result<(), BreakError> {
        let asked = name.clone();
        let broken = self.ask(|id| Request::Break { id, token, name: asked })?;
        if broken == [1] { Ok(()) } else { Err(BreakError::NotHeld { name, token }) }
    }
}

impl Drop for RemoteInspector {
    fn drop(&mut self) {
        self.0.close();
    }
}

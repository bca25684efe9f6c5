//! Looking into a space behind a server: the server is asked, and answers in pages.

use super::link::{Remote, RemoteOptions};
use super::listing::Reader;
use super::table::Stage;
use super::talk::{Ask, RequestId};
use crate::error::{LockError, OpenError};
use crate::home::Refused;
use crate::inspect::{BreakError, Entry, Heat, InspectError};
use crate::name::LockName;
use std::sync::Arc;
use std::task::Poll;

/// A client that only looks.
#[derive(Debug)]
pub(crate) struct Looker(Arc<Remote>);

impl Looker {
    pub(crate) fn open(options: RemoteOptions) -> Result<Self, OpenError> {
        Remote::open(options).map(Self)
    }

    /// Asks something that is answered in pages, and waits for all of them.
    fn ask(&self, ask: impl FnOnce(RequestId) -> Ask) -> Result<Vec<u8>, InspectError> {
        let remote = &self.0;
        let mut line = remote.line();
        let wrong = |error: LockError| InspectError::Space(error.to_string());
        if let Some(why) = line.refusal() {
            return Err(wrong(why));
        }
        if !line.is_in_session() {
            return Err(InspectError::Space("the server cannot be reached".to_owned()));
        }
        let id = line.table.open(None, Stage::Looking { bytes: Vec::new() });
        line.say(&ask(id));
        drop(line);
        let looked = super::driver::outcome(
            remote,
            std::future::poll_fn(|cx| {
                let mut line = remote.line();
                if let Some(Stage::Looking { .. }) = line.table.stage(id) {
                    line.table.keep(id, cx.waker());
                    return Poll::Pending;
                }
                Poll::Ready(line.table.take(id))
            }),
        );
        match looked {
            Some(Stage::Looked { bytes }) => Ok(bytes),
            Some(Stage::Failed(Refused::Error(error))) => Err(wrong(error)),
            _ => Err(InspectError::Space("the server gave no answer".to_owned())),
        }
    }

    pub(crate) fn entries(&self) -> Result<Vec<Entry>, InspectError> {
        let bytes = self.ask(|id| Ask::List { id })?;
        let mut reader = Reader(&bytes);
        Ok(std::iter::from_fn(|| reader.entry()).collect())
    }

    pub(crate) fn heat(&self) -> Result<Vec<Heat>, InspectError> {
        let bytes = self.ask(|id| Ask::Heat { id })?;
        let mut reader = Reader(&bytes);
        Ok(std::iter::from_fn(|| reader.heat()).collect())
    }

    pub(crate) fn break_grant(&self, name: LockName, token: u64) -> Result<(), BreakError> {
        let asked = name.clone();
        let broken = self.ask(|id| Ask::Break { id, token, name: asked })?;
        if broken == [1] { Ok(()) } else { Err(BreakError::NotHeld { name, token }) }
    }
}

impl Drop for Looker {
    fn drop(&mut self) {
        self.0.close();
    }
}

//! The value of the lock: how users read and set it, and what they must find.
//!
//! Every holder reads the value first, and sets its own token. It has the value open from when it sees the answer to the read until
//! its close is said with the unlock. So a reader of a clean value finds the token of the last holder that said it sets one, and
//! no other holder has it open.

use super::client::Client;
use lockwright::internal::Stage;
use lockwright::wire::{Request, RequestId, ValueReport};
use lockwright_sim::check::{Checker, Violation};

/// A question about the value that is under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Asks {
    Read(RequestId),
    Set(RequestId),
}

impl Asks {
    pub(super) const fn id(self) -> RequestId {
        match self {
            Self::Read(id) | Self::Set(id) => id,
        }
    }
}

/// The value, as it should be.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Value {
    /// The token of the last holder that said that it sets the value.
    last: Option<u64>,
    /// The token of the holder that has seen it, and has not closed it.
    open: Option<u64>,
    /// Whether any holder has said a close.
    closed: bool,
}

impl Value {
    /// A user unlocks. Without a session its close is not said.
    pub(super) fn unlocks(&mut self, client: &Client) {
        if self.open.is_some() && self.open == client.holds && client.session.is_some() {
            (self.open, self.closed) = (None, true);
        }
    }

    /// Judges what client `c` has just read, if it has. `quiet`: nothing goes wrong in this case.
    pub(super) fn seen(&mut self, c: usize, client: &mut Client, quiet: bool) -> Result<(), Violation> {
        let (Some(report), Some(token)) = (client.read.take(), client.holds) else { return Ok(()) };
        let bytes = report.bytes.map(|bytes| bytes.try_into().map_or(0, u64::from_le_bytes));
        let wrong = |what: String| Err(Violation::new(Checker::Values, format!("C{c} {what}")));
        // It asks again, and what it had said to set may be lost. Before the first close a value may never have come.
        let is_unsure = self.open == Some(token) || bytes.is_none() && !self.closed;
        if report.clean && !is_unsure && bytes != self.last {
            return wrong(format!("reads {bytes:?}, and the last holder has set {:?}", self.last));
        }
        // A value that was never set has nothing to be distrusted.
        if report.clean && bytes.is_some() && self.open.is_some_and(|open| open != token) {
            return wrong("is told that the value is clean, and its last holder has not unlocked".to_owned());
        }
        if !report.clean && quiet {
            return wrong("is told that the value is not clean, and everybody has unlocked".to_owned());
        }
        (self.last, self.open) = (Some(token), Some(token));
        Ok(())
    }
}

impl Client {
    /// The user reads the value of what it holds.
    pub(super) fn ask_for_value(&mut self) {
        let (Some((of, _)), Some(token)) = (self.request, self.holds) else { return };
        let id = self.table.open(None, Stage::Looking { bytes: Vec::new() });
        self.asks = Some(Asks::Read(id));
        self.say(&Request::ReadValue { id, of, token });
    }

    /// Whether an answer about the value is there.
    pub(super) fn has_answer(&self) -> bool {
        self.asks.is_some_and(|asks| {
            let stage = self.table.clone().stage(asks.id()).cloned();
            !matches!(stage, Some(Stage::Looking { .. }))
        })
    }

    /// The user sees an answer about the value. A question that a restart has swallowed is asked again.
    pub(super) fn see_value(&mut self) {
        let Some(asks) = self.asks.take() else { return };
        let answer = self.table.take(asks.id());
        let (Some((of, _)), Some(token)) = (self.request, self.holds) else { return };
        match (asks, answer) {
            (Asks::Read(_), Some(Stage::Looked { bytes })) => {
                (self.read, self.opened) = (ValueReport::kept(&bytes), true);
                if self.session.is_none() {
                    // It reads again when it is back.
                    return;
                }
                let id = self.table.open(None, Stage::Looking { bytes: Vec::new() });
                self.asks = Some(Asks::Set(id));
                self.say(&Request::SetValue { id, of, token, bytes: token.to_le_bytes().to_vec() });
            }
            (Asks::Set(_), Some(Stage::Looked { .. })) => self.done += 1,
            _ => {}
        }
    }

    /// The user gives the lock back, and leaves the value as it is.
    pub(super) fn close_value(&mut self) {
        if let (Some((of, _)), Some(token), true) = (self.request, self.holds, self.opened) {
            self.say(&Request::CloseValue { of, token });
        }
    }
}

//! Handlers that die at the list's weakest points, for its tests.

use super::core::{ClientId, Request};
use super::queue::Handler;
use super::sync::atomic::Ordering::{AcqRel, Release};

impl Handler {
    /// Appends without telling the predecessor, and dies.
    pub(super) fn push_and_die_between(mut self, client: ClientId, request: Request) {
        self.stage(client, request).unwrap();
        let me = self.enter();
        self.shared.tail.0.swap(me, AcqRel);
    }

    /// Appends and links, and dies before it says so.
    pub(super) fn push_and_die_after(mut self, client: ClientId, request: Request) {
        self.stage(client, request).unwrap();
        let me = self.enter();
        let before = self.shared.tail.0.swap(me, AcqRel);
        self.shared.node(before).next.store(me, Release);
    }

    /// Dies when everything is written and nothing appended.
    pub(super) fn die_before(mut self, client: ClientId, request: Request) {
        self.stage(client, request).unwrap();
        self.enter();
    }
}

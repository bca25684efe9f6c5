//! Roles of the in-process fabric: a thread each, which feeds it messages and timers and executes its outbox.

use super::endpoint::InProcEndpoint;
use crate::backend::run::block_on;
use crate::endpoint::Endpoint;
use crate::message::{BoxedRole, Outbox};
use crate::wait::{Deadline, Time};
use std::collections::BTreeSet;

/// Runs `role` as the peer of `ep` until its mailbox is closed.
pub(super) fn serve(ep: &InProcEndpoint, mut role: BoxedRole) {
    // A role that panics is lost to its peers; their messages must not pile up.
    let _closing = CloseAtEnd(ep);
    let mut timers = Timers::default();
    let mut out = Outbox::default();
    while !ep.mailbox().is_closed() {
        let next = timers.first().map_or(Deadline::Never, Deadline::At);
        let arrived = block_on(ep.recv_by(next, |from, message| Some((from, message.clone()))));
        let now = ep.clock().now();
        if let Some((from, message)) = arrived {
            role.on_message(now, from, &message, &mut out);
            execute_outbox(ep, &mut out, &mut timers);
        }
        while let Some(id) = timers.pop_due(now) {
            role.on_timer(now, id, &mut out);
            execute_outbox(ep, &mut out, &mut timers);
        }
    }
}

struct CloseAtEnd<'a>(&'a InProcEndpoint);

impl Drop for CloseAtEnd<'_> {
    fn drop(&mut self) {
        self.0.mailbox().close();
    }
}

/// Verbs in order, then messages, then datagrams. Failures are ignored: a role notices by the missing answer.
fn execute_outbox(ep: &InProcEndpoint, out: &mut Outbox, timers: &mut Timers) {
    for verb in out.verbs.drain(..) {
        let _ = ep.execute(verb);
    }
    for (to, message) in out.messages.drain(..) {
        let _ = block_on(ep.send(to, message));
    }
    for (to, message) in out.datagrams.drain(..) {
        let _ = block_on(ep.send_datagram(to, message));
    }
    for (delay_ns, id) in out.timers.drain(..) {
        timers.arm(ep.clock().now().plus(delay_ns), id);
    }
}

/// Armed timers, in order of time; equal times in the order they were armed.
#[derive(Debug, Default)]
struct Timers {
    armed: BTreeSet<(Time, u64, u64)>,
    count: u64,
}

impl Timers {
    fn arm(&mut self, at: Time, id: u64) {
        self.count += 1;
        self.armed.insert((at, self.count, id));
    }

    fn first(&self) -> Option<Time> {
        self.armed.first().map(|(at, ..)| *at)
    }

    fn pop_due(&mut self, now: Time) -> Option<u64> {
        if self.first()? > now {
            return None;
        }
        self.armed.pop_first().map(|(.., id)| id)
    }
}

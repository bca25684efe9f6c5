//! What a client knows of its session: what is said by it, and for how long what it grants is certain.

use super::super::cluster::belief::ShardBelief;
use super::super::one_sided::endpoint::OneSidedEndpoint;
use super::super::retained::{Certainty, LocalGrant};
use super::super::table::Stage;
use super::super::transport::Session;
use super::{LinkState, RemoteOptions, wake, within};
use crate::error::LockError;
use crate::wire::{Request, SERVER};
use lockwright_fabric::backend::tcp::TcpEndpoint;
use std::time::{Duration, Instant};

impl LinkState {
    /// Says `ask` to the server; without a session, what matters of it is said when there is one.
    pub(crate) fn say(&mut self, ask: &Request) {
        if let Some(ep) = &self.ep {
            let message = self.table.say(ask);
            ep.tell(SERVER, &message);
        }
    }

    /// Says what the table has decided on an unlock, whose outcome nobody waits for: it may leave with the next message.
    pub(super) fn flush_unlock(&mut self) {
        for ask in self.table.take_said() {
            let message = self.ep.is_some().then(|| self.table.say(&ask));
            if let (Some(ep), Some(message)) = (&self.ep, message) {
                ep.tell_deferrable(SERVER, &message);
            }
        }
        self.say_stopped();
    }

    /// Says what the table has decided.
    pub(crate) fn flush(&mut self) {
        let said = self.table.take_said();
        if !said.is_empty() {
            said.iter().for_each(|ask| self.say(ask));
            self.say_stopped();
        }
    }

    /// Takes a request out, and tells the server if that was the last of what was lost with an earlier session.
    pub(crate) fn take(&mut self, id: crate::wire::RequestId) -> Option<Stage> {
        let taken = self.table.take(id);
        self.say_stopped();
        taken
    }

    pub(super) fn say_stopped(&mut self) {
        if self.ep.is_some() {
            for ask in self.table.stopped() {
                self.say(&ask);
            }
        }
    }

    /// The connection, if there is one that a thread can read by itself.
    pub(super) fn readable(&self) -> Option<TcpEndpoint> {
        self.ep.as_ref().and_then(Session::readable)
    }

    /// The session's endpoint, for verbs.
    pub(in crate::remote) fn reach(&self) -> Option<OneSidedEndpoint> {
        self.ep.as_ref().map(OneSidedEndpoint::over)
    }

    pub(crate) fn is_in_session(&self) -> bool {
        self.ep.is_some()
    }

    /// How long ago the last message was sent that the server is known to have received: the lease counts from there. Of a
    /// shard, also how long ago its owner was last certain: then another one may have waited for claims since.
    pub(super) fn unacknowledged(&self) -> Duration {
        let silent = self.ep.as_ref().map_or_else(|| self.acknowledged.elapsed(), Session::acknowledged);
        self.belief.as_ref().map_or(silent, |belief| silent.max(belief.uncertain_for()))
    }

    /// Whether the server was heard lately: three heartbeats at most. Longer, and it may have given us up.
    pub(crate) fn is_reachable(&self) -> bool {
        self.belief.as_ref().is_none_or(ShardBelief::is_certain) && self.is_heard()
    }

    /// Whether the server answers. The owner of a shard may do so, and not be certain that it is the owner.
    pub(super) fn is_heard(&self) -> bool {
        self.ep.as_ref().is_some_and(|ep| ep.is_connected() && ep.silence() <= ep.lease().silence())
    }

    /// Whether what this client holds is surely its own: the rule by which a guard is `Held`.
    pub(crate) fn is_certain(&self) -> bool {
        self.is_reachable() && !self.is_expired()
    }

    /// How long what is granted in this session is certain.
    pub(super) fn certainty(&self) -> Option<Certainty> {
        self.ep.clone().map(|session| Certainty { session, lease: self.lease })
    }

    /// The waiter takes the grant `id`, which may stay here.
    pub(crate) fn keep_grant(&mut self, id: crate::wire::RequestId) -> Option<LocalGrant> {
        let certainty = self.certainty();
        self.table.keep_grant(id, certainty)
    }

    /// The waiter takes the grants of a set, which may stay here.
    pub(in crate::remote) fn see_set(&mut self, ids: &[crate::wire::RequestId]) -> Vec<LocalGrant> {
        let certainty = self.certainty();
        self.table.see_set(ids, certainty.as_ref())
    }

    /// Whether the lease is over.
    pub(crate) fn is_expired(&self) -> bool {
        self.unacknowledged() > self.lease
    }

    /// When the lease is over, whatever is held counts as lost.
    pub(crate) fn expire(&mut self) {
        let (silent, lease) = (self.unacknowledged(), self.lease);
        if silent > lease {
            let why = self.why_silent(silent);
            wake(self.table.expire(Instant::now(), silent, lease, &why));
            self.flush();
        }
        if self.claims_until.is_some_and(|until| Instant::now() > until) {
            self.claims_until = None;
            wake(self.table.expire_claims());
            self.say_stopped();
        }
    }

    /// Goes on under the lease of another run of the server.
    pub(super) fn renew_lease(&mut self, ep: &Session, options: &RemoteOptions) -> Result<(), String> {
        let (lease, stop) = within(options.stop, ep.lease())?;
        // A shorter one than a few heartbeats would be over again and again.
        self.lease = lease.min(options.lease.max(ep.lease().silence()));
        self.stop = stop;
        Ok(())
    }

    /// Why nothing can be asked any more.
    pub(crate) fn refusal(&self) -> Option<LockError> {
        let why = self.table.fatal.clone().or_else(|| self.closed.then(|| "the client is closed".to_owned()));
        why.map(LockError::Disconnected)
    }
}

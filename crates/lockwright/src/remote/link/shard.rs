//! A link to the owner of a shard of a cluster: where that is, whether what it says counts, and when to look for another.

use super::{LinkState, Remote, RemoteOptions, Session, late, wake};
use crate::remote::cluster::belief::ShardBelief;
use crate::remote::cluster::follow::Follower;
use crate::wire::Response;
use std::sync::Arc;
use std::time::Duration;

/// A shard of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct ShardOf {
    pub(crate) follower: Arc<Follower>,
    pub(crate) number: u16,
}

impl RemoteOptions {
    /// Begins a session with the server; `again`: after it could not be reached.
    pub(super) async fn connect(&self, again: bool) -> Result<Session, String> {
        let Some(ShardOf { follower, number }) = &self.shard else {
            return self.transport.connect(&self.server).await.map_err(|error| error.why);
        };
        if again {
            follower.refresh().await?;
        }
        let serving = follower.serving(*number).ok_or("nobody serves the shard")?;
        let session = follower.transport(&serving.at)?.connect(&serving.at).await;
        session.map_err(|error| error.why)
    }
}

impl LinkState {
    /// The answer, if it counts. What counts by it is heard.
    #[inline]
    pub(super) fn sift(&mut self, taken: u64, answer: Response) -> Option<Response> {
        let Some(belief) = &mut self.belief else { return Some(answer) };
        if let Response::Certain { sent, left } = answer {
            for (taken, answer) in belief.heard(sent, left) {
                wake(self.table.hear(taken, answer));
            }
            return Some(answer);
        }
        let counts = belief.keep_back(taken, answer);
        if counts.is_none() {
            self.probe();
        }
        counts
    }

    /// Asks the owner of a shard how long it is certain, if that is to be asked now.
    pub(super) fn probe(&mut self) {
        let probe = self.belief.as_mut().filter(|_| self.ep.is_some()).and_then(ShardBelief::probe);
        if let Some(probe) = probe {
            self.say(&probe);
        }
    }

    /// Why nothing that counts was heard for `silent`.
    pub(super) fn why_silent(&self, silent: Duration) -> String {
        let secs = silent.as_secs_f64();
        if self.belief.is_some() && self.is_heard() {
            return format!(
                "the server answers, but has not been certain of its lease in etcd for {secs:.1} s: it does not reach etcd, or \
                 etcd has no leader"
            );
        }
        let why = self.trouble.as_ref().map_or(String::new(), |why| format!(": {why}"));
        format!("the server could not be reached for {secs:.1} s{why}")
    }

    /// Why a try was not answered within `patience`.
    pub(in crate::remote) fn why_late(&self, patience: Duration) -> String {
        match &self.belief {
            Some(belief) if !belief.is_certain() => self.why_silent(self.unacknowledged().max(patience)),
            _ => late(patience),
        }
    }
}

impl Remote {
    /// Whether a session is with an owner before the last: it does not know yet, and would refuse what is claimed.
    pub(super) fn is_past(&self, ep: &Session) -> bool {
        self.options.shard.is_some() && ep.epoch() < self.line().table.origin.epoch
    }

    /// Asks who owns the shard if its owner was not heard to be certain: it may be another by now.
    pub(super) fn look_for_owner(&self, line: &mut LinkState) {
        let is_doubtful = line.belief.as_ref().is_some_and(|belief| {
            !belief.is_certain() || line.ep.as_ref().is_some_and(|ep| !ep.is_connected())
        });
        if let Some(me) = self.me.upgrade().filter(|_| is_doubtful && line.ep.is_some() && !line.asks) {
            line.asks = true;
            self.runtime.spawn(me.follow_owner());
        }
    }

    /// Leaves the session if the shard has another owner.
    async fn follow_owner(self: Arc<Self>) {
        let Some(ShardOf { follower, number }) = &self.options.shard else { return };
        let refreshed = follower.refresh().await;
        let mut line = self.line();
        line.asks = false;
        let serving = refreshed.ok().and_then(|()| follower.serving(*number));
        let is_past = |ep: &mut Session| serving.is_some_and(|serving| serving.epoch > ep.epoch());
        if let Some(ep) = line.ep.take_if(is_past) {
            ep.close();
            self.end_session(line, &ep);
        }
    }
}

//! Looking into a space of a cluster: every shard is asked, and the answers are one.

use super::follow::Follower;
use crate::error::OpenError;
use crate::inspect::{BreakError, Entry, Heat, InspectError};
use crate::name::LockName;
use crate::remote::inspector::RemoteInspector;
use std::cmp::Reverse;
use std::sync::Arc;

/// A client that only looks.
#[derive(Debug)]
pub(crate) struct ClusterInspector {
    follower: Arc<Follower>,
    space: Vec<u8>,
    shards: Vec<RemoteInspector>,
}

impl ClusterInspector {
    pub(crate) fn open(follower: Arc<Follower>, space: &[u8]) -> Result<Self, OpenError> {
        let space = if space.is_empty() { b"default" } else { space }.to_vec();
        let links = (0..follower.shards()).map(|number| super::link(&follower, &space, number));
        let links: Vec<_> = links.collect::<Result<_, _>>()?;
        let shards = links.into_iter().map(RemoteInspector::when_ready).collect::<Result<_, _>>()?;
        Ok(Self { follower, space, shards })
    }

    pub(crate) fn entries(&self) -> Result<Vec<Entry>, InspectError> {
        let mut all = self.all(|shard| shard.entries(None))?;
        all.sort_by_key(|entry| (entry.name.clone(), entry.state, Reverse(entry.age)));
        Ok(all)
    }

    /// Of the locks called `name`, which one shard has.
    pub(crate) fn entries_of(&self, name: &LockName) -> Result<Vec<Entry>, InspectError> {
        let shard = self.follower.shard_of(&self.space, name.as_bytes());
        self.shards[usize::from(shard)].entries(Some(name))
    }

    pub(crate) fn heat(&self) -> Result<Vec<Heat>, InspectError> {
        let mut all = self.all(RemoteInspector::heat)?;
        all.sort_by_key(|heat| Reverse((heat.grants, heat.waiters)));
        Ok(all)
    }

    fn all<T>(
        &self,
        ask: impl Fn(&RemoteInspector) -> Result<Vec<T>, InspectError>,
    ) -> Result<Vec<T>, InspectError> {
        let mut all = Vec::new();
        for shard in &self.shards {
            all.extend(ask(shard)?);
        }
        Ok(all)
    }

    pub(crate) fn break_grant(&self, name: LockName, token: u64) -> Result<(), BreakError> {
        let shard = self.follower.shard_of(&self.space, name.as_bytes());
        self.shards[usize::from(shard)].break_grant(name, token)
    }
}

//! What all handles of one name in one client share: the lock's id, and the way to its space.

use crate::home::{Bound, Home, Kind};
use crate::name::LockName;
use crate::progress::Progress;
use std::sync::Arc;

/// A lock as one client knows it.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) home: Arc<dyn Home>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    pub(crate) id: u64,
    pub(crate) bound: Bound,
}

impl Drop for Core {
    fn drop(&mut self) {
        self.home.unbind(&self.name, self.bound, self.kind);
    }
}

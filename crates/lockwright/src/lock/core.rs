//! What all handles of one name in one client share: where the name leads, and the way to its space.

use crate::error::LockError;
use crate::home::{Bound, Home, Kind};
use crate::name::LockName;
use crate::progress::Progress;
use std::sync::{Arc, PoisonError, RwLock};

/// A lock as one client knows it.
#[derive(Debug)]
pub(crate) struct Core {
    pub(crate) home: Arc<dyn Home>,
    pub(crate) progress: Arc<Progress>,
    pub(crate) name: LockName,
    pub(crate) kind: Kind,
    bound: RwLock<Bound>,
}

impl Core {
    pub(crate) fn new(
        home: Arc<dyn Home>,
        progress: Arc<Progress>,
        name: LockName,
        kind: Kind,
        bound: Bound,
    ) -> Self {
        Self { home, progress, name, kind, bound: RwLock::new(bound) }
    }

    /// Where the name leads. Looked up again only if this client was declared dead meanwhile, and has lost its names.
    #[inline]
    pub(crate) fn bound(&self) -> Result<Bound, LockError> {
        let bound = *self.bound.read().unwrap_or_else(PoisonError::into_inner);
        if self.home.is_bound(&bound) { Ok(bound) } else { self.bind_again() }
    }

    #[cold]
    fn bind_again(&self) -> Result<Bound, LockError> {
        let mut bound = self.bound.write().unwrap_or_else(PoisonError::into_inner);
        if !self.home.is_bound(&bound) {
            let again = self.home.bind(&self.name, self.kind);
            *bound = again.map_err(|error| LockError::NoSeat(error.to_string()))?;
        }
        Ok(*bound)
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        let bound = *self.bound.get_mut().unwrap_or_else(PoisonError::into_inner);
        self.home.unbind(&self.name, bound, self.kind);
    }
}

//! A part of a state that is shared between states until one of them changes it, and whose fingerprint is taken once.
//!
//! A step changes one or two parts of a large state. Copying and hashing the others would be most of the work of a search.

use super::fingerprint::fingerprint;
use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::{Deref, DerefMut};
use std::sync::{Arc, OnceLock};

/// See the module. It looks like what is in it; getting at that mutably counts as a change.
pub struct Part<T>(Arc<Inner<T>>);

struct Inner<T> {
    value: T,
    fingerprint: OnceLock<u128>,
}

impl<T> Part<T> {
    /// A part of its own.
    pub fn new(value: T) -> Self {
        Self(Arc::new(Inner { value, fingerprint: OnceLock::new() }))
    }
}

impl<T: Default> Default for Part<T> {
    fn default() -> Self {
        Self::new(T::default())
    }
}

impl<T> Clone for Part<T> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<T> Deref for Part<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0.value
    }
}

impl<T: Clone> DerefMut for Part<T> {
    fn deref_mut(&mut self) -> &mut T {
        if Arc::get_mut(&mut self.0).is_none() {
            *self = Self::new(self.0.value.clone());
        }
        let inner = Arc::get_mut(&mut self.0).expect("just made, or nobody else's");
        inner.fingerprint = OnceLock::new();
        &mut inner.value
    }
}

impl<T: Hash> Hash for Part<T> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(*self.0.fingerprint.get_or_init(|| fingerprint(&self.0.value)));
    }
}

impl<T: fmt::Debug> fmt::Debug for Part<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.value.fmt(f)
    }
}

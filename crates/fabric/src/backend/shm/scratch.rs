//! A space for unit tests, opened by this process and removed with its last use.

use super::client::Client;
use super::options::SpaceOptions;
use super::shared::Shared;
use std::sync::Arc;

/// A space of two client slots.
pub(super) struct Scratch(pub(super) Arc<Shared>);

impl Scratch {
    /// For the test `name`.
    pub(super) fn new(name: &str) -> Self {
        Self::with_patience(name, 5_000_000_000)
    }

    /// The same, whose senders wait so long at a full mailbox.
    pub(super) fn with_patience(name: &str, patience_ns: u64) -> Self {
        let path = std::env::temp_dir().join(format!("lockwright-unit-{}-{name}.space", std::process::id()));
        let options = SpaceOptions::default().clients(2).lock_bytes(4096);
        let mut shared = Shared::open(&path, &options).expect("a space of its own");
        shared.layout.shape.patience_ns = patience_ns;
        Self(Arc::new(shared))
    }

    pub(super) fn client(&self) -> Arc<Client> {
        Client::join(&self.0, "test").expect("there is room")
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0.path);
    }
}

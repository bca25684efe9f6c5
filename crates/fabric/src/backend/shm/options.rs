//! How a space is made, where it lives, and what its maker writes into it for those who come later.

use super::error::SpaceError;
use super::layout::{PAGE, PARAMS_MAX, Shape, TAG_MAX};
use crate::addr::Addr;
use std::path::{Path, PathBuf};

/// What a space is to be like. Only whoever makes it decides; everybody else finds what is there.
///
/// ```
/// use lockwright_fabric::backend::shm::SpaceOptions;
/// // Ten million locks of 16 bytes: sparse, so it costs nothing until it is used.
/// let options = SpaceOptions::default().lock_bytes(10_000_000 * 16).tag("shiftlock");
/// # let _ = options;
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub struct SpaceOptions {
    pub(super) clients: u64,
    pub(super) peer_bits: u64,
    pub(super) cells: u64,
    pub(super) names: u64,
    pub(super) nodes: u64,
    pub(super) regions: Vec<u64>,
    pub(super) reserve: Option<u64>,
    pub(super) patience_ns: u64,
    pub(super) tag: String,
    pub(super) params: Vec<u8>,
    pub(super) initial: Vec<(Addr, u64)>,
    pub(super) create: bool,
    pub(super) any_owner: bool,
}

impl Default for SpaceOptions {
    /// 1024 clients, a million names, one node with room for a million 16-byte words.
    fn default() -> Self {
        Self {
            clients: 1024,
            peer_bits: 31,
            cells: 256,
            names: 1 << 20,
            nodes: 1,
            regions: vec![16 << 20],
            reserve: None,
            patience_ns: 5_000_000_000,
            tag: String::new(),
            params: Vec::new(),
            initial: Vec::new(),
            create: true,
            any_owner: false,
        }
    }
}

impl SpaceOptions {
    /// Room for this many clients at a time, rounded up to a power of two.
    pub fn clients(mut self, clients: u64) -> Self {
        self.clients = clients.clamp(1, 1 << 20).next_power_of_two();
        self
    }

    /// Peers' numbers must fit into this many bits of a lock word. What the number of clients does not need of them
    /// is used to keep a number from coming back soon after its client has gone.
    pub fn peer_bits(mut self, bits: u32) -> Self {
        self.peer_bits = u64::from(bits);
        self
    }

    /// Cells of 64 bytes in every mailbox. A message takes one, and one more for every six words of its tail.
    pub fn mailbox_cells(mut self, cells: u64) -> Self {
        self.cells = cells;
        self
    }

    /// Room for this many names, which is also the number of lock ids the directory hands out.
    pub fn names(mut self, names: u64) -> Self {
        self.names = names;
        self
    }

    /// One node with one region of `bytes` bytes of lock memory.
    pub fn lock_bytes(self, bytes: u64) -> Self {
        self.memory(1, &[bytes])
    }

    /// `nodes` nodes, each with regions of these sizes. A host has one; more are for tests.
    pub fn memory(mut self, nodes: u16, regions: &[u64]) -> Self {
        self.nodes = u64::from(nodes);
        self.regions = regions.to_vec();
        self
    }

    /// How large a region can come to be. Address space only; by default 64 GiB, or what the space starts with if
    /// that is more.
    pub fn reserve(mut self, bytes: u64) -> Self {
        self.reserve = Some(bytes);
        self
    }

    /// How long a sender waits for a reader that takes nothing out of its full mailbox before it counts as lost.
    pub fn send_patience_ns(mut self, ns: u64) -> Self {
        self.patience_ns = ns;
        self
    }

    /// What the space's owner calls its protocol: up to 64 bytes, found again by [`ShmSpace::tag`](super::ShmSpace::tag).
    pub fn tag(mut self, tag: &str) -> Self {
        tag.clone_into(&mut self.tag);
        self
    }

    /// The owner's own parameters: up to 2048 bytes, found again by [`ShmSpace::params`](super::ShmSpace::params).
    pub fn params(mut self, params: &[u8]) -> Self {
        self.params = params.to_vec();
        self
    }

    /// Words of lock memory that do not start as zero.
    pub fn initial(mut self, words: &[(Addr, u64)]) -> Self {
        self.initial = words.to_vec();
        self
    }

    /// Whether a missing space is made (the default) or an error.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// Also opens a space of another user, who can then break every lock in it.
    pub fn any_owner(mut self, any: bool) -> Self {
        self.any_owner = any;
        self
    }

    pub(super) fn shape(&self) -> Result<Shape, SpaceError> {
        if self.tag.len() > TAG_MAX || self.params.len() > PARAMS_MAX {
            return Err(SpaceError::BadOptions("the tag has at most 64 bytes, the parameters 2048"));
        }
        let largest = self.regions.iter().copied().max().unwrap_or(0);
        let reserve = self.reserve.unwrap_or(64 << 30).max(largest);
        if reserve > 1 << 46 {
            return Err(SpaceError::BadOptions("lock memory beyond 64 TiB"));
        }
        Ok(Shape {
            clients: self.clients,
            peer_bits: self.peer_bits,
            cells: self.cells,
            buckets: 1024,
            names: self.names,
            refs: self.names.saturating_mul(4).min(1 << 32),
            nodes: self.nodes,
            regions: self.regions.len() as u64,
            reserve: reserve.next_multiple_of(PAGE),
            patience_ns: self.patience_ns,
        })
    }
}

/// Where the space called `name` lives: in the folder that `LOCKWRIGHT_DIR` names, or in the host's shared memory.
/// Every user has spaces of their own.
///
/// ```
/// let path = lockwright_fabric::backend::shm::space_path("builds")?;
/// assert!(path.to_string_lossy().ends_with("-builds.space"));
/// assert!(lockwright_fabric::backend::shm::space_path("../etc").is_err());
/// # Ok::<_, lockwright_fabric::backend::shm::SpaceError>(())
/// ```
///
/// # Errors
/// [`SpaceError::BadOptions`] if `name` is no file name: letters, digits, `.`, `_` and `-`, up to 100 of them.
pub fn space_path(name: &str) -> Result<PathBuf, SpaceError> {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if name.is_empty() || name.len() > 100 || !name.bytes().all(fits) {
        return Err(SpaceError::BadOptions(
            "a space's name has 1 to 100 letters, digits, dots, dashes and underscores",
        ));
    }
    let folder = std::env::var_os("LOCKWRIGHT_DIR").filter(|dir| !dir.is_empty());
    let folder = folder.map_or_else(|| Path::new("/dev/shm").to_owned(), PathBuf::from);
    let user = rustix::process::geteuid().as_raw();
    Ok(folder.join(format!("lockwright-{user}-{name}.space")))
}

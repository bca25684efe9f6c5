//! Parameters of a new space, and where spaces live.

use super::error::SpaceError;
use super::layout::{PAGE, Shape, TAG_MAX};
use crate::addr::Addr;
use std::path::{Path, PathBuf};

/// Parameters of a space. Those of the process that creates it count; later ones open what is there.
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
    pub(super) names: u64,
    pub(super) nodes: u64,
    pub(super) regions: Vec<u64>,
    pub(super) tag: String,
    pub(super) initial: Vec<(Addr, u64)>,
    pub(super) create: bool,
    pub(super) program: Option<String>,
}

impl Default for SpaceOptions {
    /// 1024 clients, a million names, one node with room for a million 16-byte words.
    fn default() -> Self {
        Self {
            clients: 1024,
            peer_bits: 31,
            names: 1 << 20,
            nodes: 1,
            regions: vec![16 << 20],
            tag: String::new(),
            initial: Vec::new(),
            create: true,
            program: None,
        }
    }
}

impl SpaceOptions {
    /// Room for this many clients at a time, rounded up to a power of two.
    pub fn clients(mut self, clients: u64) -> Self {
        self.clients = clients.clamp(1, 1 << 20).next_power_of_two();
        self
    }

    /// Peer ids must fit into this many bits of a lock word. Bits that the number of clients does not need hold a
    /// generation, so that an id is not reused soon after its client has left.
    pub fn peer_bits(mut self, bits: u32) -> Self {
        self.peer_bits = u64::from(bits);
        self
    }

    /// Room for this many names, and as many lock ids.
    pub fn names(mut self, names: u64) -> Self {
        self.names = names;
        self
    }

    /// What this process is called in listings of the space, if not by the name of its program.
    pub fn program(mut self, program: Option<&str>) -> Self {
        self.program = program.map(str::to_owned);
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

    /// The protocol's name: up to 64 bytes, read back by [`ShmSpace::tag`](super::ShmSpace::tag).
    pub fn tag(mut self, tag: &str) -> Self {
        tag.clone_into(&mut self.tag);
        self
    }

    /// Words of lock memory that do not start at zero.
    pub fn initial(mut self, words: &[(Addr, u64)]) -> Self {
        self.initial = words.to_vec();
        self
    }

    /// Whether a missing space is created (the default) or an error.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    pub(super) fn shape(&self) -> Result<Shape, SpaceError> {
        if self.tag.len() > TAG_MAX {
            return Err(SpaceError::BadOptions("the tag has at most 64 bytes"));
        }
        let largest = self.regions.iter().copied().max().unwrap_or(0);
        if largest > 1 << 46 {
            return Err(SpaceError::BadOptions("lock memory beyond 64 TiB"));
        }
        Ok(Shape {
            clients: self.clients,
            peer_bits: self.peer_bits,
            cells: 256,
            buckets: 1024,
            names: self.names,
            refs: self.names.saturating_mul(4).min(1 << 32),
            nodes: self.nodes,
            regions: self.regions.len() as u64,
            reserve: largest.next_multiple_of(PAGE).max(PAGE),
            patience_ns: 5_000_000_000,
        })
    }
}

/// Where the space `name` lives: in the folder `LOCKWRIGHT_DIR`, or in the host's shared memory. The user id is part of
/// the file's name.
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

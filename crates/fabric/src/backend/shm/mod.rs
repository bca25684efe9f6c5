//! The shared-memory fabric: lock memory in a file in the host's shared memory, clients in any process of the host.
//!
//! No daemon: the first process that opens a space creates its file, and the space survives the death of any process at
//! any instruction. `docs/shm.md` has the file layout, the failure model and the guarantees.
//!
//! ```
//! use lockwright_fabric::backend::{block_on, shm::{ShmSpace, SpaceOptions}};
//! use lockwright_fabric::{Addr, Cond, Endpoint, NodeId, Word64};
//!
//! # let path = std::env::temp_dir().join(format!("lockwright-doc-shm-{}.space", std::process::id()));
//! // Every process of this user that opens the same path is in the same space.
//! let space = ShmSpace::open(&path, &SpaceOptions::default())?;
//! let (waiter, setter) = (space.endpoint()?, space.endpoint()?);
//! let flag = Word64::at(Addr::new(NodeId(0), 0));
//! std::thread::scope(|scope| {
//!     scope.spawn(move || block_on(waiter.wait_until(flag.until(Cond::Eq { mask: 1, value: 1 }))));
//!     scope.spawn(move || block_on(setter.go(flag.write(1))));
//! });
//! # ShmSpace::remove(&path)?;
//! # Ok::<_, lockwright_fabric::backend::shm::SpaceError>(())
//! ```
//!
//! | file | idea |
//! |---|---|
//! | `layout.rs` | the file layout |
//! | `file.rs`, `options.rs` | creating and opening a file |
//! | `private.rs` | a folder that is closed to other users |
//! | `map.rs`, `area.rs` | the mapping, lock words; the only `unsafe` |
//! | `clients.rs`, `slot.rs`, `process.rs`, `pidfd_cache.rs` | members, and whether their processes are alive |
//! | `doorbell.rs`, `park.rs`, `wait.rs` | sleeping and waking |
//! | `mailbox.rs`, `send.rs`, `receive.rs` | messages |
//! | `names/` | the directory of names |
//! | `client.rs`, `endpoint.rs`, `space.rs` | what users hold |
//!
//! Waiting under [`block_on`](crate::backend::block_on) needs no thread. For tasks of an async runtime a client starts one
//! helper thread that wakes them, and one timer thread if they have deadlines.

mod area;
mod client;
mod clients;
mod doorbell;
mod endpoint;
mod error;
mod file;
mod layout;
mod mailbox;
mod map;
mod names;
mod options;
mod park;
mod pidfd_cache;
mod private;
mod process;
mod receive;
#[cfg(test)]
mod scratch;
mod send;
mod shared;
pub mod slot;
mod space;
mod wait;

pub use area::WordSlice;
pub use clients::{ClientInfo, Room};
pub use endpoint::ShmEndpoint;
pub use error::SpaceError;
pub use mailbox::MAX_TAIL;
pub use names::{NAME_MAX, NameInfo, NamedLock, Names, Reclaim};
pub use options::{SpaceOptions, space_path};
pub use private::{PrivateFolder, open_regular};
#[cfg(feature = "tcp")]
pub(in crate::backend) use process::namespaces;
pub use process::{Process, ProcessState, boot_id, monotonic_ns};
pub use space::ShmSpace;

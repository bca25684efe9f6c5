//! What the library shares with the server beside the [messages](crate::wire): no part of the API, and it changes without notice.

pub use crate::backend::Refused;
use crate::backend::SpaceIdentity;
use crate::client::Client;
pub use crate::one_sided::asymmetric::{self, RemoteLocks, server_client};
pub use crate::one_sided::backend::bind as bind_local;
pub use crate::one_sided::holders::{
    OneSidedHolders, OneSidedLocks, OneSidedTable, OneSidedTrees, client, server_trees,
};
pub use crate::one_sided::listing::entries as local_entries;
pub use crate::one_sided::local;
pub use crate::one_sided::reach::Reach;
pub use crate::remote::cluster::ask::hand_table;
pub use crate::remote::link::key;
pub use crate::remote::one_sided::endpoint::round_trips;
pub use crate::remote::retained::{LocalGrant, RetentionRules};
pub use crate::remote::table::{Begun, Origin, SetStage, Stage, Table, TableRules, Upgrade};

/// How this process is called in listings of a server.
pub fn label() -> String {
    crate::client::label::of(None)
}

/// What clients and a decider's control plane say to each other.
#[cfg(feature = "fiss")]
pub mod fiss {
    pub use crate::remote::fiss::wire::*;
    pub use crate::remote::fiss::{MACHINES, params};
}

/// Which space a client has opened: the same text in every process that has it open, whatever the address.
pub fn space_of(client: &Client) -> String {
    client.identity().to_string()
}

/// The number of the shared memory that a client has opened.
pub fn memory_of(client: &Client) -> Option<u128> {
    match client.identity() {
        SpaceIdentity::Shm(number) => Some(number),
        _ => None,
    }
}

/// Where things are in the memory of a one-sided space.
pub mod layout {
    pub use crate::one_sided::layout::*;
}

/// The secret of a server that offers this user's own spaces.
pub mod secret {
    pub use crate::remote::secret::{PublishedSecret, forget, leave, make, sweep};
}

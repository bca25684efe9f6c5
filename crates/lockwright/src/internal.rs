//! What the library shares with the server beside the [messages](crate::wire): no part of the API, and it changes without notice.

pub use crate::home::Refused;
pub use crate::lent::holders::{LentClient, LentHolders, LentTable, LentTrees, client, server_trees};
pub use crate::lent::reach::Reach;
pub use crate::remote::link::key;
pub use crate::remote::retained::{LocalGrant, RetentionRules};
pub use crate::remote::table::{Begun, Origin, Stage, Table, TableRules, Upgrade};

/// How this process is called in listings of a server.
pub fn label() -> String {
    crate::client::label::of(None)
}

/// Where things are in the memory of a lent space.
pub mod layout {
    pub use crate::lent::layout::*;
}

/// The secret of a server that offers this user's own spaces.
pub mod secret {
    pub use crate::remote::secret::{PublishedSecret, forget, leave, make, sweep};
}

//! A space whose protocol this process runs itself, on a fabric it can reach: shared memory, this process.
//!
//! [`Drive`] is what has to be written out for
//! every pair of protocol and fabric, because only there does the compiler see that the futures can be sent to another
//! thread; the macro [`drive!`] writes it.

use super::{AnyGrant, BoxFuture};
use lockwright_locks::{Denied, Lost, Want};
use std::fmt::Debug;
use std::sync::Arc;

/// One pair of protocol and fabric.
pub(crate) trait Drive: Debug + Send + Sync + 'static {
    /// The protocol's client on the fabric.
    type Client: Send + Sync + 'static;

    /// One attempt, on the stack.
    fn try_acquire(client: &Self::Client, want: Want) -> Result<AnyGrant, Denied>;
    /// An acquire that owns its client, so that it can outlive the call that began it.
    fn acquire(client: Arc<Self::Client>, want: Want) -> BoxFuture<Result<AnyGrant, Denied>>;
    /// A release that owns its client.
    fn release(client: Arc<Self::Client>, grant: AnyGrant) -> BoxFuture<Result<(), Lost>>;
}

/// Implements [`Drive`] for a unit type: the client's type, and the variant for its grants.
macro_rules! drive {
    ($(#[$doc:meta])* $name:ident, $client:ty, $grant:path) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub(crate) struct $name;

        impl $crate::home::hosted::Drive for $name {
            type Client = $client;

            #[inline]
            fn try_acquire(
                client: &Self::Client,
                want: lockwright_locks::Want,
            ) -> Result<$crate::home::AnyGrant, lockwright_locks::Denied> {
                use lockwright_locks::LockClient as _;
                let want = want.with(lockwright_locks::Patience::Try);
                lockwright_fabric::backend::block_on(client.acquire(want)).map($grant)
            }

            fn acquire(
                client: std::sync::Arc<Self::Client>,
                want: lockwright_locks::Want,
            ) -> $crate::home::BoxFuture<Result<$crate::home::AnyGrant, lockwright_locks::Denied>> {
                use lockwright_locks::LockClient as _;
                Box::pin(async move { client.acquire(want).await.map($grant) })
            }

            fn release(
                client: std::sync::Arc<Self::Client>,
                grant: $crate::home::AnyGrant,
            ) -> $crate::home::BoxFuture<Result<(), lockwright_locks::Lost>> {
                use lockwright_locks::LockClient as _;
                #[allow(irrefutable_let_patterns, reason = "there may be one kind of grant only")]
                let $grant(grant) = grant else {
                    unreachable!("a space gets back the grants that it gave out")
                };
                Box::pin(async move { client.release(grant).await })
            }
        }
    };
}
pub(crate) use drive;

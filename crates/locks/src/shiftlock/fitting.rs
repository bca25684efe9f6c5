//! Which entry a fabric can run: chosen once, from what the fabric says it can do, and the same for all of a space.
//!
//! [`Fitting::to`] is the one place that decides. Whoever opens a space asks it for the bytes of a node and for clients,
//! and need not know that there are two layouts; the choice is one branch per call, and what follows is monomorphic.

use super::layout::{Layout, Wide};
use super::portable::Portable;
use super::{ShiftClient, ShiftGrant, ShiftLock, ShiftParams, Shipped};
use crate::fast::Either;
use crate::protocol::{Denied, LockClient, Lost, Protocol, Space, Want};
use lockwright_fabric::{BoxedRole, Capabilities, Endpoint, Mismatch};

/// The entry that fits a fabric.
///
/// ```
/// use lockwright_fabric::Capabilities;
/// use lockwright_fabric::backend::inproc::{InProc, block_on};
/// use lockwright_fabric::{Endpoint, PeerId};
/// use lockwright_locks::shiftlock::{ShiftParams, fitting::Fitting};
/// use lockwright_locks::{LockClient, Space, Want};
///
/// let (space, params) = (Space::of(8), ShiftParams::default());
/// let fitting = Fitting::to(Capabilities::CPU).unwrap();
/// assert_eq!(fitting.name(), "shiftlock");
/// let fabric = InProc::new(1, fitting.bytes_per_node(&space, &params));
/// let client = fitting.client(fabric.endpoint(PeerId::client(0)), &space, &params);
/// let grant = block_on(client.acquire(Want::exclusive(3))).unwrap();
/// block_on(client.release(grant)).unwrap();
///
/// let nic = Capabilities { masked: false, wide: false, guarded: false, ..Capabilities::CPU };
/// assert_eq!(Fitting::to(nic).unwrap().name(), "shiftlock-portable");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Fitting {
    /// Sixteen bytes and masked verbs.
    Wide,
    /// Eight bytes and plain verbs.
    Portable,
}

impl Fitting {
    /// What fits a fabric that can do this: the paper's entry where there are verbs for it, else the portable one.
    ///
    /// # Errors
    /// If neither does: names what is missing for the portable one.
    pub fn to(has: Capabilities) -> Result<Self, Mismatch> {
        if Wide::NEEDS.met_by(Wide::NAME, has).is_ok() {
            return Ok(Self::Wide);
        }
        Portable::NEEDS.met_by(Portable::NAME, has).map(|()| Self::Portable)
    }

    /// The protocol's name, as in the catalog.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Wide => Wide::NAME,
            Self::Portable => Portable::NAME,
        }
    }

    /// Bytes of lock memory on every node for `space`.
    pub fn bytes_per_node(self, space: &Space, params: &ShiftParams) -> u64 {
        match self {
            Self::Wide => ShiftLock::<Wide>::bytes_per_node(space, params),
            Self::Portable => ShiftLock::<Portable>::bytes_per_node(space, params),
        }
    }

    /// The server side, if the parameters ask for one.
    pub fn roles(self, space: &Space, params: &ShiftParams) -> Vec<BoxedRole> {
        match self {
            Self::Wide => ShiftLock::<Wide>::roles(space, params),
            Self::Portable => ShiftLock::<Portable>::roles(space, params),
        }
    }

    /// A client that talks through `ep`. All clients of a space must be of one fitting.
    pub fn client<E: Endpoint>(self, ep: E, space: &Space, params: &ShiftParams) -> FittingClient<E> {
        match self {
            Self::Wide => FittingClient::Wide(ShiftLock::<Wide>::client(ep, space, params)),
            Self::Portable => FittingClient::Portable(ShiftLock::<Portable>::client(ep, space, params)),
        }
    }
}

/// A client with the entry that fits its fabric.
#[derive(Debug)]
pub enum FittingClient<E> {
    /// Sixteen bytes and masked verbs.
    Wide(ShiftClient<E, Wide, Shipped>),
    /// Eight bytes and plain verbs.
    Portable(ShiftClient<E, Portable, Shipped>),
}

impl<E: Endpoint> FittingClient<E> {
    /// A client with the entry that fits what `ep` can do.
    ///
    /// # Errors
    /// As [`Fitting::to`].
    pub fn new(ep: E, space: &Space, params: &ShiftParams) -> Result<Self, Mismatch> {
        Ok(Fitting::to(ep.capabilities())?.client(ep, space, params))
    }

    /// Which entry that is.
    pub const fn fitting(&self) -> Fitting {
        match self {
            Self::Wide(_) => Fitting::Wide,
            Self::Portable(_) => Fitting::Portable,
        }
    }
}

impl<E: Endpoint> LockClient for FittingClient<E> {
    type Grant = ShiftGrant;

    #[inline(always)]
    fn acquire(&self, want: Want) -> impl Future<Output = Result<ShiftGrant, Denied>> {
        match self {
            Self::Wide(client) => Either::left(client.acquire(want)),
            Self::Portable(client) => Either::right(client.acquire(want)),
        }
    }

    #[inline(always)]
    fn release(&self, grant: ShiftGrant) -> impl Future<Output = Result<(), Lost>> {
        match self {
            Self::Wide(client) => Either::left(client.release(grant)),
            Self::Portable(client) => Either::right(client.release(grant)),
        }
    }

    async fn settle(&self) {
        match self {
            Self::Wide(client) => client.settle().await,
            Self::Portable(client) => client.settle().await,
        }
    }

    fn locals(&self) -> Vec<u64> {
        match self {
            Self::Wide(client) => client.locals(),
            Self::Portable(client) => client.locals(),
        }
    }
}

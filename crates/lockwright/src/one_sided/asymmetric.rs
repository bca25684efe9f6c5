//! One-sided spaces that are open to processes of the server's own host, too: their locks are the asymmetric lock with
//! membership (`lockwright_locks::qplock::member`), which both sides take, in one order, without an atomic in common.
//!
//! | region | holds |
//! |---|---|
//! | 0 | the locks, a cache line each |
//! | 1 | the holder table |
//! | 2 | nothing |
//! | 3 | which protocols the space runs (`layout`), and the budget |
//!
//! The memory is that of a space in shared memory (`local`): the server registers it for its NIC, processes of the host map it. The
//! client table of that space says who is in: a process of the host for itself, the server for clients that come by verbs.

use super::holders::OneSidedHolders;
use super::reach::Reach;
use lockwright_fabric::{Addr, NodeId, RegionId};
use lockwright_locks::holders::TableLayout;
use lockwright_locks::holders::record::MAX_RECORDS;
use lockwright_locks::qplock::member::{LockTable, MemberClient, Side};

/// Clients of both sides, a power of two.
pub const SLOTS: u64 = 128;
/// Names, and therefore locks.
pub const NAMES: u64 = 1 << 14;
/// Grants that one side may have in a row while the other waits, unless the server was told otherwise.
pub const BUDGET: u16 = 8;
/// The holder table.
pub const TABLE: TableLayout = TableLayout::new(at(1), SLOTS, MAX_RECORDS);
/// The locks.
pub const LOCKS: LockTable = LockTable::new(at(0), NAMES);

/// How large the regions are.
pub const REGIONS: [u64; 4] = [LOCKS.bytes(), TABLE.bytes(), 64, 64];

const fn at(region: u16) -> Addr {
    Addr { offset: 0, node: NodeId(0), region: RegionId(region) }
}

/// A client that comes by verbs.
pub type RemoteLocks<E> = MemberClient<E, OneSidedHolders<E>>;

/// The client of the locks that `ep` reaches by verbs, in a space with this budget.
pub(crate) fn client<E: Reach + Clone>(ep: E, budget: u16) -> RemoteLocks<E> {
    let holders = OneSidedHolders::new(ep.clone(), TABLE);
    MemberClient::new(ep, holders, LOCKS, Side::Remote, budget)
}

/// The server's own, which takes nothing and clears away after the dead of that side.
pub fn server_client<E: Reach + Clone>(ep: E) -> RemoteLocks<E> {
    let holders = OneSidedHolders::of_server(ep.clone(), TABLE);
    MemberClient::new(ep, holders, LOCKS, Side::Remote, BUDGET)
}

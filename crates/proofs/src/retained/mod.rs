//! Locks that stay with their last user: the shipped client table and lock table, with messages in flight in both directions.
//!
//! Connections and how sessions go on after a break are `served`'s. Here a session lasts until its client has found the lease to be
//! over, is killed, or the server is; in between, everything that was sent arrives, in order, and after a break of the connection
//! some of it twice. Users of one client share its table, so that a lock is granted, waited for and passed on inside it. The server lets every grant stay that it can.
//!
//! Checked: no two users, of whatever clients, believe what cannot be true together; the token of a grant is higher than that of
//! every earlier grant in its way, here or at the server; every request for a lock is granted, or refused; in the end the server
//! keeps nothing but what stays with clients.

pub(crate) mod cases;
mod client;
mod model;

pub use model::{Faults, Op, Retained};

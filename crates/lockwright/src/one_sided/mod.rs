//! One-sided spaces: locks in memory of a server that its clients change by their own verbs, and no CPU of the server.
//!
//! Keyed locks and ranges have holder records (`lockwright_locks::holders`) and the portable entry: plain 8-byte verbs are all
//! they take. A client writes its records there itself, with WRITEs that go ahead of the verb that takes the lock on
//! the same queue pair. The server only says who is in: it is the one that lets clients in and destroys the queue pairs of
//! those who are gone, and it does so *before* it strikes them off the client directory. So there are no zombies: what a
//! client has not done when it is struck off, it will never do. `docs/decisions/0014-one-sided-spaces.md` says why it
//! is this way.
//!
//! The server's CPU loads and stores words of the holder table, and never changes the word of a lock: an atomic of the NIC
//! and one of a CPU do not exclude each other. Its own client, which clears away what the dead leave behind, comes through
//! the NIC like all others.
//!
//! | file | |
//! |---|---|
//! | `layout` | which word is where |
//! | `reach` | what a client of such a space needs of its fabric |
//! | `holders` | the holder table, written and read by verbs |
//! | `asymmetric` | spaces that processes of the server's host are in, too |
//! | `local`, `backend` | such a space as those processes have it |
//! | `listing` | who holds and waits in it |

pub mod asymmetric;
pub(crate) mod backend;
pub(crate) mod holders;
pub(crate) mod layout;
pub(crate) mod listing;
pub mod local;
pub(crate) mod reach;

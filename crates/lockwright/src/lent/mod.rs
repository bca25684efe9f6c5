//! Lent spaces: locks in memory of a server that its clients change by their own verbs, and no CPU of the server.
//!
//! Keyed locks and ranges are kept ones (`lockwright_locks::kept`) with the portable entry: plain 8-byte verbs are all they
//! take. Whoever is in the space writes its cards there itself, with WRITEs that go ahead of the verb that takes the lock on
//! the same queue pair. The server only says who is in: it is the one that lets clients in and destroys the queue pairs of
//! those who are gone, and it does so *before* it strikes them off the roster. So nobody is ever a zombie: what somebody
//! who is off the roster has not done by then, it will never do. `docs/decisions/0014-one-sided-spaces.md` says why it
//! is this way.
//!
//! The server's CPU loads and stores words of the roster and of cards, and never changes the word of a lock: an atomic of
//! the NIC and one of a CPU do not exclude each other. Its own client, which clears away what the dead leave behind, comes
//! through the NIC like everybody else.
//!
//! | file | |
//! |---|---|
//! | `layout` | which word is where |
//! | `reach` | what a client of such a space needs of its fabric |
//! | `book` | cards, written and read by verbs |

pub(crate) mod book;
pub(crate) mod layout;
pub(crate) mod reach;

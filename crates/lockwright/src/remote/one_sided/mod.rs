//! `rdma://host:port/lent:NAME`: a client that takes the locks of a one-sided space.
//!
//! The server lets it in, registers the memory for it, turns names into ids, once for each handle, and says when its session
//! is over. Everything else is READs, WRITEs and atomics of this client, and messages between clients. `crate::one_sided`
//! says what is in the memory.
//!
//! | file | |
//! |---|---|
//! | `answered` | waits for the server that end when its time is over |
//! | `endpoint` | the session's endpoint under the number that the space knows the client by |
//! | `backend` | the space as a whole: names, and whichever membership there is now |
//! | `member` | one membership: takes locks and exact ranges |
//! | `rooms` | which records of it are in use |
//! | `trees` | ranges in spaces that keep them on trees |

pub(super) mod answered;
mod backend;
pub(crate) mod endpoint;
mod member;
mod rooms;
mod trees;

pub(crate) use backend::OneSidedBackend;

use self::endpoint::OneSidedEndpoint;
use super::link::Remote;
use crate::error::OpenError;
use crate::one_sided::asymmetric;
use crate::one_sided::layout::{Ranges, SCHEME};
use lockwright_fabric::{Endpoint, RegionId};
use lockwright_locks::shiftlock::layout::Layout;
use lockwright_locks::shiftlock::versioned_portable::VersionedPortable;
use std::sync::Arc;

/// The space as the server is asked for it, if `space` is a one-sided one.
pub(crate) fn wanted(space: &[u8]) -> Option<Vec<u8>> {
    let name = space.strip_prefix(SCHEME.as_bytes())?;
    let name = if name.is_empty() { &b"default"[..] } else { name };
    Some([SCHEME.as_bytes(), name].concat())
}

/// The one-sided space that `remote` has entered, if its session can do what the locks take.
///
/// # Errors
/// In words.
pub(crate) fn open(remote: Arc<Remote>, address: &str) -> Result<OneSidedBackend, OpenError> {
    let reach = remote.line().reach();
    let home = OneSidedBackend::new(remote);
    if let Some(ep) = reach {
        let refuse = |why: String| OpenError::Failed { space: address.to_owned(), why };
        is_large_enough(&ep).map_err(refuse)?;
        let fits = VersionedPortable::NEEDS.met_by("holders-portable", ep.capabilities());
        fits.map_err(|error| refuse(error.to_string()))?;
    }
    Ok(home)
}

/// Whether as much is registered as every kind of space takes.
fn is_large_enough(ep: &OneSidedEndpoint) -> Result<(), String> {
    let kinds = [Ranges::Exact.regions(), asymmetric::REGIONS];
    let least =
        (0..).map(RegionId).zip(kinds[0].into_iter().zip(kinds[1]).map(|(one, other)| one.min(other)));
    for (region, needs) in least {
        let has = ep.lends_in(region);
        if has < needs {
            return Err(format!(
                "the server lends {has} bytes where this client needs {needs}: it is of another release, or lends no \
                 memory"
            ));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_one_sided_space_is_asked_for_by_its_name() {
        let of = |space: &str| wanted(space.as_bytes()).map(|space| String::from_utf8(space).unwrap());
        assert_eq!(of("lent:stock").as_deref(), Some("lent:stock"));
        assert_eq!(of("lent:").as_deref(), Some("lent:default"));
        assert_eq!(of("stock"), None);
        assert_eq!(of("shm:"), None);
    }
}

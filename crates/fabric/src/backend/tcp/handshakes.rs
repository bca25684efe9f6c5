//! The connections whose clients have not shown yet who they are: how many there may be, and which is closed for a new one.
//!
//! At most so many in all and of one source, the oldest of those closed for a new one. So connections that do nothing keep
//! nobody out, and those of one machine close none of another's. A source is an IPv4 address, or a /64 of IPv6, which is what one
//! machine usually has for itself.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::task::AbortHandle;

/// The connections of a listener whose clients have not shown yet who they are. At most so many in all and of one source, the oldest of
/// those closed for a new one; a source is an IPv4 address, or a /64 of IPv6.
#[derive(Debug)]
pub struct Handshakes {
    max: usize,
    max_per_source: usize,
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    next: u64,
    connections: BTreeMap<u64, Unauthenticated>,
}

#[derive(Debug)]
struct Unauthenticated {
    source: IpAddr,
    /// `None`: about to be started.
    task: Option<AbortHandle>,
}

impl Waiting {
    /// Closes the oldest connection of `source`, or of all. `false` if there is none.
    fn close_oldest(&mut self, source: Option<IpAddr>) -> bool {
        let mut oldest = self.connections.iter();
        let oldest = oldest.find(|(_, one)| source.is_none_or(|source| one.source == source));
        let Some(closed) =
            oldest.map(|(number, _)| *number).and_then(|number| self.connections.remove(&number))
        else {
            return false;
        };
        if let Some(task) = closed.task {
            task.abort();
        }
        true
    }
}

impl Handshakes {
    /// At most `max` in all, and `max_per_source` of one source.
    pub fn new(max: usize, max_per_source: usize) -> Arc<Self> {
        let (max, max_per_source) = (max.max(1), max_per_source.max(1));
        Arc::new(Self { max, max_per_source, waiting: Mutex::default() })
    }

    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new connection, which `start` makes a task of.
    pub fn begin(self: &Arc<Self>, address: IpAddr, start: impl FnOnce(Handshake) -> AbortHandle) {
        let source = source_of(address);
        let mut waiting = self.waiting();
        if waiting.connections.values().filter(|one| one.source == source).count() >= self.max_per_source {
            waiting.close_oldest(Some(source));
        }
        if waiting.connections.len() >= self.max {
            waiting.close_oldest(None);
        }
        waiting.next += 1;
        let number = waiting.next;
        waiting.connections.insert(number, Unauthenticated { source, task: None });
        drop(waiting);
        let task = start(Handshake { of: Arc::clone(self), number });
        if let Some(one) = self.waiting().connections.get_mut(&number) {
            one.task = Some(task);
        }
    }

    /// Closes the oldest, for what else needs a file descriptor. `false` if there is none.
    pub fn close_oldest(&self) -> bool {
        self.waiting().close_oldest(None)
    }
}

/// What is counted as one source.
fn source_of(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// One of them, until it is dropped.
#[derive(Debug)]
pub struct Handshake {
    of: Arc<Handshakes>,
    number: u64,
}

impl Handshake {
    /// The client has shown who it is: it is not closed for others any more. `false` if it has been already.
    pub fn succeeds(&self) -> bool {
        self.of.waiting().connections.remove(&self.number).is_some()
    }
}

impl Drop for Handshake {
    fn drop(&mut self) {
        self.succeeds();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_is_an_address_of_ipv4_or_a_64_of_ipv6() {
        let source = |address: &str| source_of(address.parse().unwrap());
        assert_ne!(source("10.0.0.1"), source("10.0.0.2"));
        assert_eq!(source("10.0.0.1"), source("::ffff:10.0.0.1"));
        assert_eq!(source("2001:db8::1"), source("2001:db8::2:3"));
        assert_ne!(source("2001:db8::1"), source("2001:db8:0:1::1"));
    }
}

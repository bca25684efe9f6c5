//! Addresses that belong to this test process alone, for servers that come back on the port that they had.
//!
//! A port that was free a moment ago may be another process's by the time that it is used. On Linux all of 127.0.0.0/8 is this
//! machine: a process takes the address that its own id makes. Ports are below those that the system hands out, so that no
//! client's socket has one by chance; they differ between processes, too, since secrets of servers are kept by port.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Another one at every call.
pub(crate) fn own_address() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let id = std::process::id();
    let port = 10_000 + (id.wrapping_mul(16) + NEXT.fetch_add(1, Relaxed)) % 22_000;
    // Ids have at most 22 bits: from 127.1.0.0 on.
    (Ipv4Addr::from(0x7f01_0000 + id), port as u16).into()
}

//! The packets' thread: receives datagrams in batches, has the state machine decide, and sends in batches.

use super::core::{Core, Send};
use lockwright_locks::fisslock::datagram::MAX_LEN;
use nix::errno::Errno;
use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};
use std::io::{IoSlice, IoSliceMut};
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6, UdpSocket};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// Datagrams per system call.
const BATCH: usize = 64;
/// How soon the end is noticed.
const LOOK: Duration = Duration::from_millis(100);

/// Receives until `stop`. With `busy` it never sleeps: a CPU for a few microseconds less.
pub(super) fn run(socket: &UdpSocket, core: &Mutex<Core>, stop: &AtomicBool, busy: bool) {
    if socket.set_read_timeout(Some(LOOK)).is_err() {
        return;
    }
    let flags = if busy { MsgFlags::MSG_DONTWAIT } else { MsgFlags::MSG_WAITFORONE };
    let mut buffers = vec![[0_u8; MAX_LEN + 1]; BATCH];
    let mut sends: Vec<Send> = Vec::new();
    let mut headers = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, None);
    let mut to_send = MultiHeaders::<SockaddrStorage>::preallocate(BATCH, None);
    while !stop.load(Relaxed) {
        let mut slices: Vec<_> = buffers.iter_mut().map(|buffer| [IoSliceMut::new(buffer)]).collect();
        match recvmmsg(socket.as_raw_fd(), &mut headers, slices.iter_mut(), flags, None) {
            Ok(received) => {
                let mut core = core.lock().unwrap_or_else(PoisonError::into_inner);
                for message in received {
                    let bytes = message.iovs().next().unwrap_or_default();
                    if let Some(from) = message.address.as_ref().and_then(address) {
                        core.datagram(bytes, from, &mut sends);
                    }
                }
            }
            Err(Errno::EAGAIN) if busy => std::hint::spin_loop(),
            // Nothing came, or a machine's port is closed, which harms no other.
            Err(_) => {}
        }
        for batch in sends.chunks(BATCH) {
            let slices: Vec<_> = batch.iter().map(|(_, bytes)| [IoSlice::new(bytes)]).collect();
            let addresses: Vec<_> = batch.iter().map(|(to, _)| Some(SockaddrStorage::from(*to))).collect();
            // What is not sent is lost, as any packet can be.
            let _ =
                sendmmsg(socket.as_raw_fd(), &mut to_send, &slices, &addresses, [], MsgFlags::MSG_DONTWAIT);
        }
        sends.clear();
    }
}

fn address(from: &SockaddrStorage) -> Option<SocketAddr> {
    if let Some(four) = from.as_sockaddr_in() {
        return Some(SocketAddrV4::from(*four).into());
    }
    from.as_sockaddr_in6().map(|six| SocketAddrV6::from(*six).into())
}

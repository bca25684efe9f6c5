//! The plainest lock server on UDP, for comparison: who holds which lock is in a table of the server, and a request and its grant are
//! one datagram each. No waiting, no recovery, no trust; what is lost is asked again.

use anyhow::{Context, Result};
use std::collections::HashMap;
use std::net::{SocketAddr, UdpSocket};
use std::time::Duration;

/// Locks, unlocks; and the answers.
const LOCK: u8 = 1;
const UNLOCK: u8 = 2;
const GRANTED: u8 = 3;
const BUSY: u8 = 4;
/// What it is; which lock, by which request, and the grant's token.
const LEN: usize = 25;
/// As soon as the machines of a decider.
const AGAIN: Duration = Duration::from_millis(3);

/// Serves until the process is killed.
pub(super) fn serve(socket: &UdpSocket) -> Result<()> {
    let mut held: HashMap<u64, SocketAddr> = HashMap::new();
    let mut token = 0_u64;
    let mut bytes = [0; LEN];
    loop {
        let (len, from) = socket.recv_from(&mut bytes)?;
        let Some((lock, request)) = (len == LEN).then(|| words(&bytes)) else { continue };
        let holder = held.get(&lock).copied();
        match bytes[0] {
            UNLOCK if holder == Some(from) => drop(held.remove(&lock)),
            LOCK if holder.is_some_and(|holder| holder != from) => {
                answer(socket, BUSY, [lock, request, 0], from)?;
            }
            LOCK => {
                held.insert(lock, from);
                token += 1;
                answer(socket, GRANTED, [lock, request, token], from)?;
            }
            _ => {}
        }
    }
}

fn words(bytes: &[u8; LEN]) -> (u64, u64) {
    let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
    (word(1), word(9))
}

fn made(kind: u8, words: [u64; 3]) -> [u8; LEN] {
    let mut bytes = [kind; LEN];
    for (bytes, word) in bytes[1..].chunks_exact_mut(8).zip(words) {
        bytes.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}

fn answer(socket: &UdpSocket, kind: u8, words: [u64; 3], to: SocketAddr) -> Result<()> {
    socket.send_to(&made(kind, words), to).context("an answer cannot be sent")?;
    Ok(())
}

/// A client of it.
pub(super) struct UdpClient {
    socket: UdpSocket,
    requests: u64,
}

impl UdpClient {
    pub(super) fn new(server: SocketAddr) -> Result<Self> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(server)?;
        socket.set_read_timeout(Some(AGAIN))?;
        Ok(Self { socket, requests: 0 })
    }

    /// Takes a lock that nobody else wants.
    pub(super) fn lock(&mut self, lock: u64) -> Result<()> {
        self.requests += 1;
        loop {
            self.socket.send(&made(LOCK, [lock, self.requests, 0]))?;
            let mut bytes = [0; LEN];
            while let Ok(len) = self.socket.recv(&mut bytes) {
                if len == LEN && (bytes[0], words(&bytes)) == (GRANTED, (lock, self.requests)) {
                    return Ok(());
                }
            }
        }
    }

    /// Gives it back, which is not waited for.
    pub(super) fn unlock(&self, lock: u64) -> Result<()> {
        self.socket.send(&made(UNLOCK, [lock, 0, 0]))?;
        Ok(())
    }
}

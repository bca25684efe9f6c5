//! The control connection: a few frames over TCP, by which queue pairs and keys become known to each other.
//!
//! A frame is its length (u32, little-endian), its kind (one byte) and its fields. Both sides drop a connection that
//! says anything else. Nothing of it is on the path of a lock.
//!
//! ```text
//!   client                                       host
//!   Hello (version, queue pair, name, nonce) ──►
//!                                            ◄── Challenge (nonce)      if it has a secret
//!   Proof                                    ──►
//!                                            ◄── Welcome (queue pair, keys, proof), or Refused
//!   Heartbeat                                ──► Heartbeat
//!   Renew (new queue pair)                   ──► Renewed                after an error; QueuePairFailed asks for it
//!   Connect, Accept, Unreachable, Close     ◄──► passed on to the client they are for
//!   Goodbye                                  ──►
//! ```

use super::queue_pair::QueuePairInfo;
use crate::addr::{NodeId, PeerId, RegionId};
use crate::capability::AtomicScope;
use std::io::{self, Read, Write};

/// The first thing on the wire: this protocol and its version.
pub(super) const VERSION: u32 = u32::from_le_bytes(*b"LWR4");
/// No frame is longer.
const MAX_FRAME: usize = 64 << 10;

/// A registered piece of lock memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RegionInfo {
    pub(super) node: NodeId,
    pub(super) region: RegionId,
    pub(super) addr: u64,
    pub(super) key: u32,
    pub(super) bytes: u64,
}

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A client introduces itself. Of another version nothing but the version is understood.
    Hello { version: u32, pair: QueuePairInfo, nonce: [u8; 32], name: String },
    /// The host wants to see that the client knows the secret.
    Challenge { nonce: [u8; 32] },
    /// It does.
    Proof { proof: [u8; 32] },
    /// The host lets it in.
    Welcome(Box<Welcome>),
    /// The host does not.
    Refused { text: String },
    /// A client wants a queue pair to another; the host passes it on with the caller's id.
    Connect { peer: PeerId, pair: QueuePairInfo },
    /// The other client's queue pair; the host passes it back with that client's id.
    Accept { peer: PeerId, pair: QueuePairInfo },
    /// The peer is at the host: messages for it go there.
    ViaHost { peer: PeerId },
    /// There is no such peer, or not any more.
    Unreachable { peer: PeerId },
    /// The caller has closed its connection to this peer.
    Close { peer: PeerId },
    /// Answered by another.
    Heartbeat,
    /// The client has a new queue pair, the old one is of no more use.
    Renew { pair: QueuePairInfo },
    /// The host's end of it.
    Renewed { pair: QueuePairInfo },
    /// The host's queue pair is in error: the client should come with a new one.
    QueuePairFailed,
    /// The client leaves.
    Goodbye,
}

/// How a client is let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Welcome {
    pub(super) peer: PeerId,
    pub(super) now_ns: u64,
    /// Which run of the host this is.
    pub(super) epoch: u64,
    pub(super) heartbeat_ms: u32,
    pub(super) grace_ms: u32,
    pub(super) scope: AtomicScope,
    pub(super) pair: QueuePairInfo,
    /// That the host knows the secret, too. Zeros without one.
    pub(super) proof: [u8; 32],
    pub(super) regions: Vec<RegionInfo>,
}

impl Frame {
    /// Writes the frame.
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut body = Vec::new();
        match self {
            Self::Hello { version, pair, nonce, name } => {
                body.push(0);
                body.extend_from_slice(&version.to_le_bytes());
                put_pair(&mut body, pair);
                body.extend_from_slice(nonce);
                body.extend_from_slice(name.as_bytes());
            }
            Self::Welcome(welcome) => welcome.put(&mut body),
            Self::Refused { text } => {
                body.push(2);
                body.extend_from_slice(text.as_bytes());
            }
            Self::Connect { peer, pair } | Self::Accept { peer, pair } => {
                body.push(if matches!(self, Self::Connect { .. }) { 3 } else { 4 });
                body.extend_from_slice(&peer.0.to_le_bytes());
                put_pair(&mut body, pair);
            }
            Self::ViaHost { peer } | Self::Unreachable { peer } | Self::Close { peer } => {
                body.push(match self {
                    Self::ViaHost { .. } => 5,
                    Self::Unreachable { .. } => 6,
                    _ => 7,
                });
                body.extend_from_slice(&peer.0.to_le_bytes());
            }
            Self::Challenge { nonce: bytes } | Self::Proof { proof: bytes } => {
                body.push(if matches!(self, Self::Challenge { .. }) { 8 } else { 9 });
                body.extend_from_slice(bytes);
            }
            Self::Renew { pair } | Self::Renewed { pair } => {
                body.push(if matches!(self, Self::Renew { .. }) { 10 } else { 11 });
                put_pair(&mut body, pair);
            }
            Self::Heartbeat => body.push(12),
            Self::QueuePairFailed => body.push(13),
            Self::Goodbye => body.push(14),
        }
        let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
        bytes.extend_from_slice(&body);
        to.write_all(&bytes)
    }

    /// Reads a frame.
    pub(super) fn read(from: &mut impl Read) -> io::Result<Self> {
        let mut length = [0; 4];
        from.read_exact(&mut length)?;
        let length = u32::from_le_bytes(length) as usize;
        if length == 0 || length > MAX_FRAME {
            return Err(malformed());
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body)?;
        Self::decode(&body).ok_or_else(malformed)
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let (kind, rest) = body.split_first()?;
        let mut rest = Fields(rest);
        let frame = match kind {
            0 => {
                let version = rest.u32()?;
                if version != VERSION {
                    rest.0 = &[];
                    Self::Hello {
                        version,
                        pair: QueuePairInfo::default(),
                        nonce: [0; 32],
                        name: String::new(),
                    }
                } else {
                    Self::Hello { version, pair: rest.pair()?, nonce: rest.take()?, name: rest.text() }
                }
            }
            1 => Self::Welcome(Box::new(Welcome::take(&mut rest)?)),
            2 => Self::Refused { text: rest.text() },
            3 => Self::Connect { peer: rest.peer()?, pair: rest.pair()? },
            4 => Self::Accept { peer: rest.peer()?, pair: rest.pair()? },
            5 => Self::ViaHost { peer: rest.peer()? },
            6 => Self::Unreachable { peer: rest.peer()? },
            7 => Self::Close { peer: rest.peer()? },
            8 => Self::Challenge { nonce: rest.take()? },
            9 => Self::Proof { proof: rest.take()? },
            10 => Self::Renew { pair: rest.pair()? },
            11 => Self::Renewed { pair: rest.pair()? },
            12 => Self::Heartbeat,
            13 => Self::QueuePairFailed,
            14 => Self::Goodbye,
            _ => return None,
        };
        rest.0.is_empty().then_some(frame)
    }
}

impl Welcome {
    fn put(&self, body: &mut Vec<u8>) {
        body.push(1);
        body.push(u8::from(self.scope == AtomicScope::Global));
        body.extend_from_slice(&self.peer.0.to_le_bytes());
        body.extend_from_slice(&self.now_ns.to_le_bytes());
        body.extend_from_slice(&self.epoch.to_le_bytes());
        body.extend_from_slice(&self.heartbeat_ms.to_le_bytes());
        body.extend_from_slice(&self.grace_ms.to_le_bytes());
        put_pair(body, &self.pair);
        body.extend_from_slice(&self.proof);
        for region in &self.regions {
            body.extend_from_slice(&region.node.0.to_le_bytes());
            body.extend_from_slice(&region.region.0.to_le_bytes());
            body.extend_from_slice(&region.key.to_le_bytes());
            body.extend_from_slice(&region.addr.to_le_bytes());
            body.extend_from_slice(&region.bytes.to_le_bytes());
        }
    }

    fn take(rest: &mut Fields<'_>) -> Option<Self> {
        let scope = match rest.take()? {
            [0] => AtomicScope::Nic,
            [1] => AtomicScope::Global,
            _ => return None,
        };
        let (peer, now_ns, epoch) = (rest.peer()?, rest.u64()?, rest.u64()?);
        let (heartbeat_ms, grace_ms) = (rest.u32()?, rest.u32()?);
        let (pair, proof) = (rest.pair()?, rest.take()?);
        let mut regions = Vec::new();
        while !rest.0.is_empty() {
            let (node, region) = (NodeId(rest.u16()?), RegionId(rest.u16()?));
            let (key, addr, bytes) = (rest.u32()?, rest.u64()?, rest.u64()?);
            regions.push(RegionInfo { node, region, addr, key, bytes });
        }
        Some(Self { peer, now_ns, epoch, heartbeat_ms, grace_ms, scope, pair, proof, regions })
    }
}

/// What a version calls itself.
pub(super) fn version_name(version: u32) -> String {
    let bytes = version.to_le_bytes();
    if bytes.iter().all(u8::is_ascii_graphic) {
        String::from_utf8_lossy(&bytes).into_owned()
    } else {
        format!("{version:#x}")
    }
}

fn malformed() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "this is not the control connection of a lock space over RDMA")
}

fn put_pair(body: &mut Vec<u8>, pair: &QueuePairInfo) {
    body.extend_from_slice(&pair.number.to_le_bytes());
    body.extend_from_slice(&pair.psn.to_le_bytes());
    body.extend_from_slice(&pair.lid.to_le_bytes());
    body.extend_from_slice(&pair.gid);
}

/// What is left of a frame.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (first, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*first)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_le_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_le_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }

    /// All that is left, as text.
    fn text(&mut self) -> String {
        String::from_utf8_lossy(std::mem::take(&mut self.0)).into_owned()
    }

    /// Never zero.
    fn peer(&mut self) -> Option<PeerId> {
        self.u32().filter(|peer| *peer != 0).map(PeerId)
    }

    fn pair(&mut self) -> Option<QueuePairInfo> {
        let (number, psn, lid) = (self.u32()?, self.u32()?, self.u16()?);
        Some(QueuePairInfo { number, psn, lid, gid: self.take()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_comes_back_as_it_was_and_a_cut_one_is_refused() {
        let pair = QueuePairInfo { number: 17, psn: 0xab_cdef, lid: 3, gid: [7; 16] };
        let (peer, region) = (PeerId::client(5), RegionId(2));
        let regions = vec![RegionInfo { node: NodeId(1), region, addr: 1 << 40, key: 9, bytes: 4096 }; 2];
        let welcome = Welcome {
            peer,
            now_ns: 5,
            epoch: 77,
            heartbeat_ms: 1000,
            grace_ms: 5000,
            scope: AtomicScope::Nic,
            pair,
            proof: [9; 32],
            regions,
        };
        for frame in [
            Frame::Hello { version: VERSION, pair, nonce: [3; 32], name: "42 db7 backup".to_owned() },
            Frame::Challenge { nonce: [4; 32] },
            Frame::Proof { proof: [5; 32] },
            Frame::Welcome(Box::new(welcome)),
            Frame::Renew { pair },
            Frame::Renewed { pair },
            Frame::Heartbeat,
            Frame::QueuePairFailed,
            Frame::Goodbye,
            Frame::Refused { text: "no room".to_owned() },
            Frame::Connect { peer, pair },
            Frame::Accept { peer, pair },
            Frame::ViaHost { peer },
            Frame::Unreachable { peer },
            Frame::Close { peer },
        ] {
            let mut bytes = Vec::new();
            frame.write(&mut bytes).unwrap();
            assert_eq!(Frame::read(&mut &bytes[..]).unwrap(), frame);
            for cut in 0..bytes.len() {
                assert!(Frame::read(&mut &bytes[..cut]).is_err());
            }
        }
        assert!(Frame::read(&mut &[0xff; 64][..]).is_err());
    }

    #[test]
    fn of_a_hello_of_another_version_the_version_is_understood() {
        let mut bytes = 9_u32.to_le_bytes().to_vec();
        bytes.extend_from_slice(b"\0LWR1what");
        let Ok(Frame::Hello { version, .. }) = Frame::read(&mut &bytes[..]) else { panic!("it is a hello") };
        assert_eq!(version_name(version), "LWR1");
        assert_eq!(version_name(7), "0x7");
    }
}

//! The control connection: a few frames over TCP, by which queue pairs and keys become known to each other.
//!
//! A frame is its length (u32, little-endian), its kind (one byte) and its fields. Both sides drop a connection that
//! says anything else. Nothing of it is on the path of a lock.

use super::verbs::PairInfo;
use crate::addr::{NodeId, PeerId, RegionId};
use crate::capability::AtomicScope;
use std::io::{self, Read, Write};

/// The first thing on the wire: this protocol and its version.
pub(super) const VERSION: u32 = u32::from_le_bytes(*b"LWR1");
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
    /// A client introduces itself.
    Hello { version: u32, pair: PairInfo },
    /// The host lets it in.
    Welcome { peer: PeerId, now_ns: u64, pair: PairInfo, scope: AtomicScope, regions: Vec<RegionInfo> },
    /// The host does not.
    Refused { text: String },
    /// A client wants a queue pair to another; the host passes it on with the caller's id.
    Call { peer: PeerId, pair: PairInfo },
    /// The other client's queue pair; the host passes it back with the called one's id.
    Answer { peer: PeerId, pair: PairInfo },
    /// The peer lives at the host: letters for it go there.
    AtHost { peer: PeerId },
    /// There is no such peer, or not any more.
    Nobody { peer: PeerId },
    /// The caller has given up its queue pair to this peer.
    HangUp { peer: PeerId },
}

impl Frame {
    /// Writes the frame.
    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        let mut body = Vec::new();
        match self {
            Self::Hello { version, pair } => {
                body.push(0);
                body.extend_from_slice(&version.to_le_bytes());
                put_pair(&mut body, pair);
            }
            Self::Welcome { peer, now_ns, pair, scope, regions } => {
                body.push(1);
                body.push(u8::from(*scope == AtomicScope::Global));
                body.extend_from_slice(&peer.0.to_le_bytes());
                body.extend_from_slice(&now_ns.to_le_bytes());
                put_pair(&mut body, pair);
                for region in regions {
                    body.extend_from_slice(&region.node.0.to_le_bytes());
                    body.extend_from_slice(&region.region.0.to_le_bytes());
                    body.extend_from_slice(&region.key.to_le_bytes());
                    body.extend_from_slice(&region.addr.to_le_bytes());
                    body.extend_from_slice(&region.bytes.to_le_bytes());
                }
            }
            Self::Refused { text } => {
                body.push(2);
                body.extend_from_slice(text.as_bytes());
            }
            Self::Call { peer, pair } | Self::Answer { peer, pair } => {
                body.push(if matches!(self, Self::Call { .. }) { 3 } else { 4 });
                body.extend_from_slice(&peer.0.to_le_bytes());
                put_pair(&mut body, pair);
            }
            Self::AtHost { peer } | Self::Nobody { peer } | Self::HangUp { peer } => {
                body.push(match self {
                    Self::AtHost { .. } => 5,
                    Self::Nobody { .. } => 6,
                    _ => 7,
                });
                body.extend_from_slice(&peer.0.to_le_bytes());
            }
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
            return Err(nonsense());
        }
        let mut body = vec![0; length];
        from.read_exact(&mut body)?;
        Self::decode(&body).ok_or_else(nonsense)
    }

    fn decode(body: &[u8]) -> Option<Self> {
        let (kind, rest) = body.split_first()?;
        let mut rest = Fields(rest);
        let frame = match kind {
            0 => Self::Hello { version: rest.u32()?, pair: rest.pair()? },
            1 => {
                let scope = match rest.take()? {
                    [0] => AtomicScope::Nic,
                    [1] => AtomicScope::Global,
                    _ => return None,
                };
                let (peer, now_ns, pair) = (rest.peer()?, rest.u64()?, rest.pair()?);
                let mut regions = Vec::new();
                while !rest.0.is_empty() {
                    let (node, region) = (NodeId(rest.u16()?), RegionId(rest.u16()?));
                    let (key, addr, bytes) = (rest.u32()?, rest.u64()?, rest.u64()?);
                    regions.push(RegionInfo { node, region, addr, key, bytes });
                }
                Self::Welcome { peer, now_ns, pair, scope, regions }
            }
            2 => Self::Refused { text: String::from_utf8_lossy(std::mem::take(&mut rest.0)).into_owned() },
            3 => Self::Call { peer: rest.peer()?, pair: rest.pair()? },
            4 => Self::Answer { peer: rest.peer()?, pair: rest.pair()? },
            5 => Self::AtHost { peer: rest.peer()? },
            6 => Self::Nobody { peer: rest.peer()? },
            7 => Self::HangUp { peer: rest.peer()? },
            _ => return None,
        };
        rest.0.is_empty().then_some(frame)
    }
}

fn nonsense() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "this is not the control connection of a lock space over RDMA")
}

fn put_pair(body: &mut Vec<u8>, pair: &PairInfo) {
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

    /// Never zero.
    fn peer(&mut self) -> Option<PeerId> {
        self.u32().filter(|peer| *peer != 0).map(PeerId)
    }

    fn pair(&mut self) -> Option<PairInfo> {
        Some(PairInfo { number: self.u32()?, psn: self.u32()?, lid: self.u16()?, gid: self.take()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_frame_comes_back_as_it_was_and_a_cut_one_is_refused() {
        let pair = PairInfo { number: 17, psn: 0xab_cdef, lid: 3, gid: [7; 16] };
        let (peer, region) = (PeerId::client(5), RegionId(2));
        let regions = vec![RegionInfo { node: NodeId(1), region, addr: 1 << 40, key: 9, bytes: 4096 }; 2];
        for frame in [
            Frame::Hello { version: VERSION, pair },
            Frame::Welcome { peer, now_ns: 5, pair, scope: AtomicScope::Nic, regions },
            Frame::Refused { text: "the house is full".to_owned() },
            Frame::Call { peer, pair },
            Frame::Answer { peer, pair },
            Frame::AtHost { peer },
            Frame::Nobody { peer },
            Frame::HangUp { peer },
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
}

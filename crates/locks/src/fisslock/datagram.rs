//! Packets as they travel over UDP, version 1.
//!
//! All numbers are little-endian. A datagram has a head of 56 bytes and one word of 8 bytes per waiter that goes along with
//! an agent; nothing follows them.
//!
//! | bytes | bits | field | |
//! |---|---|---|---|
//! | 0–1 | | magic | `0x4c46`: the letters `FL` |
//! | 2 | | version | 1 |
//! | 3 | | kind | 1 ACQUIRE, 2 RELEASE, 3 FREE, 4 GRANT, 5 BAR, 6 ACK; 7 HELLO, all of whose fields from byte 6 to 47 are zero |
//! | 4 | | from | the machine that sends it, 1–255; 0: the decider |
//! | 5 | | to | the machine it is for, 1–255; 0: the decider. One for a machine is passed on and changes no register |
//! | 6–7 | | waiters | words in the tail, at most 176: a datagram fits into an Ethernet frame |
//! | 8–15 | | lid | the lock |
//! | 16–23 | 0–7 | mid | machine of the task asked for, granted, released; never 0 |
//! | | 8–31 | tid | the task on it |
//! | | 32–39 | priority | of an ACQUIRE |
//! | | 40–47 | inca | of FREE and GRANT: the incarnation that the agent has come to |
//! | | 48 | agent | GRANT: the agent comes with it |
//! | | 49 | fresh | GRANT: the decider's own |
//! | | 50 | bar | GRANT: readers stay out |
//! | | 51 | counted | ACQUIRE at the agent: the decider counted it |
//! | | 52 | granted | ACQUIRE at the agent: the decider granted it |
//! | | 53 | twin | the decider sent two packets for one |
//! | | 54 | echo | FREE, GRANT, BAR: comes back to the sender |
//! | | 55 | refused | comes back refused; GRANT without an agent: denied |
//! | | 56 | of a grant | ACK: for a GRANT |
//! | | 57 | tries | ACQUIRE: does not wait |
//! | | 58–59 | | zero |
//! | | 60 | shared | the mode asked for, or the next holder's |
//! | | 61 | held shared | FREE and GRANT: the mode the lock has |
//! | | 62–63 | | zero |
//! | 24–31 | 0–7 | origin | the machine that first sent it to the decider; never 0 |
//! | | 8–31 | lane | that machine's lane |
//! | | 32–63 | seq | its number in the lane, from 1 |
//! | 32–39 | | token | fencing token of a GRANT |
//! | 40–43 | | epoch | packets of another epoch than the receiver's do nothing |
//! | 44–47 | | | zero |
//! | 48–55 | | checksum | SipHash-2-4 of bytes 0–47 and the tail, under the key of the session |
//! | 56… | 0–7, 8–31, 32–39 | mid, tid, priority | of a waiter |
//! | | 48, 49 | shared, tries | |
//! | | others | | zero |
//!
//! A session's key is random, made by the decider's control plane when a machine joins, and used in both directions (`from`
//! and `to` keep them apart). It keeps out packets of senders that were not told it; not copies of a packet,
//! which the protocol takes for what they are, and not readers of the network.
//!
//! HELLO tells the decider the address at which a machine is, and comes back as it is: so both know that packets get through. The
//! first one under a key counts, and packets under that key are taken from no other address. A machine whose address changes asks the
//! control plane for another key.
//!
//! What this file must not do: let anything through that a state machine would trip over. Whatever is not exactly as above
//! is refused as a whole.

use super::packet::{Packet, TID_BITS};
use lockwright_fabric::Message;

/// The version of the format.
pub const VERSION: u8 = 1;
/// Bytes before the tail.
pub const HEAD: usize = 56;
/// Waiters that fit in.
pub const MAX_WAITERS: usize = 176;
/// The longest datagram.
pub const MAX_LEN: usize = HEAD + 8 * MAX_WAITERS;

const MAGIC: [u8; 2] = *b"FL";
/// Where the checksum is.
const SUM: usize = 48;
/// Bits of the first word that mean nothing.
const NO_FIRST: u64 = 0xcc00_0000_0000_0000;
/// Bits of a waiter that mean nothing.
const NO_WAITER: u64 = 0xfffc_ff00_0000_0000;

/// The kind of a HELLO.
pub const HELLO: u32 = 7;

/// A session's key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Key(pub [u64; 2]);

impl std::fmt::Debug for Key {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Key(…)")
    }
}

/// Between whom a packet travels; 0 is the decider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ends {
    /// Who sends it.
    pub from: u8,
    /// Whom it is for.
    pub to: u8,
}

/// How many there are of what packets name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Locks of the decider.
    pub locks: u64,
    /// Lanes of a machine.
    pub lanes: u32,
}

/// Why a datagram is no packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub enum Malformed {
    /// It is not FissLock's.
    #[error("it does not begin as a packet does")]
    Foreign,
    /// It is of a version that this program does not speak.
    #[error("it is of version {0}, not {VERSION}")]
    Version(u8),
    /// It is longer or shorter than it says.
    #[error("its length is wrong")]
    Length,
    /// Its checksum is wrong: it was changed, or its sender does not know the key.
    #[error("its checksum is wrong")]
    Forged,
    /// A field has a value that it cannot have.
    #[error("a field has a value that it cannot have")]
    Field,
}

/// Writes `message`, a packet, into `bytes`, which is emptied first.
///
/// # Panics
/// If it has more waiters than fit in: [`Params::queue_limit`](super::Params::queue_limit) bounds them.
pub fn encode(ends: Ends, message: &Message, key: Key, bytes: &mut Vec<u8>) {
    let waiters = message.tail.len();
    assert!(waiters <= MAX_WAITERS, "{waiters} waiters do not fit into a packet");
    bytes.clear();
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&[VERSION, message.kind as u8, ends.from, ends.to]);
    bytes.extend_from_slice(&(waiters as u16).to_le_bytes());
    for word in [message.lock].iter().chain(&message.words) {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    debug_assert_eq!(bytes.len(), SUM, "the head, and the epoch's word");
    let sum = checksum(key, &bytes[..SUM], &message.tail);
    bytes.extend_from_slice(&sum.to_le_bytes());
    for word in &message.tail {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
}

/// Between whom the datagram says that it travels, to find out under which key.
///
/// # Errors
/// If it is none of ours.
pub fn ends(bytes: &[u8]) -> Result<Ends, Malformed> {
    let head: &[u8; HEAD] = bytes.first_chunk().ok_or(Malformed::Length)?;
    if head[..2] != MAGIC {
        return Err(Malformed::Foreign);
    }
    if head[2] != VERSION {
        return Err(Malformed::Version(head[2]));
    }
    let waiters = usize::from(u16::from_le_bytes([head[6], head[7]]));
    if waiters > MAX_WAITERS || bytes.len() != HEAD + 8 * waiters {
        return Err(Malformed::Length);
    }
    Ok(Ends { from: head[4], to: head[5] })
}

/// The packet in a datagram, as a message of the fabric.
///
/// # Errors
/// If it is not exactly a packet, of this session.
pub fn decode(bytes: &[u8], key: Key, limits: Limits) -> Result<(Ends, Message), Malformed> {
    let ends = ends(bytes)?;
    let (head, tail) = bytes.split_at(HEAD);
    let word = |at: usize| u64::from_le_bytes(*head[at..].first_chunk().expect("within the head"));
    let tail: Vec<u64> =
        tail.as_chunks().0.iter().map(|chunk: &[u8; 8]| u64::from_le_bytes(*chunk)).collect();
    if checksum(key, &head[..SUM], &tail) != word(SUM) {
        return Err(Malformed::Forged);
    }
    let mut message = Message::new(word(8), u32::from(head[3]), &[word(16), word(24), word(32), word(40)]);
    message.tail = tail;
    if is_sound(&message, limits) { Ok((ends, message)) } else { Err(Malformed::Field) }
}

fn is_sound(message: &Message, limits: Limits) -> bool {
    if message.kind == HELLO {
        return *message == Message::new(0, HELLO, &[]);
    }
    let [first, _, _, epoch] = message.words;
    let Some(packet) = Packet::decode(message) else { return false };
    let waiters = message.tail.iter().all(|waiter| waiter & NO_WAITER == 0 && waiter & 0xff != 0);
    waiters
        && first & NO_FIRST == 0
        && epoch >> u32::BITS == 0
        && packet.lid < limits.locks
        && packet.ticket.mid != 0
        && packet.number.origin != 0
        && packet.number.lane < limits.lanes.min(1 << TID_BITS)
        && packet.number.seq != 0
}

/// SipHash-2-4 (Aumasson, Bernstein, 2012) of bytes, whose number is a multiple of eight, and words.
fn checksum(Key([k0, k1]): Key, head: &[u8], tail: &[u64]) -> u64 {
    let mut v = [
        k0 ^ 0x736f_6d65_7073_6575,
        k1 ^ 0x646f_7261_6e64_6f6d,
        k0 ^ 0x6c79_6765_6e65_7261,
        k1 ^ 0x7465_6462_7974_6573,
    ];
    let head = head.as_chunks().0.iter().map(|chunk: &[u8; 8]| u64::from_le_bytes(*chunk));
    let len = 8 * (head.len() + tail.len()) as u64;
    for word in head.chain(tail.iter().copied()).chain([len << 56]) {
        v[3] ^= word;
        rounds(&mut v, 2);
        v[0] ^= word;
    }
    v[2] ^= 0xff;
    rounds(&mut v, 4);
    v[0] ^ v[1] ^ v[2] ^ v[3]
}

fn rounds(v: &mut [u64; 4], count: u32) {
    for _ in 0..count {
        v[0] = v[0].wrapping_add(v[1]);
        v[2] = v[2].wrapping_add(v[3]);
        v[1] = v[1].rotate_left(13) ^ v[0];
        v[3] = v[3].rotate_left(16) ^ v[2];
        v[0] = v[0].rotate_left(32).wrapping_add(v[3]);
        v[2] = v[2].wrapping_add(v[1]);
        v[3] = v[3].rotate_left(21) ^ v[0];
        v[1] = v[1].rotate_left(17) ^ v[2];
        v[2] = v[2].rotate_left(32);
    }
}

#[cfg(test)]
mod tests {
    use super::super::packet::{Kind, Number, Ticket, Waiter};
    use super::*;
    use lockwright_fabric::observe::Mode;

    const KEY: Key = Key([1, 2]);
    const LIMITS: Limits = Limits { locks: 100, lanes: 64 };
    const ENDS: Ends = Ends { from: 3, to: 0 };

    fn packet(waiters: usize) -> Message {
        let ticket = Ticket { mid: 3, tid: 0x00ab_cdef };
        let mut packet = Packet::new(Kind::Grant, 99, ticket, Mode::Shared);
        packet.flags.agent = true;
        packet.number = Number { origin: 3, lane: 63, seq: u32::MAX };
        (packet.token, packet.epoch, packet.inca) = (u64::MAX, u32::MAX, 200);
        packet.queue = vec![Waiter { ticket, mode: Mode::Shared, priority: 1, tries: true }; waiters];
        packet.encode()
    }

    fn bytes(message: &Message) -> Vec<u8> {
        let mut bytes = Vec::new();
        encode(ENDS, message, KEY, &mut bytes);
        bytes
    }

    /// With some bytes changed, and a checksum that is right.
    fn changed(message: &Message, change: impl FnOnce(&mut [u8])) -> Vec<u8> {
        let mut bytes = bytes(message);
        change(&mut bytes);
        let tail: Vec<u64> =
            bytes[HEAD..].as_chunks().0.iter().map(|chunk: &[u8; 8]| u64::from_le_bytes(*chunk)).collect();
        let sum = checksum(KEY, &bytes[..SUM], &tail);
        bytes[SUM..HEAD].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    #[test]
    fn a_packet_comes_out_as_it_went_in() {
        for waiters in [0, 1, MAX_WAITERS] {
            let message = packet(waiters);
            let bytes = bytes(&message);
            assert_eq!(bytes.len(), HEAD + 8 * waiters);
            assert_eq!(decode(&bytes, KEY, LIMITS), Ok((ENDS, message)));
        }
    }

    #[test]
    fn a_hello_says_nothing_but_who_it_is() {
        let hello = Message::new(0, HELLO, &[]);
        assert_eq!(decode(&bytes(&hello), KEY, LIMITS), Ok((ENDS, hello.clone())));
        assert_eq!(decode(&changed(&hello, |bytes| bytes[16] = 1), KEY, LIMITS), Err(Malformed::Field));
    }

    #[test]
    fn fields_are_where_the_table_says() {
        let bytes = bytes(&packet(1));
        assert_eq!(&bytes[..8], [b'F', b'L', 1, 4, 3, 0, 1, 0]);
        assert_eq!(bytes[8..16], 99_u64.to_le_bytes());
        assert_eq!(bytes[16..24], [3, 0xef, 0xcd, 0xab, 0, 200, 1, 0x30]);
        assert_eq!(bytes[24..32], [3, 63, 0, 0, 0xff, 0xff, 0xff, 0xff]);
        assert_eq!(bytes[56..64], [3, 0xef, 0xcd, 0xab, 1, 0, 3, 0]);
    }

    #[test]
    fn the_checksum_is_siphash_2_4() {
        // The reference vector for the bytes 0, 1, … 7 under the key 0, 1, … 15.
        let key = Key([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);
        assert_eq!(checksum(key, &[0, 1, 2, 3, 4, 5, 6, 7], &[]), 0x93f5_f579_9a93_2462);
    }

    #[test]
    fn every_changed_bit_and_every_cut_is_noticed() {
        let good = bytes(&packet(2));
        for bit in 0..good.len() * 8 {
            let mut bytes = good.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(decode(&bytes, KEY, LIMITS).is_err(), "bit {bit}");
        }
        for cut in 0..good.len() {
            assert_eq!(decode(&good[..cut], KEY, LIMITS), Err(Malformed::Length));
        }
        assert_eq!(decode(&good, Key([1, 3]), LIMITS), Err(Malformed::Forged));
    }

    #[test]
    fn what_no_packet_says_is_refused_though_its_checksum_is_right() {
        let message = packet(1);
        let field = |change: fn(&mut [u8])| decode(&changed(&message, change), KEY, LIMITS);
        assert_eq!(field(|_| {}), Ok((ENDS, message.clone())));
        assert_eq!(field(|bytes| bytes[0] = 0), Err(Malformed::Foreign));
        assert_eq!(field(|bytes| bytes[2] = 2), Err(Malformed::Version(2)));
        assert_eq!(field(|bytes| bytes[6] = 2), Err(Malformed::Length));
        let fields: [fn(&mut [u8]); 11] = [
            |bytes| bytes[3] = 0,
            |bytes| bytes[3] = 8,
            |bytes| bytes[8] = 100,
            |bytes| bytes[16] = 0,
            |bytes| bytes[23] |= 0x80,
            |bytes| bytes[23] |= 0x08,
            |bytes| bytes[24] = 0,
            |bytes| bytes[25] = 64,
            |bytes| bytes[28..32].fill(0),
            |bytes| bytes[44] = 1,
            |bytes| bytes[61] = 1,
        ];
        for (number, change) in fields.into_iter().enumerate() {
            assert_eq!(field(change), Err(Malformed::Field), "change {number}");
        }
    }
}

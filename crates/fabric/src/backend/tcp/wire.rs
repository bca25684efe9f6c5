//! The parts of frames: numbers, addresses, verbs, conditions and messages as little-endian bytes.
//!
//! Pure functions of bytes. What comes from the network is checked completely (fields lie inside their word, lists are as
//! long as they say); only whether an address exists is left to the host.
//!
//! | verb | bytes |   | condition | bytes |   | message | bytes |
//! |---|---|---|---|---|---|---|---|
//! | offset | 8 | | kind | 1 | | lock | 8 |
//! | node | 2 | | zero | 7 | | kind | 4 |
//! | region | 2 | | first operand | 16 | | words in the tail | 4 |
//! | op | 1 | | second operand | 16 | | words | 4 × 8 |
//! | width (8 or 16) | 1 | | | | | tail | n × 8 |
//! | zero | 2 | | | | | | |
//! | operands, each of the word's width | 0 to 4 | | | | | | |

use super::frame::FrameError;
use crate::addr::{Addr, NodeId, RegionId, Width};
use crate::message::Message;
use crate::verb::{Fields, MaskedCas, Op, RawVerb};
use crate::wait::{Cond, Field};

/// The most words a message's tail may have on the wire.
pub const MAX_TAIL: usize = 4096;

/// Takes bytes off the front of what arrived.
#[derive(Debug)]
pub(super) struct Cursor<'a>(pub(super) &'a [u8]);

impl<'a> Cursor<'a> {
    pub(super) fn bytes(&mut self, count: usize) -> Result<&'a [u8], FrameError> {
        let (bytes, rest) = self.0.split_at_checked(count).ok_or(FrameError::Truncated)?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], FrameError> {
        let (bytes, rest) = self.0.split_first_chunk().ok_or(FrameError::Truncated)?;
        self.0 = rest;
        Ok(*bytes)
    }

    pub(super) fn u8(&mut self) -> Result<u8, FrameError> {
        Ok(self.array::<1>()?[0])
    }

    pub(super) fn u16(&mut self) -> Result<u16, FrameError> {
        Ok(u16::from_le_bytes(self.array()?))
    }

    pub(super) fn u32(&mut self) -> Result<u32, FrameError> {
        Ok(u32::from_le_bytes(self.array()?))
    }

    pub(super) fn u64(&mut self) -> Result<u64, FrameError> {
        Ok(u64::from_le_bytes(self.array()?))
    }

    pub(super) fn u128(&mut self) -> Result<u128, FrameError> {
        Ok(u128::from_le_bytes(self.array()?))
    }

    /// Reserved bytes must be zero, so that later versions can use them.
    pub(super) fn zero(&mut self, count: usize) -> Result<(), FrameError> {
        if self.bytes(count)?.iter().all(|byte| *byte == 0) { Ok(()) } else { Err(FrameError::Reserved) }
    }

    /// Nothing may be left over.
    pub(super) const fn end(self) -> Result<(), FrameError> {
        if self.0.is_empty() { Ok(()) } else { Err(FrameError::Trailing) }
    }

    pub(super) fn addr(&mut self) -> Result<Addr, FrameError> {
        Ok(Addr { offset: self.u64()?, node: NodeId(self.u16()?), region: RegionId(self.u16()?) })
    }

    pub(super) fn width(&mut self) -> Result<Width, FrameError> {
        match self.u8()? {
            8 => Ok(Width::W64),
            16 => Ok(Width::W128),
            other => Err(FrameError::Width(other)),
        }
    }

    fn operand(&mut self, width: Width) -> Result<u128, FrameError> {
        match width {
            Width::W64 => Ok(self.u64()?.into()),
            Width::W128 => self.u128(),
        }
    }

    pub(super) fn verb(&mut self) -> Result<RawVerb, FrameError> {
        let addr = self.addr()?;
        let code = self.u8()?;
        let width = self.width()?;
        self.zero(2)?;
        let mut next = || self.operand(width);
        let op = match code {
            0 => Op::Read,
            1 => Op::Write(next()?),
            2 => Op::Cas { expect: next()?, new: next()? },
            3 => Op::FetchAdd(next()?),
            4 => Op::MaskedCas(MaskedCas {
                compare: next()?,
                compare_mask: next()?,
                swap: next()?,
                swap_mask: next()?,
            }),
            5 => Op::MaskedFetchAdd(Fields { add: next()?, boundaries: next()? }),
            6 => Op::GuardedFetchAdd {
                fields: Fields { add: next()?, boundaries: next()? },
                guard: next()?,
                guard_mask: next()?,
            },
            other => return Err(FrameError::Op(other)),
        };
        Ok(RawVerb { addr, width, op })
    }

    pub(super) fn cond(&mut self) -> Result<Cond, FrameError> {
        let kind = self.u8()?;
        self.zero(7)?;
        let (first, second) = (self.u128()?, self.u128()?);
        let unused = |operand: u128| if operand == 0 { Ok(()) } else { Err(FrameError::Reserved) };
        match kind {
            0 => Ok(Cond::Eq { mask: first, value: second }),
            1 => Ok(Cond::Ne { mask: first, value: second }),
            2 => {
                unused(second)?;
                Ok(Cond::FieldsEq(field(first as u64)?, field((first >> 64) as u64)?))
            }
            3 => {
                unused(first >> 64)?;
                Ok(Cond::AtLeast(field(first as u64)?, second))
            }
            other => Err(FrameError::Cond(other)),
        }
    }

    pub(super) fn message(&mut self) -> Result<Message, FrameError> {
        let (lock, kind, count) = (self.u64()?, self.u32()?, self.u32()? as usize);
        if count > MAX_TAIL {
            return Err(FrameError::Tail(count));
        }
        let words = [self.u64()?, self.u64()?, self.u64()?, self.u64()?];
        let tail =
            self.bytes(8 * count)?.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        Ok(Message { lock, kind, words, tail })
    }
}

/// A field that lies inside a word: shifts by it cannot overflow.
fn field(packed: u64) -> Result<Field, FrameError> {
    let (shift, bits) = (packed as u32, (packed >> 32) as u32);
    if shift < 128 && bits >= 1 && bits <= 128 - shift {
        Ok(Field { shift, bits })
    } else {
        Err(FrameError::Field { shift, bits })
    }
}

const fn pack(field: Field) -> u128 {
    (field.bits as u128) << 32 | field.shift as u128
}

pub(super) fn put_addr(out: &mut Vec<u8>, addr: Addr) {
    out.extend_from_slice(&addr.offset.to_le_bytes());
    out.extend_from_slice(&addr.node.0.to_le_bytes());
    out.extend_from_slice(&addr.region.0.to_le_bytes());
}

pub(super) fn put_verb(out: &mut Vec<u8>, verb: &RawVerb) {
    let (code, operands, count) = match verb.op {
        Op::Read => (0, [0; 4], 0),
        Op::Write(value) => (1, [value, 0, 0, 0], 1),
        Op::Cas { expect, new } => (2, [expect, new, 0, 0], 2),
        Op::FetchAdd(add) => (3, [add, 0, 0, 0], 1),
        Op::MaskedCas(MaskedCas { compare, compare_mask, swap, swap_mask }) => {
            (4, [compare, compare_mask, swap, swap_mask], 4)
        }
        Op::MaskedFetchAdd(Fields { add, boundaries }) => (5, [add, boundaries, 0, 0], 2),
        Op::GuardedFetchAdd { fields: Fields { add, boundaries }, guard, guard_mask } => {
            (6, [add, boundaries, guard, guard_mask], 4)
        }
    };
    put_addr(out, verb.addr);
    let bytes = verb.width.bytes() as usize;
    out.extend_from_slice(&[code, bytes as u8, 0, 0]);
    for operand in &operands[..count] {
        // A 64-bit verb ignores the high halves of its operands: they are not sent.
        out.extend_from_slice(&operand.to_le_bytes()[..bytes]);
    }
}

pub(super) fn put_cond(out: &mut Vec<u8>, cond: &Cond) {
    let (kind, first, second) = match *cond {
        Cond::Eq { mask, value } => (0, mask, value),
        Cond::Ne { mask, value } => (1, mask, value),
        Cond::FieldsEq(a, b) => (2, pack(b) << 64 | pack(a), 0),
        Cond::AtLeast(field, value) => (3, pack(field), value),
    };
    out.extend_from_slice(&[kind, 0, 0, 0, 0, 0, 0, 0]);
    out.extend_from_slice(&first.to_le_bytes());
    out.extend_from_slice(&second.to_le_bytes());
}

pub(super) fn put_message(out: &mut Vec<u8>, message: &Message) {
    out.extend_from_slice(&message.lock.to_le_bytes());
    out.extend_from_slice(&message.kind.to_le_bytes());
    out.extend_from_slice(&(message.tail.len() as u32).to_le_bytes());
    for word in message.words.iter().chain(&message.tail) {
        out.extend_from_slice(&word.to_le_bytes());
    }
}

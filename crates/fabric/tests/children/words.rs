//! What goes over the socket between a test and its child: numbers, and verbs, conditions and errors as numbers.

use super::WAIT;
use lockwright_fabric::*;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

pub(super) fn send(line: &mut UnixStream, words: &[u64]) {
    let mut bytes = (words.len() as u64).to_le_bytes().to_vec();
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    line.write_all(&bytes).unwrap();
}

pub(super) fn receive(line: &mut UnixStream) -> Option<Vec<u64>> {
    let mut word = [0; 8];
    line.read_exact(&mut word).ok()?;
    let mut bytes = vec![0; 8 * u64::from_le_bytes(word) as usize];
    line.read_exact(&mut bytes).ok()?;
    Some(bytes.chunks(8).map(|chunk| u64::from_le_bytes(chunk.try_into().unwrap())).collect())
}

pub(super) fn halves(wide: u128) -> [u64; 2] {
    [wide as u64, (wide >> 64) as u64]
}

pub(super) fn whole(words: &[u64]) -> u128 {
    u128::from(words[0]) | u128::from(words[1]) << 64
}

pub(super) const VERB: usize = 12;
pub(super) const COND: usize = 5;

pub fn encode_verb(verb: &RawVerb) -> Vec<u64> {
    let (code, operands) = match verb.op {
        Op::Read => (0, [0; 4]),
        Op::Write(value) => (1, [value, 0, 0, 0]),
        Op::Cas { expect, new } => (2, [expect, new, 0, 0]),
        Op::FetchAdd(add) => (3, [add, 0, 0, 0]),
        Op::MaskedCas(m) => (4, [m.compare, m.compare_mask, m.swap, m.swap_mask]),
        Op::MaskedFetchAdd(f) => (5, [f.add, f.boundaries, 0, 0]),
        Op::GuardedFetchAdd { fields: f, guard, guard_mask } => (6, [f.add, f.boundaries, guard, guard_mask]),
    };
    let place = u64::from(verb.addr.node.0) << 32 | u64::from(verb.addr.region.0);
    let head = [place, verb.addr.offset, verb.width.bytes(), code];
    head.into_iter().chain(operands.into_iter().flat_map(halves)).collect()
}

pub(super) fn decode_verb(words: &[u64]) -> RawVerb {
    let [a, b, c, d] = std::array::from_fn(|i| whole(&words[4 + 2 * i..]));
    let op = match words[3] {
        0 => Op::Read,
        1 => Op::Write(a),
        2 => Op::Cas { expect: a, new: b },
        3 => Op::FetchAdd(a),
        4 => Op::MaskedCas(MaskedCas { compare: a, compare_mask: b, swap: c, swap_mask: d }),
        5 => Op::MaskedFetchAdd(Fields { add: a, boundaries: b }),
        _ => Op::GuardedFetchAdd { fields: Fields { add: a, boundaries: b }, guard: c, guard_mask: d },
    };
    let (node, region) = (NodeId((words[0] >> 32) as u16), RegionId(words[0] as u16));
    let width = if words[2] == 8 { Width::W64 } else { Width::W128 };
    RawVerb { addr: Addr { offset: words[1], node, region }, width, op }
}

pub(super) fn encode_cond(cond: Option<Cond>) -> [u64; COND] {
    let field = |f: Field| u128::from(f.shift) | u128::from(f.bits) << 32;
    let (code, a, b) = match cond {
        None => (0, 0, 0),
        Some(Cond::Eq { mask, value }) => (1, mask, value),
        Some(Cond::Ne { mask, value }) => (2, mask, value),
        Some(Cond::FieldsEq(a, b)) => (3, field(a), field(b)),
        Some(Cond::AtLeast(a, value)) => (4, field(a), value),
    };
    let ([a, b], [c, d]) = (halves(a), halves(b));
    [code, a, b, c, d]
}

pub(super) fn decode_cond(words: &[u64]) -> Option<Cond> {
    let (a, b) = (whole(&words[1..]), whole(&words[3..]));
    let field = |wide: u128| Field { shift: wide as u32, bits: (wide >> 32) as u32 };
    Some(match words[0] {
        0 => return None,
        1 => Cond::Eq { mask: a, value: b },
        2 => Cond::Ne { mask: a, value: b },
        3 => Cond::FieldsEq(field(a), field(b)),
        _ => Cond::AtLeast(field(a), b),
    })
}

pub(super) fn encode_deadline(deadline: Deadline) -> [u64; 2] {
    match deadline {
        Deadline::Never => [0, 0],
        Deadline::Now => [1, 0],
        Deadline::At(time) => [2, time.0],
    }
}

pub(super) fn decode_deadline(words: &[u64]) -> Deadline {
    match words[0] {
        0 => Deadline::Never,
        1 => Deadline::Now,
        _ => Deadline::At(Time(words[1])),
    }
}

pub fn encode_wait<T: Value>(wait: &Wait<T>) -> Vec<u64> {
    let mut request = vec![WAIT];
    request.extend(encode_verb(&wait.word.read().raw()));
    request.extend(encode_cond(Some(wait.cond)));
    request.extend(encode_cond(wait.or));
    request.extend(encode_deadline(wait.deadline));
    request
}

pub(super) fn encode_error(error: FabricError) -> Vec<u64> {
    match error {
        FabricError::NodeLost(node) => vec![1, node.0.into()],
        FabricError::PeerLost(peer) => vec![2, peer.0.into()],
        FabricError::Evicted => vec![3],
    }
}

pub fn decode_error(words: &[u64]) -> FabricError {
    match words[0] {
        1 => FabricError::NodeLost(NodeId(words[1] as u16)),
        2 => FabricError::PeerLost(PeerId(words[1] as u32)),
        _ => FabricError::Evicted,
    }
}

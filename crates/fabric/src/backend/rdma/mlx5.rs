//! Work requests that only mlx5 NICs have, as the bytes that the NIC reads: masked compare-and-swap and masked fetch-and-add of
//! 8 and 16 bytes; and, for tests, the address of a dynamically connected (DC) peer.
//!
//! **Not yet run on hardware.** libibverbs has no call for these verbs; `mlx5dv_wr_raw_wqe` posts a work queue entry (WQE) that
//! the caller has encoded. What an entry looks like is taken from rdma-core (`providers/mlx5/mlx5dv.h`: opcodes, control, remote
//! address and data segments, address vector; `wqe.h`: masked atomic segment; `qp.c`: what the driver fills in), the modifier
//! from UCX (`src/uct/ib/mlx5/ib_mlx5.h`: eight, plus the logarithm of the size less two) and the order of wide operands from the
//! vendor's older libmlx5 (`ext_cmp_swp`, `ext_fetch_add`). All numbers are big-endian.
//!
//! | bytes | segment | fields |
//! |---|---|---|
//! | 0–3 | control | modifier (8 bits), producer index (16, filled in by the driver), opcode (8) |
//! | 4–7 | | queue pair (24 bits), length in units of 16 bytes (8) |
//! | 8–11 | | signature, stream, and fence (bits 5–7), completion (bits 2–3), solicited (bit 1) |
//! | 12–15 | | immediate: zero |
//! | 16 more | remote address | address (64 bits), key (32), zero |
//! | 2 or 4 operands | atomic | swap, compare, swap mask, compare mask; or add, field boundaries |
//! | 16 more | data | length (32), local key (32), address (64) |
//!
//! An operand of sixteen bytes is two numbers of eight, that at the lower address first: on a little-endian host the lower half of
//! the word. Whether a carry would go from one to the other is documented nowhere, so a sum across the middle is not offered.

use crate::verb::{Fields, MaskedCas, Op};

/// Opcodes (`MLX5_OPCODE_ATOMIC_MASKED_CS`, `MLX5_OPCODE_ATOMIC_MASKED_FA`).
const MASKED_CS: u8 = 0x14;
const MASKED_FA: u8 = 0x15;
/// In the modifier: an extended atomic.
const EXTENDED: u8 = 8;
/// In the control segment (`MLX5_WQE_CTRL_CQ_UPDATE`, `MLX5_WQE_CTRL_FENCE`).
const COMPLETE: u8 = 2 << 2;
const FENCE: u8 = 4 << 5;
/// In the DC target's number: the address vector is a long one (`MLX5_EXTENDED_UD_AV`).
#[cfg(test)]
const EXTENDED_AV: u32 = 0x8000_0000;
/// Bytes of an address vector (`struct mlx5_wqe_av`).
#[cfg(test)]
pub(super) const AV: usize = 48;
/// Bytes of the longest entry: control, remote address, four wide operands, data.
const LONGEST: usize = 16 + 16 + 4 * 16 + 16;

/// How wide the word is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Size {
    Eight,
    Sixteen,
}

impl Size {
    const fn bytes(self) -> u32 {
        match self {
            Self::Eight => 8,
            Self::Sixteen => 16,
        }
    }

    /// The opcode's modifier: extended, and the logarithm of the size less two.
    const fn modifier(self) -> u8 {
        EXTENDED | (self.bytes().trailing_zeros() as u8 - 2)
    }
}

/// What an extended atomic does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Extended {
    CompareSwap(MaskedCas),
    FetchAdd(Fields),
}

impl Extended {
    /// The verb as one of these; `None` if the NIC does not have it.
    pub(super) const fn of(op: &Op, size: Size) -> Option<Self> {
        let all = match size {
            Size::Eight => u64::MAX as u128,
            Size::Sixteen => u128::MAX,
        };
        match *op {
            Op::MaskedCas(cas) => Some(Self::CompareSwap(cas)),
            Op::MaskedFetchAdd(fields) if crosses_the_middle(fields, size) => None,
            Op::MaskedFetchAdd(fields) => Some(Self::FetchAdd(fields)),
            // A whole word of sixteen bytes: as masked, with everything compared and swapped.
            Op::Cas { expect, new } => Some(Self::CompareSwap(MaskedCas {
                compare: expect,
                compare_mask: all,
                swap: new,
                swap_mask: all,
            })),
            Op::Read | Op::Write(_) | Op::FetchAdd(_) | Op::GuardedFetchAdd { .. } => None,
        }
    }
}

/// Whether a carry would have to go from the lower half of a wide word to the upper one.
const fn crosses_the_middle(fields: Fields, size: Size) -> bool {
    matches!(size, Size::Sixteen) && fields.boundaries >> 63 & 1 == 0
}

/// Where the word is, and where its old value goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Places {
    pub(super) remote: u64,
    pub(super) remote_key: u32,
    pub(super) local: u64,
    pub(super) local_key: u32,
}

/// How the entry is to be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Manner {
    /// The number of the queue pair it is posted to.
    pub(super) pair: u32,
    /// A completion is wanted.
    pub(super) signal: bool,
    /// Wait for READs and atomics posted before.
    pub(super) fence: bool,
}

/// A work queue entry, aligned as the library wants it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub(super) struct Entry {
    bytes: [u8; LONGEST],
    length: usize,
}

impl Entry {
    const fn new() -> Self {
        Self { bytes: [0; LONGEST], length: 0 }
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.length..self.length + bytes.len()].copy_from_slice(bytes);
        self.length += bytes.len();
    }

    /// An operand: eight bytes, or two times eight, that at the lower address first.
    fn operand(&mut self, size: Size, value: u128) {
        self.put(&(value as u64).to_be_bytes());
        if size == Size::Sixteen {
            self.put(&((value >> 64) as u64).to_be_bytes());
        }
    }

    /// What the NIC reads.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.length]
    }
}

/// The entry of an extended atomic.
pub(super) fn encode(size: Size, what: Extended, at: &Places, manner: Manner) -> Entry {
    let mut entry = Entry::new();
    let opcode = match what {
        Extended::CompareSwap(_) => MASKED_CS,
        Extended::FetchAdd(_) => MASKED_FA,
    };
    // The producer's index is the driver's business, and the length is known at the end.
    entry.put(&[size.modifier(), 0, 0, opcode]);
    entry.put(&[0; 4]);
    let flags = if manner.signal { COMPLETE } else { 0 } | if manner.fence { FENCE } else { 0 };
    entry.put(&[0, 0, 0, flags]);
    entry.put(&[0; 4]);
    entry.put(&at.remote.to_be_bytes());
    entry.put(&at.remote_key.to_be_bytes());
    entry.put(&[0; 4]);
    match what {
        Extended::CompareSwap(MaskedCas { compare, compare_mask, swap, swap_mask }) => {
            for operand in [swap, compare, swap_mask, compare_mask] {
                entry.operand(size, operand);
            }
        }
        Extended::FetchAdd(Fields { add, boundaries }) => {
            entry.operand(size, add);
            entry.operand(size, boundaries);
        }
    }
    entry.put(&size.bytes().to_be_bytes());
    entry.put(&at.local_key.to_be_bytes());
    entry.put(&at.local.to_be_bytes());
    let units = (entry.length / 16) as u32;
    let pair_and_units = (manner.pair << 8 | units).to_be_bytes();
    entry.bytes[4..8].copy_from_slice(&pair_and_units);
    entry
}

/// The way to a port, as an address vector has it: RoCE v2, or InfiniBand with a global route.
#[cfg(test)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Path {
    pub(super) lid: u16,
    pub(super) mac: [u8; 6],
    pub(super) gid: [u8; 16],
    pub(super) hop_limit: u8,
}

/// The address vector of a DC target: what `mlx5dv_wr_set_dc_addr` writes into an entry, after the control segment. The driver
/// does it; a stand-in for it in tests does the same.
///
/// | bytes | field |
/// |---|---|
/// | 0–7 | DC key |
/// | 8–11 | DC target's number (24 bits), and that the vector is a long one (bit 31) |
/// | 12–15 | rate and service level, source path, remote LID |
/// | 16–19 | zero |
/// | 20–25 | remote MAC |
/// | 26, 27 | traffic class, hop limit |
/// | 28–31 | global route: GID index and flow label |
/// | 32–47 | remote GID |
#[cfg(test)]
pub(super) fn dc_address(target: u32, key: u64, path: &Path) -> [u8; AV] {
    let mut av = [0; AV];
    av[..8].copy_from_slice(&key.to_be_bytes());
    av[8..12].copy_from_slice(&(target | EXTENDED_AV).to_be_bytes());
    av[14..16].copy_from_slice(&path.lid.to_be_bytes());
    av[20..26].copy_from_slice(&path.mac);
    av[27] = path.hop_limit;
    av[32..].copy_from_slice(&path.gid);
    av
}

#[cfg(test)]
mod tests {
    use super::*;
    use rdma_mummy_sys as vendor;
    use std::mem::{offset_of, size_of};

    const AT: Places = Places {
        remote: 0x1122_3344_5566_7788,
        remote_key: 0x99aa_bbcc,
        local: 0xddee_ff00_0102_0304,
        local_key: 0x0506_0708,
    };
    const PLAIN: Manner = Manner { pair: 0x00ab_cdef, signal: false, fence: false };

    #[test]
    fn opcodes_and_flags_are_the_vendors() {
        assert_eq!(u32::from(MASKED_CS), vendor::MLX5_OPCODE_ATOMIC_MASKED_CS);
        assert_eq!(u32::from(MASKED_FA), vendor::MLX5_OPCODE_ATOMIC_MASKED_FA);
        assert_eq!(u32::from(COMPLETE), vendor::MLX5_WQE_CTRL_CQ_UPDATE);
        assert_eq!(u32::from(FENCE), vendor::MLX5_WQE_CTRL_FENCE);
        assert_eq!(EXTENDED_AV, vendor::MLX5_EXTENDED_UD_AV);
        assert_eq!((Size::Eight.modifier(), Size::Sixteen.modifier()), (9, 10));
    }

    #[test]
    #[rustfmt::skip]
    fn a_masked_compare_and_swap_of_eight_bytes_is_these_eighty_bytes() {
        let cas = MaskedCas { compare: 0x21, compare_mask: 0x22, swap: 0x23, swap_mask: 0xff00_0000_0000_0024 };
        let entry = encode(Size::Eight, Extended::CompareSwap(cas), &AT, PLAIN);
        let expected = [
            // Control: modifier 9, index, opcode 0x14; queue pair and five units; flags; immediate.
            0x09, 0, 0, 0x14, 0xab, 0xcd, 0xef, 5, 0, 0, 0, 0, 0, 0, 0, 0,
            // Remote address, key.
            0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0, 0, 0, 0,
            // Swap, compare.
            0, 0, 0, 0, 0, 0, 0, 0x23, 0, 0, 0, 0, 0, 0, 0, 0x21,
            // Swap mask, compare mask.
            0xff, 0, 0, 0, 0, 0, 0, 0x24, 0, 0, 0, 0, 0, 0, 0, 0x22,
            // Eight bytes, local key, local address.
            0, 0, 0, 8, 5, 6, 7, 8, 0xdd, 0xee, 0xff, 0, 1, 2, 3, 4,
        ];
        assert_eq!(entry.bytes(), expected);
    }

    #[test]
    #[rustfmt::skip]
    fn a_masked_fetch_and_add_of_eight_bytes_is_these_sixty_four_bytes() {
        let fields = Fields { add: 0x0102, boundaries: 0x8000_0000_0000_8000 };
        let manner = Manner { signal: true, fence: true, ..PLAIN };
        let entry = encode(Size::Eight, Extended::FetchAdd(fields), &AT, manner);
        let expected = [
            0x09, 0, 0, 0x15, 0xab, 0xcd, 0xef, 4, 0, 0, 0, 0x88, 0, 0, 0, 0,
            0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0, 0, 0, 0,
            // Add, field boundaries.
            0, 0, 0, 0, 0, 0, 1, 2, 0x80, 0, 0, 0, 0, 0, 0x80, 0,
            0, 0, 0, 8, 5, 6, 7, 8, 0xdd, 0xee, 0xff, 0, 1, 2, 3, 4,
        ];
        assert_eq!(entry.bytes(), expected);
    }

    #[test]
    fn wide_operands_are_two_numbers_the_lower_half_first() {
        let wide = |high: u128, low: u128| high << 64 | low;
        let cas = MaskedCas {
            swap: wide(2, 1),
            compare: wide(4, 3),
            swap_mask: wide(6, 5),
            compare_mask: wide(8, 7),
        };
        let entry = encode(Size::Sixteen, Extended::CompareSwap(cas), &AT, PLAIN);
        let bytes = entry.bytes();
        assert_eq!(bytes.len(), 16 + 16 + 64 + 16);
        assert_eq!((bytes[0], bytes[3], bytes[7]), (0x0a, 0x14, 7));
        for (index, quad) in bytes[32..96].chunks_exact(8).enumerate() {
            assert_eq!(quad, (index as u64 + 1).to_be_bytes());
        }
        assert_eq!(bytes[96..100], 16_u32.to_be_bytes());

        let fields = Fields { add: wide(2, 1), boundaries: wide(4, 1 << 63 | 3) };
        let entry = encode(Size::Sixteen, Extended::FetchAdd(fields), &AT, PLAIN);
        let bytes = entry.bytes();
        assert_eq!((bytes.len(), bytes[0], bytes[3], bytes[7]), (80, 0x0a, 0x15, 5));
        let quads: Vec<_> =
            bytes[32..64].chunks_exact(8).map(|quad| u64::from_be_bytes(quad.try_into().unwrap())).collect();
        assert_eq!(quads, [1, 2, 1 << 63 | 3, 4]);
    }

    #[test]
    fn what_the_nic_has_is_told_from_what_it_has_not() {
        let cas = MaskedCas { compare: 0, compare_mask: 1, swap: 1, swap_mask: 1 };
        assert_eq!(Extended::of(&Op::MaskedCas(cas), Size::Eight), Some(Extended::CompareSwap(cas)));
        let whole = Extended::of(&Op::Cas { expect: 1, new: 2 }, Size::Sixteen);
        let all = u128::MAX;
        let masked = MaskedCas { compare: 1, compare_mask: all, swap: 2, swap_mask: all };
        assert_eq!(whole, Some(Extended::CompareSwap(masked)));
        // A sum may not carry across the middle of a wide word.
        let (cut, across) =
            (Fields { add: 1, boundaries: 1 << 63 | 1 << 127 }, Fields { add: 1, boundaries: 1 << 127 });
        assert!(Extended::of(&Op::MaskedFetchAdd(cut), Size::Sixteen).is_some());
        assert_eq!(Extended::of(&Op::MaskedFetchAdd(across), Size::Sixteen), None);
        assert!(Extended::of(&Op::MaskedFetchAdd(across), Size::Eight).is_some());
        assert_eq!(Extended::of(&Op::Read, Size::Eight), None);
    }

    #[test]
    fn a_dc_address_lies_as_the_vendors_struct_does() {
        use vendor::mlx5_wqe_av as Av;
        assert_eq!(size_of::<Av>(), AV);
        let path = Path { lid: 0x0708, mac: [1, 2, 3, 4, 5, 6], gid: [9; 16], hop_limit: 64 };
        let av = dc_address(0x00ab_cdef, 0x1122_3344_5566_7788, &path);
        let at = |offset: usize, bytes: &[u8]| assert_eq!(&av[offset..offset + bytes.len()], bytes);
        at(offset_of!(Av, key), &0x1122_3344_5566_7788_u64.to_be_bytes());
        at(offset_of!(Av, dqp_dct), &[0x80, 0xab, 0xcd, 0xef]);
        at(offset_of!(Av, stat_rate_sl), &[0, 0]);
        at(offset_of!(Av, rlid), &[7, 8]);
        at(offset_of!(Av, rmac), &[1, 2, 3, 4, 5, 6]);
        at(offset_of!(Av, tclass), &[0]);
        at(offset_of!(Av, hop_limit), &[64]);
        at(offset_of!(Av, grh_gid_fl), &[0; 4]);
        at(offset_of!(Av, rgid), &[9; 16]);
    }
}

//! The words of the lock tree (Citron §3.4, Fig. 3), as bit tables tied to the code.
//!
//! **Leaf** (one bit per unit; set: some client has the unit):
//!
//! | bits | field |
//! |---|---|
//! | 0–63 | unit `i` of the leaf |
//!
//! **Internal node**:
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0–14 | DMax | lock requests below that notified this node |
//! | 15–29 | DCnt | those that are over |
//! | 30–44 | TMax | the next ticket at this node |
//! | 45–59 | TCnt | the ticket whose turn it is |
//! | 60 | Occ | wait mode: a request at this node holds off requests below |
//! | 61–63 | | zero |
//!
//! | state of an internal node | meaning |
//! |---|---|
//! | TCnt = TMax | nobody holds or wants this node |
//! | TCnt ≠ TMax | *occupied* in handshake mode: ticket TCnt holds the node or is about to |
//! | DCnt = DMax | nobody below who notified this node holds or wants anything |
//!
//! Counters wrap at 2¹⁵, so at most 32,767 clients may use one tree at a time (§3.4). Every addition is a masked
//! fetch-and-add with all five field boundaries: nothing carries from one field into the next.

use lockwright_fabric::{Cond, Field, Verb, Word64};

/// Lock requests below that notified this node.
pub(crate) const D_MAX: Field = Field { shift: 0, bits: 15 };
/// Of those, the ones that are over.
pub(crate) const D_CNT: Field = Field { shift: 15, bits: 15 };
/// The next ticket at this node.
pub(crate) const T_MAX: Field = Field { shift: 30, bits: 15 };
/// The ticket whose turn it is.
pub(crate) const T_CNT: Field = Field { shift: 45, bits: 15 };
/// Wait mode: requests below are held off.
pub(crate) const OCC: Field = Field { shift: 60, bits: 1 };

/// Where fields end.
const BOUNDARIES: u64 = (D_MAX.top() | D_CNT.top() | T_MAX.top() | T_CNT.top() | OCC.top()) as u64;

const _: () = {
    let fields = [D_MAX, D_CNT, T_MAX, T_CNT, OCC];
    let (mut i, mut all) = (0, 0);
    while i < fields.len() {
        assert!(all & fields[i].mask() == 0, "fields do not overlap");
        all |= fields[i].mask();
        i += 1;
    }
    assert!(all == (1 << 61) - 1, "fields leave no gap and fit into 61 bits");
};

/// A masked fetch-and-add of one to `field`.
pub(crate) fn add_one(word: Word64, field: Field) -> Verb<u64> {
    word.masked_fetch_add(field.put(1) as u64, BOUNDARIES)
}

/// Several fields of one word, each by its own addend (all ones subtracts one).
pub(crate) fn add(word: Word64, addends: &[(Field, u128)]) -> Verb<u64> {
    let sum = addends.iter().fold(0, |sum, (field, by)| sum | field.put(*by));
    word.masked_fetch_add(sum as u64, BOUNDARIES)
}

/// A field of an internal node's word.
pub(crate) const fn get(word: u64, field: Field) -> u128 {
    field.get(word as u128)
}

/// Whether the wait mode's flag is set.
pub(crate) const fn is_occ(word: u64) -> bool {
    get(word, OCC) != 0
}

/// Nobody below holds or wants anything.
pub(crate) const QUIET_BELOW: Cond = Cond::FieldsEq(D_CNT, D_MAX);
/// The wait mode's flag is clear.
pub(crate) const NOT_OCC: Cond = Cond::Eq { mask: OCC.mask(), value: 0 };

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright_fabric::{Addr, NodeId, Width};

    const FIELDS: [Field; 5] = [D_MAX, D_CNT, T_MAX, T_CNT, OCC];

    fn word() -> Word64 {
        Word64::at(Addr::new(NodeId(0), 0))
    }

    fn after(verb: Verb<u64>, old: u64) -> u64 {
        verb.raw().op.apply(Width::W64, u128::from(old)).map_or(old, |new| new as u64)
    }

    #[test]
    fn every_field_comes_back_as_it_was_put() {
        for field in FIELDS {
            for value in [0, 1, field.max()] {
                assert_eq!(get(field.put(value) as u64, field), value);
            }
        }
    }

    #[test]
    fn a_full_counter_wraps_and_leaves_its_neighbours_alone() {
        let full = FIELDS.iter().fold(0, |word, field| word | field.mask()) as u64;
        for field in FIELDS {
            let one_more = after(add_one(word(), field), full);
            assert_eq!(one_more, full & !(field.mask() as u64), "{field:?}");
        }
    }

    #[test]
    fn a_release_passes_the_turn_and_clears_occ_in_one_verb() {
        let held = (T_MAX.put(8) | T_CNT.put(7) | OCC.put(1) | D_MAX.put(3) | D_CNT.put(3)) as u64;
        let free = after(add(word(), &[(OCC, OCC.max()), (T_CNT, 1)]), held);
        assert_eq!((get(free, T_CNT), get(free, T_MAX), is_occ(free)), (8, 8, false));
        assert_eq!((get(free, D_CNT), get(free, D_MAX)), (3, 3));
    }
}

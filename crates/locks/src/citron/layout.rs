//! The words of the lock tree (Citron §3.4, Fig. 3), as bit tables tied to the code.
//!
//! **Leaf** of n units (one bit per unit; set: some client has the unit):
//!
//! | bits | field |
//! |---|---|
//! | 0 to n − 1 | unit `i` of the leaf |
//! | n to n + 15, as far as there are bits | generation: one more whenever the leaf was recovered; none if n = 64 |
//!
//! **Internal node**:
//!
//! | bits | field | meaning |
//! |---|---|---|
//! | 0–12 | DMax | lock requests below that notified this node |
//! | 13–25 | DCnt | those that are over |
//! | 26–38 | TMax | the next ticket at this node |
//! | 39–51 | TCnt | the ticket whose turn it is |
//! | 52 | Occ | wait mode: a request at this node holds off requests below; handshake mode: a gap between two turns, which does not |
//! | 53 | Exp | the tree has grown past this node (`grow`) |
//! | 54 | Swept | changes whenever the tree grows past this node, and only then |
//! | 55 | Retired | this node was the root of a larger tree, and the tree has shrunk (`shrink`) |
//! | 56–59 | Below | generation of DMax and DCnt: one more whenever they were recovered |
//! | 60–63 | Here | generation of TMax, TCnt and Occ: one more whenever they were recovered |
//!
//! | state of an internal node | meaning |
//! |---|---|
//! | TCnt = TMax | nobody holds or wants this node |
//! | TCnt ≠ TMax, Occ = 0 | *occupied* in handshake mode: ticket TCnt holds the node or is about to |
//! | TCnt ≠ TMax, Occ = 1 | handshake mode: nobody holds the node, and requests below may come until ticket TCnt closes the gap |
//! | DCnt = DMax | nobody below who notified this node holds or wants anything |
//!
//! Counters wrap at 2¹³, so at most 8,191 clients may use one tree at a time. (The paper's have 15 bits and no
//! generations, §3.4.) Every addition is a masked fetch-and-add with all field boundaries: nothing carries from one
//! field into the next. What ends a request is added only in the generation it began in, where the fabric can
//! (`recover`).

use lockwright_fabric::{Cond, Field, Verb, Word64};

/// Lock requests below that notified this node.
pub(crate) const D_MAX: Field = Field { shift: 0, bits: 13 };
/// Of those, the ones that are over.
pub(crate) const D_CNT: Field = Field { shift: 13, bits: 13 };
/// The next ticket at this node.
pub(crate) const T_MAX: Field = Field { shift: 26, bits: 13 };
/// The ticket whose turn it is.
pub(crate) const T_CNT: Field = Field { shift: 39, bits: 13 };
/// Wait mode: requests below are held off.
pub(crate) const OCC: Field = Field { shift: 52, bits: 1 };
/// The tree has grown past this node.
pub(crate) const EXP: Field = Field { shift: 53, bits: 1 };
/// Changes whenever the tree grows past this node.
pub(crate) const SWEPT: Field = Field { shift: 54, bits: 1 };
/// The tree has shrunk, and this is no longer its root.
pub(crate) const RETIRED: Field = Field { shift: 55, bits: 1 };
/// Generation of the counts of requests below.
pub(crate) const BELOW: Field = Field { shift: 56, bits: 4 };
/// Generation of tickets and Occ.
pub(crate) const HERE: Field = Field { shift: 60, bits: 4 };

/// Where fields end.
pub(super) const BOUNDARIES: u64 = {
    let counts = D_MAX.top() | D_CNT.top() | T_MAX.top() | T_CNT.top();
    (counts | OCC.top() | EXP.top() | SWEPT.top() | RETIRED.top() | BELOW.top() | HERE.top()) as u64
};

const _: () = {
    let fields = [D_MAX, D_CNT, T_MAX, T_CNT, OCC, EXP, SWEPT, RETIRED, BELOW, HERE];
    assert!(Field::fill(&fields, 64), "fields do not overlap and leave no gap");
};

/// A masked fetch-and-add of one to `field`.
pub(crate) fn add_one(word: Word64, field: Field) -> Verb<u64> {
    word.masked_fetch_add(field.put(1) as u64, BOUNDARIES)
}

/// A field of an internal node's word.
pub(crate) const fn get(word: u64, field: Field) -> u128 {
    field.get(word as u128)
}

/// Whether the wait mode's flag is set.
pub(crate) const fn is_occ(word: u64) -> bool {
    get(word, OCC) != 0
}

/// Whether the tree has grown past this node.
pub(crate) const fn has_grown(word: u64) -> bool {
    get(word, EXP) != 0
}

/// Whether the tree of this root is another by now: it has grown past it, or shrunk.
pub(crate) const fn is_another(word: u64) -> bool {
    has_grown(word) || get(word, RETIRED) != 0
}

/// Which of two, of which the tree's growing past this node makes the other.
pub(crate) const fn is_swept(word: u64) -> bool {
    get(word, SWEPT) != 0
}

/// Nobody below holds or wants anything.
pub(crate) const QUIET_BELOW: Cond = Cond::FieldsEq(D_CNT, D_MAX);
/// The wait mode's flag is clear.
pub(crate) const NOT_OCC: Cond = Cond::Eq { mask: OCC.mask(), value: 0 };

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright_fabric::{Addr, NodeId, Width};

    const FIELDS: [Field; 10] = [D_MAX, D_CNT, T_MAX, T_CNT, OCC, EXP, SWEPT, RETIRED, BELOW, HERE];

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
}

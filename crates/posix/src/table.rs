//! Who holds what of one file: the record locks, or the flocks, of this process's programs.
//!
//! Every owner has pieces that do not overlap, in order; two of a kind that touch are one. Taking a range changes what the
//! owner has there to the new kind, and leaves the rest of the pieces it cuts. Giving a range back cuts likewise. Owners stand
//! in the order in which they came to hold something, which is the order in which the kernel names who is in the way.
//!
//! What this file must not do: wait, or know of a space.

use crate::extent::Extent;

/// Whose a lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Owner {
    /// A process: all its threads and descriptors.
    Process(u64),
    /// An open file description: all descriptors that were made from it, in whatever process.
    Description(u64),
}

/// Shared or exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Others may read as well: `F_RDLCK`, `LOCK_SH`.
    Read,
    /// Nobody else: `F_WRLCK`, `LOCK_EX`.
    Write,
}

impl Kind {
    /// Whether two owners cannot have the same byte like that.
    pub const fn conflicts(self, other: Self) -> bool {
        !matches!((self, other), (Self::Read, Self::Read))
    }
}

/// A piece that an owner holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// Which bytes.
    pub extent: Extent,
    /// In which way.
    pub kind: Kind,
    /// The process that took it, as `F_GETLK` tells it.
    pub pid: u32,
}

/// A lock in the way of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocker {
    /// Whose it is.
    pub owner: Owner,
    /// What it is.
    pub piece: Piece,
}

/// The locks of one file.
#[derive(Clone, Debug, Default)]
pub struct LockTable {
    /// Those that hold something, in the order in which they came.
    owners: Vec<(Owner, Vec<Piece>)>,
}

impl LockTable {
    /// Whether no owner holds anything.
    pub fn is_empty(&self) -> bool {
        self.owners.is_empty()
    }

    /// What `owner` holds, in order.
    pub fn pieces(&self, owner: Owner) -> &[Piece] {
        let found = self.owners.iter().find(|(other, _)| *other == owner);
        found.map_or(&[], |(_, pieces)| pieces)
    }

    /// All who hold something.
    pub fn owners(&self) -> impl Iterator<Item = Owner> + '_ {
        self.owners.iter().map(|(owner, _)| *owner)
    }

    /// The locks of others that are in the way, in the kernel's order.
    pub fn blockers(&self, owner: Owner, extent: Extent, kind: Kind) -> impl Iterator<Item = Blocker> + '_ {
        let others = self.owners.iter().filter(move |(other, _)| *other != owner);
        others.flat_map(move |(owner, pieces)| {
            overlapping(pieces, extent)
                .iter()
                .filter(move |piece| piece.kind.conflicts(kind))
                .map(|piece| Blocker { owner: *owner, piece: *piece })
        })
    }

    /// Makes all of `extent` the owner's, as `kind`; `None`: not any more. The caller has looked for
    /// [blockers](Self::blockers).
    pub fn set(&mut self, owner: Owner, pid: u32, extent: Extent, kind: Option<Kind>) {
        let at = match self.owners.iter().position(|(other, _)| *other == owner) {
            Some(at) => at,
            None if kind.is_none() => return,
            None => {
                self.owners.push((owner, Vec::new()));
                self.owners.len() - 1
            }
        };
        let pieces = &mut self.owners[at].1;
        let (first, last) = span(pieces, extent);
        let mut now = Vec::with_capacity(3);
        if let Some(cut) = pieces[first..last].first().filter(|piece| piece.extent.start < extent.start) {
            now.push(Piece { extent: Extent { end: extent.start, ..cut.extent }, ..*cut });
        }
        now.extend(kind.map(|kind| Piece { extent, kind, pid }));
        if let Some(cut) = pieces[first..last].last().filter(|piece| extent.end < piece.extent.end) {
            now.push(Piece { extent: Extent { start: extent.end, ..cut.extent }, ..*cut });
        }
        let count = now.len();
        pieces.splice(first..last, now);
        // Those that were just put there, and the one after them, with the one before.
        for index in (first.max(1)..=(first + count).min(pieces.len().saturating_sub(1))).rev() {
            let (left, right) = (pieces[index - 1], pieces[index]);
            if left.kind == right.kind && left.extent.end == right.extent.start {
                pieces[index - 1].extent.end = right.extent.end;
                pieces[index - 1].pid = pid;
                pieces.remove(index);
            }
        }
        if pieces.is_empty() {
            self.owners.remove(at);
        }
    }

    /// The strongest kind in which an owner holds each part of `extent`, in order and without gaps; neighbours differ.
    pub fn needed(&self, extent: Extent) -> Vec<(Extent, Option<Kind>)> {
        let held = self.owners.iter().flat_map(|(_, pieces)| overlapping(pieces, extent));
        let held: Vec<_> =
            held.filter_map(|piece| Some((piece.extent.common(&extent)?, piece.kind))).collect();
        let mut cuts: Vec<u64> = held.iter().flat_map(|(part, _)| [part.start, part.end]).collect();
        cuts.extend([extent.start, extent.end]);
        cuts.sort_unstable();
        cuts.dedup();
        let mut needed: Vec<(Extent, Option<Kind>)> = Vec::new();
        for cut in cuts.windows(2) {
            let part = Extent { start: cut[0], end: cut[1] };
            let kind = held.iter().filter(|(other, _)| other.overlaps(&part)).map(|(_, kind)| *kind).max();
            match needed.last_mut() {
                Some((last, same)) if *same == kind => last.end = part.end,
                _ => needed.push((part, kind)),
            }
        }
        needed
    }
}

/// The pieces that overlap `extent`, or would be cut by it: from which to before which.
fn span(pieces: &[Piece], extent: Extent) -> (usize, usize) {
    let first = pieces.partition_point(|piece| piece.extent.end <= extent.start);
    let last = pieces.partition_point(|piece| piece.extent.start < extent.end);
    (first, last)
}

fn overlapping(pieces: &[Piece], extent: Extent) -> &[Piece] {
    let (first, last) = span(pieces, extent);
    &pieces[first..last]
}

#[cfg(test)]
mod tests {
    use super::*;

    const ME: Owner = Owner::Process(1);
    const YOU: Owner = Owner::Process(2);

    fn extent(start: u64, end: u64) -> Extent {
        Extent { start, end }
    }

    fn held(table: &LockTable, owner: Owner) -> Vec<(u64, u64, Kind)> {
        table.pieces(owner).iter().map(|piece| (piece.extent.start, piece.extent.end, piece.kind)).collect()
    }

    #[test]
    fn a_range_is_cut_converted_and_merged_again() {
        let mut table = LockTable::default();
        table.set(ME, 1, extent(0, 100), Some(Kind::Write));
        table.set(ME, 1, extent(40, 60), Some(Kind::Read));
        let three = [(0, 40, Kind::Write), (40, 60, Kind::Read), (60, 100, Kind::Write)];
        assert_eq!(held(&table, ME), three);
        table.set(ME, 1, extent(40, 60), None);
        assert_eq!(held(&table, ME), [(0, 40, Kind::Write), (60, 100, Kind::Write)]);
        table.set(ME, 1, extent(40, 60), Some(Kind::Write));
        assert_eq!(held(&table, ME), [(0, 100, Kind::Write)]);
        table.set(ME, 1, extent(0, 100), None);
        assert!(table.is_empty());
    }

    #[test]
    fn readers_share_and_a_writer_is_in_the_way_of_everybody_else() {
        let mut table = LockTable::default();
        table.set(ME, 1, extent(0, 10), Some(Kind::Read));
        assert_eq!(table.blockers(YOU, extent(5, 6), Kind::Read).count(), 0);
        let blocker = table.blockers(YOU, extent(5, 6), Kind::Write).next().unwrap();
        assert_eq!((blocker.owner, blocker.piece.extent), (ME, extent(0, 10)));
        assert_eq!(table.blockers(ME, extent(5, 6), Kind::Write).count(), 0);
        assert_eq!(table.blockers(YOU, extent(10, 11), Kind::Write).count(), 0);
    }

    #[test]
    fn what_is_needed_is_the_strongest_that_anybody_has() {
        let mut table = LockTable::default();
        table.set(ME, 1, extent(0, 10), Some(Kind::Read));
        table.set(YOU, 2, extent(5, 20), Some(Kind::Read));
        table.set(YOU, 2, extent(12, 14), Some(Kind::Write));
        let needed = table.needed(extent(0, 30));
        let read = Some(Kind::Read);
        let (first, last) = (extent(0, 12), extent(20, 30));
        assert_eq!(
            needed,
            [(first, read), (extent(12, 14), Some(Kind::Write)), (extent(14, 20), read), (last, None)]
        );
    }
}

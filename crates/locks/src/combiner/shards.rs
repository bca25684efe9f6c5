//! Which combiner has what: names dealt out one by one, units of a ranged lock cut into equal stretches.

use super::core::NAMES;
use crate::protocol::{Denied, Reason, Space};
use lockwright_fabric::observe::Claim;

/// Whether the space has names only: every lock is one unit of the space of names.
pub(super) const fn is_keyed(space: &Space) -> bool {
    space.units <= 1
}

/// What has to be asked for, from which combiner, in the order that all clients use: shard, lock, start, end.
///
/// # Errors
/// If the claim makes no sense in this space.
pub(super) fn stretches(space: &Space, claim: Claim) -> Result<Vec<(u16, u64, u64, u64)>, Denied> {
    let Claim { lock, start, end, .. } = claim;
    if lock >= space.locks {
        return Err(Denied::BadRequest(&Reason("there is no such lock in this space")));
    }
    if start >= end {
        return Err(Denied::BadRequest(&Reason("the range is empty or reversed")));
    }
    let units = if is_keyed(space) { 1 } else { space.units };
    // The whole of a lock, whatever its size.
    let end = if (start, end) == (0, u64::MAX) { units } else { end };
    if end > units {
        return Err(Denied::BadRequest(&Reason("the range ends beyond the lock")));
    }
    if is_keyed(space) {
        return Ok(vec![(space.node_of(lock).0, NAMES, lock, lock + 1)]);
    }
    let stretch = units.div_ceil(u64::from(space.nodes));
    let cut = |shard| (shard as u16, lock, start.max(shard * stretch), end.min((shard + 1) * stretch));
    Ok((start / stretch..=(end - 1) / stretch).map(cut).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::protocol::Want;
    use lockwright_fabric::observe::Mode::Shared;

    fn of(space: Space, want: Want) -> Result<Vec<(u16, u64, u64, u64)>, String> {
        stretches(&space, want.claim).map_err(|denied| denied.to_string())
    }

    #[test]
    fn a_range_that_crosses_shards_is_cut_at_their_borders_from_the_left() {
        let space = Space::of(2).units(10).over(3);
        let cut = of(space, Want::range(1, Shared, 3, 9)).unwrap();
        assert_eq!(cut, [(0, 1, 3, 4), (1, 1, 4, 8), (2, 1, 8, 9)]);
        let whole = of(space, Want::shared(1)).unwrap();
        assert_eq!(whole, [(0, 1, 0, 4), (1, 1, 4, 8), (2, 1, 8, 10)]);
    }

    #[test]
    fn a_name_is_one_unit_of_the_space_of_names() {
        let space = Space::of(9).over(2);
        assert_eq!(of(space, Want::exclusive(5)).unwrap(), [(1, NAMES, 5, 6)]);
        assert_eq!(of(space, Want::range(5, Shared, 0, 1)).unwrap(), [(1, NAMES, 5, 6)]);
    }

    #[test]
    fn nonsense_is_refused_in_words() {
        let space = Space::of(2).units(10);
        let refusals = [
            (Want::exclusive(2), "there is no such lock in this space"),
            (Want::range(0, Shared, 5, 5), "the range is empty or reversed"),
            (Want::range(0, Shared, 6, 5), "the range is empty or reversed"),
            (Want::range(0, Shared, 5, 11), "the range ends beyond the lock"),
        ];
        for (want, why) in refusals {
            assert_eq!(of(space, want).unwrap_err(), why);
        }
        assert!(of(Space::of(2), Want::range(0, Shared, 0, 2)).is_err());
    }
}

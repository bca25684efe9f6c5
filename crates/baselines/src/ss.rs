//! Static segmentation (SS): a range lock from mutexes (Citron §4.1, Table 1).
//!
//! The units of a lock are cut into segments of one size, and every segment has a [DSLR](super::dslr) word of its own. A
//! range takes the words of all segments it touches, from left to right, and gives them back in one batch. Right when the size is known in advance;
//! segments that are too large collide falsely, segments that are too small cost a round trip each.
//!
//! | word | lock |
//! |---|---|
//! | i | DSLR: units `i · segment_units` up to the next segment |
//!
//! What it must not do: take a segment to the left of one it holds.

use super::dslr::DslrParams;
use super::dslr::client::{Bakery, Turn};
use lockwright_fabric::{Addr, Endpoint, Needs, Word64};
use lockwright_locks::{Denied, Grant, Info, LockClient, Lost, Offers, Protocol, Reason, Space, Want};

/// Static segmentation over DSLR.
#[derive(Debug)]
pub struct StaticSegments;

/// Tunables of static segmentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SsParams {
    /// Units of a segment.
    pub segment_units: u64,
    /// The segments' locks.
    pub dslr: DslrParams,
}

impl Default for SsParams {
    fn default() -> Self {
        Self { segment_units: 64, dslr: DslrParams::default() }
    }
}

impl SsParams {
    const fn segments(&self, units: u64) -> u64 {
        units.div_ceil(if self.segment_units == 0 { 1 } else { self.segment_units })
    }
}

impl Protocol for StaticSegments {
    type Params = SsParams;
    type Client<E: Endpoint> = SsClient<E>;

    const INFO: Info = Info {
        name: "ss",
        summary: "range locks from segments of one size, a DSLR lock each",
        source: "Citron §4.1, Table 1",
        offers: Offers { shared: true, ranges: true, tries: true, ..Offers::NONE },
    };

    fn needs(_: &SsParams) -> Needs {
        Needs { global_scope: true, ..Needs::default() }
    }

    fn bytes_per_node(space: &Space, params: &SsParams) -> u64 {
        space.table_bytes(8 * params.segments(space.units))
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &SsParams) -> SsClient<E> {
        SsClient { bakery: Bakery::new(ep, &params.dslr), space: *space, params: params.clone() }
    }

    fn tune(params: &mut SsParams, name: &str, value: u64) -> bool {
        let known = name == "segment-units" && value > 0;
        if known {
            params.segment_units = value;
        }
        known
    }

    /// As DSLR's: no single bit tells.
    fn quiet_mask(_: &Space, _: &SsParams, _: Addr) -> u64 {
        0
    }
}

/// Granted segments.
#[derive(Clone, Debug)]
pub struct SsGrant {
    lock: u64,
    first: u64,
    turns: Vec<Turn>,
}

impl Grant for SsGrant {}

/// A client of static segmentation.
#[derive(Clone, Debug)]
pub struct SsClient<E> {
    bakery: Bakery<E>,
    space: Space,
    params: SsParams,
}

impl<E: Endpoint> LockClient for SsClient<E> {
    type Grant = SsGrant;

    async fn acquire(&self, want: Want) -> Result<SsGrant, Denied> {
        let (first, past) = self.segments(&want).map_err(Denied::BadRequest)?;
        let mut grant = SsGrant { lock: want.claim.lock, first, turns: Vec::new() };
        for segment in first..past {
            match self.bakery.acquire(self.word(want.claim.lock, segment), want).await {
                Ok(turn) => grant.turns.push(turn),
                Err(denied) => {
                    // Nothing is left behind; a lease that ran out meanwhile does no harm.
                    let _ = self.release(grant).await;
                    return Err(denied);
                }
            }
        }
        Ok(grant)
    }

    /// All at once. A segment whose lease ran out does not keep the others.
    async fn release(&self, grant: SsGrant) -> Result<(), Lost> {
        let word = |index| self.word(grant.lock, grant.first + index as u64);
        let held: Vec<_> = grant.turns.iter().enumerate().map(|(index, turn)| (word(index), *turn)).collect();
        self.bakery.release_all(&held).await
    }
}

impl<E: Endpoint> SsClient<E> {
    /// The segments that `want` touches, or what is wrong with it.
    fn segments(&self, want: &Want) -> Result<(u64, u64), &'static Reason> {
        let (claim, units) = (want.claim, self.space.units);
        if self.params.segment_units == 0 {
            return Err(&Reason("a segment must have at least one unit"));
        }
        if claim.lock >= self.space.locks {
            return Err(&Reason("there is no such lock in this space"));
        }
        if (claim.start, claim.end) == (0, u64::MAX) {
            return Ok((0, self.params.segments(units)));
        }
        if claim.start >= claim.end {
            return Err(&Reason("the range is empty or reversed"));
        }
        if claim.end > units {
            return Err(&Reason("the range ends past the last unit of the lock"));
        }
        Ok((claim.start / self.params.segment_units, claim.end.div_ceil(self.params.segment_units)))
    }

    fn word(&self, lock: u64, segment: u64) -> Word64 {
        let stride = 8 * self.params.segments(self.space.units);
        Word64::at(self.space.place(lock, stride).plus(8 * segment))
    }
}

//! What a range lock of shared memory costs when others are held: beside one with none held, and beside the system's own with as
//! many.

use super::bare;
use super::measure::Runs;
use super::shm::Place;
use super::{Bound, Row};
use anyhow::{Context, Result};
use lockwright::{Client, RangeLock, RangeWriteGuard};
use std::fs::File;

/// Ranges are taken once each in a run of this many.
const CYCLES: u32 = 500;
/// How many are held, the goals beside none held, and beside the system's.
const FEW: (u64, f64, f64) = (64, 1.5, 3.0);
const MANY: (u64, f64, f64) = (1024, 2.5, 10.0);
const MADE_OF: &str = "two locks of the gate, a way down the index, a record written and cleared";

/// A space of its own, in which so many ranges are held.
struct Held {
    lock: RangeLock,
    _guards: Vec<RangeWriteGuard>,
    ours: File,
    _theirs: File,
    free: u64,
}

impl Held {
    fn new(place: &Place, count: u64) -> Result<Self> {
        let lock = Client::open(&place.space_named(&format!("held-{count}"))).wait()?.range_lock("ranges")?;
        let guards: Result<_, _> =
            (0..count).map(|range| lock.write(128 * range..128 * range + 64).wait()).collect();
        let name = format!("held-{count}.file");
        let (ours, theirs) = (place.file(&name)?, place.file(&name)?);
        bare::hold_ranges(&theirs, count as i64)?;
        let guards = guards.with_context(|| format!("cannot hold {count} ranges"))?;
        Ok(Self { lock, _guards: guards, ours, _theirs: theirs, free: 128 * count })
    }

    fn cycle(&self) {
        drop(self.lock.write(self.free..self.free + 64).wait());
    }

    fn system_cycle(&self) {
        bare::ofd_cycle(&self.ours, self.free as i64, 64);
    }
}

pub(super) fn held(place: &Place, runs: &Runs) -> Result<Vec<Row>> {
    let [none, few, many] = [0, FEW.0, MANY.0].map(|count| Held::new(place, count));
    let (none, few, many) = (none?, few?, many?);
    let [none_ns, few_ns, many_ns, few_fcntl_ns, many_fcntl_ns] = runs.take_turns([
        (CYCLES, &mut || none.cycle()),
        (CYCLES, &mut || few.cycle()),
        (CYCLES, &mut || many.cycle()),
        (CYCLES, &mut || few.system_cycle()),
        (CYCLES, &mut || many.system_cycle()),
    ]);
    let row =
        |what, ns, against, other_ns, bound| Row { what, ns, against, other_ns, bound, made_of: MADE_OF };
    let (few, many) = ("range, with 64 held", "range, with 1,024 held");
    Ok(vec![
        row(few, few_ns, "range, with none held", none_ns, Bound::AtMost(FEW.1)),
        row(many, many_ns, "range, with none held", none_ns, Bound::AtMost(MANY.1)),
        row(few, few_ns, "fcntl OFD, with 64 held", few_fcntl_ns, Bound::Faster(FEW.2)),
        row(many, many_ns, "fcntl OFD, with 1,024 held", many_fcntl_ns, Bound::Faster(MANY.2)),
    ])
}

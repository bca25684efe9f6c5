//! What clients of range locks ask for: the papers' patterns as data, and who draws requests from them.
//!
//! A plan without ranges asks for whole locks; that is a pattern here, too, so that a run has one way to pick.

use crate::plan::Plan;
use crate::rng::Rng;
use crate::zipf::Zipf;
use lockwright_fabric::observe::Mode;
use lockwright_locks::Want;
use std::rc::Rc;

/// Parts of locks instead of whole ones.
///
/// ```
/// use lockwright_sim::{Plan, Ranges};
/// // Citron §4.2: a third of the clients each.
/// let plan = Plan { locks: 1, zipf: 0.9, ranges: Some(Ranges::borders(1 << 28, &[1, 16, 256])), ..Plan::default() };
/// assert_eq!(plan.ranges.unwrap().units, 1 << 28);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    /// Units of every lock.
    pub units: u64,
    /// What is asked for.
    pub pattern: Pattern,
    /// How much longer a lock is held for every unit of it: what is protected by it takes its time.
    pub hold_per_unit_ns: u64,
}

/// What clients ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Ranges of fixed lengths; the plan's Zipf exponent is that of their left borders, and the lock is chosen
    /// uniformly.
    Borders {
        /// Lengths in units; client `i` always asks for the `i`-th, counted round.
        lengths: Vec<u64>,
        /// Left borders are multiples of this.
        step: u64,
    },
    /// From one random unit to another.
    Between,
    /// One file that all clients write side by side: the `j`-th request of client `i` is record `j · clients + i`.
    Interleaved {
        /// Bytes of a record.
        record_bytes: u64,
        /// Bytes of a unit.
        unit_bytes: u64,
    },
    /// A database as Filebench plays it.
    Oltp(Oltp),
}

/// Filebench's OLTP: readers and writers of data files, and one writer of a log file, in groups that share the
/// readers' count. With as many locks as files each file is a lock; with one lock, a stretch of it. The log is last.
/// Readers share, unless all of the plan's acquires are exclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Oltp {
    /// Readers of a group.
    pub readers: usize,
    /// Writers of a group, beside the one of the log.
    pub writers: usize,
    /// Data files.
    pub files: u64,
    /// Units of a read or a write.
    pub io_units: u64,
    /// Units of a write to the log.
    pub log_units: u64,
    /// Whether reads and writes begin at multiples of their length.
    pub aligned: bool,
    /// Every writer writes once for so many reads of its group.
    pub reads_per_write: u64,
    /// The log is written once for so many reads of its group.
    pub reads_per_log_write: u64,
    /// Readers go no further than this past a write that is due and not done.
    pub reads_ahead: u64,
}

impl Ranges {
    /// [`Pattern::Borders`] at any unit.
    pub fn borders(units: u64, lengths: &[u64]) -> Self {
        Self::of(units, Pattern::Borders { lengths: lengths.to_vec(), step: 1 })
    }

    /// `pattern` over `units` units.
    pub fn of(units: u64, pattern: Pattern) -> Self {
        Self { units, pattern, hold_per_unit_ns: 0 }
    }

    /// Whether every request fits into a lock.
    pub(crate) fn fit_locks(&self, locks: u64) -> bool {
        let fits = |length: &u64| (1..=self.units).contains(length);
        match &self.pattern {
            Pattern::Borders { lengths, step } => {
                !lengths.is_empty() && *step > 0 && lengths.iter().all(fits)
            }
            Pattern::Between => self.units > 0,
            Pattern::Interleaved { record_bytes, unit_bytes } => {
                *record_bytes > 0 && *unit_bytes > 0 && record_bytes.div_ceil(*unit_bytes) < self.units
            }
            Pattern::Oltp(oltp) => {
                let size = oltp.file_units(self.units, locks);
                (locks == 1 || locks == oltp.files + 1)
                    && oltp.readers > 0
                    && oltp.files > 0
                    && [oltp.io_units, oltp.log_units].iter().all(|length| (1..size).contains(length))
            }
        }
    }

    /// What the different kinds of clients are called.
    pub(crate) fn kinds(&self) -> Vec<String> {
        match &self.pattern {
            Pattern::Borders { lengths, .. } => {
                lengths.iter().map(|length| format!("{length} units")).collect()
            }
            Pattern::Between | Pattern::Interleaved { .. } => vec!["all".to_owned()],
            Pattern::Oltp(_) => [JOB_LOG, JOB_WRITER, JOB_READER].map(str::to_owned).to_vec(),
        }
    }
}

const JOB_LOG: &str = "log writer";
const JOB_WRITER: &str = "writer";
const JOB_READER: &str = "reader";

impl Oltp {
    fn file_units(&self, units: u64, locks: u64) -> u64 {
        if locks > 1 { units } else { units / (self.files + 1) }
    }

    fn group(&self) -> usize {
        1 + self.writers + self.readers
    }

    fn job(&self, index: usize) -> Job {
        match index % self.group() {
            0 => Job::Log,
            place if place <= self.writers => Job::Writer,
            _ => Job::Reader,
        }
    }
}

/// What a client is, in the OLTP pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Job {
    Log,
    Writer,
    Reader,
}

/// What the groups of a run have done.
#[derive(Clone, Debug, Default)]
pub(crate) struct Done(Vec<[u64; 3]>);

/// Draws one client's requests. Small: what is the same for all clients is in the caches once.
#[derive(Clone, Debug)]
pub(crate) enum Picker {
    Whole(Rc<Zipf>),
    Parts(Box<Parts>),
}

/// Draws ranges.
#[derive(Clone, Debug)]
pub(crate) struct Parts {
    draw: Draw,
    locks: u64,
    units: u64,
    hold_per_unit_ns: u64,
    kind: usize,
    group: usize,
    count: u64,
}

#[derive(Clone, Debug)]
enum Draw {
    Borders { zipf: Zipf, length: u64, step: u64 },
    Between,
    Interleaved { record_bytes: u64, unit_bytes: u64, index: u64, clients: u64 },
    Oltp(Oltp, Job),
}

impl Picker {
    /// For each of the clients of `plan`.
    pub(crate) fn all(plan: &Plan) -> Vec<Self> {
        let whole = Rc::new(Zipf::new(plan.locks, plan.zipf));
        let picker = |index| match &plan.ranges {
            None => Picker::Whole(Rc::clone(&whole)),
            Some(ranges) => Picker::Parts(Box::new(Parts::new(plan, ranges, index))),
        };
        (0..plan.clients).map(picker).collect()
    }

    /// Which kind of client this is, by its place in [`Ranges::kinds`].
    pub(crate) fn kind(&self) -> usize {
        if let Picker::Parts(parts) = self { parts.kind } else { 0 }
    }

    /// Whether it is this client's turn.
    pub(crate) fn is_due(&self, done: &Done) -> bool {
        if let Picker::Parts(parts) = self { parts.is_due(done) } else { true }
    }

    /// Takes note that a request is over.
    pub(crate) fn is_done(&self, done: &mut Done) {
        if let Picker::Parts(parts) = self {
            parts.is_done(done);
        }
    }

    /// How much longer than others a range is held.
    pub(crate) fn hold_ns(&self, want: &Want) -> u64 {
        if let Picker::Parts(parts) = self {
            parts.hold_per_unit_ns * (want.claim.end - want.claim.start)
        } else {
            0
        }
    }

    /// The next request; `writes` is the chance that it is exclusive.
    #[inline(always)]
    pub(crate) fn pick(&mut self, rng: &mut Rng, writes: f64) -> Want {
        match self {
            Picker::Whole(zipf) => {
                let lock = zipf.sample(rng);
                Want::whole(lock, mode(rng, writes))
            }
            Picker::Parts(parts) => parts.pick(rng, writes),
        }
    }
}

impl Parts {
    /// For the client numbered `index` of `plan`, which asks for `ranges`.
    fn new(plan: &Plan, ranges: &Ranges, index: usize) -> Self {
        let mut picker = Self {
            draw: Draw::Between,
            locks: plan.locks,
            units: ranges.units,
            hold_per_unit_ns: ranges.hold_per_unit_ns,
            kind: 0,
            group: 0,
            count: 0,
        };
        picker.draw = match &ranges.pattern {
            Pattern::Borders { lengths, step } => {
                picker.kind = index % lengths.len();
                let length = lengths[picker.kind];
                let borders = (ranges.units - length) / step + 1;
                Draw::Borders { zipf: Zipf::new(borders, plan.zipf), length, step: *step }
            }
            Pattern::Between => Draw::Between,
            Pattern::Interleaved { record_bytes, unit_bytes } => Draw::Interleaved {
                record_bytes: *record_bytes,
                unit_bytes: *unit_bytes,
                index: index as u64,
                clients: plan.clients as u64,
            },
            Pattern::Oltp(oltp) => {
                let job = oltp.job(index);
                (picker.kind, picker.group) = (job as usize, index / oltp.group());
                Draw::Oltp(oltp.clone(), job)
            }
        };
        picker
    }

    fn is_due(&self, done: &Done) -> bool {
        let Draw::Oltp(oltp, job) = &self.draw else { return true };
        let [logs, writes, reads] = done.0.get(self.group).copied().unwrap_or_default();
        match job {
            Job::Log => self.count * oltp.reads_per_log_write <= reads,
            Job::Writer => self.count * oltp.reads_per_write <= reads,
            Job::Reader => {
                let rounds = if oltp.writers == 0 { u64::MAX } else { writes / oltp.writers as u64 };
                let limit = |rounds: u64, each: u64| {
                    rounds.saturating_add(1).saturating_mul(each).saturating_add(oltp.reads_ahead)
                };
                reads < limit(rounds, oltp.reads_per_write).min(limit(logs, oltp.reads_per_log_write))
            }
        }
    }

    fn is_done(&self, done: &mut Done) {
        if let Draw::Oltp(_, job) = &self.draw {
            if done.0.len() <= self.group {
                done.0.resize(self.group + 1, [0; 3]);
            }
            done.0[self.group][*job as usize] += 1;
        }
    }

    fn pick(&mut self, rng: &mut Rng, writes: f64) -> Want {
        self.count += 1;
        let units = self.units;
        match &self.draw {
            Draw::Borders { zipf, length, step } => {
                let start = zipf.sample(rng) * step;
                let mode = mode(rng, writes);
                Want::range(rng.below(self.locks), mode, start, start + length)
            }
            Draw::Between => {
                let (a, b) = (rng.below(units), rng.below(units));
                let mode = mode(rng, writes);
                Want::range(rng.below(self.locks), mode, a.min(b), a.max(b) + 1)
            }
            Draw::Interleaved { record_bytes, unit_bytes, index, clients } => {
                let record = ((self.count - 1) * clients + index) % (units * unit_bytes / record_bytes);
                let start = record * record_bytes / unit_bytes;
                let end = ((record + 1) * record_bytes).div_ceil(*unit_bytes);
                Want::range(0, mode(rng, writes), start, end)
            }
            Draw::Oltp(oltp, job) => {
                let file = match job {
                    Job::Log => oltp.files,
                    Job::Writer => (self.count - 1) % oltp.files,
                    Job::Reader => rng.below(oltp.files),
                };
                let mode = if *job == Job::Reader && writes < 1.0 { Mode::Shared } else { Mode::Exclusive };
                let length = if *job == Job::Log { oltp.log_units } else { oltp.io_units };
                let size = oltp.file_units(units, self.locks);
                let start =
                    if oltp.aligned { rng.below(size / length) * length } else { rng.below(size - length) };
                let (lock, base) = if self.locks > 1 { (file, 0) } else { (0, file * size) };
                Want::range(lock, mode, base + start, base + start + length)
            }
        }
    }
}

#[inline]
fn mode(rng: &mut Rng, writes: f64) -> Mode {
    let exclusive = writes >= 1.0 || rng.chance(writes);
    if exclusive { Mode::Exclusive } else { Mode::Shared }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan(units: u64, pattern: Pattern) -> Plan {
        Plan { clients: 4, locks: 1, ranges: Some(Ranges::of(units, pattern)), ..Plan::default() }
    }

    #[test]
    fn records_lie_side_by_side_and_cover_the_units_they_touch() {
        let plan = plan(100, Pattern::Interleaved { record_bytes: 10, unit_bytes: 4 });
        let mut rng = Rng::new(1, 0);
        let claim = |index: usize, count: usize, rng: &mut Rng| {
            let mut picker = Picker::all(&plan).swap_remove(index);
            for _ in 1..count {
                picker.pick(rng, 1.0);
            }
            let claim = picker.pick(rng, 1.0).claim;
            (claim.start, claim.end)
        };
        assert_eq!(claim(0, 1, &mut rng), (0, 3));
        assert_eq!(claim(1, 1, &mut rng), (2, 5));
        assert_eq!(claim(0, 2, &mut rng), (10, 13));
    }

    #[test]
    fn writers_wait_for_reads_and_readers_do_not_run_away() {
        let oltp = Oltp {
            readers: 2,
            writers: 1,
            files: 2,
            io_units: 2,
            log_units: 8,
            aligned: true,
            reads_per_write: 10,
            reads_per_log_write: 100,
            reads_ahead: 5,
        };
        let plan = plan(60, Pattern::Oltp(oltp));
        assert!(plan.ranges.as_ref().unwrap().fit_locks(1));
        let mut rng = Rng::new(1, 0);
        let mut pickers = Picker::all(&plan);
        let mut done = Done::default();
        let log = pickers[0].pick(&mut rng, 0.0).claim;
        assert_eq!((log.start / 20, log.end - log.start, log.mode), (2, 8, Mode::Exclusive));
        let write = pickers[1].pick(&mut rng, 0.0).claim;
        assert_eq!((write.start / 20, write.start % 2), (0, 0));
        assert!(!pickers[1].is_due(&done), "the next write is due after ten reads");
        let mut reads = 0;
        while pickers[2].is_due(&done) {
            let read = pickers[2].pick(&mut rng, 0.0).claim;
            assert_eq!((read.mode, read.end - read.start), (Mode::Shared, 2));
            pickers[2].is_done(&mut done);
            reads += 1;
        }
        assert_eq!(reads, 15, "no write was done, so ten and five more");
        assert!(pickers[1].is_due(&done));
        pickers[1].is_done(&mut done);
        assert!(pickers[3].is_due(&done));
    }
}

//! Timing: medians of many short runs, with all that is to be compared taking turns, so that whatever disturbs the machine
//! disturbs all alike.

use std::time::Instant;

/// How often things are measured.
#[derive(Debug)]
pub(super) struct Runs {
    /// Of things that take nanoseconds.
    pub(super) runs: usize,
    /// Of handovers: many, because most of them are disturbed on a busy machine.
    pub(super) plays: usize,
    /// Of a server that is flooded, which takes seconds.
    pub(super) floods: usize,
}

impl Runs {
    pub(super) fn new(quick: bool) -> Self {
        if quick {
            Self { runs: 21, plays: 101, floods: 1 }
        } else {
            Self { runs: 201, plays: 1001, floods: 3 }
        }
    }

    /// Whether fewer runs were asked for.
    #[cfg(feature = "rdma")]
    pub(super) const fn is_quick(&self) -> bool {
        self.runs < 201
    }

    /// The median time of one cycle of each contender, who take turns; `.0` is how many cycles make a run.
    pub(super) fn take_turns<const N: usize>(
        &self,
        mut contenders: [(u32, &mut dyn FnMut()); N],
    ) -> [f64; N] {
        let mut times = [const { Vec::new() }; N];
        for run in 0..=self.runs {
            for ((cycles, contender), times) in contenders.iter_mut().zip(&mut times) {
                let began = Instant::now();
                for _ in 0..*cycles {
                    contender();
                }
                // The first run warms up.
                if run > 0 {
                    times.push(began.elapsed().as_nanos() as f64 / f64::from(*cycles));
                }
            }
        }
        times.map(median)
    }
}

pub(super) fn median(mut times: Vec<f64>) -> f64 {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied().unwrap_or(f64::NAN)
}

/// What else this machine did just before, if that is too much for figures.
pub(super) fn busy() -> Option<String> {
    let load = std::fs::read_to_string("/proc/loadavg").ok()?;
    let load: f64 = load.split(' ').next()?.parse().ok()?;
    let cores = std::thread::available_parallelism().ok()?.get();
    (load >= 0.5 * cores as f64).then(|| format!("the machine was busy (load {load} on {cores} cores)"))
}

//! What clients do: the workloads, and how their cycles are counted.
//!
//! | workload | each client | runs where the peer has |
//! |---|---|---|
//! | own name | locks and unlocks a name of its own | locks |
//! | hot name | locks and unlocks the same name as all others | locks |
//! | zipf | locks and unlocks one of a million names, chosen by Zipf's law with 0.99; some writes, the rest reads; counted when warm | readers |
//! | ranges | locks and unlocks a range of at most 64 of 4,096 units | ranges |
//! | bank | moves money between two of a thousand accounts with both locked, in the order of their names, as a set where the peer has that | locks |
//!
//! The bank's balances are plain words that are read and written back: if two clients ever hold an account at once, money is made
//! or lost, and the run fails.

use super::{Locker, Mode, Peer};
use anyhow::{Result, ensure};
use lockwright_fabric::random::SplitMix;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Barrier, OnceLock};
use std::time::{Duration, Instant};

/// Names that Zipf's law chooses from.
pub(super) const NAMES: u64 = 1_000_000;
/// How they are called, before their number.
pub(super) const ZIPF: &str = "zipf-";
/// Its exponent, and the bank's accounts.
const EXPONENT: f64 = 0.99;
const ACCOUNTS: usize = 1000;
const BALANCE: u64 = 1000;
/// Units of the range lock, and the longest range.
const UNITS: u64 = 4096;
const LONGEST: u64 = 64;

/// See the module. The number is that of clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Workload {
    Own(usize),
    Hot(usize),
    Zipf { clients: usize, writes_percent: u64 },
    Ranges(usize),
    Bank(usize),
}

impl Workload {
    const fn clients(self) -> usize {
        match self {
            Self::Own(clients) | Self::Hot(clients) | Self::Ranges(clients) | Self::Bank(clients) => clients,
            Self::Zipf { clients, .. } => clients,
        }
    }

    pub(super) fn text(self) -> String {
        match self {
            Self::Own(clients) => format!("own name, {clients}"),
            Self::Hot(clients) => format!("hot name, {clients}"),
            Self::Zipf { clients, writes_percent } => format!("zipf {writes_percent} % writes, {clients}"),
            Self::Ranges(clients) => format!("ranges, {clients}"),
            Self::Bank(clients) => format!("bank, {clients}"),
        }
    }

    /// How long clients work before they are counted for `time`. Which names stay with whom takes a while to be found out.
    fn warms_up(self, time: Duration) -> Duration {
        if matches!(self, Self::Zipf { .. }) {
            time.max(Duration::from_millis(1500).min(3 * time))
        } else {
            Duration::ZERO
        }
    }

    /// Whether `peer` has what this needs.
    pub(super) fn runs_on(self, peer: &dyn Peer) -> bool {
        let offers = peer.offers();
        match self {
            Self::Own(_) | Self::Bank(_) => true,
            Self::Hot(_) => offers.waits,
            Self::Zipf { .. } => offers.readers,
            Self::Ranges(_) => offers.ranges,
        }
    }
}

struct Random(SplitMix);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0.below(bound)
    }

    /// One of [`NAMES`], by the method of Gray et al., "Quickly generating billion-record synthetic databases", as in YCSB.
    fn zipf(&mut self) -> u64 {
        static ZETA: OnceLock<f64> = OnceLock::new();
        let zeta = *ZETA.get_or_init(|| (1..=NAMES).map(|rank| (rank as f64).powf(-EXPONENT)).sum());
        let zeta_2 = 1.0 + 0.5_f64.powf(EXPONENT);
        let uniform = self.0.next() as f64 / u64::MAX as f64;
        let scaled = uniform * zeta;
        if scaled < 1.0 {
            return 0;
        }
        if scaled < zeta_2 {
            return 1;
        }
        let eta = (1.0 - (2.0 / NAMES as f64).powf(1.0 - EXPONENT)) / (1.0 - zeta_2 / zeta);
        let rank = NAMES as f64 * (eta * uniform - eta + 1.0).powf(1.0 / (1.0 - EXPONENT));
        (rank as u64).min(NAMES - 1)
    }
}

/// What the clients of a run share.
struct Run {
    workload: Workload,
    begun: Barrier,
    /// Cycles count from now on.
    warm: AtomicBool,
    stop: AtomicBool,
    balances: Vec<AtomicU64>,
}

/// Cycles per second of all clients together.
pub(super) fn rate(peer: &dyn Peer, workload: Workload, time: Duration) -> Result<f64> {
    let accounts = if matches!(workload, Workload::Bank(_)) { ACCOUNTS } else { 0 };
    let run = Run {
        workload,
        begun: Barrier::new(workload.clients() + 1),
        warm: AtomicBool::new(false),
        stop: AtomicBool::new(false),
        balances: (0..accounts).map(|_| AtomicU64::new(BALANCE)).collect(),
    };
    let rate = std::thread::scope(|scope| {
        let clients: Vec<_> = (0..workload.clients())
            .map(|number| {
                let run = &run;
                scope.spawn(move || -> Result<u64> {
                    let locker = peer.connect();
                    run.begun.wait();
                    run.work(&mut *locker?, number)
                })
            })
            .collect();
        run.begun.wait();
        std::thread::sleep(workload.warms_up(time));
        run.warm.store(true, Relaxed);
        let began = Instant::now();
        std::thread::sleep(time);
        run.stop.store(true, Relaxed);
        let took = began.elapsed().as_secs_f64();
        let mut all = 0;
        for client in clients {
            all += client.join().expect("it does not panic")?;
        }
        Ok::<_, anyhow::Error>(all as f64 / took)
    })?;
    let sum: u64 = run.balances.iter().map(|balance| balance.load(Relaxed)).sum();
    ensure!(
        sum == accounts as u64 * BALANCE,
        "the bank has {sum} and should have {}",
        accounts as u64 * BALANCE
    );
    Ok(rate)
}

impl Run {
    /// What client `number` does: how many cycles it did.
    fn work(&self, locker: &mut dyn Locker, number: usize) -> Result<u64> {
        let mut random = Random(SplitMix::new(number as u64 + 1));
        let name = match self.workload {
            Workload::Own(_) => format!("own-{number}"),
            _ => "hot".to_owned(),
        };
        let (mut cycles, mut warm) = (0, false);
        // Every client does one cycle at least: on a busy machine a short window may be over before a thread has begun.
        loop {
            if !warm && self.warm.load(Relaxed) {
                (cycles, warm) = (0, true);
            }
            match self.workload {
                Workload::Own(_) | Workload::Hot(_) => {
                    locker.lock(&name, Mode::Exclusive)?;
                    locker.unlock(&name, Mode::Exclusive)?;
                }
                Workload::Zipf { writes_percent, .. } => {
                    let name = format!("{ZIPF}{}", random.zipf());
                    let mode =
                        if random.below(100) < writes_percent { Mode::Exclusive } else { Mode::Shared };
                    locker.lock(&name, mode)?;
                    locker.unlock(&name, mode)?;
                }
                Workload::Ranges(_) => {
                    let start = random.below(UNITS - LONGEST);
                    let range = start..start + 1 + random.below(LONGEST);
                    locker.lock_range(&range)?;
                    locker.unlock_range(&range)?;
                }
                Workload::Bank(_) => self.transfer(locker, &mut random)?,
            }
            cycles += 1;
            if self.stop.load(Relaxed) {
                return Ok(cycles);
            }
        }
    }

    /// Two-phase locking: both accounts, then the transfer, then both are unlocked.
    fn transfer(&self, locker: &mut dyn Locker, random: &mut Random) -> Result<()> {
        let from = random.below(ACCOUNTS as u64) as usize;
        let to = (from + 1 + random.below(ACCOUNTS as u64 - 1) as usize) % ACCOUNTS;
        let names = [from.min(to), from.max(to)].map(|account| format!("account-{account:04}"));
        locker.lock_all(&names)?;
        let balances = [from, to].map(|account| self.balances[account].load(Relaxed));
        let amount = balances[0].min(1 + random.below(100));
        self.balances[from].store(balances[0] - amount, Relaxed);
        self.balances[to].store(balances[1] + amount, Relaxed);
        locker.unlock_all(&names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_wanted_name_has_the_share_that_zipfs_law_gives_it() {
        let mut random = Random(SplitMix::new(1));
        let first = (0..100_000).filter(|_| random.zipf() == 0).count();
        // 1 / (the sum of rank^-0.99 over a million ranks) = 6.5 %.
        assert!((6_000..7_000).contains(&first), "{first}");
        assert!((0..100_000).all(|_| random.zipf() < NAMES));
    }
}

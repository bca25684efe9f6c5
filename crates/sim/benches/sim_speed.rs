//! How fast the simulator is: verbs per second of real time, and how much memory it needs beside the locks'.
//!
//! `cargo bench -p lockwright-sim --bench sim_speed [-- OPS]`. 240 clients, ten million 16-byte locks, Zipf 0.99.

use lockwright_fabric::{Endpoint, Needs, Word128};
use lockwright_locks::case::Case;
use lockwright_locks::{Denied, Info, LockClient, Lost, Offers, Protocol, Space, TokenGrant, Want};
use lockwright_sim::{Plan, run};
use std::time::Instant;

/// A ticket lock in one 16-byte word: masked fetch-and-add takes a ticket (low half), another calls the next
/// (high half). Waiters poll. As many verbs as a real lock's, and little else.
struct Ticket16;

const TAKE: u128 = 1;
const CALL: u128 = 1 << 64;
const TOPS: u128 = (1 << 63) | (1 << 127);

impl Protocol for Ticket16 {
    type Params = ();
    type Client<E: Endpoint> = Ticket16Client<E>;
    const INFO: Info = Info {
        name: "ticket16",
        summary: "a ticket lock for the benchmark",
        source: "none",
        offers: Offers::NONE,
    };
    fn needs((): &()) -> Needs {
        Needs { masked: true, wide: true, ..Needs::default() }
    }
    fn bytes_per_node(space: &Space, (): &()) -> u64 {
        space.table_bytes(16)
    }
    fn client<E: Endpoint>(ep: E, space: &Space, (): &()) -> Ticket16Client<E> {
        Ticket16Client { ep, space: *space }
    }
    fn quiet_mask(_: &Space, (): &(), _: lockwright_fabric::Addr) -> u64 {
        0
    }
    fn cases() -> Vec<Case<()>> {
        Vec::new()
    }
}

struct Ticket16Client<E> {
    ep: E,
    space: Space,
}

impl<E: Endpoint> Ticket16Client<E> {
    fn word(&self, lock: u64) -> Word128 {
        Word128::at(self.space.place(lock, 16))
    }
}

impl<E: Endpoint> LockClient for Ticket16Client<E> {
    type Grant = TokenGrant;

    async fn acquire(&self, want: Want) -> Result<TokenGrant, Denied> {
        let word = self.word(want.claim.lock);
        let old = self.ep.go(word.masked_fetch_add(TAKE, TOPS)).await?;
        let ticket = old as u64;
        if (old >> 64) as u64 != ticket {
            let mask = u128::from(u64::MAX) << 64;
            let mine = lockwright_fabric::Cond::Eq { mask, value: u128::from(ticket) << 64 };
            self.ep.wait_until(word.until(mine)).await?;
        }
        Ok(TokenGrant { lock: want.claim.lock, token: None })
    }

    async fn release(&self, grant: TokenGrant) -> Result<(), Lost> {
        self.ep.go(self.word(grant.lock).masked_fetch_add(CALL, TOPS)).await?;
        Ok(())
    }
}

fn main() {
    let ops = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(4_000_000);
    let plan = Plan { clients: 240, locks: 10_000_000, zipf: 0.99, ops, ..Plan::default() };
    let lock_mb = plan.locks as f64 * 16.0 / 1e6;
    #[expect(clippy::disallowed_methods, reason = "the run itself is timed, not what happens in it")]
    let began = Instant::now();
    let report = run::<Ticket16>(&plan, &()).unwrap_or_else(|failure| panic!("{failure}"));
    let seconds = began.elapsed().as_secs_f64();
    println!("verbs           {}", report.total_verbs);
    println!("seconds         {seconds:.2}");
    println!("verbs/s         {:.2} M", report.total_verbs as f64 / seconds / 1e6);
    println!("virtual goodput {:.2} M cycles/s", report.goodput_per_s / 1e6);
    println!("reads per cycle {:.2}", report.per_cycle.reads);
    match peak_rss_mb() {
        Some(peak) => println!("peak RSS        {peak:.0} MB, of which locks {lock_mb:.0} MB"),
        None => println!("peak RSS        not known on this system"),
    }
}

/// The most memory this process had, as Linux counts it.
fn peak_rss_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

//! How fast the simulator is: verbs per second of real time, and how much memory it needs beside the locks'.
//!
//! `cargo bench -p lockwright-sim --bench sim_speed [-- OPS] [NAME]`. 240 clients, ten million 16-byte locks, Zipf 0.99.

#![expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]

use lockwright_fabric::{Endpoint, Message, Needs, PeerId, Word128};
use lockwright_locks::{Denied, Info, LockClient, Lost, Offers, Protocol, Space, TokenGrant, Want};
use lockwright_sim::{Plan, run};
use std::time::Instant;

/// A ticket lock in one 16-byte word: masked fetch-and-add takes a ticket (low half), another calls the next
/// (high half). Waiters poll, so a contended lock costs many READs.
struct Ticket16;

/// A queue in one 16-byte word (low half: the last in the queue; high half: releases), as MCS with messages.
struct Queue16;

const TAKE: u128 = 1;
const CALL: u128 = 1 << 64;
const TOPS: u128 = (1 << 63) | (1 << 127);
const LOW: u128 = u64::MAX as u128;
const SUCCESSOR: u32 = 1;
const HANDOVER: u32 = 2;

macro_rules! wide_lock {
    ($lock:ident, $client:ident, $name:literal) => {
        impl Protocol for $lock {
            type Params = ();
            type Client<E: Endpoint> = $client<E>;
            const INFO: Info = Info {
                name: $name,
                summary: "a 16-byte lock for the benchmark",
                source: "none",
                offers: Offers::NONE,
            };
            fn needs((): &()) -> Needs {
                Needs { masked: true, wide: true, ..Needs::default() }
            }
            fn bytes_per_node(space: &Space, (): &()) -> u64 {
                space.table_bytes(16)
            }
            fn client<E: Endpoint>(ep: E, space: &Space, (): &()) -> $client<E> {
                $client { ep, space: *space }
            }
            fn quiet_mask(_: &Space, (): &(), _: lockwright_fabric::Addr) -> u64 {
                0
            }
        }

        struct $client<E> {
            ep: E,
            space: Space,
        }

        impl<E: Endpoint> $client<E> {
            fn word(&self, lock: u64) -> Word128 {
                Word128::at(self.space.place(lock, 16))
            }
        }
    };
}

wide_lock!(Ticket16, TicketClient, "ticket16");
wide_lock!(Queue16, QueueClient, "queue16");

impl<E: Endpoint> LockClient for TicketClient<E> {
    type Grant = TokenGrant;

    async fn acquire(&self, want: Want) -> Result<TokenGrant, Denied> {
        let word = self.word(want.claim.lock);
        let old = self.ep.go(word.masked_fetch_add(TAKE, TOPS)).await?;
        let ticket = old & LOW;
        if old >> 64 != ticket {
            let mine = lockwright_fabric::Cond::Eq { mask: !LOW, value: ticket << 64 };
            self.ep.wait_until(word.until(mine)).await?;
        }
        Ok(TokenGrant { lock: want.claim.lock, token: None })
    }

    async fn release(&self, grant: TokenGrant) -> Result<(), Lost> {
        self.ep.go(self.word(grant.lock).masked_fetch_add(CALL, TOPS)).await?;
        Ok(())
    }
}

impl<E: Endpoint> LockClient for QueueClient<E> {
    type Grant = TokenGrant;

    async fn acquire(&self, want: Want) -> Result<TokenGrant, Denied> {
        let lock = want.claim.lock;
        let me = u128::from(self.ep.me().0);
        let last = self.ep.go(self.word(lock).masked_cas(0, 0, me, LOW)).await? & LOW;
        if last != 0 {
            let message = Message::new(lock, SUCCESSOR, &[me as u64]);
            self.ep.send(PeerId(last as u32), message).await?;
            self.ep.recv(|_, m| (m.lock == lock && m.kind == HANDOVER).then_some(())).await;
        }
        Ok(TokenGrant { lock, token: None })
    }

    async fn release(&self, grant: TokenGrant) -> Result<(), Lost> {
        let lock = grant.lock;
        let me = u128::from(self.ep.me().0);
        if self.ep.go(self.word(lock).masked_cas(me, LOW, 0, LOW)).await? & LOW != me {
            let is_successor = |_, m: &Message| (m.lock == lock && m.kind == SUCCESSOR).then(|| m.words[0]);
            let next = self.ep.recv(is_successor).await;
            self.ep.send(PeerId(next as u32), Message::new(lock, HANDOVER, &[])).await?;
        }
        Ok(())
    }
}

fn main() {
    let ops = std::env::args().skip(1).find_map(|arg| arg.parse().ok()).unwrap_or(1_000_000);
    measure::<Ticket16>(ops);
    measure::<Queue16>(4 * ops);
    match peak_rss_mb() {
        Some(peak) => println!("peak RSS {peak:.0} MB, of which locks 160 MB"),
        None => println!("peak RSS not known on this system"),
    }
}

fn measure<P: Protocol>(ops: u64) {
    let mut picks = std::env::args().skip(1).filter(|word| word.starts_with(char::is_alphabetic)).peekable();
    if picks.peek().is_some() && !picks.any(|word| P::INFO.name.contains(&word)) {
        return;
    }
    let plan = Plan { clients: 240, locks: 10_000_000, zipf: 0.99, ops, ..Plan::default() };
    let (began, cpu_began) = (Instant::now(), cpu_seconds());
    let report = run::<P>(&plan, &P::Params::default()).unwrap_or_else(|failure| panic!("{failure}"));
    // Of one core: on a machine that others use too, the clock on the wall measures them.
    let wall = began.elapsed().as_secs_f64();
    let seconds = cpu_seconds().zip(cpu_began).map_or(wall, |(now, then)| now - then);
    println!(
        "{}: {:.2} M verbs/s ({} verbs and {:.0} messages in {seconds:.2} s of CPU, {wall:.2} s of time; {:.2} READs per cycle)",
        report.protocol,
        report.total_verbs as f64 / seconds / 1e6,
        report.total_verbs,
        report.per_cycle.messages * report.cycles as f64,
        report.per_cycle.reads,
    );
}

/// CPU time of this process so far, as Linux counts it, in hundredths of a second.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    let fields: Vec<&str> = stat.rsplit(')').next()?.split_whitespace().collect();
    let ticks: f64 = fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?;
    Some(ticks / 100.0)
}

/// The most memory this process had, as Linux counts it.
fn peak_rss_mb() -> Option<f64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmHWM:"))?;
    let kib: f64 = line.split_whitespace().nth(1)?.parse().ok()?;
    Some(kib * 1024.0 / 1e6)
}

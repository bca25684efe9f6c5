//! TPC-C's lock requests: five transactions of a wholesale supplier (FissLock Table 3).
//!
//! A lock stands for a stretch of rows (FissLock §7.1), 100 locks per warehouse: the warehouse, 10 districts, 3 stretches
//! of customers and one each of orders and of history per district, 39 stretches of stock. 605 warehouses make the
//! traces' 60,490 locks (those that are touched); hardly more than two clients have the same home warehouse.
//!
//! | type | share | locks, `paper` |
//! |---|---|---|
//! | NEW new order | 45 % | W r, D w, C r, O w, 8–12 × stock w (1 % of them elsewhere); `spec`: 5–15 |
//! | PAY payment | 43 % | W w, D w, C w (15 % elsewhere), H w |
//! | DLY delivery | 4 % | O w of every district |
//! | OS order status | 4 % | C r, D r, O r |
//! | SL stock level | 4 % | D r, 3–4 × stock r |
//!
//! Shape of the papers' traces: 8.716 locks per transaction, at most 16, 13.6 % shared; NEW takes 14 and PAY 4.

use super::{Profile, Txn};
use lockwright_locks::Want;
use lockwright_sim::Rng;

/// A supplier.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Tpcc {
    pub(crate) profile: Profile,
    pub(crate) warehouses: u64,
    /// How long a transaction works: about 10 µs in FissLock §7.1, 7 µs in ShiftLock.
    pub(crate) work_ns: u64,
    /// Every transaction is for another of the machine's warehouses, not always for the client's own.
    pub(crate) roams: bool,
}

const PER_WAREHOUSE: u64 = 100;
const DISTRICTS: u64 = 10;
const CUSTOMER_STRETCHES: u64 = 3;
const STOCK_STRETCHES: u64 = 39;
/// Where a warehouse's locks begin, table by table.
const DISTRICT: u64 = 1;
const CUSTOMER: u64 = DISTRICT + DISTRICTS;
const ORDER: u64 = CUSTOMER + DISTRICTS * CUSTOMER_STRETCHES;
const HISTORY: u64 = ORDER + DISTRICTS;
const STOCK: u64 = HISTORY + DISTRICTS;
const _: () = assert!(STOCK + STOCK_STRETCHES == PER_WAREHOUSE);

impl Tpcc {
    /// As many warehouses as the traces have.
    pub(crate) const fn new(profile: Profile, work_ns: u64) -> Self {
        Self { profile, warehouses: 605, work_ns, roams: false }
    }

    pub(crate) const fn locks(&self) -> u64 {
        self.warehouses * PER_WAREHOUSE
    }

    /// The client's warehouse: one of its machine's, so that a manager that partitions locks by warehouse finds most
    /// requests at home.
    fn home(&self, (client, machine, machines): (usize, usize, usize)) -> u64 {
        let (first, here) = self.of_machine(machine, machines);
        (first + (client / machines) as u64 % here).min(self.warehouses - 1)
    }

    /// The first warehouse of a machine, and how many it has.
    fn of_machine(&self, machine: usize, machines: usize) -> (u64, u64) {
        let each = self.warehouses.div_ceil(machines as u64);
        let first = machine as u64 * each;
        (first, each.min(self.warehouses.saturating_sub(first)).max(1))
    }

    fn other(&self, home: u64, rng: &mut Rng) -> u64 {
        (home + 1 + rng.below(self.warehouses - 1)) % self.warehouses
    }

    /// The next transaction of the client at `place`: its number, its machine, and how many machines there are.
    pub(crate) fn next(&self, rng: &mut Rng, place: (usize, usize, usize)) -> Txn {
        let w = if self.roams {
            let (first, here) = self.of_machine(place.1, place.2);
            (first + rng.below(here)).min(self.warehouses - 1)
        } else {
            self.home(place)
        };
        let lock = |warehouse: u64, at: u64| warehouse * PER_WAREHOUSE + at;
        let (read, write) = (Want::shared, Want::exclusive);
        let d = rng.below(DISTRICTS);
        let customer = |rng: &mut Rng| CUSTOMER + d * CUSTOMER_STRETCHES + rng.below(CUSTOMER_STRETCHES);
        let (kind, wants) = match rng.below(100) {
            0..45 => {
                let mut wants = vec![
                    read(lock(w, 0)),
                    write(lock(w, DISTRICT + d)),
                    read(lock(w, customer(rng))),
                    write(lock(w, ORDER + d)),
                ];
                let items = match self.profile {
                    Profile::Paper => 8 + rng.below(5),
                    Profile::Spec => 5 + rng.below(11),
                };
                let mut stock = Vec::new();
                while (stock.len() as u64) < items {
                    let warehouse = if rng.chance(0.01) { self.other(w, rng) } else { w };
                    let stretch = lock(warehouse, STOCK + rng.below(STOCK_STRETCHES));
                    // Two items of one stretch take one lock; the traces count distinct ones.
                    if !stock.contains(&stretch) {
                        stock.push(stretch);
                    }
                }
                wants.extend(stock.into_iter().map(write));
                ("NEW", wants)
            }
            45..88 => {
                let elsewhere = if rng.chance(0.15) { self.other(w, rng) } else { w };
                let wants = vec![
                    write(lock(w, 0)),
                    write(lock(w, DISTRICT + d)),
                    write(lock(elsewhere, customer(rng))),
                    write(lock(w, HISTORY + d)),
                ];
                ("PAY", wants)
            }
            88..92 => ("DLY", (0..DISTRICTS).map(|d| write(lock(w, ORDER + d))).collect()),
            92..96 => {
                let wants =
                    vec![read(lock(w, DISTRICT + d)), read(lock(w, customer(rng))), read(lock(w, ORDER + d))];
                ("OS", wants)
            }
            _ => {
                let mut wants = vec![read(lock(w, DISTRICT + d))];
                let (first, stretches) = (rng.below(STOCK_STRETCHES), 3 + rng.below(2));
                wants.extend((0..stretches).map(|n| read(lock(w, STOCK + (first + n) % STOCK_STRETCHES))));
                ("SL", wants)
            }
        };
        Txn { kind, wants, work_ns: self.work_ns }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Workload, shape};
    use super::*;

    #[test]
    fn the_paper_s_profile_has_the_shape_of_the_papers_traces() {
        let shape = shape(&Workload::Tpcc(Tpcc::new(Profile::Paper, 0)), 200_000);
        assert!((shape.locks_per_txn - 8.716).abs() < 0.1, "{shape:?}");
        assert!((shape.shared_percent - 13.6).abs() < 1.0, "{shape:?}");
        assert_eq!(shape.most_locks, 16);
    }

    #[test]
    fn nearly_all_locks_are_of_the_client_s_own_warehouse() {
        let tpcc = Tpcc::new(Profile::Paper, 0);
        let mut rng = Rng::new(3, 4);
        let (mut here, mut all) = (0, 0);
        for _ in 0..10_000 {
            for want in tpcc.next(&mut rng, (17, 1, 8)).wants {
                all += 1;
                here += usize::from(want.claim.lock / PER_WAREHOUSE == tpcc.home((17, 1, 8)));
            }
        }
        assert!(here as f64 / f64::from(all) > 0.95);
    }
}

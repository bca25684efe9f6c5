//! Stress: many clients at once on a few words, with verbs whose fields overlap; [`history`](super::history) checks what they
//! saw.

use super::history::{History, Seen};
use super::{Rig, Shape, Task, alone, task, verbs::random_op};
use crate::addr::{Addr, NodeId, Value, Word};
use crate::capability::Capabilities;
use crate::endpoint::Endpoint;
use crate::random::SplitMix;
use crate::verb::{MaskedCas, Op, RawVerb};
use crate::wait::{Cond, Deadline, Field};
use std::sync::{Arc, Mutex};

/// Parameters of a stress run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Storm {
    /// Clients.
    pub clients: usize,
    /// Verbs of each.
    pub verbs: usize,
    /// Words they share.
    pub words: usize,
    /// Decides all operands.
    pub seed: u64,
}

impl Default for Storm {
    fn default() -> Self {
        Self { clients: 4, verbs: 1500, words: 3, seed: 1 }
    }
}

type Log = Arc<Mutex<Vec<Vec<Vec<Seen>>>>>;

/// Runs random verbs on words of type `T` and returns the history of each word. None if the fabric lacks 16-byte words.
///
/// # Panics
/// If a verb fails.
pub fn blow<R: Rig, T: Value>(make: &impl Fn(Shape) -> R, storm: Storm) -> Vec<History> {
    let Storm { clients, words, .. } = storm;
    let mut rig = make(Shape::of(clients));
    let log: Log = Arc::new(Mutex::new(vec![vec![Vec::new(); clients]; words]));
    rig.run((0..clients).map(|client| blower::<R, T>(storm, client, Arc::clone(&log))).collect());
    let lasts = alone(&mut rig, move |ep: R::E| async move {
        // Where there are no such words, nothing was done to them.
        if T::WIDTH == u128::WIDTH && !ep.capabilities().wide {
            return vec![0; words];
        }
        let mut lasts = Vec::new();
        for index in 0..words {
            lasts.push(ep.go(word::<T>(index).read()).await.expect("the node is alive").widen());
        }
        lasts
    });
    let log = std::mem::take(&mut *log.lock().expect("nobody panicked"));
    std::iter::zip(log, lasts)
        .map(|(clients, last)| History { width: T::WIDTH, first: 0, last, clients })
        .collect()
}

fn word<T: Value>(index: usize) -> Word<T> {
    Word::at(Addr::new(NodeId(0), 16 * index as u64))
}

fn blower<R: Rig, T: Value>(storm: Storm, client: usize, log: Log) -> Task<R::E> {
    task(move |ep: R::E| async move {
        let mut random = SplitMix::new(storm.seed.wrapping_mul(1000) + client as u64);
        let mut seen = vec![0; storm.words];
        let mut mine = vec![Vec::new(); storm.words];
        let has = ep.capabilities();
        if T::WIDTH == u128::WIDTH && !has.wide {
            return;
        }
        for _ in 0..storm.verbs {
            let index = random.below(storm.words as u64) as usize;
            let op = without_write::<T>(random_op::<T>(&mut random, has, seen[index]), has);
            let verb = RawVerb { addr: word::<T>(index).addr(), width: T::WIDTH, op };
            let old = ep.go(&[verb][..]).await.expect("the node is alive")[0];
            mine[index].push(Seen { op, old });
            seen[index] = op.apply(T::WIDTH, old).unwrap_or(old);
        }
        let mut log = log.lock().expect("nobody panicked");
        for (word, verbs) in std::iter::zip(&mut *log, mine) {
            word[client] = verbs;
        }
    })
}

/// A WRITE does not say what it overwrote, so it has no place in a history: a swap stands in for it.
fn without_write<T: Value>(op: Op, has: Capabilities) -> Op {
    match op {
        Op::Write(value) if has.masked => {
            let all = T::WIDTH.mask();
            Op::MaskedCas(MaskedCas { compare: 0, compare_mask: 0, swap: value, swap_mask: all })
        }
        Op::Write(value) => Op::FetchAdd(value),
        other => other,
    }
}

fn weather<R: Rig, T: Value>(make: &impl Fn(Shape) -> R) {
    for seed in 1..=4 {
        let storm = Storm { seed, ..Storm::default() };
        for (index, history) in blow::<R, T>(make, storm).into_iter().enumerate() {
            if let Err(violation) = history.check() {
                panic!("{storm:?}, word {index}: {violation}");
            }
        }
    }
}

/// Random verbs on shared 8-byte words: one order explains what all clients saw.
pub fn narrow_words_have_one_history<R: Rig>(make: &impl Fn(Shape) -> R) {
    weather::<R, u64>(make);
}

/// Random verbs on shared 16-byte words: one order explains what all clients saw.
pub fn wide_words_have_one_history<R: Rig>(make: &impl Fn(Shape) -> R) {
    weather::<R, u128>(make);
}

/// Masked adds commute: whatever the order, every field ends as the sum of what was added to it.
pub fn fields_keep_their_sums<R: Rig>(make: &impl Fn(Shape) -> R) {
    let narrow = [(0, 5), (5, 11), (16, 1), (17, 30), (47, 17)].map(|(shift, bits)| Field { shift, bits });
    sums::<R, u64>(make, &narrow);
    let wide = [(0, 9), (9, 54), (63, 2), (65, 20), (85, 43)].map(|(shift, bits)| Field { shift, bits });
    sums::<R, u128>(make, &wide);
}

fn sums<R: Rig, T: Value>(make: &impl Fn(Shape) -> R, fields: &[Field; 5]) {
    const CLIENTS: usize = 4;
    let fields = *fields;
    let boundaries = fields.iter().map(|field| field.top()).sum::<u128>();
    let mut rig = make(Shape::of(CLIENTS));
    let added = Arc::new(Mutex::new([0u128; 5]));
    let adder = |client: usize| {
        let added = Arc::clone(&added);
        task(move |ep: R::E| async move {
            let has = ep.capabilities();
            if !has.masked || (T::WIDTH == u128::WIDTH && !has.wide) {
                return;
            }
            let mut random = SplitMix::new(client as u64);
            let mut mine = [0u128; 5];
            for _ in 0..1500 {
                let parts = fields.map(|field| u128::from(random.next()) & field.max());
                let add = std::iter::zip(fields, parts).map(|(field, part)| field.put(part)).sum();
                let verb = word::<T>(0).masked_fetch_add(T::narrow(add), T::narrow(boundaries));
                ep.go(verb).await.expect("the node is alive");
                std::iter::zip(&mut mine, parts).for_each(|(sum, part)| *sum += part);
            }
            let mut added = added.lock().expect("nobody panicked");
            std::iter::zip(&mut *added, mine).for_each(|(sum, part)| *sum += part);
        })
    };
    rig.run((0..CLIENTS).map(adder).collect());
    let last = alone(&mut rig, |ep: R::E| async move {
        if T::WIDTH == u128::WIDTH && !ep.capabilities().wide {
            return 0;
        }
        ep.go(word::<T>(0).read()).await.expect("the node is alive").widen()
    });
    let added = *added.lock().expect("nobody panicked");
    for (field, sum) in std::iter::zip(fields, added) {
        assert_eq!(field.get(last), sum & field.max(), "{field:?} of {last:#x}");
    }
}

/// Peterson's lock depends on this only: a WRITE is executed before the READ that follows it.
pub fn peterson_keeps_two_clients_apart<R: Rig>(make: &impl Fn(Shape) -> R) {
    const ROUNDS: u64 = 400;
    let (flags, turn, counter) = ([word::<u64>(0), word(1)], word::<u64>(2), word::<u64>(3));
    let client = |me: usize| {
        task(move |ep: R::E| async move {
            let (mine, other) = (flags[me], flags[1 - me]);
            for _ in 0..ROUNDS {
                ep.go(mine.write(1)).await.unwrap();
                ep.go(turn.write(1 - me as u64)).await.unwrap();
                for look in 0.. {
                    let busy = ep.go(other.read()).await.unwrap() == 1;
                    if !busy || ep.go(turn.read()).await.unwrap() == me as u64 {
                        break;
                    }
                    if look % 64 == 63 {
                        // Lets the other client run if all share one thread.
                        ep.sleep(50_000).await;
                    }
                }
                let count = ep.go(counter.read()).await.unwrap();
                ep.go(counter.write(count + 1)).await.unwrap();
                ep.go(mine.write(0)).await.unwrap();
            }
            let both = Cond::Eq { mask: u128::MAX, value: 2 * u128::from(ROUNDS) };
            let in_time = Deadline::At(ep.now().await.plus(60_000_000_000));
            let end = ep.wait_until(counter.until(both).by(in_time)).await.unwrap();
            assert!(end.met, "an update was lost: the counter stands at {} of {}", end.value, 2 * ROUNDS);
        })
    };
    make(Shape::of(2)).run(vec![client(0), client(1)]);
}

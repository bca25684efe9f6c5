//! Held locks that are upgraded, downgraded and given back in part, between threads (`mem:`): the same as behind a server, and
//! a history of threads at random, shown to the checkers that also judge the explorer.

use lockwright::{AnyGuard, ChangeError, Client, LockError, LockGuard, LockSet, RangeLock};
use lockwright_fabric::PeerId;
use lockwright_fabric::observe::{Claim, Mode, Observation};
use lockwright_fabric::random::SplitMix;
use lockwright_sim::case::Checks;
use lockwright_sim::check::Watch;
use std::pin::pin;
use std::sync::Mutex;
use std::task::{Context, Waker};
use std::time::Duration;

fn polled<F: Future>(future: F) -> bool {
    pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_ready()
}

#[test]
fn a_downgrade_lets_readers_in_and_no_writer() {
    let lock = Client::open("mem:").wait().unwrap().rwlock("a").unwrap();
    let mut guard = lock.write().wait().unwrap().into_any();
    let (mut reader, mut writer) = (Box::pin(lock.read()), Box::pin(lock.write()));
    let cx = &mut Context::from_waker(Waker::noop());
    assert!(reader.as_mut().poll(cx).is_pending() && writer.as_mut().poll(cx).is_pending());
    let token = guard.token();
    guard.downgrade().wait().unwrap();
    assert!(guard.is_shared() && guard.token() > token);
    let std::task::Poll::Ready(Ok(read)) = reader.as_mut().poll(cx) else { panic!("the reader is in") };
    assert!(read.token() > guard.token() && writer.as_mut().poll(cx).is_pending());
    drop((guard, read));
    assert!(writer.as_mut().poll(cx).is_ready());
}

#[test]
fn an_upgrade_waits_for_readers_only_and_the_second_of_two_is_refused() {
    let lock = Client::open("mem:").wait().unwrap().range_lock("a").unwrap();
    let mut one = lock.read(0..10).wait().unwrap().into_any();
    let mut two = lock.read(5..15).wait().unwrap().into_any();
    let mut writer = Box::pin(lock.write(0..20));
    assert!(writer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    assert_eq!(one.try_upgrade().wait(), Err(ChangeError::Busy));
    assert_eq!(one.upgrade_timeout(Duration::from_millis(5)).wait(), Err(ChangeError::TimedOut));
    {
        let mut upgrade = pin!(one.upgrade());
        let cx = &mut Context::from_waker(Waker::noop());
        assert!(upgrade.as_mut().poll(cx).is_pending());
        assert_eq!(two.upgrade().wait(), Err(ChangeError::WouldDeadlock));
        assert!(two.is_shared());
        drop(two);
        assert!(upgrade.as_mut().poll(cx).is_ready());
    }
    assert!(!one.is_shared() && one.range() == Some(0..10));
    drop(one);
    assert!(writer.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready());
}

#[test]
fn an_upgrade_that_is_dropped_leaves_the_lock_shared() {
    let lock = Client::open("mem:").wait().unwrap().rwlock("a").unwrap();
    let (mut one, two) = (lock.read().wait().unwrap().into_any(), lock.read().wait().unwrap());
    assert!(!polled(one.upgrade()), "another one reads");
    assert!(one.is_shared() && lock.try_read().wait().is_ok(), "readers come in as before");
    drop(two);
    assert!(polled(one.upgrade()), "nobody else reads");
    assert!(!one.is_shared() && lock.try_read().wait().is_err());
    assert!(polled(one.downgrade()) && lock.try_read().wait().is_ok());
    drop(one);
    assert!(lock.try_write().wait().is_ok());
}

#[test]
fn parts_are_given_back_one_after_the_other_until_single_units_are_left() {
    let lock = Client::open("mem:").wait().unwrap().range_lock("a").unwrap();
    let mut first = lock.write(0..9).wait().unwrap();
    let token = first.token();
    let mut second = first.unlock_part(3..4).unwrap().unwrap();
    let third = second.unlock_part(6..7).unwrap().unwrap();
    assert_eq!([&first, &second, &third].map(|guard| guard.range()), [0..3, 4..6, 7..9]);
    assert!([&first, &second, &third].iter().all(|guard| guard.token() == token));
    assert!(second.unlock_part(4..5).unwrap().is_none() && second.range() == (5..6));
    for unit in 0..9 {
        let free = [3, 4, 6].contains(&unit);
        assert_eq!(lock.try_write(unit..unit + 1).wait().is_ok(), free, "unit {unit}");
    }
    assert!(matches!(second.unlock_part(5..6), Err(ChangeError::BadRange { .. })));
    drop((first, second, third));
    assert!(lock.try_write(0..9).wait().is_ok());
}

#[test]
fn guards_of_a_set_can_be_changed_too() {
    let client = Client::open("mem:").wait().unwrap();
    let (a, b) = (client.rwlock("a").unwrap(), client.range_lock("b").unwrap());
    let mut set = LockSet::new().write(&a).read_range(&b, 0..4).acquire().wait().unwrap();
    for guard in &mut set {
        if guard.is_shared() { guard.upgrade().wait().unwrap() } else { guard.downgrade().wait().unwrap() }
    }
    assert!(a.try_read().wait().is_ok() && b.try_read(0..1).wait().is_err());
    drop(set);
    assert!(a.try_write().wait().is_ok() && b.try_write(0..4).wait().is_ok());
}

#[test]
fn a_mutex_that_is_downgraded_lets_readers_of_its_name_in() {
    let client = Client::open("mem:").wait().unwrap();
    let mut guard = client.mutex("a").unwrap().lock().wait().unwrap().into_any();
    guard.downgrade().wait().unwrap();
    assert!(client.rwlock("a").unwrap().try_read().wait().is_ok());
    assert!(client.mutex("a").unwrap().try_lock().wait().is_err());
}

#[test]
fn a_read_guard_becomes_a_write_guard_and_a_read_guard_again() {
    let lock = Client::open("mem:").wait().unwrap().rwlock("a").unwrap();
    let (one, two) = (lock.read().wait().unwrap(), lock.read().wait().unwrap());
    let refused = one.try_upgrade().wait().unwrap_err();
    assert_eq!(refused.error, ChangeError::Busy);
    let late = refused.guard.upgrade_timeout(Duration::from_millis(1)).wait().unwrap_err();
    assert_eq!(late.error, ChangeError::TimedOut);
    assert!(lock.try_read().wait().is_ok(), "the guard that came back still reads, and lets others read");
    drop(two);
    let token = late.guard.token();
    let writes = late.guard.upgrade().wait().unwrap();
    assert!(writes.token() > token && lock.try_read().wait().is_err());
    let reads = writes.downgrade().wait().unwrap();
    assert!(lock.try_read().wait().is_ok() && lock.try_write().wait().is_err());
    reads.unlock().wait().unwrap();
    assert!(lock.try_write().wait().is_ok());
}

#[test]
fn a_typed_upgrade_that_is_dropped_unlocks() {
    let lock = Client::open("mem:").wait().unwrap().rwlock("a").unwrap();
    let (one, two) = (lock.read().wait().unwrap(), lock.read().wait().unwrap());
    assert!(!polled(one.upgrade()), "another one reads");
    let alone = two.try_upgrade().wait().expect("nobody else reads any more");
    drop(alone);
    assert!(lock.try_write().wait().is_ok());
}

/// A thread that takes, changes and gives back ranges, and tells the checkers: of what it has after it has it, of what it gives
/// up before it does.
struct Worker<'a> {
    me: PeerId,
    lock: RangeLock,
    watch: &'a Mutex<Watch>,
    dice: SplitMix,
    changes: [u64; 3],
}

fn claim(guard: &AnyGuard) -> Claim {
    let mode = if guard.is_shared() { Mode::Shared } else { Mode::Exclusive };
    let range = guard.range().unwrap();
    Claim { lock: 0, mode, start: range.start, end: range.end }
}

impl Worker<'_> {
    fn tell(&self, what: &[Observation]) {
        let mut watch = self.watch.lock().unwrap();
        for what in what {
            if let Err(violation) = watch.on(self.me, *what) {
                panic!("{violation}");
            }
        }
    }

    fn take(&mut self) -> Result<AnyGuard, LockError> {
        let start = self.dice.below(8);
        let range = start..start + 1 + self.dice.below(6);
        let guard = if self.dice.below(2) == 0 {
            self.lock.read(range).into_any()
        } else {
            self.lock.write(range).into_any()
        }
        .wait()?;
        self.tell(&[Observation::Granted(claim(&guard), Some(guard.token()))]);
        Ok(guard)
    }

    fn change(&mut self, guards: &mut Vec<AnyGuard>) {
        let at = self.dice.below(guards.len() as u64) as usize;
        // An upgrade by a worker that holds other pieces could deadlock, as with any two workers that hold two locks each.
        let may_wait = guards.len() == 1;
        let guard = &mut guards[at];
        let held = claim(guard);
        let cut = held.end - held.start > 1 && self.dice.below(3) == 0;
        // The checker takes pieces for new grants, and wants new tokens: only readers are cut, who conflict with nobody they meet.
        if cut && guard.is_shared() {
            let from = held.start + self.dice.below(held.end - held.start);
            let to = (from + 1 + self.dice.below(3)).min(held.end);
            if (from, to) == (held.start, held.end) {
                return;
            }
            let pieces = [Claim { end: from, ..held }, Claim { start: to, ..held }];
            let pieces = pieces.into_iter().filter(|piece| piece.start < piece.end);
            let kept = pieces.map(|piece| Observation::Granted(piece, Some(guard.token())));
            let all: Vec<_> = kept.chain([Observation::Releasing(held)]).collect();
            self.tell(&all);
            let rest = guard.unlock_part(from..to).unwrap();
            guards.extend(rest);
            self.changes[2] += 1;
        } else if guard.is_shared() {
            let upgraded = match self.dice.below(4) {
                0 => guard.try_upgrade().wait(),
                1 => guard.upgrade_timeout(Duration::from_micros(200)).wait(),
                2 if !polled(guard.upgrade()) => Err(ChangeError::TimedOut),
                2 => Ok(()),
                _ if may_wait => guard.upgrade().wait(),
                _ => guard.upgrade_timeout(Duration::from_millis(2)).wait(),
            };
            match upgraded {
                Ok(()) => {
                    let now = Observation::Granted(claim(guard), Some(guard.token()));
                    self.tell(&[Observation::Releasing(held), now]);
                    self.changes[0] += 1;
                }
                Err(ChangeError::Busy | ChangeError::TimedOut | ChangeError::WouldDeadlock) => {
                    assert_eq!(claim(guard), held);
                }
                Err(error) => panic!("{error}"),
            }
        } else {
            let shared = Claim { mode: Mode::Shared, ..held };
            let now = Observation::Granted(shared, Some(guard.token() + 1));
            self.tell(&[Observation::Releasing(held), now]);
            guard.downgrade().wait().unwrap();
            self.changes[1] += 1;
        }
    }

    fn work(mut self, rounds: u64) -> [u64; 3] {
        for _ in 0..rounds {
            let mut guards = vec![self.take().unwrap()];
            for _ in 0..self.dice.below(5) {
                self.change(&mut guards);
            }
            for guard in guards {
                self.tell(&[Observation::Releasing(claim(&guard))]);
                drop(guard);
            }
        }
        self.changes
    }
}

#[test]
fn threads_that_change_what_they_hold_at_random_let_nobody_in_between() {
    let client = Client::open("mem:").wait().unwrap();
    let watch =
        Watch::new(Checks { finish: false, quiet: false, tokens: true, permits: false, bypass: None });
    let watch = Mutex::new(watch);
    let changes = std::thread::scope(|threads| {
        let workers: Vec<_> = (0..4)
            .map(|number| {
                let (me, lock) = (PeerId::client(number), client.range_lock("a").unwrap());
                let worker =
                    Worker { me, lock, watch: &watch, dice: SplitMix::new(number as u64), changes: [0; 3] };
                threads.spawn(move || worker.work(3_000))
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().unwrap())
            .fold([0; 3], |sum, some| std::array::from_fn(|at| sum[at] + some[at]))
    });
    println!("upgrades, downgrades, parts: {changes:?}");
    assert!(changes.iter().all(|times| *times > 500), "{changes:?}");
    assert!(client.range_lock("a").unwrap().try_write(0..100).wait().is_ok(), "nothing is left");
}

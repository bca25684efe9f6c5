//! Time: a monotonic clock, and a timer thread, started on first use, that wakes tasks at their deadlines.

use super::run::park_on;
use super::wakers::wake_all;
use crate::wait::{Deadline, Time};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Shorter sleeps spin: putting a thread to sleep and waking it takes longer.
const SPIN_NS: u64 = 10_000;

/// The time since the machine was started. Where the system has such a clock it goes on while the machine is suspended, which
/// `Instant` does not.
#[cfg(feature = "tcp")]
pub fn since_boot() -> Duration {
    #[cfg(target_os = "linux")]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
    #[cfg(not(target_os = "linux"))]
    {
        static BEGAN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        BEGAN.elapsed()
    }
}

/// The fabric's clock and its timers.
#[derive(Debug)]
pub(super) struct Clock {
    source: Source,
    alarms: Arc<Alarms>,
}

/// Where the time comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// Time since this instant.
    Since(Instant),
    /// The time that a function returns.
    #[cfg_attr(not(feature = "shm"), expect(dead_code, reason = "shared memory has a clock of its own"))]
    Function(fn() -> Time),
}

impl Source {
    fn now(self) -> Time {
        match self {
            Source::Since(start) => Time(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            Source::Function(now) => now(),
        }
    }
}

#[derive(Debug, Default)]
struct Alarms {
    timers: Mutex<Timers>,
    changed: Condvar,
}

/// Wakers by the time at which they are due; the second number keeps equal times apart.
#[derive(Debug, Default)]
struct Timers {
    due: BTreeMap<(u64, u64), Waker>,
    next: u64,
    running: bool,
    stop: bool,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { source: Source::Since(Instant::now()), alarms: Arc::default() }
    }

    /// A clock that reads `now`.
    #[cfg(all(feature = "shm", target_os = "linux"))]
    pub(super) fn from_fn(now: fn() -> Time) -> Self {
        Self { source: Source::Function(now), alarms: Arc::default() }
    }

    /// A clock that reads `time` now: for a client whose server started the clock.
    #[cfg(feature = "tcp")]
    pub(super) fn showing(time: Time) -> Self {
        let now = Instant::now();
        let start = now.checked_sub(Duration::from_nanos(time.0)).unwrap_or(now);
        Self { source: Source::Since(start), alarms: Arc::default() }
    }

    pub(super) fn now(&self) -> Time {
        self.source.now()
    }

    /// Whether `deadline` has passed. `Deadline::Now` always has.
    pub(in crate::backend) fn reached(&self, deadline: Deadline) -> bool {
        match deadline {
            Deadline::Never => false,
            Deadline::Now => true,
            Deadline::At(time) => self.now() >= time,
        }
    }

    /// Wakes `waker` at `time`, unless the alarm is dropped first.
    fn alarm(&self, time: Time, waker: &Waker) -> Alarm {
        let mut timers = self.alarms.timers.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (time.0, timers.next);
        timers.next += 1;
        timers.due.insert(key, waker.clone());
        if !timers.running {
            timers.running = true;
            let (alarms, source) = (Arc::clone(&self.alarms), self.source);
            std::thread::Builder::new()
                .name("lockwright-clock".to_owned())
                .spawn(move || alarms.run(source))
                .expect("the system can start a thread for the clock");
        }
        drop(timers);
        self.alarms.changed.notify_one();
        Alarm { alarms: Arc::clone(&self.alarms), key, waker: waker.clone() }
    }

    /// Keeps `slot` set to an alarm for `deadline` that wakes the task of `cx`.
    pub(in crate::backend) fn keep_alarm(
        &self,
        slot: &mut Option<Alarm>,
        deadline: Deadline,
        cx: &Context<'_>,
    ) {
        let Deadline::At(time) = deadline else { return };
        if !slot.as_ref().is_some_and(|alarm| alarm.waker.will_wake(cx.waker())) {
            *slot = Some(self.alarm(time, cx.waker()));
        }
    }

    /// A future that is ready `ns` nanoseconds from now.
    pub(in crate::backend) fn sleep(&self, ns: u64) -> Sleep<'_> {
        Sleep {
            clock: self,
            until: if ns == 0 { Time(0) } else { self.now().plus(ns) },
            ns,
            polled: false,
            alarm: None,
        }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.alarms.timers.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.alarms.changed.notify_one();
    }
}

impl Alarms {
    fn run(&self, source: Source) {
        let mut timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner);
        while !timers.stop {
            let now = source.now().0;
            let later = timers.due.split_off(&(now.saturating_add(1), 0));
            let due = std::mem::replace(&mut timers.due, later);
            if !due.is_empty() {
                drop(timers);
                wake_all(due.into_values());
                timers = self.timers.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let first = timers.due.first_key_value().map(|((time, _), _)| Duration::from_nanos(time - now));
            timers = match first {
                Some(wait) => {
                    self.changed.wait_timeout(timers, wait).unwrap_or_else(PoisonError::into_inner).0
                }
                None => self.changed.wait(timers).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// A pending wake-up; dropping it cancels it.
#[derive(Debug)]
pub(in crate::backend) struct Alarm {
    alarms: Arc<Alarms>,
    key: (u64, u64),
    waker: Waker,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.alarms.timers.lock().unwrap_or_else(PoisonError::into_inner).due.remove(&self.key);
    }
}

/// The future of [`Clock::sleep`].
#[derive(Debug)]
pub(in crate::backend) struct Sleep<'a> {
    clock: &'a Clock,
    until: Time,
    ns: u64,
    polled: bool,
    alarm: Option<Alarm>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.ns == 0 {
            return Poll::Ready(());
        }
        loop {
            let left = this.until.since(this.clock.now());
            if left == 0 {
                return Poll::Ready(());
            }
            if this.ns <= SPIN_NS {
                std::hint::spin_loop();
                continue;
            }
            if !std::mem::replace(&mut this.polled, true) {
                // The first poll may come from a `block_on` that has no waker yet.
                cx.waker().wake_by_ref();
            } else if !park_on(cx.waker(), None, Some(left)) {
                this.clock.keep_alarm(&mut this.alarm, Deadline::At(this.until), cx);
            }
            return Poll::Pending;
        }
    }
}

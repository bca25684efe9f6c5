//! Time: a monotonic clock that starts with the fabric (or one that all processes of a host share), and a thread,
//! started when first needed, that wakes those whose time has come.

use super::wakers::wake_all;
use crate::wait::{Deadline, Time};
use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Up to here a sleeper spins: putting a thread to sleep and waking it takes longer.
const SPIN_NS: u64 = 10_000;

/// The fabric's clock and its alarms.
#[derive(Debug)]
pub(super) struct Clock {
    source: Source,
    alarms: Arc<Alarms>,
}

/// Where the time comes from.
#[derive(Clone, Copy, Debug)]
enum Source {
    /// Counted from here.
    Since(Instant),
    /// Asked for.
    #[cfg_attr(not(feature = "shm"), expect(dead_code, reason = "shared memory has a clock of its own"))]
    By(fn() -> Time),
}

impl Source {
    fn now(self) -> Time {
        match self {
            Source::Since(start) => Time(u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX)),
            Source::By(ask) => ask(),
        }
    }
}

#[derive(Debug, Default)]
struct Alarms {
    book: Mutex<Book>,
    changed: Condvar,
}

/// Who is to be woken when, in order of time; the second number keeps equal times apart.
#[derive(Debug, Default)]
struct Book {
    due: BTreeMap<(u64, u64), Waker>,
    next: u64,
    running: bool,
    stop: bool,
}

impl Clock {
    pub(super) fn new() -> Self {
        Self { source: Source::Since(Instant::now()), alarms: Arc::default() }
    }

    /// A clock that shows what `ask` answers.
    #[cfg(all(feature = "shm", target_os = "linux"))]
    pub(super) fn by(ask: fn() -> Time) -> Self {
        Self { source: Source::By(ask), alarms: Arc::default() }
    }

    /// A clock that shows `time` now: that of a client whose fabric began elsewhere.
    #[cfg(feature = "tcp")]
    pub(super) fn showing(time: Time) -> Self {
        let now = Instant::now();
        let start = now.checked_sub(Duration::from_nanos(time.0)).unwrap_or(now);
        Self { source: Source::Since(start), alarms: Arc::default() }
    }

    pub(super) fn now(&self) -> Time {
        self.source.now()
    }

    /// Whether `deadline` has come. `Deadline::Now` always has.
    pub(in crate::backend) fn reached(&self, deadline: Deadline) -> bool {
        match deadline {
            Deadline::Never => false,
            Deadline::Now => true,
            Deadline::At(time) => self.now() >= time,
        }
    }

    /// Wakes `waker` at `time`, unless the alarm is dropped before.
    fn alarm(&self, time: Time, waker: &Waker) -> Alarm {
        let mut book = self.alarms.book.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (time.0, book.next);
        book.next += 1;
        book.due.insert(key, waker.clone());
        if !book.running {
            book.running = true;
            let (alarms, source) = (Arc::clone(&self.alarms), self.source);
            std::thread::Builder::new()
                .name("lockwright-clock".to_owned())
                .spawn(move || alarms.run(source))
                .expect("the system can start a thread for the clock");
        }
        drop(book);
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

    /// A future that is done `ns` nanoseconds from now.
    pub(in crate::backend) fn sleep(&self, ns: u64) -> Sleep<'_> {
        Sleep { clock: self, until: if ns == 0 { Time(0) } else { self.now().plus(ns) }, ns, alarm: None }
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.alarms.book.lock().unwrap_or_else(PoisonError::into_inner).stop = true;
        self.alarms.changed.notify_one();
    }
}

impl Alarms {
    fn run(&self, source: Source) {
        let mut book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
        while !book.stop {
            let now = source.now().0;
            let later = book.due.split_off(&(now.saturating_add(1), 0));
            let due = std::mem::replace(&mut book.due, later);
            if !due.is_empty() {
                drop(book);
                wake_all(due.into_values());
                book = self.book.lock().unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let first = book.due.first_key_value().map(|((time, _), _)| Duration::from_nanos(time - now));
            book = match first {
                Some(wait) => self.changed.wait_timeout(book, wait).unwrap_or_else(PoisonError::into_inner).0,
                None => self.changed.wait(book).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }
}

/// A wake-up call; dropping it cancels it.
#[derive(Debug)]
pub(in crate::backend) struct Alarm {
    alarms: Arc<Alarms>,
    key: (u64, u64),
    waker: Waker,
}

impl Drop for Alarm {
    fn drop(&mut self) {
        self.alarms.book.lock().unwrap_or_else(PoisonError::into_inner).due.remove(&self.key);
    }
}

/// The future of [`Clock::sleep`].
#[derive(Debug)]
pub(in crate::backend) struct Sleep<'a> {
    clock: &'a Clock,
    until: Time,
    ns: u64,
    alarm: Option<Alarm>,
}

impl Future for Sleep<'_> {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let this = self.get_mut();
        if this.ns == 0 {
            return Poll::Ready(());
        }
        while this.clock.now() < this.until {
            if this.ns > SPIN_NS {
                this.clock.keep_alarm(&mut this.alarm, Deadline::At(this.until), cx);
                return Poll::Pending;
            }
            std::hint::spin_loop();
        }
        Poll::Ready(())
    }
}

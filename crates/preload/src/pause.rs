//! How a call that blocks waits. A signal whose handler asks for it ends the call, as it would end the kernel's: the wait is a
//! `read`, which the kernel ends with `EINTR` for such handlers and restarts for the others (`SA_RESTART`).

use lockwright_posix::Pause;
use lockwright_posix::node::Changes;
use std::time::{Duration, Instant};

/// Waits shorter than this are not slept.
const YIELD: Duration = Duration::from_micros(200);

/// A timer that can be read when its time is over.
pub(crate) struct Timer(Option<libc::c_int>);

impl Timer {
    pub(crate) const fn new() -> Self {
        Self(None)
    }
}

impl Pause for Timer {
    fn pause(&mut self, _: &Changes, _: u64, time: Duration) -> bool {
        if time < YIELD {
            let begin = Instant::now();
            while begin.elapsed() < time {
                std::thread::yield_now();
            }
            return true;
        }
        // SAFETY: plain system calls on a descriptor of our own, with memory of our own.
        unsafe {
            let fd =
                *self.0.get_or_insert_with(|| libc::timerfd_create(libc::CLOCK_MONOTONIC, libc::TFD_CLOEXEC));
            if fd < 0 {
                self.0 = None;
                std::thread::sleep(time);
                return true;
            }
            let zero = libc::timespec { tv_sec: 0, tv_nsec: 0 };
            let at = libc::timespec { tv_sec: 0, tv_nsec: i64::from(time.subsec_nanos()) };
            let time = libc::itimerspec { it_interval: zero, it_value: at };
            libc::timerfd_settime(fd, 0, &raw const time, std::ptr::null_mut());
            let mut times = 0_u64;
            let read = libc::read(fd, (&raw mut times).cast(), size_of::<u64>());
            read >= 0 || *libc::__errno_location() != libc::EINTR
        }
    }
}

impl Drop for Timer {
    fn drop(&mut self) {
        if let Some(fd) = self.0 {
            crate::real::CLOSE.get()(fd);
        }
    }
}

//! How a call that blocks waits, and what a signal does to it.
//!
//! Signals that the program handles are blocked while the call is at work in here, and accepted while it sleeps
//! (`sigtimedwait`): none is missed, whenever it comes. One that was accepted is queued again as it was, and let through. Then
//! the call ends with `EINTR`, or goes on if the handler was installed with `SA_RESTART`: as the kernel's would. Signals without a
//! handler are never blocked: they kill, stop or do nothing at any time.

use crate::inside::outside;
use libc::{c_int, sigset_t};
use lockwright_posix::Pause;
use lockwright_posix::node::Changes;
use std::time::{Duration, Instant};

/// Waits shorter than this are not slept.
const YIELD: Duration = Duration::from_micros(200);
/// Not blocked: they come from what the thread itself does, and blocked they would kill.
const OWN: [c_int; 6] =
    [libc::SIGSEGV, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGTRAP, libc::SIGSYS];

/// The signals of one call. Those that were held back come through when it is dropped.
pub(crate) struct Signals {
    held: sigset_t,
    /// What the program had blocked.
    before: Option<sigset_t>,
}

impl Signals {
    pub(crate) fn new() -> Self {
        Self { held: none(), before: None }
    }

    /// From now on no signal that has a handler is missed.
    pub(crate) fn hold(&mut self) {
        // All at once, since it takes longer to see which have handlers.
        let (all, mut blocked) = (set_of(signals()), none());
        // SAFETY: a plain call, with memory of our own.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut blocked) };
        let before = *self.before.get_or_insert(blocked);
        // SAFETY: as above.
        let is_free = |signal: &c_int| unsafe { libc::sigismember(&raw const before, *signal) == 0 };
        let handled = |signal: &c_int| has_handler(&action(*signal));
        self.held = set_of(signals().filter(is_free).filter(handled));
        let others = set_of(signals().filter(is_free).filter(|signal| !handled(signal)));
        // SAFETY: as above.
        unsafe { libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const others, std::ptr::null_mut()) };
    }

    /// Sleeps; the signal that came.
    fn sleep(&self, time: Duration) -> Option<libc::siginfo_t> {
        let time = libc::timespec {
            tv_sec: time.as_secs() as libc::time_t,
            tv_nsec: i64::from(time.subsec_nanos()),
        };
        // SAFETY: the kernel reads a set and a time, and fills in a structure of plain numbers. Not by libc's function, which
        // is a place where threads are cancelled: nothing here could be undone.
        unsafe {
            let mut info: libc::siginfo_t = std::mem::zeroed();
            let (held, size) = (&raw const self.held, size_of::<u64>());
            let came = libc::syscall(libc::SYS_rt_sigtimedwait, held, &raw mut info, &raw const time, size);
            (came > 0).then_some(info)
        }
    }

    /// Whether the call goes on after this signal.
    fn take(&self, info: &libc::siginfo_t) -> bool {
        let signal = info.si_signo;
        let action = action(signal);
        // SAFETY: plain calls, with memory of our own. A thread may queue to itself whatever it has got.
        unsafe {
            let (process, thread) = (libc::getpid(), libc::syscall(libc::SYS_gettid));
            let info = std::ptr::from_ref(info);
            if libc::syscall(libc::SYS_rt_tgsigqueueinfo, process, thread, signal, info) != 0 {
                libc::syscall(libc::SYS_tgkill, process, thread, signal);
            }
            if has_handler(&action) && action.sa_flags & libc::SA_RESTART == 0 {
                return false;
            }
            let one = set_of([signal]);
            outside(|| {
                libc::pthread_sigmask(libc::SIG_UNBLOCK, &raw const one, std::ptr::null_mut());
                libc::pthread_sigmask(libc::SIG_BLOCK, &raw const one, std::ptr::null_mut());
            });
        }
        true
    }
}

impl Pause for Signals {
    fn begin(&mut self) {
        self.hold();
    }

    fn pause(&mut self, _: &Changes, _: u64, time: Duration) -> bool {
        let is_short = time < YIELD;
        if is_short {
            let begin = Instant::now();
            while begin.elapsed() < time {
                std::thread::yield_now();
            }
        } else {
            // A handler may have been installed since.
            self.hold();
        }
        self.sleep(if is_short { Duration::ZERO } else { time }).is_none_or(|came| self.take(&came))
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        let Some(before) = self.before else { return };
        // SAFETY: a plain call.
        outside(|| unsafe {
            libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut());
        });
    }
}

/// Does `work` while no signal comes. Threads that it starts never get any: signals are the program's.
pub(crate) fn without_signals<T>(work: impl FnOnce() -> T) -> T {
    let (all, mut before) = (set_of(signals()), none());
    // SAFETY: a plain call, with memory of our own.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const all, &raw mut before) };
    let done = work();
    // SAFETY: as above.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const before, std::ptr::null_mut()) };
    done
}

/// Those that can be blocked.
fn signals() -> impl Iterator<Item = c_int> {
    (1..=libc::SIGRTMAX()).filter(|signal| !OWN.contains(signal))
}

fn none() -> sigset_t {
    // SAFETY: a set is plain numbers.
    unsafe {
        let mut set: sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut set);
        set
    }
}

fn set_of(signals: impl IntoIterator<Item = c_int>) -> sigset_t {
    let mut set = none();
    for signal in signals {
        // SAFETY: a plain call, with memory of our own.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

/// What happens at a signal; for those that are libc's own, nothing.
fn action(signal: c_int) -> libc::sigaction {
    // SAFETY: the structure is plain numbers, and of our own.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        libc::sigaction(signal, std::ptr::null(), &raw mut action);
        action
    }
}

fn has_handler(action: &libc::sigaction) -> bool {
    !matches!(action.sa_sigaction, libc::SIG_DFL | libc::SIG_IGN)
}

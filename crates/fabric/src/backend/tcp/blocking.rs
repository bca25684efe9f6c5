//! A thread that blocks on an answer reads the connection itself.
//!
//! If the runtime's thread reads the answer, it has to wake the waiting thread, which costs more than the answer. So a thread
//! that has nothing else to do polls the socket, and its own eventfd: the runtime's thread may read first, and then wakes it.
//!
//! | state | meaning |
//! |---|---|
//! | awake | the thread runs, and checks the state before it sleeps: waking it takes no system call |
//! | asleep | the thread polls the socket and the eventfd |
//! | woken | woken, and has not noticed yet |
//!
//! Before it sleeps, the thread spins on the socket: if the server runs on a core of its own, the answer often arrives sooner
//! than a sleep and a wake-up take. After a few spins in vain it sleeps at once for a while. Nor does it spin while as many other
//! threads of this process wait as there are processors to spare: they, or the server, would have to do without its own.
//!
//! This does not send heartbeats: the runtime does.

use super::client::process;
use super::incoming::{Incoming, ReadError};
use super::link::Link;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use socket2::SockRef;
use std::hint::spin_loop;
use std::io;
use std::num::NonZero;
use std::sync::atomic::{AtomicU8, AtomicU32, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::task::Wake;
use std::thread::available_parallelism;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// How long a thread spins before it sleeps.
const SPIN: Duration = Duration::from_micros(30);
/// After so many spins in vain in a row, this many sleeps come without one.
const MAX_VAIN_SPINS: u32 = 4;
const SLEEPS_WITHOUT_SPIN: u32 = 128;

/// Threads of this process that wait for an answer right now.
static WAITING: AtomicUsize = AtomicUsize::new(0);

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const WOKEN: u8 = 2;

/// The waker of a thread in [`read_blocking`](super::TcpEndpoint::read_blocking), for the futures that it waits for.
///
/// ```
/// use lockwright_fabric::backend::tcp::EventfdWaker;
/// use std::sync::Arc;
/// let waker = Arc::new(EventfdWaker::new()?);
/// std::task::Waker::from(Arc::clone(&waker)).wake();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct EventfdWaker {
    state: AtomicU8,
    /// Spins in vain in a row; from [`MAX_VAIN_SPINS`] on, sleeps since.
    vain: AtomicU32,
    eventfd: OwnedFd,
}

impl EventfdWaker {
    /// A waker for one thread.
    ///
    /// # Errors
    /// If the process has no file descriptor left.
    pub fn new() -> io::Result<Self> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { state: AtomicU8::new(AWAKE), vain: AtomicU32::new(0), eventfd })
    }

    /// Whether to spin before sleeping, one of so many that wait.
    fn may_spin(&self, waiting: usize) -> bool {
        if waiting > most_spinning() {
            return false;
        }
        let vain = self.vain.load(Relaxed);
        if vain >= MAX_VAIN_SPINS + SLEEPS_WITHOUT_SPIN {
            // One more in vain, and it does not spin again for a while.
            self.vain.store(MAX_VAIN_SPINS - 1, Relaxed);
        } else if vain >= MAX_VAIN_SPINS {
            self.vain.store(vain + 1, Relaxed);
        }
        vain < MAX_VAIN_SPINS
    }

    /// Calls `check` until it finds something, at most for [`SPIN`]; not at all if too many wait.
    fn spin<T>(&self, waiting: usize, mut check: impl FnMut() -> Option<T>) -> Option<T> {
        if !self.may_spin(waiting) {
            return None;
        }
        let began = Instant::now();
        loop {
            if let Some(found) = check() {
                self.vain.store(0, Relaxed);
                return Some(found);
            }
            if self.state.load(Relaxed) == WOKEN || began.elapsed() > SPIN {
                self.vain.fetch_add(1, Relaxed);
                return None;
            }
            spin_loop();
        }
    }

    /// Sleeps until `socket` is readable (`Some(true)`) or the thread is woken (`Some(false)`), at most for `limit`.
    fn sleep(&self, socket: impl AsFd, limit: Duration) -> Option<bool> {
        if self.state.compare_exchange(AWAKE, ASLEEP, SeqCst, SeqCst).is_err() {
            self.state.store(AWAKE, SeqCst);
            return Some(false);
        }
        let mut files = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&self.eventfd, PollFlags::IN)];
        let limit = Timespec::try_from(limit).ok();
        let ready = poll(&mut files, limit.as_ref());
        let readable = !files[0].revents().is_empty();
        if self.state.swap(AWAKE, SeqCst) == WOKEN || !files[1].revents().is_empty() {
            let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
            return Some(readable);
        }
        // A signal counts as a wake-up: the caller polls its future again.
        match ready {
            Ok(0) => None,
            _ => Some(readable),
        }
    }
}

/// How many threads may wait for one of them to spin: one processor is left to the server.
fn most_spinning() -> usize {
    static MOST: OnceLock<usize> = OnceLock::new();
    *MOST.get_or_init(|| available_parallelism().map_or(1, NonZero::get).saturating_sub(1).max(1))
}

/// One more thread waits, for as long as this is kept.
struct Waiting;

impl Waiting {
    /// How many there are with this one.
    fn begin() -> (Self, usize) {
        (Self, WAITING.fetch_add(1, Relaxed) + 1)
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        WAITING.fetch_sub(1, Relaxed);
    }
}

impl Wake for EventfdWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(WOKEN, SeqCst) == ASLEEP {
            let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
        }
    }
}

impl Link {
    /// See [`TcpEndpoint::read_blocking`](super::TcpEndpoint::read_blocking).
    pub(super) fn read_blocking(&self, waker: &EventfdWaker, limit: Duration) -> bool {
        let Some((out, incoming)) = self.connection() else { return false };
        let Some(socket) = out.socket() else { return false };
        let (_waiting, number) = Waiting::begin();
        if let Some(received) = waker.spin(number, || self.read_available(socket, &incoming)) {
            return received;
        }
        match waker.sleep(socket, limit) {
            None => false,
            Some(false) => true,
            // If there is nothing, the runtime's thread has read it.
            Some(true) => self.read_available(socket, &incoming).unwrap_or(true),
        }
    }

    /// Processes what has arrived: `None` if nothing has, `false` if the connection is broken, which the runtime will notice.
    fn read_available(&self, socket: &TcpStream, incoming: &Mutex<Incoming>) -> Option<bool> {
        let mut incoming = incoming.lock().unwrap_or_else(PoisonError::into_inner);
        match incoming.fill_now(&mut &*SockRef::from(socket)) {
            Ok(()) => {}
            Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => return Some(false),
        }
        self.note_received();
        if let Err(reason) = process(self, &mut incoming) {
            drop(incoming);
            self.end(&reason);
        }
        Some(true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{TcpListener, TcpStream};

    const SHORT: Duration = Duration::from_millis(1);
    const LONG: Duration = Duration::from_secs(60);

    fn pair() -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (one, listener.accept().unwrap().0)
    }

    #[test]
    fn a_wake_before_the_sleep_counts_once() {
        let (socket, _other) = pair();
        let waker = Arc::new(EventfdWaker::new().unwrap());
        waker.wake_by_ref();
        waker.wake_by_ref();
        assert_eq!(waker.sleep(&socket, LONG), Some(false));
        assert_eq!(waker.sleep(&socket, SHORT), None);
    }

    #[test]
    fn a_thread_that_spun_in_vain_a_few_times_does_not_spin_for_a_while() {
        let waker = EventfdWaker::new().unwrap();
        let spun = |waker: &EventfdWaker| {
            let mut spun = false;
            waker.spin(1, || {
                spun = true;
                None::<()>
            });
            spun
        };
        assert!((0..MAX_VAIN_SPINS).all(|_| spun(&waker)));
        assert!((0..SLEEPS_WITHOUT_SPIN).all(|_| !spun(&waker)), "no spins");
        assert!(!spun(&waker) && spun(&waker) && !spun(&waker), "one spin, and then none for a while");
        waker.vain.store(MAX_VAIN_SPINS - 1, Relaxed);
        assert_eq!(waker.spin(1, || Some(1)), Some(1));
        assert!((0..MAX_VAIN_SPINS).all(|_| spun(&waker)), "a successful spin resets the count");
    }

    #[test]
    fn with_more_waiters_than_processors_to_spare_nobody_spins() {
        let waker = EventfdWaker::new().unwrap();
        assert_eq!(waker.spin(most_spinning() + 1, || Some(1)), None);
        assert_eq!(waker.spin(most_spinning(), || Some(1)), Some(1));
    }

    #[test]
    fn a_sleeper_is_woken_by_its_waker_and_by_its_socket() {
        let (socket, mut other) = pair();
        let waker = Arc::new(EventfdWaker::new().unwrap());
        let other_end = Arc::clone(&waker);
        let other_thread = std::thread::spawn(move || {
            while other_end.state.load(SeqCst) != ASLEEP {
                std::thread::yield_now();
            }
            other_end.wake();
        });
        assert_eq!(waker.sleep(&socket, LONG), Some(false));
        other_thread.join().unwrap();
        other.write_all(b"x").unwrap();
        assert_eq!(waker.sleep(&socket, LONG), Some(true));
    }
}

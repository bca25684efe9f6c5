//! A thread that blocks until the server answers reads the connection itself.
//!
//! If the runtime's thread takes an answer from the socket, whoever waits for it has to be woken, which costs more than the
//! answer. So a thread that has nothing else to do waits for the socket itself, and for its bell: the runtime's thread may
//! have been faster, and then it is the waker that rings.
//!
//! | bell | meaning |
//! |---|---|
//! | awake | the thread is at work, and looks at its bell before it sleeps: ringing costs no system call |
//! | asleep | the thread waits for the socket and for the bell's file |
//! | rung | it has been woken, and does not know yet |
//!
//! Before it sleeps, the thread looks at the socket for a moment: where the server has a core of its own, the answer is often
//! there before a sleep and a wake-up would be over. Where looking was in vain a few times, it is left alone for a while.
//!
//! What this file must not do: keep a connection alive. Whoever waits for long leaves that to the runtime.

use super::client::take_in;
use super::incoming::{Incoming, ReadError};
use super::link::Link;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use rustix::fd::{AsFd, OwnedFd};
use socket2::SockRef;
use std::hint::spin_loop;
use std::io;
use std::sync::atomic::{AtomicU8, AtomicU32, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::Wake;
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

/// How long a thread looks before it sleeps.
const LOOKS: Duration = Duration::from_micros(30);
/// After so many looks in vain, this many sleeps come without one.
const IN_VAIN: u32 = 4;
const REST: u32 = 128;

const AWAKE: u8 = 0;
const ASLEEP: u8 = 1;
const RUNG: u8 = 2;

/// Wakes a thread that [hears](super::TcpEndpoint::read_blocking) a server: a waker for the futures that it waits for.
///
/// ```
/// use lockwright_fabric::backend::tcp::EventfdWaker;
/// use std::sync::Arc;
/// let bell = Arc::new(EventfdWaker::new()?);
/// std::task::Waker::from(Arc::clone(&bell)).wake();
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct EventfdWaker {
    state: AtomicU8,
    /// Looks in vain in a row; from [`IN_VAIN`] on, sleeps since.
    vain: AtomicU32,
    file: OwnedFd,
}

impl EventfdWaker {
    /// A bell for one thread.
    ///
    /// # Errors
    /// If the process has no file descriptor left.
    pub fn new() -> io::Result<Self> {
        let file = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { state: AtomicU8::new(AWAKE), vain: AtomicU32::new(0), file })
    }

    /// Whether it may pay to look before sleeping.
    fn may_look(&self) -> bool {
        let vain = self.vain.load(Relaxed);
        if vain >= IN_VAIN + REST {
            // One more in vain, and it is left alone again.
            self.vain.store(IN_VAIN - 1, Relaxed);
        } else if vain >= IN_VAIN {
            self.vain.store(vain + 1, Relaxed);
        }
        vain < IN_VAIN
    }

    /// Looks with `look` for a moment; what it found, if anything.
    fn look<T>(&self, mut look: impl FnMut() -> Option<T>) -> Option<T> {
        if !self.may_look() {
            return None;
        }
        let began = Instant::now();
        loop {
            if let Some(found) = look() {
                self.vain.store(0, Relaxed);
                return Some(found);
            }
            if self.state.load(Relaxed) == RUNG || began.elapsed() > LOOKS {
                self.vain.fetch_add(1, Relaxed);
                return None;
            }
            spin_loop();
        }
    }

    /// Sleeps until `socket` can be read (`Some(true)`) or the bell rings (`Some(false)`), at most for `limit`.
    fn sleep(&self, socket: impl AsFd, limit: Duration) -> Option<bool> {
        if self.state.compare_exchange(AWAKE, ASLEEP, SeqCst, SeqCst).is_err() {
            self.state.store(AWAKE, SeqCst);
            return Some(false);
        }
        let mut files = [PollFd::new(&socket, PollFlags::IN), PollFd::new(&self.file, PollFlags::IN)];
        let limit = Timespec::try_from(limit).ok();
        let ready = poll(&mut files, limit.as_ref());
        let readable = !files[0].revents().is_empty();
        if self.state.swap(AWAKE, SeqCst) == RUNG || !files[1].revents().is_empty() {
            let _ = rustix::io::read(&self.file, &mut [0; 8]);
            return Some(readable);
        }
        // A signal that came in between is as good as a bell: whoever waits looks again.
        match ready {
            Ok(0) => None,
            _ => Some(readable),
        }
    }
}

impl Wake for EventfdWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if self.state.swap(RUNG, SeqCst) == ASLEEP {
            let _ = rustix::io::write(&self.file, &1_u64.to_ne_bytes());
        }
    }
}

impl Link {
    /// See [`TcpEndpoint::read_blocking`](super::TcpEndpoint::read_blocking).
    pub(super) fn read_blocking(&self, bell: &EventfdWaker, limit: Duration) -> bool {
        let Some((out, incoming)) = self.line() else { return false };
        let Some(socket) = out.socket() else { return false };
        if let Some(heard) = bell.look(|| self.take_in_from(socket, &incoming)) {
            return heard;
        }
        match bell.sleep(socket, limit) {
            None => false,
            Some(false) => true,
            // If nothing is there, the runtime's thread was faster.
            Some(true) => self.take_in_from(socket, &incoming).unwrap_or(true),
        }
    }

    /// Takes in what has come: `None` if nothing has, `false` if the connection is broken, which is for the runtime to see
    /// to.
    fn take_in_from(&self, socket: &TcpStream, incoming: &Mutex<Incoming>) -> Option<bool> {
        let mut incoming = incoming.lock().unwrap_or_else(PoisonError::into_inner);
        match incoming.fill_now(&mut &*SockRef::from(socket)) {
            Ok(()) => {}
            Err(ReadError::Io(error)) if error.kind() == io::ErrorKind::WouldBlock => return None,
            Err(_) => return Some(false),
        }
        self.hear();
        if let Err(fate) = take_in(self, &mut incoming) {
            drop(incoming);
            self.end(fate);
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
    fn a_bell_that_rang_before_the_sleep_is_heard_and_heard_once() {
        let (socket, _other) = pair();
        let bell = Arc::new(EventfdWaker::new().unwrap());
        bell.wake_by_ref();
        bell.wake_by_ref();
        assert_eq!(bell.sleep(&socket, LONG), Some(false));
        assert_eq!(bell.sleep(&socket, SHORT), None);
    }

    #[test]
    fn looking_that_was_in_vain_a_few_times_is_left_alone_for_a_while() {
        let bell = EventfdWaker::new().unwrap();
        let looked = |bell: &EventfdWaker| {
            let mut looked = false;
            bell.look(|| {
                looked = true;
                None::<()>
            });
            looked
        };
        assert!((0..IN_VAIN).all(|_| looked(&bell)));
        assert!((0..REST).all(|_| !looked(&bell)), "it rests");
        assert!(!looked(&bell) && looked(&bell) && !looked(&bell), "one look, and it rests again");
        bell.vain.store(IN_VAIN - 1, Relaxed);
        assert_eq!(bell.look(|| Some(1)), Some(1));
        assert!((0..IN_VAIN).all(|_| looked(&bell)), "a look that was not in vain makes up for all others");
    }

    #[test]
    fn a_sleeper_wakes_by_its_bell_and_by_its_socket() {
        let (socket, mut other) = pair();
        let bell = Arc::new(EventfdWaker::new().unwrap());
        let rings = Arc::clone(&bell);
        let ringer = std::thread::spawn(move || {
            while rings.state.load(SeqCst) != ASLEEP {
                std::thread::yield_now();
            }
            rings.wake();
        });
        assert_eq!(bell.sleep(&socket, LONG), Some(false));
        ringer.join().unwrap();
        other.write_all(b"x").unwrap();
        assert_eq!(bell.sleep(&socket, LONG), Some(true));
    }
}

//! The bounded output buffer of a connection: written at once if possible, by a task if the socket is full or for TLS.
//!
//! Frames that are added while the buffer is corked, by [`Outgoing::gather`] or within [`coalesce_writes`] leave in one
//! write. A buffer that exceeds its limit belongs to a peer that does not read: it is closed, and with it the connection.

use super::deferred::{Deferral, Look, watch};
use socket2::SockRef;
use std::cell::RefCell;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::Instant;
use tokio::io::{AsyncWrite, AsyncWriteExt};
#[cfg(target_os = "linux")]
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;

thread_local! {
    /// What this thread does at the end of its [`coalesce_writes`].
    static COALESCING: RefCell<Option<Deferred>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Deferred {
    /// Buffers to flush.
    filled: Vec<Arc<Outgoing>>,
    /// Tasks to wake.
    wakers: Vec<Waker>,
}

/// Runs `act`. What it sends to clients of a server in this process leaves afterwards: one write per client.
///
/// ```
/// use lockwright_fabric::backend::tcp::{Inbox, coalesce_writes};
/// use lockwright_fabric::{Message, PeerId};
/// # fn example(inbox: &Inbox) {
/// coalesce_writes(|| {
///     for kind in 0..10 {
///         inbox.deliver(PeerId::role(0), Message::new(0, kind, &[]));
///     }
/// });
/// # }
/// ```
pub fn coalesce_writes<T>(act: impl FnOnce() -> T) -> T {
    /// Also after a panic.
    struct Flush;
    impl Drop for Flush {
        fn drop(&mut self) {
            let Deferred { filled, wakers } = COALESCING.take().unwrap_or_default();
            filled.into_iter().for_each(|out| out.uncork());
            wakers.into_iter().for_each(Waker::wake);
        }
    }
    if COALESCING.with_borrow(Option::is_some) {
        return act();
    }
    COALESCING.with_borrow_mut(|deferred| *deferred = Some(Deferred::default()));
    let _flush = Flush;
    act()
}

/// Wakes these tasks: at the end of the thread's [`coalesce_writes`], or at once.
#[cfg(feature = "rdma")]
pub(in crate::backend) fn wake_coalesced(wakers: Vec<Waker>) {
    let wakers = COALESCING.with_borrow_mut(|deferred| match deferred {
        Some(deferred) => {
            deferred.wakers.extend(wakers);
            Vec::new()
        }
        None => wakers,
    });
    wakers.into_iter().for_each(Waker::wake);
}

/// The writing side of a TLS stream.
pub(super) type Sealed = Box<dyn AsyncWrite + Send + Unpin>;

/// See the module.
#[derive(Debug)]
pub(super) struct Outgoing {
    queue: Mutex<Queue>,
    /// The plain socket; none under TLS.
    socket: Option<OwnedWriteHalf>,
    limit: usize,
    /// Wakes the writing task.
    work: Notify,
    /// The buffer was closed.
    gone: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    /// How many of `bytes` are written.
    start: usize,
    /// Bytes that the writing task has taken and not written yet.
    taken: usize,
    corked: bool,
    /// Close once everything is written.
    closing: bool,
    closed: bool,
    deferral: Deferral,
}

impl Queue {
    fn len(&self) -> usize {
        self.bytes.len() - self.start
    }
}

impl Outgoing {
    /// A buffer in front of `socket`, or of the TLS stream given to [`Outgoing::write`].
    pub(super) fn new(socket: Option<OwnedWriteHalf>, limit: usize) -> Arc<Self> {
        let (work, gone) = (Notify::new(), Notify::new());
        Arc::new(Self { queue: Mutex::default(), socket, limit, work, gone })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The plain socket, if there is no TLS.
    #[cfg(target_os = "linux")]
    pub(super) fn socket(&self) -> Option<&TcpStream> {
        self.socket.as_ref().map(AsRef::as_ref)
    }

    /// Adds what `fill` appends and writes it, unless the buffer is corked. `false` if the buffer is closed.
    pub(super) fn push(&self, fill: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut queue = self.queue();
        if !self.put(&mut queue, fill) {
            return false;
        }
        queue.deferral.follow(Instant::now());
        if !queue.corked {
            self.flush(&mut queue);
        }
        true
    }

    /// As [`Outgoing::push`], for what nobody waits for: it may leave with the next message, or a moment later.
    pub(super) fn push_deferrable(self: &Arc<Self>, fill: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut queue = self.queue();
        if !self.put(&mut queue, fill) {
            return false;
        }
        if queue.corked {
            return true;
        }
        if self.socket.is_some() && queue.deferral.defer(Instant::now()) {
            if queue.deferral.is_watched || watch(self) {
                queue.deferral.is_watched = true;
                return true;
            }
            queue.deferral.give_up();
        }
        self.flush(&mut queue);
        true
    }

    /// Writes what has been deferred for long enough. `false` if nothing is deferred any more.
    pub(super) fn look_at_deferred(&self) -> bool {
        let mut queue = self.queue();
        let look = queue.deferral.look();
        if look == Look::Write && !queue.corked {
            self.flush(&mut queue);
        }
        look != Look::Leave && !queue.closed
    }

    /// As [`Outgoing::push`], but within [`coalesce_writes`] it is written at its end.
    pub(super) fn push_coalesced(self: &Arc<Self>, fill: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut queue = self.queue();
        if !self.put(&mut queue, fill) {
            return false;
        }
        if !queue.corked {
            let waits = COALESCING.with_borrow_mut(|deferred| {
                deferred.as_mut().map(|deferred| deferred.filled.push(Arc::clone(self))).is_some()
            });
            queue.corked = waits;
            if !waits {
                self.flush(&mut queue);
            }
        }
        true
    }

    /// Adds what `fill` appends and leaves the writing to the task: more may follow before it runs.
    pub(super) fn gather(&self, fill: impl FnOnce(&mut Vec<u8>)) -> bool {
        let put = self.put(&mut self.queue(), fill);
        self.work.notify_one();
        put
    }

    fn put(&self, queue: &mut Queue, fill: impl FnOnce(&mut Vec<u8>)) -> bool {
        if queue.closed || queue.closing {
            return false;
        }
        fill(&mut queue.bytes);
        if queue.len() + queue.taken > self.limit {
            self.close_queue(queue);
        }
        !queue.closed
    }

    /// Writes nothing until [`Outgoing::uncork`].
    pub(super) fn cork(&self) {
        self.queue().corked = true;
    }

    /// Writes what was added since [`Outgoing::cork`].
    pub(super) fn uncork(&self) {
        let mut queue = self.queue();
        queue.corked = false;
        if queue.len() > 0 {
            self.flush(&mut queue);
        }
    }

    fn flush(&self, queue: &mut Queue) {
        let Some(socket) = &self.socket else {
            self.work.notify_one();
            return;
        };
        while queue.len() > 0 && !queue.closed {
            match socket.try_write(&queue.bytes[queue.start..]) {
                Ok(written) => queue.start += written,
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    queue.bytes.drain(..queue.start);
                    queue.start = 0;
                    self.work.notify_one();
                    return;
                }
                Err(_) => self.close_queue(queue),
            }
        }
        queue.bytes.clear();
        queue.start = 0;
        queue.deferral.written();
    }

    fn close_queue(&self, queue: &mut Queue) {
        queue.closed = true;
        self.gone.notify_waiters();
        self.work.notify_one();
    }

    /// Closes the buffer and the connection.
    pub(super) fn close(&self) {
        self.close_queue(&mut self.queue());
    }

    /// Takes nothing more, and closes the connection when everything is written.
    pub(super) fn finish(&self) {
        let mut queue = self.queue();
        queue.closing = true;
        queue.corked = false;
        self.flush(&mut queue);
        self.work.notify_one();
    }

    fn is_closed(&self) -> bool {
        self.queue().closed
    }

    /// Ready when the buffer is closed.
    pub(super) async fn closed(&self) {
        loop {
            let gone = self.gone.notified();
            if self.is_closed() {
                return;
            }
            gone.await;
        }
    }

    /// The writing task: writes what could not be written at once, until the buffer is closed.
    pub(super) async fn write(self: Arc<Self>, mut sealed: Option<Sealed>) {
        while !self.is_closed() {
            let wrote = match (&mut sealed, &self.socket) {
                (Some(sealed), _) => self.write_sealed(sealed).await,
                (None, Some(socket)) => {
                    let full = self.queue().len() > 0;
                    if full {
                        // A peer that never reads never makes room: closing the buffer must end this wait, or the task
                        // would keep the socket open for ever.
                        let room = tokio::select! {
                            room = socket.writable() => room.is_ok(),
                            () = self.closed() => false,
                        };
                        if !room {
                            self.close();
                        }
                    }
                    self.flush(&mut self.queue());
                    full
                }
                (None, None) => return,
            };
            if wrote {
                continue;
            }
            if !self.queue().closing {
                self.work.notified().await;
                continue;
            }
            if let Some(socket) = &self.socket {
                // The other side sees the end of the stream; this side can still read.
                let _ = SockRef::from(socket.as_ref()).shutdown(std::net::Shutdown::Write);
            }
            self.close();
        }
        if let Some(sealed) = &mut sealed {
            let _ = sealed.shutdown().await;
        }
    }

    /// Writes the buffer through TLS; whether there was something.
    async fn write_sealed(&self, sealed: &mut Sealed) -> bool {
        let bytes = {
            let mut queue = self.queue();
            queue.taken = queue.bytes.len();
            std::mem::take(&mut queue.bytes)
        };
        if bytes.is_empty() {
            return false;
        }
        let wrote = async {
            sealed.write_all(&bytes).await?;
            sealed.flush().await
        };
        let ended = tokio::select! {
            wrote = wrote => wrote.is_err(),
            () = self.closed() => true,
        };
        self.queue().taken = 0;
        if ended {
            self.close();
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::{TcpListener, TcpStream};

    #[tokio::test]
    async fn coalesced_frames_leave_in_one_write_and_others_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (far, _) = listener.accept().await.unwrap();
        near.writable().await.unwrap();
        let out = Outgoing::new(Some(near.into_split().1), 1 << 10);
        coalesce_writes(|| {
            for _ in 0..3 {
                assert!(out.push_coalesced(|bytes| bytes.extend(b"abc")));
            }
            assert_eq!(coalesce_writes(|| out.queue().len()), 9, "nothing has left");
        });
        assert_eq!(out.queue().len(), 0);
        out.push_coalesced(|bytes| bytes.extend(b"d"));
        assert_eq!(out.queue().len(), 0);
        let mut bytes = [0; 16];
        far.readable().await.unwrap();
        assert_eq!(far.try_read(&mut bytes).unwrap(), 10);
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            coalesce_writes(|| {
                out.push_coalesced(|bytes| bytes.extend(b"e"));
                panic!("in a role");
            })
        }));
        assert!(panics.is_err() && out.queue().len() == 0 && !out.queue().corked);
    }
}

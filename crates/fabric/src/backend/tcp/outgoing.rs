//! What is to be written to one connection: a bounded buffer, written at once where that is possible, and by a task
//! where the socket is full or TLS is in between.
//!
//! Frames that are put in while the buffer is corked, or by [`Outgoing::gather`], leave in one write; so do those for one
//! client that [come of](coalesce_writes) what arrived together from another. A buffer that grows past its limit belongs to somebody
//! who does not read: it is closed, and with it the connection.

use socket2::SockRef;
use std::cell::RefCell;
use std::io::ErrorKind;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use tokio::io::{AsyncWrite, AsyncWriteExt};
#[cfg(target_os = "linux")]
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::sync::Notify;

thread_local! {
    /// What this thread does once all is there that is to leave together.
    static TOGETHER: RefCell<Option<Then>> = const { RefCell::new(None) };
}

#[derive(Default)]
struct Then {
    /// Buffers that something was put into.
    filled: Vec<Arc<Outgoing>>,
    /// Those who take letters elsewhere.
    wakers: Vec<Waker>,
}

/// Whatever `act` sends to clients of a server in this process leaves when it is done: one write for each of them.
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
    /// Also out of a panic.
    struct Leave;
    impl Drop for Leave {
        fn drop(&mut self) {
            let Then { filled, wakers } = TOGETHER.take().unwrap_or_default();
            filled.into_iter().for_each(|out| out.uncork());
            wakers.into_iter().for_each(Waker::wake);
        }
    }
    if TOGETHER.with_borrow(Option::is_some) {
        return act();
    }
    TOGETHER.with_borrow_mut(|then| *then = Some(Then::default()));
    let _leave = Leave;
    act()
}

/// Wakes those who take letters for clients: when all is there that is to leave [coalesced](coalesce_writes), or at once.
#[cfg(feature = "rdma")]
pub(in crate::backend) fn wake_together(wakers: Vec<Waker>) {
    let wakers = TOGETHER.with_borrow_mut(|then| match then {
        Some(then) => {
            then.wakers.extend(wakers);
            Vec::new()
        }
        None => wakers,
    });
    wakers.into_iter().for_each(Waker::wake);
}

/// The writing side when TLS is in between.
pub(super) type Sealed = Box<dyn AsyncWrite + Send + Unpin>;

/// One connection's outgoing bytes.
#[derive(Debug)]
pub(super) struct Outgoing {
    queue: Mutex<Queue>,
    /// The bare socket; none under TLS.
    socket: Option<OwnedWriteHalf>,
    limit: usize,
    /// There is something for the writing task.
    work: Notify,
    /// The buffer was closed.
    gone: Notify,
}

#[derive(Debug, Default)]
struct Queue {
    bytes: Vec<u8>,
    /// How much of `bytes` is written.
    start: usize,
    /// Bytes that the writing task has taken out and not yet written.
    taken: usize,
    corked: bool,
    /// Close once everything is written.
    closing: bool,
    closed: bool,
}

impl Queue {
    fn len(&self) -> usize {
        self.bytes.len() - self.start
    }
}

impl Outgoing {
    /// A buffer in front of `socket`, or of whatever [`Outgoing::write`] is given.
    pub(super) fn new(socket: Option<OwnedWriteHalf>, limit: usize) -> Arc<Self> {
        let (work, gone) = (Notify::new(), Notify::new());
        Arc::new(Self { queue: Mutex::default(), socket, limit, work, gone })
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The socket, if nothing is between it and this buffer.
    #[cfg(target_os = "linux")]
    pub(super) fn socket(&self) -> Option<&TcpStream> {
        self.socket.as_ref().map(AsRef::as_ref)
    }

    /// Puts in what `fill` appends and writes it, unless the buffer is corked. `false` if it is closed, or is now.
    pub(super) fn push(&self, fill: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut queue = self.queue();
        if !self.put(&mut queue, fill) {
            return false;
        }
        if !queue.corked {
            self.flush(&mut queue);
        }
        true
    }

    /// As [`Outgoing::push`], but what is put in while something is handled [coalesced](coalesce_writes) leaves with the rest of it.
    pub(super) fn pass_on(self: &Arc<Self>, fill: impl FnOnce(&mut Vec<u8>)) -> bool {
        let mut queue = self.queue();
        if !self.put(&mut queue, fill) {
            return false;
        }
        if !queue.corked {
            let waits = TOGETHER.with_borrow_mut(|then| {
                then.as_mut().map(|then| then.filled.push(Arc::clone(self))).is_some()
            });
            queue.corked = waits;
            if !waits {
                self.flush(&mut queue);
            }
        }
        true
    }

    /// Puts in what `fill` appends and leaves the writing to the task: more may come before it runs.
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

    /// Gathers what is put in, until [`Outgoing::uncork`].
    pub(super) fn cork(&self) {
        self.queue().corked = true;
    }

    /// Writes what was gathered.
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
    }

    fn close_queue(&self, queue: &mut Queue) {
        queue.closed = true;
        self.gone.notify_waiters();
        self.work.notify_one();
    }

    /// Takes nothing more, and ends the connection.
    pub(super) fn close(&self) {
        self.close_queue(&mut self.queue());
    }

    /// Takes nothing more, and ends the connection when everything is written.
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

    /// Done when the buffer is closed.
    pub(super) async fn closed(&self) {
        loop {
            let gone = self.gone.notified();
            if self.is_closed() {
                return;
            }
            gone.await;
        }
    }

    /// The writing task: writes what could not be written at once. Ends when the buffer is closed.
    pub(super) async fn write(self: Arc<Self>, mut sealed: Option<Sealed>) {
        while !self.is_closed() {
            let wrote = match (&mut sealed, &self.socket) {
                (Some(sealed), _) => self.write_sealed(sealed).await,
                (None, Some(socket)) => {
                    let full = self.queue().len() > 0;
                    if full {
                        // Somebody who never reads never makes room: the end of the buffer ends the wait too, else
                        // this task would keep the socket open for ever.
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
                // The other side sees the end of what was said, though this side still listens.
                let _ = SockRef::from(socket.as_ref()).shutdown(std::net::Shutdown::Write);
            }
            self.close();
        }
        if let Some(sealed) = &mut sealed {
            let _ = sealed.shutdown().await;
        }
    }

    /// Writes what is there through TLS; whether there was something.
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
    async fn what_is_passed_on_together_leaves_together_and_else_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let near = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let (far, _) = listener.accept().await.unwrap();
        near.writable().await.unwrap();
        let out = Outgoing::new(Some(near.into_split().1), 1 << 10);
        coalesce_writes(|| {
            for _ in 0..3 {
                assert!(out.pass_on(|bytes| bytes.extend(b"abc")));
            }
            assert_eq!(coalesce_writes(|| out.queue().len()), 9, "nothing has left");
        });
        assert_eq!(out.queue().len(), 0);
        out.pass_on(|bytes| bytes.extend(b"d"));
        assert_eq!(out.queue().len(), 0);
        let mut bytes = [0; 16];
        far.readable().await.unwrap();
        assert_eq!(far.try_read(&mut bytes).unwrap(), 10);
        let panics = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            coalesce_writes(|| {
                out.pass_on(|bytes| bytes.extend(b"e"));
                panic!("somebody's role");
            })
        }));
        assert!(panics.is_err() && out.queue().len() == 0 && !out.queue().corked);
    }
}

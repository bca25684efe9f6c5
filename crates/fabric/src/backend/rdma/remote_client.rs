//! A remote client's session at its host: the memory registered for it, its connection, and the messages for it.
//!
//! Its **fence** is what recovery rests on: when [`RemoteClient::fence`] returns, the queue pair is destroyed, and a verb of the
//! client that is still under way finds nothing to act on.

use super::connection::Connection;
use super::control::Frame;
use super::encoding;
use super::event_loop::{CHUNK, EventHandler, EventLoop, LoopThread, count_fitting};
use super::queue_pair::QueuePairInfo;
use super::verbs::RemoteMemory;
use crate::addr::PeerId;
use crate::backend::block_on;
use crate::backend::clock::Clock;
use crate::backend::inproc::mailbox::{Mailbox, Receive};
use crate::backend::inproc::{InProc, InProcEndpoint};
use crate::endpoint::Endpoint;
use crate::message::Message;
use crate::wait::Deadline;
use std::net::{Shutdown, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};

/// See the module.
pub(super) struct RemoteClient {
    // Dropped in this order: the queue pair, then the keys of the memory, then the rest.
    pub(super) connection: Arc<Connection>,
    pub(super) regions: Mutex<Vec<RemoteMemory>>,
    pub(super) event_loop: Arc<EventLoop>,
    pub(super) _thread: LoopThread,
    pub(super) control: Mutex<TcpStream>,
    pub(super) source: MessageSource,
    /// The registered memory, if it does not belong to the host's own fabric.
    pub(super) _memory: Option<Arc<InProc>>,
    pub(super) gone: AtomicBool,
}

/// Where messages for a client come from.
pub(super) enum MessageSource {
    /// Roles and local clients. Keeps the registered memory, too.
    InProc(InProcEndpoint),
    /// The [service](super::RdmaService).
    Service(Arc<Mailbox>, Clock),
}

impl MessageSource {
    async fn next(&self, deadline: Deadline) -> Option<(PeerId, Message)> {
        let pick = |from, message: &Message| Some((from, message.clone()));
        match self {
            Self::InProc(ep) => ep.recv_by(deadline, pick).await,
            Self::Service(mailbox, clock) => Receive::new(mailbox, clock, deadline, pick).await,
        }
    }

    fn close(&self) {
        match self {
            Self::InProc(ep) => ep.close(),
            Self::Service(mailbox, _) => mailbox.close(),
        }
    }
}

impl RemoteClient {
    pub(super) fn send_frame(&self, frame: &Frame) {
        let mut control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = frame.write(&mut *control);
    }

    /// From here on nothing of it takes effect: its queue pair is destroyed, its keys are revoked.
    pub(super) fn fence(&self) {
        self.gone.store(true, Relaxed);
        self.connection.close();
        self.revoke();
        self.source.close();
        let control = self.control.lock().unwrap_or_else(PoisonError::into_inner);
        let _ = control.shutdown(Shutdown::Both);
    }

    /// Revokes its keys; it may go on sending messages.
    pub(super) fn revoke(&self) {
        self.regions.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    /// The client comes with a new queue pair; the old one is destroyed first. `None` if there is none to be had.
    pub(super) fn renew(&self, other: &QueuePairInfo) -> Option<QueuePairInfo> {
        self.connection.disconnect();
        if self.gone.load(Relaxed) {
            return None;
        }
        let pair = self.event_loop.queue_pair(true).ok()?;
        pair.connect(other).ok()?;
        let info = pair.info;
        self.connection.replace(pair);
        Some(info)
    }

    /// Sends messages to the client in their order until it is gone: all that are there, as far as they fit together, with
    /// one doorbell. What may not have arrived is sent again over the next queue pair; the client drops duplicates by number.
    pub(super) fn send_messages(&self) {
        let mut number = 0_u32;
        let mut messages = Vec::new();
        while let Some(first) = block_on(self.source.next(Deadline::Never)) {
            let others = std::iter::from_fn(|| block_on(self.source.next(Deadline::Now)));
            // From the host, a message names its sender.
            messages.extend(std::iter::once(first).chain(others).take(CHUNK).map(|(from, message)| {
                number = number.wrapping_add(1);
                encoding::encode(from, number, &message)
            }));
            while !messages.is_empty() {
                let count = count_fitting(messages.iter().map(Vec::len));
                if !self.send_until_arrived(&messages[..count]) {
                    return;
                }
                messages.drain(..count);
            }
        }
    }

    /// Sends messages until they have arrived; `false` if the client is gone.
    fn send_until_arrived(&self, messages: &[Vec<u8>]) -> bool {
        loop {
            let used = self.connection.number();
            if block_on(self.connection.send_all(messages)) {
                return true;
            }
            if self.gone.load(Relaxed) {
                return false;
            }
            self.request_new_queue_pair(used);
        }
    }

    /// Asks the client for a new queue pair, unless there is another already than the one that failed.
    fn request_new_queue_pair(&self, failed: Option<u32>) {
        if failed.is_some() && self.connection.number() == failed {
            self.connection.disconnect();
            self.send_frame(&Frame::QueuePairFailed);
        }
    }
}

/// Handles the events of a remote client's event loop.
pub(super) struct RemoteClientHandler<F, S> {
    pub(super) deliver: F,
    pub(super) settle: S,
    pub(super) client: Arc<OnceLock<Weak<RemoteClient>>>,
}

impl<F: Fn(PeerId, Message) + Send + Sync, S: Fn() + Send + Sync> EventHandler for RemoteClientHandler<F, S> {
    fn message(&self, _: u32, bytes: &[u8]) {
        if let Some((to, _, message)) = encoding::decode(bytes) {
            (self.deliver)(to, message);
        }
    }

    fn settle(&self) {
        (self.settle)();
    }

    fn queue_pair_failed(&self, pair: u32) {
        let client = self.client.get().and_then(Weak::upgrade);
        if let Some(client) = client.filter(|client| client.connection.mark_failed(pair)) {
            client.send_frame(&Frame::QueuePairFailed);
        }
    }
}

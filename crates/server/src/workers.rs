//! The threads that read connections beside the one that listens.
//!
//! Each has a runtime of its own, and a connection stays where it was dealt to: there is no work stealing, so the thread that
//! reads a request on an idle server answers it, and wakes no other.

use std::io;
use std::thread::JoinHandle;
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// More threads than this are not started without being asked for: the combiner serves what they read.
const MOST: usize = 8;

/// All but the first. Dropping them ends them, and what runs there.
#[derive(Debug)]
pub(super) struct Workers(Vec<Worker>);

#[derive(Debug)]
struct Worker {
    runtime: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Workers {
    /// Starts what is missing to make it so many threads with this one, or as many as are sensible.
    pub(super) fn start(threads: Option<usize>) -> io::Result<Self> {
        let cores = || std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        // Clients may be on this machine too: threads that outnumber the cores keep each other waiting.
        let threads = threads.unwrap_or_else(|| (cores() / 2).clamp(1, MOST));
        (1..threads).map(Worker::start).collect::<io::Result<_>>().map(Self)
    }

    pub(super) fn handles(&self) -> Vec<Handle> {
        self.0.iter().map(|worker| worker.runtime.clone()).collect()
    }
}

impl Worker {
    fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, (stop, stopped)) = (runtime.handle().clone(), oneshot::channel());
        let work = move || {
            let _ = runtime.block_on(stopped);
        };
        let thread = std::thread::Builder::new().name(format!("lockwright-io-{number}")).spawn(work)?;
        Ok(Self { runtime: handle, stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

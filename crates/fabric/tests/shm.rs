//! The shared-memory backend under the conformance suite: its clients as threads, as tasks of one thread, and as tasks
//! whose wakers are not those of `block_on`. Clients in processes of their own: `shm_processes.rs`.

#![cfg(all(feature = "shm", target_os = "linux"))]

use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{ShmEndpoint, ShmSpace, SpaceOptions};
use lockwright_fabric::conformance::{Rig, Shape, Task};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::task::{Context, Poll, Wake, Waker};

/// A space of its own for one check, removed when dropped.
struct Fresh {
    endpoints: Vec<ShmEndpoint>,
    path: PathBuf,
}

impl Fresh {
    fn new(shape: Shape) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let name = format!("lockwright-test-{}-{}.space", std::process::id(), NEXT.fetch_add(1, SeqCst));
        let path = std::path::Path::new("/dev/shm").join(name);
        let options = SpaceOptions::default().memory(shape.nodes, &[shape.bytes]);
        let space = ShmSpace::open(&path, &options).unwrap();
        let endpoints = (0..shape.clients).map(|_| space.endpoint().unwrap()).collect();
        Self { endpoints, path }
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        ShmSpace::remove(&self.path).unwrap();
    }
}

/// A thread per client, each of which sleeps on its client's doorbell itself.
struct Threads(Fresh);

impl Rig for Threads {
    type E = ShmEndpoint;

    fn run(&mut self, tasks: Vec<Task<ShmEndpoint>>) {
        std::thread::scope(|scope| {
            for (ep, task) in std::iter::zip(self.0.endpoints.clone(), tasks) {
                scope.spawn(move || block_on(task(ep)));
            }
        });
    }
}

/// As a runtime would run them: every task has a waker of its own, so the client's helper thread must wake it.
struct Wakers(Fresh);

/// Counts as a runtime's waker: it unparks a thread, but is not `block_on`'s.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

impl Rig for Wakers {
    type E = ShmEndpoint;

    fn run(&mut self, tasks: Vec<Task<ShmEndpoint>>) {
        std::thread::scope(|scope| {
            for (ep, task) in std::iter::zip(self.0.endpoints.clone(), tasks) {
                scope.spawn(move || {
                    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
                    let mut cx = Context::from_waker(&waker);
                    let mut task = task(ep);
                    while task.as_mut().poll(&mut cx) == Poll::Pending {
                        std::thread::park();
                    }
                });
            }
        });
    }
}

/// All clients on one thread, polled in turns without being woken.
struct OneThread(Fresh);

impl Rig for OneThread {
    type E = ShmEndpoint;

    fn run(&mut self, tasks: Vec<Task<ShmEndpoint>>) {
        let mut running: Vec<_> =
            std::iter::zip(self.0.endpoints.clone(), tasks).map(|(ep, task)| task(ep)).collect();
        let mut cx = Context::from_waker(Waker::noop());
        while !running.is_empty() {
            running.retain_mut(|task| task.as_mut().poll(&mut cx).is_pending());
        }
    }
}

mod threads {
    use super::*;
    lockwright_fabric::conformance_tests!(|shape| Threads(Fresh::new(shape)));
}

mod wakers {
    use super::*;
    lockwright_fabric::conformance_tests!(|shape| Wakers(Fresh::new(shape)));
}

mod one_thread {
    use super::*;
    lockwright_fabric::conformance_tests!(|shape| OneThread(Fresh::new(shape)));
}

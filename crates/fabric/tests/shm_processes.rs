//! The shared-memory backend with every client in a process of its own, under the conformance suite.

#![cfg(all(feature = "shm", target_os = "linux"))]

mod children;

use children::{Place, Process, Remote};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::shm::{ShmSpace, SpaceOptions};
use lockwright_fabric::conformance::{Rig, Shape, Task};

/// What child processes run; a test only because that is how a test binary finds it.
#[test]
fn child() {
    children::serve_if_child();
}

/// A process per client.
struct Processes {
    clients: Vec<Remote>,
    _place: Place,
}

impl Processes {
    fn new(shape: Shape) -> Self {
        let place = Place::new();
        let options = SpaceOptions::default().memory(shape.nodes, &[shape.bytes]);
        // Nobody has it open while the children come: a space is its file.
        drop(ShmSpace::open(&place.0, &options).unwrap());
        let clients = (0..shape.clients).map(|_| Remote::new(Process::start(&place.0, "child"))).collect();
        Self { clients, _place: place }
    }
}

impl Rig for Processes {
    type E = Remote;

    fn run(&mut self, tasks: Vec<Task<Remote>>) {
        std::thread::scope(|scope| {
            for (ep, task) in std::iter::zip(self.clients.clone(), tasks) {
                scope.spawn(move || block_on(task(ep)));
            }
        });
    }
}

lockwright_fabric::conformance_tests!(|shape| Processes::new(shape));

//! The in-process backend under the conformance suite, its clients as threads.

use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint, block_on};
use lockwright_fabric::conformance::{Rig, Shape, Task};
use lockwright_fabric::{NodeId, PeerId};

struct Threads {
    fabric: InProc,
    endpoints: Vec<InProcEndpoint>,
}

impl Threads {
    fn new(shape: Shape) -> Self {
        let fabric = InProc::new(shape.nodes, shape.bytes);
        let endpoints = (0..shape.clients).map(|client| fabric.endpoint(PeerId::client(client))).collect();
        Self { fabric, endpoints }
    }
}

impl Rig for Threads {
    type E = InProcEndpoint;

    fn run(&mut self, tasks: Vec<Task<InProcEndpoint>>) {
        std::thread::scope(|scope| {
            for (ep, task) in std::iter::zip(&self.endpoints, tasks) {
                scope.spawn(|| block_on(task(ep.clone())));
            }
        });
    }

    fn kill(&mut self, node: NodeId) -> bool {
        self.fabric.kill(node);
        true
    }
}

mod conformance {
    use super::Threads;
    lockwright_fabric::conformance_tests!(Threads::new);
}

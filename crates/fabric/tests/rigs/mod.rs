//! Two ways to run clients of the in-process fabric, with something around their endpoints.

#![allow(dead_code, unreachable_pub, reason = "every test binary uses its part of this")]

use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint, block_on};
use lockwright_fabric::conformance::{Rig, Shape, Task};
use lockwright_fabric::{Endpoint, NodeId, PeerId};
use std::pin::Pin;
use std::task::{Context, Waker};

fn endpoints<E>(fabric: &InProc, shape: Shape, wrap: impl Fn(InProcEndpoint) -> E) -> Vec<E> {
    (0..shape.clients).map(|client| wrap(fabric.endpoint(PeerId::client(client)))).collect()
}

/// A thread per client.
pub struct Threads<E> {
    fabric: InProc,
    endpoints: Vec<E>,
}

impl<E> Threads<E> {
    pub fn new(shape: Shape, wrap: impl Fn(InProcEndpoint) -> E) -> Self {
        let fabric = InProc::new(shape.nodes, shape.bytes);
        let endpoints = endpoints(&fabric, shape, wrap);
        Self { fabric, endpoints }
    }
}

impl<E: Endpoint + Send> Rig for Threads<E> {
    type E = E;

    fn run(&mut self, tasks: Vec<Task<E>>) {
        std::thread::scope(|scope| {
            for (ep, task) in std::iter::zip(&self.endpoints, tasks) {
                let ep = ep.clone();
                scope.spawn(move || block_on(task(ep)));
            }
        });
    }

    fn kill(&mut self, node: NodeId) -> bool {
        self.fabric.kill(node);
        true
    }
}

/// All clients on one thread, polled in an order that the seed decides: what goes wrong does so every time.
pub struct OneThread<E> {
    fabric: InProc,
    endpoints: Vec<E>,
    state: u64,
}

impl<E> OneThread<E> {
    pub fn new(shape: Shape, seed: u64, wrap: impl Fn(InProcEndpoint) -> E) -> Self {
        let fabric = InProc::new(shape.nodes, shape.bytes);
        let endpoints = endpoints(&fabric, shape, wrap);
        Self { fabric, endpoints, state: seed }
    }

    fn below(&mut self, limit: usize) -> usize {
        self.state =
            self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.state >> 33) as usize % limit
    }
}

impl<E: Endpoint> Rig for OneThread<E> {
    type E = E;

    fn run(&mut self, tasks: Vec<Task<E>>) {
        let mut running: Vec<Pin<Box<dyn Future<Output = ()>>>> =
            std::iter::zip(self.endpoints.clone(), tasks).map(|(ep, task)| task(ep)).collect();
        let mut cx = Context::from_waker(Waker::noop());
        while !running.is_empty() {
            let index = self.below(running.len());
            if running[index].as_mut().poll(&mut cx).is_ready() {
                drop(running.swap_remove(index));
            }
        }
    }

    fn kill(&mut self, node: NodeId) -> bool {
        self.fabric.kill(node);
        true
    }
}

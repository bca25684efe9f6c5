//! Two ways to run clients of the in-process fabric, with something around their endpoints.

#![allow(dead_code, unreachable_pub, reason = "every test binary uses its part of this")]

use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint, block_on};
use lockwright_fabric::conformance::{Rig, Shape, Task};
use lockwright_fabric::random::SplitMix;
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
    dice: SplitMix,
}

impl<E> OneThread<E> {
    pub fn new(shape: Shape, seed: u64, wrap: impl Fn(InProcEndpoint) -> E) -> Self {
        let fabric = InProc::new(shape.nodes, shape.bytes);
        let endpoints = endpoints(&fabric, shape, wrap);
        Self { fabric, endpoints, dice: SplitMix::new(seed) }
    }
}

impl<E: Endpoint> Rig for OneThread<E> {
    type E = E;

    fn run(&mut self, tasks: Vec<Task<E>>) {
        let mut running: Vec<Pin<Box<dyn Future<Output = ()>>>> =
            std::iter::zip(self.endpoints.clone(), tasks).map(|(ep, task)| task(ep)).collect();
        let mut cx = Context::from_waker(Waker::noop());
        while !running.is_empty() {
            let index = self.dice.below(running.len() as u64) as usize;
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

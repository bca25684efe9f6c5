//! One simulation of a protocol: its lock memory, its server side and its clients in a [`World`], run to their end.
//!
//! [`run`](crate::run()) gives all clients cycles of one kind and reports on them. An experiment whose clients do something
//! else, or live somewhere else, brings them itself: it starts a [`Simulation`] and [spawns](Simulation::spawn) them.

use crate::failure::Cause;
use crate::server::ServerThreads;
use crate::world::{Ended, Setup, SimEndpoint, World};
use lockwright_fabric::{Addr, NodeId, Width};
use lockwright_locks::{Protocol, Space};
use std::collections::BTreeMap;

/// Lock memory, roles and clients of the protocol `P`.
#[derive(Debug)]
pub struct Simulation<'a, P: Protocol> {
    /// Where they are, and the time.
    pub world: World<'a>,
    pub(crate) space: Space,
    pub(crate) params: P::Params,
    /// Memory that is not zero in the beginning.
    pub(crate) initial: BTreeMap<Addr, u64>,
}

impl<'a, P: Protocol> Simulation<'a, P> {
    /// Lays out the memory of `space` and starts the protocol's roles on its nodes, each with these `groups` of threads, or with
    /// the network model's. Nodes and their size are the protocol's, whatever `setup` says of them.
    pub fn new(space: Space, params: &P::Params, setup: Setup, groups: Option<&[ServerThreads]>) -> Self {
        let bytes_per_node = P::bytes_per_node(&space, params);
        let mut world = World::new(Setup { nodes: space.nodes, bytes_per_node, ..setup });
        let initial: BTreeMap<Addr, u64> = P::initial_memory(&space, params).into_iter().collect();
        for (addr, word) in &initial {
            world.write(*addr, Width::W64, u128::from(*word));
        }
        world.install_roles(P::roles(&space, params), P::switches(&space, params), groups);
        Self { world, space, params: params.clone(), initial }
    }

    /// Adds a client, at home on a node or on none: `work` makes it, from its endpoint, and what it does.
    pub fn spawn<F: Future<Output = ()> + 'static>(
        &mut self,
        home: Option<NodeId>,
        work: impl FnOnce(SimEndpoint, &Space, &P::Params) -> F,
    ) {
        let Self { world, space, params, .. } = self;
        world.spawn(home, |ep| work(ep, space, params));
    }

    /// Runs until every client is done.
    ///
    /// # Errors
    /// What a checker objects to, or that clients are not done at `until_ns`.
    pub fn run(&mut self, until_ns: u64) -> Result<(), Cause> {
        match self.world.run(until_ns).map_err(Cause::Violation)? {
            Ended::AllDone => Ok(()),
            ended => {
                let moving = ended == Ended::TimeUp;
                let (at_ns, clients) = (self.world.now_ns(), self.world.unfinished());
                Err(Cause::Stuck { at_ns, clients, moving })
            }
        }
    }
}

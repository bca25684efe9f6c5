//! The simulator keeps to what every backend keeps to: the shared suite, over the network and at home.

use lockwright_fabric::NodeId;
use lockwright_fabric::conformance::{Rig, Shape, Task};
use lockwright_sim::fault::FaultPlan;
use lockwright_sim::{Ended, Memory, Setup, SimEndpoint, World};

/// A fresh world for every run; memory goes from one to the next.
struct Simulated {
    setup: Setup,
    home: Option<NodeId>,
    memory: Option<Memory>,
}

fn rig(shape: Shape, home: Option<NodeId>) -> Simulated {
    let setup = Setup {
        clients: shape.clients,
        nodes: shape.nodes,
        bytes_per_node: shape.bytes,
        faults: FaultPlan::default(),
        ..Setup::default()
    };
    Simulated { setup, home, memory: None }
}

impl Rig for Simulated {
    type E = SimEndpoint;

    fn run(&mut self, tasks: Vec<Task<SimEndpoint>>) {
        let mut world = World::new(self.setup.clone());
        if let Some(memory) = self.memory.take() {
            world.with_memory(|fresh| *fresh = memory);
        }
        for task in tasks {
            world.spawn(self.home, task);
        }
        assert_eq!(world.run(u64::MAX).expect("nobody said anything to check"), Ended::AllDone);
        world.drain(u64::MAX).expect("nobody said anything to check");
        self.memory = Some(world.with_memory(|memory| memory.clone()));
    }

    fn kill(&mut self, node: NodeId) -> bool {
        // A client at home on a node dies with it, and could not report anything.
        if self.home == Some(node) {
            return false;
        }
        self.setup.faults.node_deaths.push((node, 0));
        true
    }
}

mod over_the_network {
    use super::rig;
    lockwright_fabric::conformance_tests!(|shape| rig(shape, None));
}

mod at_home {
    use super::rig;
    use lockwright_fabric::NodeId;
    lockwright_fabric::conformance_tests!(|shape| rig(shape, Some(NodeId(0))));
}

//! ParLock: lock managers beside the clients, each with its part of the locks (FissLock §2.1). A request for a lock of
//! the client's own machine does not leave it.

use super::srvlock::{LockServer, OFFERS, Route, ServedClient, kind};
use lockwright_fabric::{BoxedRole, Endpoint, Needs};
use lockwright_locks::{Info, Protocol, Space};

/// ParLock.
#[derive(Debug)]
pub struct ParLock;

/// Its tunables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParParams {
    /// Locks are dealt out round robin, not in stretches. In stretches, as here by default, a skewed choice of locks is
    /// one machine's burden: 56.7 % of all requests in FissLock §2.3.
    pub round_robin: bool,
}

impl Protocol for ParLock {
    type Params = ParParams;
    type Client<E: Endpoint> = ServedClient<E>;

    const INFO: Info = Info {
        name: "parlock",
        summary: "lock managers beside the clients, each with its part of the locks",
        source: "FissLock (OSDI '24) §2.1",
        offers: OFFERS,
    };

    fn needs(_: &ParParams) -> Needs {
        Needs { messages: true, ..Needs::default() }
    }

    fn bytes_per_node(_: &Space, _: &ParParams) -> u64 {
        0
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &ParParams) -> ServedClient<E> {
        let machines = u64::from(space.nodes);
        let stretch = Route::Stretches(machines, space.locks.div_ceil(machines));
        ServedClient::new(ep, if params.round_robin { Route::Spread(machines) } else { stretch })
    }

    fn roles(space: &Space, _: &ParParams) -> Vec<BoxedRole> {
        (0..space.nodes).map(|_| BoxedRole::new(LockServer::default())).collect()
    }

    fn tune(params: &mut ParParams, name: &str, value: u64) -> bool {
        params.round_robin = value == 1;
        name == "round_robin" && value <= 1
    }

    fn message_name(kind: u32) -> &'static str {
        kind::name(kind)
    }
}

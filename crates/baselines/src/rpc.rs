//! The server-side lock behind RPCs, retried on failure (ShiftLock §4.1, "RPC").
//!
//! The server's CPU keeps who holds what; lock memory stays empty. A client that is refused asks again after a
//! short pause. No queue at the server: that is what makes it the baseline. A mutex: shared wants are served as
//! exclusive ones.

use super::cas::out_of_patience;
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{BoxedRole, Endpoint, FabricError, Message, Needs, Outbox, PeerId, Role, Time};
use lockwright_locks::{Denied, Held, Info, LockClient, Lost, Offers, Protocol, Space, Want};
use std::collections::BTreeMap;

/// The RPC lock.
#[derive(Debug)]
pub struct Rpc;

/// Its tunables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RpcParams {
    /// Pause after a refusal; none, as the paper has it.
    pub retry_ns: u64,
}

const ACQUIRE: u32 = 1;
const RELEASE: u32 = 2;
/// The answer to both: word 0 says whether it was done.
const REPLY: u32 = 3;

impl Protocol for Rpc {
    type Params = RpcParams;
    type Client<E: Endpoint> = RpcClient<E>;

    const INFO: Info = Info {
        name: "rpc",
        summary: "server-side lock behind RPCs, retried on failure",
        source: "ShiftLock §4.1",
        offers: Offers { tries: true, timeouts: true, ..Offers::NONE },
    };

    fn needs(_: &RpcParams) -> Needs {
        Needs { messages: true, ..Needs::default() }
    }

    fn bytes_per_node(_: &Space, _: &RpcParams) -> u64 {
        0
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &RpcParams) -> RpcClient<E> {
        RpcClient { ep, space: *space, params: params.clone() }
    }

    fn roles(space: &Space, _: &RpcParams) -> Vec<BoxedRole> {
        (0..space.nodes).map(|_| BoxedRole::new(RpcServer::default())).collect()
    }

    fn message_name(kind: u32) -> &'static str {
        ["message", "Acquire", "Release", "Reply"][kind as usize]
    }
}

/// The server: who holds which lock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct RpcServer {
    holders: BTreeMap<u64, PeerId>,
}

impl Role for RpcServer {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        let lock = message.lock;
        let done = match message.kind {
            ACQUIRE => *self.holders.entry(lock).or_insert(from) == from,
            RELEASE => self.release(lock, from),
            _ => false,
        };
        out.send(from, Message::new(lock, REPLY, &[u64::from(done)]));
    }
}

impl RpcServer {
    /// A foreign release changes nothing.
    fn release(&mut self, lock: u64, from: PeerId) -> bool {
        let held = self.holders.get(&lock) == Some(&from);
        if held {
            self.holders.remove(&lock);
        }
        held
    }
}

/// A client of the RPC lock.
#[derive(Clone, Debug)]
pub struct RpcClient<E> {
    ep: E,
    space: Space,
    params: RpcParams,
}

impl<E: Endpoint> LockClient for RpcClient<E> {
    type Grant = Held;

    async fn acquire(&self, want: Want) -> Result<Held, Denied> {
        let lock = want.claim.lock;
        while !self.call(lock, ACQUIRE).await? {
            self.ep.mark("rpc retry", &[]);
            out_of_patience(&self.ep, want).await?;
            self.ep.sleep(self.params.retry_ns).await;
            self.ep.observe(Observation::Retried(want.claim));
        }
        Ok(Held { lock })
    }

    async fn release(&self, grant: Held) -> Result<(), Lost> {
        if self.call(grant.lock, RELEASE).await? { Ok(()) } else { Err(Lost::Recovered) }
    }
}

impl<E: Endpoint> RpcClient<E> {
    async fn call(&self, lock: u64, kind: u32) -> Result<bool, FabricError> {
        let server = PeerId::role(self.space.node_of(lock).0 as usize);
        self.ep.send(server, Message::new(lock, kind, &[])).await?;
        let is_reply = |_, message: &Message| {
            (message.lock == lock && message.kind == REPLY).then(|| message.words[0] == 1)
        };
        Ok(self.ep.recv(is_reply).await)
    }
}

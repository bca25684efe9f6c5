//! The threads of a server: how messages get to them, and what a message costs.
//!
//! | what | why |
//! |---|---|
//! | [`Spread`] | a NIC does not know which thread is idle: it spreads packets by a hash, and an RPC session stays with one |
//! | [`ServerThreads::batch`] | a thread polls for a burst of packets and sends what it has to say when it is through |
//! | [`ServerThreads::call_ns`] | a client on the server's own node calls a function: no packet, and no thread of the server |

/// How messages are spread over the threads of a group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Spread {
    /// To the thread that will be free first.
    #[default]
    Idle,
    /// To the thread that its sender's session belongs to, as eRPC does.
    Session,
    /// To any, by a hash of a port that changes from packet to packet: receive side scaling.
    Random,
}

/// A server's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ServerThreads {
    /// How many receive and answer, unless a harness names groups. A role is one state machine, so one unless told otherwise.
    pub threads: usize,
    /// A thread's work per message.
    pub service_ns: u64,
    /// What a message of a client on the server's own node costs that client, if it is a call and not a packet.
    pub call_ns: Option<u64>,
    /// Messages that a thread takes at once; it answers when it is through with them. One: each is answered when it is done.
    pub batch: u32,
    /// Which thread takes a message.
    pub spread: Spread,
}

impl Default for ServerThreads {
    fn default() -> Self {
        Self { threads: 1, service_ns: 200, call_ns: None, batch: 1, spread: Spread::Idle }
    }
}

//! What can happen to two servers, two clients and one etcd.

use std::fmt;

/// One thing that happens. Numbers are of servers (`S`) and clients (`C`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Time passes.
    Tick,
    /// A server sends a renewal, which etcd hears.
    Renews(usize),
    /// The answer to it arrives.
    Renewed(usize),
    /// etcd ends the lease of a server.
    Expires(usize),
    /// A server without a lease gets a new one.
    Rejoins(usize),
    /// A server finds the shard without a living owner, and sends the transaction that takes it.
    Takes(usize),
    /// A server finds that it was handed the shard, and sends the transaction that adopts it.
    Adopts(usize),
    /// etcd executes the transaction that a server has sent.
    Executes(usize),
    /// A server hears what came of it.
    Answered(usize),
    /// A server finds that the shard is another's.
    Closes(usize),
    /// A new owner has waited for claims long enough.
    WaitOver(usize),
    /// A server freezes the shard, to hand it to the other.
    Moves(usize),
    /// A table of the shard arrives at a server: which of those that were said to it.
    Tabled(usize, usize),
    /// An operator has a server break the grant of the lock.
    Breaks(usize),
    /// A server evicts a session whose client is gone.
    Evicts(usize, u128),
    /// What a client has said arrives at its server.
    ToServer(usize),
    /// What was said to a client arrives, and its user looks.
    ToClient(usize),
    /// A client begins a session with a server.
    Connects(usize, usize),
    /// A client gives up its session.
    Leaves(usize),
    /// A client asks how long the server is certain.
    Probes(usize),
    /// A user asks for the lock, or gives it back.
    Acts(usize),
    /// A server is paused, and goes on.
    Pauses(usize),
    /// See [`Step::Pauses`].
    Continues(usize),
    /// A server is cut off from etcd, and reaches it again.
    Cuts(usize),
    /// See [`Step::Cuts`].
    Heals(usize),
    /// A server is killed.
    Crashes(usize),
    /// A client is killed.
    Dies(usize),
    /// The machine of a client is suspended, and its clock with it.
    Sleeps(usize),
    /// It goes on, and knows of nothing.
    Wakes(usize),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Tick => write!(f, "time passes"),
            Step::Renews(s) => write!(f, "S{s} renews its lease"),
            Step::Renewed(s) => write!(f, "S{s} hears of its renewal"),
            Step::Expires(s) => write!(f, "the lease of S{s} is over"),
            Step::Rejoins(s) => write!(f, "S{s} joins again"),
            Step::Takes(s) => write!(f, "S{s} sends its takeover"),
            Step::Adopts(s) => write!(f, "S{s} adopts the shard"),
            Step::Executes(s) => write!(f, "etcd executes what S{s} sent"),
            Step::Answered(s) => write!(f, "S{s} hears what came of it"),
            Step::Closes(s) => write!(f, "S{s} sees that the shard is another's"),
            Step::WaitOver(s) => write!(f, "S{s} has waited for claims long enough"),
            Step::Moves(s) => write!(f, "S{s} freezes the shard and hands it over"),
            Step::Tabled(s, at) => write!(f, "table {at} arrives at S{s}"),
            Step::Breaks(s) => write!(f, "S{s} is told to break the grant"),
            Step::Evicts(s, key) => write!(f, "S{s} evicts session {key}"),
            Step::ToServer(c) => write!(f, "what C{c} said arrives"),
            Step::ToClient(c) => write!(f, "what was said to C{c} arrives"),
            Step::Connects(c, s) => write!(f, "C{c} begins a session with S{s}"),
            Step::Leaves(c) => write!(f, "C{c} gives up its session"),
            Step::Probes(c) => write!(f, "C{c} sends a probe"),
            Step::Acts(c) => write!(f, "C{c}: the user does the next thing"),
            Step::Pauses(s) => write!(f, "S{s} is paused"),
            Step::Continues(s) => write!(f, "S{s} goes on"),
            Step::Cuts(s) => write!(f, "S{s} is cut off from etcd"),
            Step::Heals(s) => write!(f, "S{s} reaches etcd again"),
            Step::Crashes(s) => write!(f, "S{s} is killed"),
            Step::Dies(c) => write!(f, "C{c} is killed"),
            Step::Sleeps(c) => write!(f, "the machine of C{c} is suspended"),
            Step::Wakes(c) => write!(f, "the machine of C{c} wakes up"),
        }
    }
}

//! What can happen to a server, its clients and their connections.

use std::fmt;

/// One thing that happens. Numbers are of clients, and of connections of a client, the oldest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A user does the next thing of its program.
    Acts(usize),
    /// The future of a user is polled, and sees what has come.
    Looks(usize),
    /// A user waits no longer.
    GivesUp(usize),
    /// A client connects for a new session.
    Begins(usize),
    /// A client connects to go on with its session.
    Resumes(usize),
    /// A message arrives at the server.
    ToServer(usize, usize),
    /// A message arrives at the client.
    ToClient(usize, usize),
    /// The client's end of its connection is over, and the client knows.
    BreaksAtClient(usize),
    /// The server's end is.
    BreaksAtServer(usize, usize),
    /// The client learns that its connection is over.
    ClientSees(usize),
    /// The server does.
    ServerSees(usize, usize),
    /// A client finds its lease to be over.
    LeaseOver(usize),
    /// The lease of the run that granted what a client has claimed is over, and nobody has answered.
    ClaimsLate(usize),
    /// A client whose lease is over has waited for one, too.
    WaitOver(usize),
    /// The server gives up a session without a connection.
    GraceOver(u64),
    /// The server ends its wait for claims.
    ClaimsOver,
    /// The server is killed, between two steps.
    Killed,
    /// It is killed in a step, at its nth write; whether that is on the disk.
    KilledIn(Box<Step>, u32, bool),
    /// It is started again.
    Starts,
    /// A client is killed.
    Dies(usize),
    /// A client is stopped.
    Stops(usize),
    /// It goes on.
    Continues(usize),
    /// A client is stopped, and its clock with it.
    Sleeps(usize),
    /// It goes on, and knows of nothing.
    Wakes(usize),
    /// A new one takes the place of a dead one.
    Replaced(usize),
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Acts(c) => write!(f, "C{c}: the user does the next thing"),
            Step::Looks(c) => write!(f, "C{c}: the user sees what has come"),
            Step::GivesUp(c) => write!(f, "C{c}: the user gives up"),
            Step::Begins(c) => write!(f, "C{c} begins a session"),
            Step::Resumes(c) => write!(f, "C{c} resumes its session"),
            Step::ToServer(c, n) => write!(f, "a message of C{c} arrives (connection {n})"),
            Step::ToClient(c, n) => write!(f, "a message for C{c} arrives (connection {n})"),
            Step::BreaksAtClient(c) => write!(f, "C{c} loses its connection; the server does not know"),
            Step::BreaksAtServer(c, n) => {
                write!(f, "the server loses connection {n} of C{c}; C{c} does not know")
            }
            Step::ClientSees(c) => write!(f, "C{c} sees that its connection is over"),
            Step::ServerSees(c, n) => write!(f, "the server sees that connection {n} of C{c} is over"),
            Step::LeaseOver(c) => write!(f, "the lease of C{c} is over"),
            Step::ClaimsLate(c) => write!(f, "the claim of C{c} was not answered within its lease"),
            Step::WaitOver(c) => write!(f, "C{c} has waited for a lease, in vain"),
            Step::GraceOver(session) => write!(f, "the server gives up session {session}"),
            Step::ClaimsOver => write!(f, "the server ends its wait for claims"),
            Step::Killed => write!(f, "the server is killed"),
            Step::KilledIn(step, write, kept) => {
                let kept = if *kept { "after" } else { "before" };
                write!(f, "{step}; there the server is killed, {kept} its write {write}")
            }
            Step::Starts => write!(f, "the server is started"),
            Step::Dies(c) => write!(f, "C{c} is killed"),
            Step::Stops(c) => write!(f, "C{c} is stopped"),
            Step::Continues(c) => write!(f, "C{c} goes on"),
            Step::Sleeps(c) => write!(f, "the machine of C{c} is suspended"),
            Step::Wakes(c) => write!(f, "the machine of C{c} wakes up"),
            Step::Replaced(c) => write!(f, "C{c} is replaced"),
        }
    }
}

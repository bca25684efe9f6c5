//! etcd's transactions, as values: what is compared, what is done if it all holds, and what came of it.

/// A key of etcd.
pub type Key = String;
/// When a key was last changed, or made, in the one order of everything that etcd does; 0: it is not there.
pub type Revision = u64;

/// What must hold.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Compare {
    /// The key was last changed in this revision.
    Changed(Key, Revision),
    /// The key was made in this revision.
    Made(Key, Revision),
    /// The key is there.
    Exists(Key),
}

/// What is done.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Writes a key.
    Put(Key, String),
    /// Writes a key that goes with the server's lease.
    PutLeased(Key, String),
    /// Removes a key.
    Delete(Key),
    /// Removes all keys that begin like this.
    DeletePrefix(Key),
}

/// A transaction: all of `then`, if all of `when` holds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Txn {
    /// What must hold.
    pub when: Vec<Compare>,
    /// What is done.
    pub then: Vec<Op>,
}

/// What came of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Outcome {
    /// It was done, in this revision.
    Done(Revision),
    /// Something did not hold, and nothing was done.
    Refused,
}

//! Counting what the executor does. Cheap enough to be always on.

use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Message, RawVerb, VerbKind};

/// Counts since the beginning, or since the end of the warm-up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// READs.
    pub reads: u64,
    /// WRITEs.
    pub writes: u64,
    /// Compare-and-swaps.
    pub cas: u64,
    /// Fetch-and-adds.
    pub fetch_adds: u64,
    /// Accesses of clients to memory of their own node: no verbs.
    pub local: u64,
    /// Round trips.
    pub round_trips: u64,
    /// Messages sent by clients and roles.
    pub messages: u64,
    /// Payload bytes of verbs and messages.
    pub bytes: u64,
    /// Attempts that failed and were tried again.
    pub retries: u64,
    /// Acquires undone and started over.
    pub aborts: u64,
    /// Acquires given up.
    pub denied: u64,
    /// Locks reset after a crash.
    pub recoveries: u64,
    /// Grants that turned out void.
    pub void_grants: u64,
    /// Clients that crashed.
    pub crashes: u64,
    /// Pauses of clients.
    pub pauses: u64,
    /// Datagrams lost.
    pub lost: u64,
    /// Datagrams that arrived twice.
    pub doubled: u64,
    /// Datagrams held back behind later ones.
    pub reordered: u64,
}

impl Counters {
    /// Verbs of all kinds.
    pub fn verbs(&self) -> u64 {
        self.reads + self.writes + self.cas + self.fetch_adds
    }

    #[inline]
    pub(crate) fn round_trip(&mut self, first: &RawVerb) {
        self.round_trips += 1;
        self.verb(first);
    }

    /// A verb of a round trip that was counted.
    #[inline]
    pub(crate) fn verb(&mut self, verb: &RawVerb) {
        self.bytes += verb.payload_bytes();
        match verb.op.kind() {
            VerbKind::Read => self.reads += 1,
            VerbKind::Write => self.writes += 1,
            VerbKind::Cas => self.cas += 1,
            VerbKind::FetchAdd => self.fetch_adds += 1,
        }
    }

    pub(crate) fn message(&mut self, message: &Message) {
        self.messages += 1;
        self.bytes += message.wire_bytes();
    }

    #[inline]
    pub(crate) fn observation(&mut self, what: &Observation) {
        if matches!(what, Observation::Waiting(_) | Observation::Granted(..) | Observation::Releasing(_)) {
            return;
        }
        self.rare_observation(what);
    }

    fn rare_observation(&mut self, what: &Observation) {
        match what {
            Observation::Retried(_) => self.retries += 1,
            Observation::Aborted(_) => self.aborts += 1,
            Observation::GaveUp(_) => self.denied += 1,
            Observation::Recovered(_) => self.recoveries += 1,
            Observation::Lost(_) => self.void_grants += 1,
            Observation::Waiting(_) | Observation::Granted(..) | Observation::Releasing(_) => {}
        }
    }
}

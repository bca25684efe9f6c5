//! The network model's parameters, one set for everything, each with where it comes from.

/// How long things take.
#[derive(Clone, Debug, PartialEq)]
pub struct NicModel {
    /// Placeholder until the model is written.
    pub rtt_ns: u64,
}

impl Default for NicModel {
    fn default() -> Self {
        Self { rtt_ns: 2_000 }
    }
}

//! What a fabric offers and what a protocol needs: compared once, when a space is opened.

use std::fmt;

/// Which accesses an atomic verb is atomic to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AtomicScope {
    /// All: those of the owning node's CPUs and of remote clients.
    Global,
    /// Only verbs through the same NIC. To a CPU of the owning node a remote read-modify-write is a read and a later write,
    /// and its own atomics can fall in between.
    Nic,
}

/// What a fabric offers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Capabilities {
    /// Masked compare-and-swap and masked fetch-and-add.
    pub masked: bool,
    /// 128-bit words.
    pub wide: bool,
    /// The conditional masked fetch-and-add: only where a CPU executes the verb.
    pub guarded: bool,
    /// Messages to roles, and to clients unless a server's host does not relay them.
    pub messages: bool,
    /// Which accesses an atomic verb is atomic to.
    pub scope: AtomicScope,
}

impl Capabilities {
    /// A fabric whose verbs a CPU executes: everything.
    pub const CPU: Self =
        Self { masked: true, wide: true, guarded: true, messages: true, scope: AtomicScope::Global };
}

/// What a protocol needs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Needs {
    /// Masked atomics.
    pub masked: bool,
    /// 128-bit words.
    pub wide: bool,
    /// The conditional masked fetch-and-add.
    pub guarded: bool,
    /// Messages.
    pub messages: bool,
    /// CPU and NIC atomics on one word exclude each other.
    pub global_scope: bool,
}

/// A protocol needs what the fabric lacks.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{protocol} needs {missing}, which this fabric does not offer")]
pub struct Mismatch {
    /// The protocol.
    pub protocol: String,
    /// What is missing, in words.
    pub missing: Missing,
}

/// The capabilities that are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Missing(Vec<&'static str>);

impl fmt::Display for Missing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(", "))
    }
}

impl Needs {
    /// Whether `has` covers these needs of `protocol`.
    ///
    /// # Errors
    /// Names everything that is missing.
    pub fn met_by(&self, protocol: &str, has: Capabilities) -> Result<(), Mismatch> {
        let checks = [
            (self.masked && !has.masked, "masked atomics"),
            (self.wide && !has.wide, "128-bit atomics"),
            (self.guarded && !has.guarded, "conditional fetch-and-add"),
            (self.messages && !has.messages, "messages between clients"),
            (self.global_scope && has.scope == AtomicScope::Nic, "atomics that CPU and NIC share"),
        ];
        let missing: Vec<_> = checks.iter().filter(|(lacks, _)| *lacks).map(|(_, what)| *what).collect();
        if missing.is_empty() {
            return Ok(());
        }
        Err(Mismatch { protocol: protocol.to_owned(), missing: Missing(missing) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mismatch_names_everything_that_is_missing() {
        let needs = Needs { masked: true, wide: true, ..Needs::default() };
        let has = Capabilities { masked: false, wide: false, ..Capabilities::CPU };
        let error = needs.met_by("shiftlock", has).unwrap_err();
        assert_eq!(
            error.to_string(),
            "shiftlock needs masked atomics, 128-bit atomics, which this fabric does not offer"
        );
        assert!(needs.met_by("shiftlock", Capabilities::CPU).is_ok());
    }
}

//! Which process a client is, so that a server on the same host can tell whether it has ended.
//!
//! That a connection was closed does not tell: a kernel closes those of a dead process, but proxies, tunnels and firewalls
//! close connections of living ones. What a client says here of itself it says about its own locks only.

use crate::backend::tcp::frame::ClientProcess;

impl ClientProcess {
    /// This process. Unknown where it cannot be told.
    pub fn own() -> Self {
        sys::own().unwrap_or_default()
    }

    /// Whether it is a process of this host, seen from the same namespaces, that has ended.
    pub fn has_ended(&self) -> bool {
        *self != Self::default() && sys::has_ended(self)
    }
}

#[cfg(all(feature = "shm", target_os = "linux"))]
mod sys {
    use super::ClientProcess;
    use crate::backend::shm::{Process, SpaceError, namespaces};

    pub(super) fn own() -> Result<ClientProcess, SpaceError> {
        let Process { pid, start } = Process::own()?;
        let (boot, pid_namespace, time_namespace) = namespaces()?;
        Ok(ClientProcess { boot, pid_namespace, time_namespace, start, pid })
    }

    /// Namespaces have no numbers that are unique for ever, but this process keeps its own from being used again.
    pub(super) fn has_ended(client: &ClientProcess) -> bool {
        let ClientProcess { boot, pid_namespace, time_namespace, start, pid } = *client;
        let is_seen = namespaces().is_ok_and(|own| own == (boot, pid_namespace, time_namespace));
        is_seen && Process { pid, start }.has_ended()
    }
}

#[cfg(not(all(feature = "shm", target_os = "linux")))]
mod sys {
    use super::ClientProcess;

    pub(super) fn own() -> Result<ClientProcess, ()> {
        Err(())
    }

    pub(super) fn has_ended(_: &ClientProcess) -> bool {
        false
    }
}

#[cfg(all(test, feature = "shm", target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn only_a_process_that_is_seen_from_here_can_be_seen_to_have_ended() {
        let own = ClientProcess::own();
        assert!(own.pid == std::process::id() && !own.has_ended());
        let ended = ClientProcess { start: own.start - 1, ..own };
        assert!(ended.has_ended(), "another process with the same pid");
        let elsewhere = [
            ClientProcess { boot: own.boot ^ 1, ..ended },
            ClientProcess { pid_namespace: own.pid_namespace ^ 1, ..ended },
            ClientProcess { time_namespace: own.time_namespace ^ 1, ..ended },
            ClientProcess::default(),
        ];
        assert!(!elsewhere.iter().any(ClientProcess::has_ended));
    }
}

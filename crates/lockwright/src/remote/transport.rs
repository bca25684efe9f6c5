//! What a session with a server runs over: a TCP connection, or a queue pair of an RDMA NIC.
//!
//! Both carry the same messages, and both tell when the session is over; nothing above this file knows which it is.

use super::link::{FIRST_PAUSE, LONGEST_PAUSE};
use super::secret;
use lockwright_fabric::backend::tcp::{
    CloseReason, ConnectError, ConnectOptions, Lease, SessionHandler, TcpEndpoint,
};
use lockwright_fabric::{Message, PeerId};
use std::sync::Weak;
use std::time::{Duration, Instant};

#[cfg(feature = "rdma")]
use lockwright_fabric::backend::rdma::{RdmaEndpoint, RdmaOptions};

/// How a server is to be reached.
#[derive(Clone, Debug)]
pub(crate) enum Transport {
    Tcp(Box<ConnectOptions>),
    #[cfg(feature = "rdma")]
    Rdma(Box<RdmaOptions>),
}

/// Why there is no session.
#[derive(Debug)]
pub(super) struct Unconnected {
    pub(super) why: String,
    /// Another attempt may succeed.
    again: Again,
}

/// Whether it is worth while to try again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Again {
    No,
    /// The server closed the connection before it said anything, as one does that has too many.
    BrokenOff,
    /// It did not answer in time.
    Late,
}

impl From<String> for Unconnected {
    fn from(why: String) -> Self {
        Self { why, again: Again::No }
    }
}

/// A session.
#[derive(Clone, Debug)]
pub(crate) enum Session {
    Tcp(TcpEndpoint),
    #[cfg(feature = "rdma")]
    Rdma(RdmaEndpoint),
}

impl Transport {
    /// How an address of this kind begins.
    pub(crate) const fn scheme(&self) -> &'static str {
        match self {
            Self::Tcp(_) => "tcp",
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => "rdma",
        }
    }

    /// How long the server may take to answer.
    pub(crate) const fn timeout(&self) -> Duration {
        match self {
            Self::Tcp(options) => options.timeout,
            #[cfg(feature = "rdma")]
            Self::Rdma(options) => options.timeout,
        }
    }

    /// As [`connect`](Self::connect), again and again for as long as `limit` while the server breaks attempts off or does not answer.
    pub(super) async fn connect_within(&self, server: &str, limit: Duration) -> Result<Session, String> {
        let (began, mut pause) = (Instant::now(), FIRST_PAUSE);
        for attempt in 1.. {
            let left = limit.saturating_sub(began.elapsed()).max(FIRST_PAUSE);
            let connecting = tokio::time::timeout(self.timeout().min(left), self.connect(server)).await;
            let Unconnected { why, again } = match connecting {
                Ok(Ok(session)) => return Ok(session),
                Ok(Err(unconnected)) => unconnected,
                Err(_) => {
                    Unconnected { why: super::link::late(self.timeout().min(left)), again: Again::Late }
                }
            };
            let reason = match again {
                Again::No => return Err(why),
                _ if began.elapsed() + pause < limit => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(LONGEST_PAUSE);
                    continue;
                }
                Again::Late if attempt == 1 => return Err(why),
                Again::Late => {
                    "the network or the server hangs, or something between here and there swallows packets"
                }
                Again::BrokenOff => {
                    "too many clients connect at once, or something between here and the server closes connections"
                }
            };
            let seconds = began.elapsed().as_secs_f64();
            return Err(format!("{why}; so ended {attempt} attempts in {seconds:.1} s: {reason}"));
        }
        unreachable!("a limit ends")
    }

    /// Begins a session with the server at `server`, a name and a port.
    pub(super) async fn connect(&self, server: &str) -> Result<Session, Unconnected> {
        let addresses = tokio::net::lookup_host(server).await.map_err(|error| error.to_string())?;
        let mut last = Unconnected::from("the host has no address".to_owned());
        for address in addresses {
            let session = match self {
                Self::Tcp(options) => {
                    let session = TcpEndpoint::connect(address, (**options).clone()).await;
                    session.map(Session::Tcp).map_err(|error| {
                        if let ConnectError::TimedOut = error {
                            return Unconnected { why: super::link::late(options.timeout), again: Again::Late };
                        }
                        let unproven = matches!(error, ConnectError::Unproven);
                        let file = unproven.then(|| secret::left_for(server)).flatten();
                        let why = file.map_or(error.to_string(), |file| {
                            let file = file.display();
                            format!("{error}; if it is from {file}, and the server that left it is gone, remove that file")
                        });
                        let again = if error.is_broken_off() { Again::BrokenOff } else { Again::No };
                        Unconnected { why, again }
                    })
                }
                #[cfg(feature = "rdma")]
                Self::Rdma(options) => {
                    let options = (**options).clone();
                    // It waits for the other side, and for the system.
                    let session =
                        tokio::task::spawn_blocking(move || RdmaEndpoint::connect(address, options)).await;
                    let session = session.map_err(|error| error.to_string())?;
                    session.map(Session::Rdma).map_err(|error| error.to_string().into())
                }
            };
            match session {
                Ok(session) => return Ok(session),
                Err(why) => last = why,
            }
        }
        Err(last)
    }
}

/// The same call on whichever it is.
macro_rules! each {
    ($session:expr, $ep:ident => $call:expr) => {
        match $session {
            Session::Tcp($ep) => $call,
            #[cfg(feature = "rdma")]
            Session::Rdma($ep) => $call,
        }
    };
}
pub(super) use each;

impl Session {
    /// Sends without waiting. What was on its way when a connection broke may be lost.
    pub(crate) fn tell(&self, to: PeerId, message: &Message) {
        // A session that is over begins anew with everything that matters.
        let _ = each!(self, ep => ep.tell(to, message));
    }

    /// As [`tell`](Self::tell), for what nobody waits for: it may leave with the next message.
    pub(crate) fn tell_deferrable(&self, to: PeerId, message: &Message) {
        let _ = match self {
            Self::Tcp(ep) => ep.tell_deferrable(to, message),
            #[cfg(feature = "rdma")]
            Self::Rdma(ep) => ep.tell(to, message),
        };
    }

    pub(crate) fn set_handler(&self, listener: Weak<dyn SessionHandler>) {
        each!(self, ep => ep.set_handler(listener));
    }

    /// The connection, if a thread can read it by itself.
    pub(crate) fn readable(&self) -> Option<TcpEndpoint> {
        match self {
            Self::Tcp(ep) => Some(ep.clone()),
            #[cfg(feature = "rdma")]
            Self::Rdma(_) => None,
        }
    }

    pub(crate) fn silence(&self) -> Duration {
        each!(self, ep => ep.silence())
    }

    /// The time since this client sent the last message that the server is known to have received.
    pub(crate) fn acknowledged(&self) -> Duration {
        each!(self, ep => ep.acknowledged())
    }

    /// The lease that the server gives.
    pub(crate) fn lease(&self) -> Lease {
        match self {
            Self::Tcp(ep) => ep.lease(),
            #[cfg(feature = "rdma")]
            Self::Rdma(ep) => Lease { heartbeat: ep.heartbeat(), grace: ep.grace() },
        }
    }

    pub(crate) fn epoch(&self) -> u64 {
        each!(self, ep => ep.epoch())
    }

    pub(crate) fn close_reason(&self) -> Option<CloseReason> {
        each!(self, ep => ep.close_reason())
    }

    pub(crate) fn is_connected(&self) -> bool {
        match self {
            Self::Tcp(ep) => ep.is_connected(),
            #[cfg(feature = "rdma")]
            Self::Rdma(ep) => !ep.is_lost(),
        }
    }

    /// Whether locks that are held under this `lease` are surely held.
    pub(crate) fn is_certain(&self, lease: Duration) -> bool {
        match self {
            Self::Tcp(ep) => ep.is_certain(lease),
            #[cfg(feature = "rdma")]
            Self::Rdma(ep) => {
                !ep.is_lost() && ep.silence() <= self.lease().silence() && ep.acknowledged() <= lease
            }
        }
    }

    pub(crate) fn close(&self) {
        each!(self, ep => ep.close());
    }
}

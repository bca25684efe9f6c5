//! The tcp fabric: a server owns the lock memory and executes verbs for its clients, over any network.
//!
//! ```
//! use lockwright_fabric::backend::inproc::InProc;
//! use lockwright_fabric::backend::tcp::{ConnectOptions, InProcHost, Server, ServerOptions, TcpEndpoint};
//! use lockwright_fabric::{Addr, Cond, Endpoint, NodeId, Word64};
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let host = InProcHost::new(InProc::new(1, 4096), 0);
//! let here = "127.0.0.1:0".parse().unwrap();
//! let server = Server::bind(here, host, vec![], ServerOptions::default()).await.unwrap();
//! let waiter = TcpEndpoint::connect(server.address(), ConnectOptions::default()).await.unwrap();
//! let setter = TcpEndpoint::connect(server.address(), ConnectOptions::default()).await.unwrap();
//! let flag = Word64::at(Addr::new(NodeId(0), 0));
//! let (seen, _) = tokio::join!(waiter.wait_until(flag.until(Cond::Eq { mask: 1, value: 1 })), setter.go(flag.write(1)));
//! assert!(seen.unwrap().met);
//! # });
//! ```
//!
//! | part | files |
//! |---|---|
//! | wire format | `frame`, `encode`, `decode`, `wire` (their parts), `auth` (the secret), `tls` |
//! | both ends of a connection | `stream`, `incoming`, `outgoing`, `deferred` (what leaves with the next message) |
//! | client | `endpoint`, `futures`, `link/` (the session, its requests), `received` (its messages), `handler`, `client` (connecting, reconnecting), `blocking` (threads that read) |
//! | server | `server` (listening), `handshakes` (who has not shown yet who it is), `connection`, `process` (whether a client has ended), `session` (and `session_state`), `roles`, `router` (messages) |
//! | memory | `host` (the trait), `memory` (a host in this process) |
//!
//! `docs/tcp.md` has the frame format and the failure model. This backend must not know what a lock is, nor let one client's
//! mistake reach another.

pub(in crate::backend) mod auth;
#[cfg(target_os = "linux")]
mod blocking;
mod client;
mod close_reason;
mod connection;
mod decode;
mod deferred;
mod encode;
mod endpoint;
pub mod frame;
mod futures;
mod handler;
mod handshakes;
mod host;
mod incoming;
mod lease;
mod link;
mod memory;
mod outgoing;
mod process;
mod received;
mod roles;
mod router;
mod server;
mod session;
mod session_state;
mod stream;
mod subnet;
#[cfg(feature = "tls")]
mod tls;
mod wire;

pub use auth::{Secret, WeakSecret};
#[cfg(target_os = "linux")]
pub use blocking::EventfdWaker;
pub use client::{ConnectError, ConnectOptions};
pub use close_reason::CloseReason;
pub use endpoint::TcpEndpoint;
pub use handler::SessionHandler;
pub use handshakes::{Handshake, Handshakes};
pub use host::{ConnectionInfo, HostError, Inbox, SessionEnd, VerbHost};
pub use lease::Lease;
pub use memory::InProcHost;
pub use outgoing::coalesce_writes;
#[cfg(feature = "rdma")]
pub(in crate::backend) use outgoing::wake_coalesced;
pub use received::{Arrival, Received};
pub use server::{BindError, Server, ServerOptions, connection_info};
pub use session_state::{Backlog, SessionRules, SessionState, Unacked};
pub use subnet::{NoSubnet, Subnet};
#[cfg(feature = "tls")]
pub use tls::{TlsClient, TlsError, TlsServer};
pub use wire::MAX_TAIL;

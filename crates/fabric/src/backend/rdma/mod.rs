//! The RDMA fabric: verbs are work requests on reliable connections, executed by the NIC that owns the memory.
//!
//! A [`RdmaHost`] lends lock memory; an [`RdmaEndpoint`] is one client of it. They meet over TCP (the *control
//! connection*: addresses of queue pairs, keys of memory, which clients connect to each other) and then talk over queue pairs only:
//!
//! ```text
//!   client A ── READ, WRITE, CAS, FAA, SEND ──► host (lock memory; roles; local clients by CPU atomics)
//!      │                                            ▲
//!      └──── SEND, connected on first use ───► client B
//! ```
//!
//! What a device cannot do is not pretended: 8-byte compare-and-swap and fetch-and-add, seen as one step by verbs of the
//! same NIC only. Masked verbs can be emulated by compare-and-swap where a protocol needs them
//! ([`RdmaOptions::emulate_masks`]).
//!
//! RDMA carries no authentication: a machine that can send packets to the NIC and knows a key can use it. Keys are per client
//! and packet numbers start at random, but this fabric is for networks you trust.

mod client;
mod connection;
mod control;
mod counters;
mod device;
mod encoding;
mod endpoint;
mod event_loop;
mod fault;
mod ffi;
mod handshake;
mod host;
mod incoming;
mod local;
mod peers;
mod queue_pair;
mod remote_client;
mod service;
mod verbs;
mod work;

pub use client::{RdmaConnectError, RdmaOptions};
pub use counters::{port_counters, posted};
pub use device::{DeviceChoice, DeviceError, devices, has_device, look};
pub use encoding::MAX_TAIL;
pub use endpoint::RdmaEndpoint;
pub use fault::Fault;
pub use host::{HostOptions, RdmaHost};
pub use local::RdmaLocal;
pub use service::RdmaService;

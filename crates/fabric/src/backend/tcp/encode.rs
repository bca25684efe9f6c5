//! Frames to bytes: the inverse of [`decode`](super::frame::decode).
//!
//! Encoding cannot fail: the callers keep to the limits of [`frame`](super::frame). The most frequent frames have
//! functions of their own, which take their parts by reference.

use super::frame::{ClientProcess, Frame, HEADER, Hello, MAGIC, MAX_TEXT, VERSION, Welcome};
use super::wire::{put_addr, put_cond, put_message, put_verb};
use crate::addr::PeerId;
use crate::message::Message;
use crate::verb::RawVerb;
use crate::wait::RawWait;

/// Appends a frame whose body `fill` writes.
fn put(out: &mut Vec<u8>, kind: u8, flag: bool, id: u64, fill: impl FnOnce(&mut Vec<u8>)) {
    let start = out.len();
    out.extend_from_slice(&[0, 0, 0, 0, kind, flag.into(), 0, 0]);
    out.extend_from_slice(&id.to_le_bytes());
    fill(out);
    let length = (out.len() - start - HEADER) as u32;
    out[start..start + 4].copy_from_slice(&length.to_le_bytes());
}

/// Appends a GO.
pub(super) fn put_go(out: &mut Vec<u8>, id: u64, quiet: bool, verbs: &[RawVerb]) {
    put(out, 0x03, quiet, id, |out| {
        out.extend_from_slice(&(verbs.len() as u64).to_le_bytes());
        verbs.iter().for_each(|verb| put_verb(out, verb));
    });
}

/// Appends a SEND.
pub(super) fn put_send(out: &mut Vec<u8>, id: u64, quiet: bool, to: PeerId, message: &Message) {
    put(out, 0x06, quiet, id, |out| put_peer_and_message(out, to, message));
}

/// Appends a DONE.
pub(super) fn put_done(out: &mut Vec<u8>, id: u64, olds: &[u128]) {
    put(out, 0x84, false, id, |out| olds.iter().for_each(|old| out.extend_from_slice(&old.to_le_bytes())));
}

/// Appends a DELIVER.
pub(super) fn put_deliver(out: &mut Vec<u8>, seq: u64, from: PeerId, message: &Message) {
    put(out, 0x88, false, seq, |out| put_peer_and_message(out, from, message));
}

fn put_peer(out: &mut Vec<u8>, peer: u32) {
    out.extend_from_slice(&u64::from(peer).to_le_bytes());
}

fn put_peer_and_message(out: &mut Vec<u8>, peer: PeerId, message: &Message) {
    put_peer(out, peer.0);
    put_message(out, message);
}

impl Frame {
    /// Appends the frame to `out`. A text that is too long is cut.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match self {
            Frame::Hello(hello) => put(out, 0x01, false, 0, |out| put_hello(out, hello)),
            Frame::Proof(proof) => put(out, 0x02, false, 0, |out| out.extend_from_slice(proof)),
            Frame::Go { id, quiet, verbs } => put_go(out, *id, *quiet, verbs),
            Frame::Wait { id, wait, timeout_ns } => {
                put(out, 0x04, false, *id, |out| put_wait(out, wait, *timeout_ns));
            }
            Frame::Cancel { id } => put(out, 0x05, false, *id, |_| ()),
            Frame::Send { id, quiet, to, message } => put_send(out, *id, *quiet, *to, message),
            Frame::Ping { seen } => put(out, 0x07, false, *seen, |_| ()),
            Frame::Ack { seen } => put(out, 0x08, false, *seen, |_| ()),
            Frame::Goodbye => put(out, 0x09, false, 0, |_| ()),
            Frame::Challenge(nonce) => put(out, 0x81, false, 0, |out| out.extend_from_slice(nonce)),
            Frame::Welcome(welcome) => put(out, 0x82, false, 0, |out| put_welcome(out, welcome)),
            Frame::Refused { why, epoch, text } => put(out, 0x83, false, 0, |out| {
                let text = truncated(text);
                out.extend_from_slice(&(*why as u16).to_le_bytes());
                out.extend_from_slice(&(text.len() as u16).to_le_bytes());
                out.extend_from_slice(&[0; 4]);
                out.extend_from_slice(&epoch.to_le_bytes());
                out.extend_from_slice(text.as_bytes());
            }),
            Frame::Done { id, olds } => put_done(out, *id, olds),
            Frame::NodeLost { id, node } => {
                put(out, 0x85, false, *id, |out| out.extend_from_slice(&u64::from(*node).to_le_bytes()));
            }
            Frame::PeerLost { id, peer } => put(out, 0x86, false, *id, |out| put_peer(out, *peer)),
            Frame::Waited { id, met, value } => {
                put(out, 0x87, *met, *id, |out| out.extend_from_slice(&value.to_le_bytes()));
            }
            Frame::Deliver { seq, from, message } => put_deliver(out, *seq, *from, message),
            Frame::Pong => put(out, 0x89, false, 0, |_| ()),
        }
    }
}

/// The text, cut to the limit.
fn truncated(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_TEXT)]
}

fn put_hello(out: &mut Vec<u8>, hello: &Hello) {
    let name = truncated(&hello.name);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&(name.len() as u16).to_le_bytes());
    out.extend_from_slice(&hello.features.to_le_bytes());
    out.extend_from_slice(&hello.session);
    out.extend_from_slice(&hello.epoch.to_le_bytes());
    out.extend_from_slice(&hello.seen.to_le_bytes());
    out.extend_from_slice(&hello.nonce);
    let ClientProcess { boot, pid_namespace, time_namespace, start, pid } = hello.process;
    out.extend_from_slice(&boot.to_le_bytes());
    for number in [pid_namespace, time_namespace, start] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&pid.to_le_bytes());
    out.extend_from_slice(name.as_bytes());
}

fn put_welcome(out: &mut Vec<u8>, welcome: &Welcome) {
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&welcome.capabilities.to_le_bytes());
    out.extend_from_slice(&welcome.peer.0.to_le_bytes());
    out.extend_from_slice(&u32::from(welcome.resumed).to_le_bytes());
    out.extend_from_slice(&welcome.max_waits.to_le_bytes());
    out.extend_from_slice(&welcome.session);
    for number in [welcome.epoch, welcome.now_ns, welcome.heartbeat_ns, welcome.grace_ns] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&welcome.proof);
}

fn put_wait(out: &mut Vec<u8>, wait: &RawWait, timeout_ns: u64) {
    put_addr(out, wait.addr);
    out.extend_from_slice(&[wait.width.bytes() as u8, 1 + u8::from(wait.or.is_some()), 0, 0]);
    out.extend_from_slice(&timeout_ns.to_le_bytes());
    put_cond(out, &wait.cond);
    if let Some(or) = &wait.or {
        put_cond(out, or);
    }
}

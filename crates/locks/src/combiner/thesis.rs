//! The combiner as the thesis has it: requests of eight bytes ([`wire`](super::wire)), responses of four, clients that
//! poll by RPC, one server, one range per client at a time. What the format cannot say is denied in words.
//!
//! The combiner itself is the same: `flip` is the request's id, and the two slots per client of the thesis's `locks`
//! array (Alg. 2) are a session with two ids.

use super::Params;
use super::core::{AsPrinted, ClientId, Core, Limits, NAMES, Request, Status};
use super::message::Kind;
use super::shards::is_keyed;
use super::wire::{ThesisRequest, WireError, small};
use crate::protocol::{
    Denied, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, TokenGrant, Want,
};
use lockwright_fabric::observe::{Claim, Mode, Observation};
use lockwright_fabric::{BoxedRole, Endpoint, FabricError, Message, Needs, Outbox, PeerId, Role, Time};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The thesis's combiner, eight bytes and all.
#[derive(Debug)]
pub struct Thesis;

impl Protocol for Thesis {
    type Params = Params;
    type Client<E: Endpoint> = ThesisClient<E>;

    const INFO: Info = Info {
        name: "combiner-thesis",
        summary: "the combiner with the thesis's eight-byte requests, polled by RPC; one range per client",
        source: "Dezalos, EPFL 2024, §4.2",
        offers: Offers { shared: true, ranges: true, recovery: true, ..Offers::NONE },
    };

    fn needs(_: &Params) -> Needs {
        Needs { messages: true, ..Needs::default() }
    }

    fn bytes_per_node(_: &Space, _: &Params) -> u64 {
        0
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &Params) -> ThesisClient<E> {
        ThesisClient { ep, space: *space, poll_ns: params.poll_ns, state: AtomicU64::new(0) }
    }

    fn roles(_: &Space, _: &Params) -> Vec<BoxedRole> {
        vec![BoxedRole::new(ThesisServer::new())]
    }

    fn message_name(kind: u32) -> &'static str {
        super::message::name(kind)
    }
}

/// The server: the combiner, and which of its two slots each client used last.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ThesisServer {
    core: Core<AsPrinted>,
    last_flip: BTreeMap<u8, bool>,
}

impl ThesisServer {
    fn new() -> Self {
        Self { core: Core::new(Limits { clients: 1 << 8, ids: 2 }), last_flip: BTreeMap::new() }
    }

    /// Serves a request and returns the four bytes of the response.
    fn serve(&mut self, request: ThesisRequest) -> u32 {
        let mut replies = Vec::new();
        match request {
            ThesisRequest::Lock { client, flip, read_only, first, last } => {
                self.last_flip.insert(client, flip);
                let mode = if read_only { Mode::Shared } else { Mode::Exclusive };
                let (start, end) = (u64::from(first), u64::from(last) + 1);
                let lock = Request::Lock { id: u32::from(flip), lock: NAMES, mode, start, end, wait: true };
                self.core.handle(ClientId(u32::from(client)), lock, &mut replies);
                0
            }
            ThesisRequest::Unlock { client, flip } => {
                let unlock = Request::Unlock { id: u32::from(flip) };
                self.core.handle(ClientId(u32::from(client)), unlock, &mut replies);
                0
            }
            ThesisRequest::Poll { client } => {
                let flip = self.last_flip.get(&client).copied().unwrap_or(false);
                let status = self.core.status(ClientId(u32::from(client)), u32::from(flip));
                u32::from(matches!(status, Status::Granted { .. }))
            }
        }
    }
}

impl Role for ThesisServer {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        let Ok(sender) = small(u64::from(from.0)) else { return };
        if message.kind == Message::DEPARTED {
            self.core.depart(ClientId(u32::from(sender)), &mut Vec::new());
            self.last_flip.remove(&sender);
            return;
        }
        let Ok(request) = ThesisRequest::decode(message.words[0]) else { return };
        let (ThesisRequest::Lock { client, .. }
        | ThesisRequest::Unlock { client, .. }
        | ThesisRequest::Poll { client }) = request;
        // Nobody speaks for others.
        if message.kind == Kind::Thesis as u32 && client == sender {
            let response = self.serve(request);
            out.send(from, Kind::Thesis.message(message.lock, &[u64::from(response)]));
        }
    }

    fn wants_departures(&self) -> bool {
        true
    }
}

/// A client: whether it has a range, and the flip of its last one.
#[derive(Debug)]
pub struct ThesisClient<E> {
    ep: E,
    space: Space,
    poll_ns: u64,
    /// Bit 0: the last flip; bit 1: a range is held or wanted.
    state: AtomicU64,
}

const FLIP: u64 = 1;
const BUSY: u64 = 2;

impl<E: Endpoint> LockClient for ThesisClient<E> {
    type Grant = TokenGrant;

    async fn acquire(&self, want: Want) -> Result<TokenGrant, Denied> {
        let (start, end) = self.units(want.claim)?;
        if want.patience != Patience::Forever {
            return Err(Denied::Unsupported(&Reason("the thesis's format has no way to give up a request")));
        }
        if self.state.load(Relaxed) & BUSY != 0 {
            return Err(Denied::Unsupported(&Reason("the thesis's format allows one range per client")));
        }
        let flip = self.state.load(Relaxed) & FLIP == 0;
        let read_only = want.claim.mode == Mode::Shared;
        let request = ThesisRequest::lock(self.number(), flip, read_only, start, end).map_err(denied)?;
        self.state.store(u64::from(flip) | BUSY, Relaxed);
        self.call(request).await?;
        let poll = ThesisRequest::Poll { client: small(self.number()).map_err(denied)? };
        while self.call(poll).await? & 1 == 0 {
            self.ep.mark("thesis poll", &[u64::from(flip)]);
            self.ep.sleep(self.poll_ns).await;
            self.ep.observe(Observation::Retried(want.claim));
        }
        Ok(TokenGrant { lock: want.claim.lock, token: None })
    }

    async fn release(&self, _: TokenGrant) -> Result<(), Lost> {
        let flip = self.state.load(Relaxed) & FLIP != 0;
        let client = small(self.number()).expect("what was locked was sent with it");
        let unlock = ThesisRequest::Unlock { client, flip };
        self.post(unlock).await?;
        self.state.store(u64::from(flip), Relaxed);
        // The response says nothing: the next call passes over it.
        Ok(())
    }

    fn locals(&self) -> Vec<u64> {
        vec![self.state.load(Relaxed)]
    }
}

/// Only one machine can be the server (thesis §4).
const SERVER: PeerId = PeerId::role(0);

fn denied(error: WireError) -> Denied {
    Denied::BadRequest(match error {
        WireError::Client(_) => &Reason("the thesis's format has room for 256 clients"),
        WireError::Unit(_) => &Reason("the thesis's format has room for 2^16 units"),
        WireError::Reversed => &Reason("the range is empty or reversed"),
        WireError::Mode | WireError::Unused => &Reason("the request means nothing in the thesis's format"),
    })
}

impl<E: Endpoint> ThesisClient<E> {
    fn number(&self) -> u64 {
        u64::from(self.ep.me().0)
    }

    /// The units meant: those of the one ranged lock, or the unit that stands for a name.
    fn units(&self, claim: Claim) -> Result<(u64, u64), Denied> {
        if self.space.nodes > 1 {
            return Err(Denied::BadRequest(&Reason("the thesis's format knows one server")));
        }
        let [(_, _, start, end)] = super::shards::stretches(&self.space, claim)?[..] else {
            return Err(Denied::BadRequest(&Reason("the thesis's format knows one server")));
        };
        if !is_keyed(&self.space) && self.space.locks > 1 {
            return Err(Denied::BadRequest(&Reason("the thesis's format knows one lock with ranges")));
        }
        Ok((start, end))
    }

    /// Sends a request, under the number by which RPCs find their responses; here its mode is enough.
    async fn post(&self, request: ThesisRequest) -> Result<(), FabricError> {
        let word = request.encode();
        self.ep.send(SERVER, Kind::Thesis.message(word >> 62, &[word])).await
    }

    /// A request and its response.
    async fn call(&self, request: ThesisRequest) -> Result<u64, FabricError> {
        self.post(request).await?;
        let response = |from, message: &Message| {
            (from == SERVER && message.kind == Kind::Thesis as u32)
                .then_some((message.lock, message.words[0]))
        };
        loop {
            let (number, response) = self.ep.recv(response).await;
            if number == request.encode() >> 62 {
                return Ok(response);
            }
        }
    }
}

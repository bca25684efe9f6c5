//! One connection on the server: the handshake, then frames until it ends.
//!
//! Frames are executed in the order of arrival. The answers to all frames that one read completed leave in one write. A
//! client's mistake ends its own connection, with a REFUSED frame that says why.

use super::auth::{Exchange, Side, random_bytes};
use super::encode::put_done;
use super::frame::{ClientProcess, Frame, FrameError, Hello, Refusal, SessionId, Welcome};
use super::handshakes::Handshake;
use super::host::{ConnectionInfo, HostError, SessionEnd, VerbHost};
use super::incoming::{Incoming, ReadError};
use super::outgoing::{Outgoing, coalesce_writes};
use super::router::Router;
use super::server::ServerOptions;
use super::session::Session;
use crate::addr::PeerId;
use crate::capability::{AtomicScope, Capabilities};
use crate::verb::{Op, RawVerb};
use crate::wait::RawWait;
use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How long a refused client has to read the reason and close.
const REFUSED_LINGER: Duration = Duration::from_secs(1);
/// How often the server looks whether the process of a client without a connection has ended.
const LOOK: Duration = Duration::from_secs(1);

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// No heartbeats, a client that does not read, a newer connection; or it was closed, by the client's kernel or by any
    /// proxy on the way.
    Gone,
    /// The client said goodbye.
    Goodbye,
    /// The client made a mistake.
    Refused(Refusal, String),
}

impl From<ReadError> for End {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Closed | ReadError::Io(_) => Self::Gone,
            ReadError::Frame(error) => error.into(),
        }
    }
}

impl From<FrameError> for End {
    fn from(error: FrameError) -> Self {
        let why = if matches!(error, FrameError::Version(_)) { Refusal::Version } else { Refusal::BadFrame };
        Self::Refused(why, error.to_string())
    }
}

/// Serves one connection to its end.
pub(super) async fn serve<H: VerbHost>(
    router: Arc<Router<H>>,
    info: ConnectionInfo,
    mut incoming: Incoming,
    out: Arc<Outgoing>,
    begun: Handshake,
) {
    let waits = Arc::<Waits>::default();
    // Also if the server is dropped.
    let _end = CloseOnDrop { out: &out, waits: &waits };
    let handshake = timeout(router.options.handshake, handshake(&router, &mut incoming, &out, &begun)).await;
    drop(begun);
    let end = match handshake {
        Err(_) => End::Refused(Refusal::Unexpected, "the handshake took too long".to_owned()),
        Ok(Err(end)) => end,
        Ok(Ok((session, number, process))) => {
            // Not once the host may have given the number to another client.
            session.send(|| {
                router.host.on_connected(session.peer, info);
                true
            });
            let connection = Connection { router: &router, session: &session, out: &out, waits: &waits };
            let (end, received) = connection.run(&mut incoming).await;
            on_connection_end(&router, session, number, process, &end, received);
            end
        }
    };
    if let End::Refused(why, text) = end {
        out.push(|out| Frame::Refused { why, epoch: router.epoch, text }.encode(out));
        out.finish();
        let _ = timeout(REFUSED_LINGER, incoming.drain()).await;
    }
}

/// Closes the connection and cancels its waits.
struct CloseOnDrop<'a> {
    out: &'a Outgoing,
    waits: &'a Waits,
}

impl Drop for CloseOnDrop<'_> {
    fn drop(&mut self) {
        self.waits.cancel_all();
        self.out.close();
    }
}

/// Ends a session that lost its connection: at once if the client ended it or was refused, else when its client can no longer
/// believe that it goes on, because its process has ended or its lease is over.
fn on_connection_end<H: VerbHost>(
    router: &Arc<Router<H>>,
    session: Arc<Session>,
    number: u64,
    process: ClientProcess,
    end: &End,
    received: Instant,
) {
    let Some(can_resume) = session.detach(number) else { return };
    let ServerOptions { grace_ended, keeps_lease, .. } = router.options;
    match end {
        End::Goodbye => return router.end(&session, number, SessionEnd::Goodbye),
        End::Gone if can_resume || keeps_lease => {}
        End::Gone | End::Refused(..) => return router.end(&session, number, SessionEnd::Lost),
    }
    let until = received + router.options.lease().at_server();
    let router = Arc::downgrade(router);
    tokio::spawn(async move {
        let mut next = grace_ended.map_or(until, |grace| Instant::now() + grace);
        loop {
            sleep_until(next.min(until)).await;
            let lease_over = Instant::now() >= until;
            if session.is_given_up(number, grace_ended.is_some() && process.has_ended(), lease_over) {
                if let Some(router) = router.upgrade() {
                    router.end(&session, number, SessionEnd::Lost);
                }
                return;
            }
            if lease_over {
                return;
            }
            next = Instant::now() + LOOK;
        }
    });
}

async fn handshake<H: VerbHost>(
    router: &Arc<Router<H>>,
    incoming: &mut Incoming,
    out: &Arc<Outgoing>,
    begun: &Handshake,
) -> Result<(Arc<Session>, u64, ClientProcess), End> {
    let Frame::Hello(hello) = incoming.frame().await? else {
        return Err(End::Refused(Refusal::Unexpected, "a connection begins with a hello".to_owned()));
    };
    let proof = challenge(router, incoming, out, &hello).await?;
    if !begun.succeeds() {
        return Err(End::Gone);
    }
    let fresh = hello.session == SessionId::default();
    let session = if fresh {
        let full = || End::Refused(Refusal::Full, "the server has no room for another client".to_owned());
        router.open(&hello.name).ok_or_else(full)?
    } else {
        router.session(&hello.session).ok_or_else(unknown_session)?
    };
    let as_ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let welcome = Welcome {
        capabilities: bits(router.host.capabilities()),
        peer: session.peer,
        session: session.id,
        epoch: router.epoch,
        now_ns: router.host.now().0,
        heartbeat_ns: as_ns(router.options.heartbeat),
        grace_ns: as_ns(router.options.grace),
        max_waits: router.options.max_waits,
        resumed: !fresh,
        proof,
    };
    let greet = |out: &mut Vec<u8>| Frame::Welcome(welcome).encode(out);
    let seen = if fresh { 0 } else { hello.seen };
    let (number, replaced) = session.resume(out, seen, greet).ok_or_else(unknown_session)?;
    if let Some(old) = replaced {
        let text = "the session was resumed on a newer connection".to_owned();
        old.push(|out| Frame::Refused { why: Refusal::Replaced, epoch: router.epoch, text }.encode(out));
        old.close();
    }
    Ok((session, number, hello.process))
}

fn unknown_session() -> End {
    let text = "the session is not known: its grace period is over, or the server was restarted";
    End::Refused(Refusal::UnknownSession, text.to_owned())
}

/// Has the client prove that it knows the secret; returns the server's own proof.
async fn challenge<H: VerbHost>(
    router: &Arc<Router<H>>,
    incoming: &mut Incoming,
    out: &Outgoing,
    hello: &Hello,
) -> Result<[u8; 32], End> {
    let Some(secret) = &router.options.secret else { return Ok([0; 32]) };
    let exchange = Exchange { client: hello.nonce, server: random_bytes(), session: hello.session };
    out.push(|out| Frame::Challenge(exchange.server).encode(out));
    match incoming.frame().await? {
        Frame::Proof(proof) if secret.accepts(Side::Client, &exchange, &proof) => {
            Ok(secret.prove(Side::Server, &exchange))
        }
        _ => Err(End::Refused(Refusal::Unauthorised, "the secret is not the server's".to_owned())),
    }
}

/// Capabilities as the bits of a welcome.
pub(super) fn bits(has: Capabilities) -> u16 {
    let global = has.scope == AtomicScope::Global;
    let flags = [has.masked, has.wide, has.guarded, has.messages, global];
    flags.iter().enumerate().map(|(bit, flag)| u16::from(*flag) << bit).sum()
}

/// Tells the host that a batch has ended, also after a panic: other clients' requests may be queued behind it.
struct SettleOnDrop<'a, H: VerbHost>(&'a H);

impl<H: VerbHost> Drop for SettleOnDrop<'_, H> {
    fn drop(&mut self) {
        self.0.settle();
    }
}

/// An authenticated connection.
struct Connection<'a, H> {
    router: &'a Arc<Router<H>>,
    session: &'a Arc<Session>,
    out: &'a Arc<Outgoing>,
    waits: &'a Arc<Waits>,
}

impl<H: VerbHost> Connection<'_, H> {
    /// Why it ended, and when something was last received.
    async fn run(&self, incoming: &mut Incoming) -> (End, Instant) {
        let patience = self.router.options.lease().silence();
        let mut received = Instant::now();
        let mut silence = pin!(sleep_until(received + patience));
        loop {
            self.out.cork();
            let handled = coalesce_writes(|| {
                let _settle = SettleOnDrop(&self.router.host);
                self.handle_all(incoming)
            });
            self.out.uncork();
            if let Err(end) = handled {
                return (end, received);
            }
            tokio::select! {
                biased;
                // First, so that nothing is executed for a client that sends requests and never reads.
                () = self.out.closed() => return (End::Gone, received),
                read = incoming.fill() => match read {
                    Ok(()) => received = Instant::now(),
                    Err(error) => return (error.into(), received),
                },
                () = silence.as_mut() => {
                    if received.elapsed() >= patience {
                        return (End::Gone, received);
                    }
                    silence.as_mut().reset(received + patience);
                }
            }
        }
    }

    fn handle_all(&self, incoming: &mut Incoming) -> Result<(), End> {
        while let Some(frame) = incoming.next()? {
            self.handle(frame)?;
        }
        Ok(())
    }

    fn handle(&self, frame: Frame) -> Result<(), End> {
        match frame {
            Frame::Go { id, quiet, verbs } => self.go(id, quiet, &verbs),
            Frame::Wait { id, wait, timeout_ns } => self.wait(id, wait, timeout_ns),
            Frame::Cancel { id } => {
                self.waits.cancel(id);
                Ok(())
            }
            Frame::Send { id, quiet, to, message } => {
                let sent = self.session.send(|| self.router.forward(self.session.peer, to, message));
                if !quiet {
                    let peer = to.0;
                    self.send(&if sent {
                        Frame::Done { id, olds: Vec::new() }
                    } else {
                        Frame::PeerLost { id, peer }
                    });
                }
                Ok(())
            }
            Frame::Ping { seen } => {
                self.send(&Frame::Pong);
                self.ack(seen)
            }
            Frame::Ack { seen } => self.ack(seen),
            Frame::Goodbye => Err(End::Goodbye),
            _ => Err(End::Refused(Refusal::Unexpected, "this frame is not expected here".to_owned())),
        }
    }

    /// If the buffer is full it is closed, which ends the connection.
    fn send(&self, frame: &Frame) {
        self.out.push(|out| frame.encode(out));
    }

    fn ack(&self, seen: u64) -> Result<(), End> {
        if self.session.ack(seen) {
            return Ok(());
        }
        Err(End::Refused(
            Refusal::Unexpected,
            "an acknowledgement of messages that were never sent".to_owned(),
        ))
    }

    fn go(&self, id: u64, quiet: bool, verbs: &[RawVerb]) -> Result<(), End> {
        let mut olds = Vec::with_capacity(verbs.len());
        match self.router.host.execute(self.session.peer, verbs, &mut olds) {
            Ok(()) if quiet => {}
            Ok(()) => {
                self.out.push(|out| put_done(out, id, &olds));
            }
            Err(HostError::NodeLost(node)) if !quiet => self.send(&Frame::NodeLost { id, node: node.0 }),
            Err(HostError::NodeLost(_)) => {}
            Err(error) => return Err(no_such_word(error)),
        }
        Ok(())
    }

    fn wait(&self, id: u64, wait: RawWait, timeout_ns: u64) -> Result<(), End> {
        // A wait that is over at once needs no task.
        let answer = match read(&*self.router.host, self.session.peer, &wait) {
            Ok(value) if wait.met_by(value) || timeout_ns == 0 => {
                Frame::Waited { id, met: wait.met_by(value), value }
            }
            Ok(_) => return self.spawn_wait(id, wait, timeout_ns),
            Err(HostError::NodeLost(node)) => Frame::NodeLost { id, node: node.0 },
            Err(error) => return Err(no_such_word(error)),
        };
        self.send(&answer);
        Ok(())
    }

    fn spawn_wait(&self, id: u64, wait: RawWait, timeout_ns: u64) -> Result<(), End> {
        let mut running = self.waits.running();
        if running.len() >= self.router.options.max_waits as usize {
            return Err(End::Refused(Refusal::TooMany, "too many waits at once".to_owned()));
        }
        if running.contains_key(&id) {
            return Err(End::Refused(Refusal::Unexpected, format!("request {id} is used twice")));
        }
        let (host, out, waits) =
            (Arc::clone(&self.router.host), Arc::clone(self.out), Arc::clone(self.waits));
        let me = self.session.peer;
        let task = tokio::spawn(async move {
            let end = tokio::select! {
                biased;
                end = host.watch(me, wait) => end,
                () = elapse(timeout_ns) => read(&*host, me, &wait),
            };
            if waits.running().remove(&id).is_none() {
                return;
            }
            let frame = match end {
                Ok(value) => Frame::Waited { id, met: wait.met_by(value), value },
                Err(HostError::NodeLost(node)) => Frame::NodeLost { id, node: node.0 },
                Err(HostError::NoSuchWord { addr, .. }) => Frame::NodeLost { id, node: addr.node.0 },
            };
            out.push(|out| frame.encode(out));
        });
        running.insert(id, task.abort_handle());
        Ok(())
    }
}

fn no_such_word(error: HostError) -> End {
    End::Refused(Refusal::NoSuchWord, error.to_string())
}

/// The word that `wait` is about.
fn read<H: VerbHost>(host: &H, from: PeerId, wait: &RawWait) -> Result<u128, HostError> {
    let RawWait { addr, width, .. } = *wait;
    let mut olds = Vec::with_capacity(1);
    host.execute(from, &[RawVerb { addr, width, op: Op::Read }], &mut olds)?;
    Ok(olds[0])
}

/// Sleeps for so many nanoseconds; `u64::MAX` is for ever.
async fn elapse(ns: u64) {
    match ns {
        u64::MAX => std::future::pending().await,
        ns => sleep(Duration::from_nanos(ns)).await,
    }
}

/// The waits of a connection.
#[derive(Debug, Default)]
struct Waits(Mutex<HashMap<u64, AbortHandle>>);

impl Waits {
    fn running(&self) -> MutexGuard<'_, HashMap<u64, AbortHandle>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel(&self, id: u64) {
        if let Some(task) = self.running().remove(&id) {
            task.abort();
        }
    }

    fn cancel_all(&self) {
        for (_, task) in self.running().drain() {
            task.abort();
        }
    }
}

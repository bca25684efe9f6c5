//! One connection on the server: the handshake, then frame by frame until it ends.
//!
//! Frames of a connection are executed in the order in which they came, and all answers to what arrived together leave
//! together. Whatever a client does wrong ends its own connection, with one frame that says why.

use super::auth::{Exchange, Side, secret};
use super::encode::put_done;
use super::frame::{Frame, FrameError, Hello, Refusal, SessionId, WaitFrame, Welcome};
use super::host::{HostError, RawWait, SessionEnd, VerbHost};
use super::incoming::{Incoming, ReadError};
use super::outgoing::{Outgoing, coalesce_writes};
use super::server::ServerOptions;
use super::session::Session;
use super::switchboard::Switchboard;
use crate::addr::{PeerId, Width};
use crate::capability::{AtomicScope, Capabilities};
use crate::verb::{Op, RawVerb};
use std::collections::HashMap;
use std::pin::pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, sleep_until, timeout};

/// How long a client that was refused has to take note and close.
const FAREWELL: Duration = Duration::from_secs(1);
/// No heartbeat for this many of its intervals: the other side is gone.
pub(super) const MISSED_BEATS: u32 = 3;

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// It is silent, or does not read, or was replaced: nothing more to say.
    Gone,
    /// The other side closed it without a word.
    Closed,
    /// The client said goodbye.
    Goodbye,
    /// The client did something wrong.
    Refused(Refusal, String),
}

impl From<ReadError> for End {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Closed | ReadError::Io(_) => Self::Closed,
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

/// Serves one connection to its end. `admitted` is called once the client is in.
pub(super) async fn serve<H: VerbHost>(
    board: Arc<Switchboard<H>>,
    mut incoming: Incoming,
    out: Arc<Outgoing>,
    admitted: impl FnOnce() + Send,
) {
    let waits = Arc::<Waits>::default();
    // Also when the server is dropped in the middle of it all.
    let _end = EndOfLine { out: &out, waits: &waits };
    let hand = timeout(board.options.handshake, shake_hands(&board, &mut incoming, &out));
    let end = match hand.await {
        Err(_) => End::Refused(Refusal::OutOfPlace, "the handshake took too long".to_owned()),
        Ok(Err(end)) => end,
        Ok(Ok((session, number))) => {
            admitted();
            let connection = Connection { board: &board, session: &session, out: &out, waits: &waits };
            let end = connection.run(&mut incoming).await;
            hung_up(&board, session, number, &end);
            end
        }
    };
    if let End::Refused(why, text) = end {
        out.push(|out| Frame::Refused { why, epoch: board.epoch, text }.encode(out));
        out.finish();
        let _ = timeout(FAREWELL, incoming.drain()).await;
    }
}

/// Closes the connection and forgets its waits.
struct EndOfLine<'a> {
    out: &'a Outgoing,
    waits: &'a Waits,
}

impl Drop for EndOfLine<'_> {
    fn drop(&mut self) {
        self.waits.cancel_all();
        self.out.close();
    }
}

/// A session without a connection waits for another one, but not for ever; what ended by the client's own doing does
/// not wait at all.
fn hung_up<H: VerbHost>(board: &Arc<Switchboard<H>>, session: Arc<Session>, number: u64, end: &End) {
    let Some(can_wait) = session.hang_up(number) else { return };
    match end {
        End::Goodbye => board.end(&session, number, SessionEnd::Goodbye),
        End::Gone | End::Closed if can_wait => {
            let closed = matches!(end, End::Closed);
            let board = Arc::downgrade(board);
            tokio::spawn(async move {
                let grace = |board: Arc<Switchboard<H>>| {
                    let ServerOptions { grace, grace_closed, .. } = &board.options;
                    grace_closed.filter(|_| closed).unwrap_or(*grace)
                };
                let Some(grace) = board.upgrade().map(grace) else { return };
                sleep(grace).await;
                if let Some(board) = board.upgrade() {
                    board.end(&session, number, SessionEnd::Lost);
                }
            });
        }
        End::Gone | End::Closed | End::Refused(..) => board.end(&session, number, SessionEnd::Lost),
    }
}

async fn shake_hands<H: VerbHost>(
    board: &Arc<Switchboard<H>>,
    incoming: &mut Incoming,
    out: &Arc<Outgoing>,
) -> Result<(Arc<Session>, u64), End> {
    let Frame::Hello(hello) = incoming.frame().await? else {
        return Err(End::Refused(Refusal::OutOfPlace, "a connection begins with a hello".to_owned()));
    };
    let proof = challenge(board, incoming, out, &hello).await?;
    let fresh = hello.session == SessionId::default();
    let session = if fresh {
        let full = || End::Refused(Refusal::Full, "the server has no room for another client".to_owned());
        board.open(&hello.name).ok_or_else(full)?
    } else {
        board.session(&hello.session).ok_or_else(unknown_session)?
    };
    let as_ns = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    let welcome = Welcome {
        capabilities: bits(board.host.capabilities()),
        peer: session.peer,
        session: session.id,
        epoch: board.epoch,
        now_ns: board.host.now().0,
        heartbeat_ns: as_ns(board.options.heartbeat),
        grace_ns: as_ns(board.options.grace),
        max_waits: board.options.max_waits,
        resumed: !fresh,
        proof,
    };
    let greet = |out: &mut Vec<u8>| Frame::Welcome(welcome).encode(out);
    let seen = if fresh { 0 } else { hello.seen };
    let (number, replaced) = session.resume(out, seen, greet).ok_or_else(unknown_session)?;
    if let Some(old) = replaced {
        let text = "the session goes on over a newer connection".to_owned();
        old.push(|out| Frame::Refused { why: Refusal::Replaced, epoch: board.epoch, text }.encode(out));
        old.close();
    }
    Ok((session, number))
}

fn unknown_session() -> End {
    let text = "the session is not known: its grace period is over, or the server was restarted";
    End::Refused(Refusal::UnknownSession, text.to_owned())
}

/// Lets the client prove that it knows the token, and returns the server's own proof.
async fn challenge<H: VerbHost>(
    board: &Arc<Switchboard<H>>,
    incoming: &mut Incoming,
    out: &Outgoing,
    hello: &Hello,
) -> Result<[u8; 32], End> {
    let Some(token) = &board.options.token else { return Ok([0; 32]) };
    let exchange = Exchange { client: hello.nonce, server: secret(), session: hello.session };
    out.push(|out| Frame::Challenge(exchange.server).encode(out));
    match incoming.frame().await? {
        Frame::Proof(proof) if token.accepts(Side::Client, &exchange, &proof) => {
            Ok(token.prove(Side::Server, &exchange))
        }
        _ => Err(End::Refused(Refusal::Unauthorised, "the token is not the server's".to_owned())),
    }
}

/// Capabilities as the bits of a welcome.
pub(super) fn bits(has: Capabilities) -> u16 {
    let global = has.scope == AtomicScope::Global;
    let flags = [has.masked, has.wide, has.guarded, has.messages, global];
    flags.iter().enumerate().map(|(bit, flag)| u16::from(*flag) << bit).sum()
}

/// Settles what the host was told, also out of a panic: others may stand behind it.
struct Settles<'a, H: VerbHost>(&'a H);

impl<H: VerbHost> Drop for Settles<'_, H> {
    fn drop(&mut self) {
        self.0.settle();
    }
}

/// A connection that is in.
struct Connection<'a, H> {
    board: &'a Arc<Switchboard<H>>,
    session: &'a Arc<Session>,
    out: &'a Arc<Outgoing>,
    waits: &'a Arc<Waits>,
}

impl<H: VerbHost> Connection<'_, H> {
    async fn run(&self, incoming: &mut Incoming) -> End {
        let patience = self.board.options.heartbeat * MISSED_BEATS;
        let mut heard = Instant::now();
        let mut silence = pin!(sleep_until(heard + patience));
        loop {
            self.out.cork();
            let handled = coalesce_writes(|| {
                let _settles = Settles(&self.board.host);
                self.handle_all(incoming)
            });
            self.out.uncork();
            if let Err(end) = handled {
                return end;
            }
            tokio::select! {
                biased;
                // First, so that nothing is executed for somebody who keeps asking and never reads.
                () = self.out.closed() => return End::Gone,
                read = incoming.fill() => match read {
                    Ok(()) => heard = Instant::now(),
                    Err(error) => return error.into(),
                },
                () = silence.as_mut() => {
                    if heard.elapsed() >= patience {
                        return End::Gone;
                    }
                    silence.as_mut().reset(heard + patience);
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
            Frame::Wait { id, wait } => self.wait(id, &wait),
            Frame::Cancel { id } => {
                self.waits.cancel(id);
                Ok(())
            }
            Frame::Send { id, quiet, to, message } => {
                let passed_on = self.session.say(|| self.board.post(self.session.peer, to, message));
                if !quiet {
                    let peer = to.0;
                    self.say(&if passed_on {
                        Frame::Done { id, olds: Vec::new() }
                    } else {
                        Frame::PeerLost { id, peer }
                    });
                }
                Ok(())
            }
            Frame::Ping { seen } => {
                self.say(&Frame::Pong);
                self.ack(seen)
            }
            Frame::Ack { seen } => self.ack(seen),
            Frame::Goodbye => Err(End::Goodbye),
            _ => Err(End::Refused(Refusal::OutOfPlace, "this frame makes no sense here".to_owned())),
        }
    }

    /// A buffer that takes no more is closed, which ends the connection a little later.
    fn say(&self, frame: &Frame) {
        self.out.push(|out| frame.encode(out));
    }

    fn ack(&self, seen: u64) -> Result<(), End> {
        if self.session.ack(seen) {
            return Ok(());
        }
        Err(End::Refused(Refusal::OutOfPlace, "messages were acknowledged that were never sent".to_owned()))
    }

    fn go(&self, id: u64, quiet: bool, verbs: &[RawVerb]) -> Result<(), End> {
        let mut olds = Vec::with_capacity(verbs.len());
        match self.board.host.execute(self.session.peer, verbs, &mut olds) {
            Ok(()) if quiet => {}
            Ok(()) => {
                self.out.push(|out| put_done(out, id, &olds));
            }
            Err(HostError::NodeLost(node)) if !quiet => self.say(&Frame::NodeLost { id, node: node.0 }),
            Err(HostError::NodeLost(_)) => {}
            Err(error) => return Err(no_such_word(error)),
        }
        Ok(())
    }

    fn wait(&self, id: u64, wait: &WaitFrame) -> Result<(), End> {
        let watch = RawWait::from(wait);
        // Most waits that are over at once need no task.
        let answer = match look(&*self.board.host, self.session.peer, &watch) {
            Ok(value) if watch.met_by(value) || wait.timeout_ns == 0 => {
                Frame::Waited { id, met: watch.met_by(value), value }
            }
            Ok(_) => return self.wait_long(id, watch, wait.timeout_ns),
            Err(HostError::NodeLost(node)) => Frame::NodeLost { id, node: node.0 },
            Err(error) => return Err(no_such_word(error)),
        };
        self.say(&answer);
        Ok(())
    }

    fn wait_long(&self, id: u64, watch: RawWait, timeout_ns: u64) -> Result<(), End> {
        let mut running = self.waits.running();
        if running.len() >= self.board.options.max_waits as usize {
            return Err(End::Refused(Refusal::TooMany, "too many waits at once".to_owned()));
        }
        if running.contains_key(&id) {
            return Err(End::Refused(Refusal::OutOfPlace, format!("request {id} is used twice")));
        }
        let (host, out, waits) = (Arc::clone(&self.board.host), Arc::clone(self.out), Arc::clone(self.waits));
        let me = self.session.peer;
        let task = tokio::spawn(async move {
            let end = tokio::select! {
                biased;
                end = host.watch(me, watch) => end,
                () = pass(timeout_ns) => look(&*host, me, &watch),
            };
            if waits.running().remove(&id).is_none() {
                return;
            }
            let frame = match end {
                Ok(value) => Frame::Waited { id, met: watch.met_by(value), value },
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

/// What the word holds.
fn look<H: VerbHost>(host: &H, from: PeerId, watch: &RawWait) -> Result<u128, HostError> {
    let (addr, width): (_, Width) = (watch.addr, watch.width);
    let mut olds = Vec::with_capacity(1);
    host.execute(from, &[RawVerb { addr, width, op: Op::Read }], &mut olds)?;
    Ok(olds[0])
}

/// Lets so many nanoseconds pass; the largest number means for ever.
async fn pass(ns: u64) {
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

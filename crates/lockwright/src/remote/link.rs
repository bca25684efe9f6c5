//! Sessions with a server: connecting, hearing, coming back after a break or a restart.
//!
//! Requests are written by the threads that make them; [`Driver`] decides which thread reads the responses. A client has a
//! thread of its own for that, which ends with the client.

mod shard;
mod state;

pub(crate) use self::shard::ShardOf;

use super::cluster::belief::ShardBelief;
use super::driver::Driver;
use super::table::{Origin, Table};
use super::transport::{Session, Transport};
use crate::backend::{SpaceIdentity, StopTime};
use crate::error::OpenError;
use crate::wire::{Identity, Request, Response, SERVER};
use lockwright_fabric::backend::tcp::{CloseReason, Lease, SessionHandler};
use lockwright_fabric::{Message, PeerId};
use std::hash::{BuildHasher, RandomState};
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak, mpsc};
use std::task::Waker;
use std::time::{Duration, Instant};
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

/// Pauses between attempts to connect again.
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(10);
pub(super) const LONGEST_PAUSE: Duration = Duration::from_millis(250);
/// A lock that stays here goes back when nobody has used it for so many looks, a second or less apart.
const IDLE_LOOKS: u8 = 10;
/// As good as for ever, for a deadline.
const DAY: Duration = Duration::from_secs(24 * 3600);
/// How long the thread waits at the end for the last words to leave.
const FAREWELL: Duration = Duration::from_millis(500);

/// How a server is reached.
#[derive(Clone, Debug)]
pub(crate) struct RemoteOptions {
    /// `host:port`.
    pub(crate) server: String,
    pub(crate) space: Vec<u8>,
    /// Whether this client takes the locks of the space by verbs of its own.
    pub(crate) one_sided: bool,
    pub(crate) lease: Duration,
    /// How long its user needs to stop once a lock is lost.
    pub(crate) stop: StopTime,
    /// Whether locks may stay with this client between uses.
    pub(crate) retain: bool,
    /// How long to try to connect while the server breaks attempts off.
    pub(crate) open_within: Duration,
    pub(crate) transport: Transport,
    /// Of a cluster: the server is the owner of the shard.
    pub(crate) shard: Option<ShardOf>,
}

/// The client's lease under that of the server, and the time to stop.
pub(super) fn within(stop: StopTime, server: Lease) -> Result<(Duration, Duration), String> {
    let stop = match stop {
        StopTime::Exactly(stop) => stop,
        StopTime::AtMost(stop) => server.stop_at_most(stop),
    };
    let lease = server.at_client(stop).ok_or_else(|| {
            format!(
                "the server keeps the locks of a silent client for {:.1} s, which is too short for a client that needs \
                 {:.1} s to stop: serve with a longer --grace, or stop sooner",
                server.at_server().as_secs_f64(),
                stop.as_secs_f64()
            )
        })?;
    Ok((lease, stop))
}

/// A client of a server.
pub(crate) struct Remote {
    options: RemoteOptions,
    runtime: Handle,
    driver: Arc<Driver>,
    line: Mutex<LinkState>,
    /// The server let us in, or did not.
    opened: Condvar,
    thread: Mutex<Option<std::thread::JoinHandle<()>>>,
    me: Weak<Remote>,
}

/// The table, and the session it is about.
pub(crate) struct LinkState {
    pub(crate) table: Table,
    ep: Option<Session>,
    /// If there is no session: when the last message was sent that the server is known to have received.
    acknowledged: Instant,
    lease: Duration,
    /// Until when what is claimed may be believed in: the lease of the session in which it was granted. That a server which was
    /// restarted answers does not say that it has heard the claims, and it does not wait for longer than that.
    claims_until: Option<Instant>,
    stop: Duration,
    closed: bool,
    /// Of a shard of a cluster: what is known of its owner; and whether a lookup of it is under way.
    pub(super) belief: Option<ShardBelief>,
    asks: bool,
    /// Why there is no session, as it was found last.
    trouble: Option<String>,
    /// The server is one of a cluster, and has no locks itself.
    elsewhere: bool,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Remote").field("server", &self.options.server).finish_non_exhaustive()
    }
}

/// Wakers may be called under the lock: they set flags and wake threads, no more.
fn wake(wakers: impl IntoIterator<Item = Waker>) {
    wakers.into_iter().for_each(Waker::wake);
}

impl Remote {
    /// Connects and enters the space.
    ///
    /// # Errors
    /// If the server cannot be reached or lets nobody in.
    pub(crate) fn open(options: RemoteOptions) -> Result<Arc<Self>, OpenError> {
        let scheme = options.transport.scheme();
        let name = format!("{scheme}://{}/{}", options.server, String::from_utf8_lossy(&options.space));
        let refuse = |why: String| OpenError::Failed { space: name.clone(), why };
        // The caller's deadline, and time for an answer if the connection came at the last moment.
        let (until, patience) = (Instant::now() + options.open_within.min(DAY), options.transport.timeout());
        let (tell, told) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name(format!("lockwright-{scheme}"))
            .spawn(move || run(options, &tell))
            .map_err(|error| refuse(error.to_string()))?;
        let remote = match told.recv() {
            Ok(Ok(remote)) => remote,
            Ok(Err(why)) => return Err(refuse(why)),
            Err(_) => return Err(refuse("its thread ended".to_owned())),
        };
        *remote.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        // The owner of a shard is looked for when it is needed.
        if remote.options.shard.is_some() {
            return Ok(remote);
        }
        let began = Instant::now();
        match remote.wait_until_ready(until.max(began + patience)) {
            Ok(()) => Ok(remote),
            Err(why) => {
                remote.close();
                Err(refuse(why.unwrap_or_else(|| late(began.elapsed()))))
            }
        }
    }

    /// Waits for the server's word on the space. The error is why it refused, if it did.
    pub(super) fn wait_until_ready(&self, until: Instant) -> Result<(), Option<String>> {
        let mut line = self.line();
        while !line.table.is_ready() && line.table.fatal.is_none() && !line.elsewhere {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            line = self.opened.wait_timeout(line, left).unwrap_or_else(PoisonError::into_inner).0;
        }
        if line.table.is_ready() || line.elsewhere { Ok(()) } else { Err(line.table.fatal.clone()) }
    }

    /// Whether the server is one of a cluster, whose map says where the space's locks are.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.line().elsewhere
    }

    /// What this is a client of, in words.
    pub(super) fn described(&self) -> String {
        match &self.options.shard {
            Some(shard) => format!("shard {} of the cluster", shard.number),
            None => self.options.server.clone(),
        }
    }

    pub(crate) fn line(&self) -> MutexGuard<'_, LinkState> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) const fn driver(&self) -> &Arc<Driver> {
        &self.driver
    }

    /// Sees `future`, which waits for this server, through on the calling thread.
    pub(super) fn drive(&self, future: Pin<&mut dyn Future<Output = ()>>) {
        self.driver.drive(future, || self.line().readable());
    }

    /// Which space this is.
    pub(super) fn identity(&self) -> SpaceIdentity {
        let space = if self.options.space.is_empty() { b"default" } else { &self.options.space[..] };
        match self.line().table.identity {
            Some(Identity::Memory(number)) => SpaceIdentity::Shm(number),
            Some(Identity::Server(server)) => SpaceIdentity::Served { server, space: space.to_vec() },
            None => SpaceIdentity::Served { server: 0, space: space.to_vec() },
        }
    }

    /// The space's name.
    pub(super) fn space(&self) -> &[u8] {
        &self.options.space
    }

    /// How long the server may take to answer a try.
    pub(crate) fn timeout(&self) -> Duration {
        self.options.transport.timeout()
    }

    /// Wakes `waker` at `due`.
    pub(super) fn wake_at(&self, due: Instant, waker: Waker) -> JoinHandle<()> {
        self.runtime.spawn(async move {
            tokio::time::sleep_until(due.into()).await;
            waker.wake();
        })
    }

    /// Wakes those whose tries have not been answered in time, and those whose lease is over. Says when to look again.
    pub(crate) fn look_after(&self) -> Duration {
        let mut line = self.line();
        line.expire();
        let timeout = self.timeout();
        wake(line.table.late(Instant::now(), timeout));
        line.table.look_at_retained(IDLE_LOOKS);
        line.flush();
        line.probe();
        self.look_for_owner(&mut line);
        let retains = line.table.has_grants();
        self.driver.set_retains(retains);
        let often = (line.lease / 4).min(timeout / 4).min(Duration::from_secs(1));
        often.max(Duration::from_millis(5))
    }

    /// The session is over; another is begun.
    fn end_session(&self, mut line: MutexGuard<'_, LinkState>, ep: &Session) {
        let now = Instant::now();
        line.acknowledged = now.checked_sub(ep.acknowledged()).unwrap_or(now);
        if line.closed {
            return;
        }
        if let Some(belief) = &mut line.belief {
            belief.begin();
        }
        wake(line.table.end_session());
        drop(line);
        if let Some(me) = self.me.upgrade() {
            self.runtime.spawn(me.come_back());
        }
    }

    /// How long the user of this client may take to stop once a lock is lost.
    pub(crate) fn stop_time(&self) -> Duration {
        self.line().stop
    }

    /// Gives a request up, whether it waits or was granted, and waits for nothing.
    pub(crate) fn give_up(&self, id: crate::wire::RequestId) {
        let mut line = self.line();
        let (certain, plain) = (line.is_certain(), line.table.is_plainly_held(id));
        wake(line.table.give_up(id, certain));
        if plain { line.flush_unlock() } else { line.flush() }
    }

    /// Gives up a set that waits, and what was granted of it.
    pub(super) fn give_up_set(&self, ids: &[crate::wire::RequestId]) {
        let mut line = self.line();
        line.table.give_up_set(ids);
        line.flush();
    }

    /// Ends the session, and with it everything that is held.
    pub(crate) fn close(&self) {
        let mut line = self.line();
        line.closed = true;
        if let Some(ep) = line.ep.take() {
            ep.close();
        }
        wake(line.table.fail("the client is closed"));
        drop(line);
        self.driver.stop();
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        // Its own thread may be the last to let go.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }

    /// Goes on with a new session.
    fn begin(&self, ep: Session) {
        let listener: Weak<dyn SessionHandler> = self.me.clone();
        ep.set_handler(listener);
        let mut line = self.line();
        if line.closed || line.table.fatal.is_some() {
            ep.close();
            return;
        }
        line.expire();
        let left = line.lease.saturating_sub(line.unacknowledged());
        // What was claimed before and not answered is no younger for being claimed again.
        let before = line.claims_until.filter(|_| line.table.has_claims());
        if let Err(why) = line.renew_lease(&ep, &self.options) {
            ep.close();
            return self.fail(&mut line, &why);
        }
        let origin = Origin { epoch: ep.epoch(), key: key() };
        for message in line.table.begin_session(origin, &self.options.space, self.options.one_sided) {
            ep.tell(SERVER, &message);
        }
        let until = Instant::now() + left;
        line.claims_until = line.table.has_claims().then(|| before.map_or(until, |before| before.min(until)));
        let fate = ep.close_reason();
        line.ep = Some(ep);
        line.trouble = None;
        if let Some(belief) = &mut line.belief {
            belief.begin();
        }
        line.probe();
        line.say(&Request::Identify { id: 0 });
        for ask in line.table.waited(Instant::now()) {
            line.say(&ask);
        }
        if let Some(ask) = line.table.claimed() {
            line.say(&ask);
        }
        line.say_stopped();
        drop(line);
        // Over before any waiter could be told.
        if let Some(fate) = fate {
            self.closed(&fate);
        }
    }

    /// Connects until it succeeds or there is no more use in it.
    async fn come_back(self: Arc<Self>) {
        let mut pause = FIRST_PAUSE;
        let mut again = false;
        loop {
            if self.line().closed {
                return;
            }
            match self.options.connect(std::mem::replace(&mut again, true)).await {
                Ok(ep) if !self.is_past(&ep) => return self.begin(ep),
                session => {
                    self.not_back(session.map(|ep| ep.close()).err());
                    tokio::time::sleep(pause).await;
                }
            }
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// There is no session yet.
    fn not_back(&self, why: Option<String>) {
        let mut line = self.line();
        line.trouble = why;
        line.expire();
    }

    fn fail(&self, line: &mut LinkState, why: &str) {
        if let Some(ep) = line.ep.take() {
            ep.close();
        }
        wake(line.table.fail(why));
        self.opened.notify_all();
    }
}

impl SessionHandler for Remote {
    fn message(&self, from: PeerId, message: Message) -> Option<Message> {
        if from != SERVER {
            // For the protocol that this client runs itself.
            return Some(message);
        }
        let (taken, answer) = Response::decode(&message)?;
        let mut line = self.line();
        if let Response::Refused { id: 0, why } = &answer {
            self.fail(&mut line, why);
            return None;
        }
        if line.table.fatal.is_some() {
            // What it said behind a refusal is of no use.
            return None;
        }
        if let Response::Elsewhere = answer {
            line.elsewhere = true;
            self.opened.notify_all();
            return None;
        }
        let was_ready = line.table.is_ready();
        line.table.is_open = true;
        let waker = line.sift(taken, answer).and_then(|answer| line.table.hear(taken, answer));
        line.flush();
        // Not with every answer: it is a system call, with or without waiters.
        if line.table.is_ready() && !was_ready {
            self.opened.notify_all();
        }
        drop(line);
        wake(waker);
        None
    }

    fn reconnected(&self) {
        let line = self.line();
        if let Some(ep) = &line.ep {
            for message in line.table.unacked() {
                ep.tell(SERVER, message);
            }
        }
    }

    fn closed(&self, fate: &CloseReason) {
        let mut line = self.line();
        let Some(ep) = line.ep.take() else { return };
        match fate {
            _ if line.closed => {}
            CloseReason::Refused(why) => return self.fail(&mut line, why),
            CloseReason::Overrun => return self.fail(&mut line, "too many answers piled up unread"),
            CloseReason::Closed | CloseReason::Expired | CloseReason::Restarted { .. } => {}
        }
        self.end_session(line, &ep);
    }
}

/// What is said of a server that takes longer than that to answer.
pub(super) fn late(patience: Duration) -> String {
    format!("the server did not answer within {:.1} s", patience.as_secs_f64())
}

/// A number that no other session has.
pub fn key() -> u128 {
    let random = || RandomState::new().hash_one(Instant::now());
    u128::from(random()) << 64 | u128::from(random())
}

/// The client's thread.
fn run(options: RemoteOptions, tell: &mpsc::Sender<Result<Arc<Remote>, String>>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => Arc::new(runtime),
        Err(error) => {
            let _ = tell.send(Err(error.to_string()));
            return;
        }
    };
    let remote = runtime.block_on(async {
        let patience = options.transport.timeout();
        let ep = match options.shard {
            Some(_) => None,
            None => Some(options.transport.connect_within(&options.server, options.open_within).await?),
        };
        let remote = Arc::new_cyclic(|me| Remote {
            line: Mutex::new(LinkState {
                table: Table::new(options.retain && !options.one_sided),
                ep: None,
                acknowledged: Instant::now(),
                // Until a server has said otherwise.
                lease: options.shard.as_ref().map_or(Duration::ZERO, |_| 2 * patience),
                claims_until: None,
                stop: Duration::ZERO,
                closed: false,
                belief: options.shard.as_ref().map(|_| ShardBelief::new()),
                asks: false,
                trouble: None,
                elsewhere: false,
            }),
            runtime: runtime.handle().clone(),
            driver: Arc::new(Driver::new(&runtime)),
            opened: Condvar::new(),
            thread: Mutex::default(),
            me: me.clone(),
            options,
        });
        match ep {
            Some(ep) => remote.begin(ep),
            None => drop(runtime.spawn(Arc::clone(&remote).come_back())),
        }
        Ok::<_, String>(remote)
    });
    let driver = match remote {
        Ok(remote) => {
            let driver = Arc::clone(&remote.driver);
            let _ = tell.send(Ok(remote));
            driver
        }
        Err(why) => {
            let _ = tell.send(Err(why));
            return;
        }
    };
    driver.run(&runtime);
    // The last words have to leave.
    runtime.block_on(async {
        let until = tokio::time::Instant::now() + FAREWELL;
        while runtime.handle().metrics().num_alive_tasks() > 0 && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

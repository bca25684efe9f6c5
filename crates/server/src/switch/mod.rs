//! A decider of FissLock on a network: what `lockwright switch` runs. See `docs/decider.md`.
//!
//! | file | |
//! |---|---|
//! | `core` | decider, coordinator, clients and names, as one state machine without sockets |
//! | `kernel`, `xdp` | the decider in the kernel, at the driver of a network interface (feature `xdp`) |
//! | `names` | which lock a name stands for |
//! | `memory` | what must outlive a restart |
//! | `plane` | the thread that packets come to |
//! | `report` | how it is, as JSON and for Prometheus |
//!
//! Packets come by UDP, and everything else by sessions of the tcp fabric, on the same port: joining, names, signs of life,
//! recoveries.

mod core;
mod kernel;
mod memory;
mod names;
mod plane;
mod report;
#[cfg(test)]
mod soak;
#[cfg(feature = "xdp")]
mod xdp;

use self::core::Core;
use self::memory::Memory;
use crate::metrics::answer;
use crate::options::ServeError;
use lockwright::internal::key;
use lockwright_fabric::backend::tcp::{self, BindError, HostError, Inbox, Lease, SessionEnd, VerbHost};
use lockwright_fabric::{Capabilities, Message, PeerId, RawVerb, RawWait, Time};
use lockwright_locks::fisslock::datagram::{Key, Limits};
use std::io::ErrorKind;
use std::net::{SocketAddr, UdpSocket};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// Where a decider listens unless told otherwise: this machine only.
pub const DEFAULT_SWITCH_LISTEN: &str = "127.0.0.1:5627";
/// Locks that a decider has registers for, unless told otherwise.
pub const DEFAULT_LOCKS: u64 = 1 << 18;
/// Packets that a client may have on their way at a time.
const LANES: u32 = 64;
/// How long the session of a client whose process on this machine has ended outlives its connection.
const GRACE_ENDED: Duration = Duration::from_millis(200);

/// How a decider behaves: see [`Switch::start`].
///
/// ```
/// use lockwright_server::SwitchOptions;
/// let options = SwitchOptions { listen: "127.0.0.1:0".parse().unwrap(), ..SwitchOptions::default() };
/// assert!(options.secret.is_none());
/// ```
#[derive(Clone, Debug)]
pub struct SwitchOptions {
    /// Where it listens, for UDP and TCP.
    pub listen: SocketAddr,
    /// The secret that clients must know.
    pub secret: Option<tcp::Secret>,
    /// The certificate and key of its control plane.
    pub tls: Option<tcp::TlsServer>,
    /// Where clients may be; packets and sessions from elsewhere are dropped. None: anywhere.
    pub allow: Vec<tcp::Subnet>,
    /// Locks that it has registers for.
    pub locks: u64,
    /// How often an idle client gives a sign of life.
    pub heartbeat: Duration,
    /// How long a silent client keeps its locks beyond three of them.
    pub grace: Duration,
    /// The file of what must outlive a restart; `None`: nothing does.
    pub state: Option<PathBuf>,
    /// Whether the packets' thread never sleeps.
    pub busy_poll: bool,
    /// Where to answer Prometheus (`GET /metrics`).
    pub metrics: Option<SocketAddr>,
    /// Interfaces at whose drivers it decides, in the kernel; none: it decides in this process.
    #[cfg(feature = "xdp")]
    pub xdp: Vec<String>,
}

impl Default for SwitchOptions {
    fn default() -> Self {
        Self {
            listen: DEFAULT_SWITCH_LISTEN.parse().expect("it is an address"),
            secret: None,
            tls: None,
            allow: Vec::new(),
            locks: DEFAULT_LOCKS,
            heartbeat: Duration::from_secs(1),
            grace: Duration::from_secs(5),
            state: None,
            busy_poll: false,
            metrics: None,
            #[cfg(feature = "xdp")]
            xdp: Vec::new(),
        }
    }
}

/// A running decider, on threads of its own. Dropping it stops it.
///
/// ```
/// use lockwright::Client;
/// use lockwright_server::{Switch, SwitchOptions};
/// let listen = "127.0.0.1:0".parse().unwrap();
/// let switch = Switch::start(SwitchOptions { listen, ..SwitchOptions::default() })?;
/// let client = Client::open(&format!("fiss://{}/stock", switch.address())).wait()?;
/// let guard = client.mutex("orders/42")?.lock().wait()?;
/// println!("granted by the decider at {}, token {}", switch.address(), guard.token());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Switch {
    address: SocketAddr,
    metrics: Option<SocketAddr>,
    core: Arc<Mutex<Core>>,
    waiting: bool,
    stop: Option<oneshot::Sender<()>>,
    stop_packets: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Switch {
    /// Starts a decider.
    ///
    /// # Errors
    /// If the address cannot be had or would be open to strangers, or the state cannot be used.
    ///
    /// ```
    /// use lockwright_server::{Switch, SwitchOptions};
    /// let listen = "0.0.0.0:0".parse().unwrap();
    /// let refused = Switch::start(SwitchOptions { listen, ..SwitchOptions::default() });
    /// assert!(refused.is_err(), "nothing would keep strangers out");
    /// ```
    pub fn start(options: SwitchOptions) -> Result<Self, ServeError> {
        let system = |error: std::io::Error| ServeError::System(error.to_string());
        let lease = Lease { heartbeat: options.heartbeat, grace: options.grace };
        if lease.at_client(Duration::ZERO).is_none() {
            return Err(ServeError::ShortLease(lease.at_server()));
        }
        let exposed = !options.listen.ip().to_canonical().is_loopback();
        if exposed && options.secret.is_none() && options.tls.is_none() {
            return Err(ServeError::Exposed(options.listen));
        }
        let (memory, past) =
            Memory::begin(options.state.as_deref(), lease.at_server(), key()).map_err(|error| {
                let path = options.state.as_ref().map(|path| path.display().to_string());
                ServeError::State { path: path.unwrap_or_default(), why: error.to_string() }
            })?;
        // So long may clients hold on that were cut off when the last run ended.
        let wait = past.lease;
        let limits = Limits { locks: options.locks, lanes: LANES };
        let mut core = Core::new(limits, memory, past, new_key, elsewhere(&options, limits)?);
        core.allow.clone_from(&options.allow);
        let waiting = core.is_waiting();
        let core = Arc::new(Mutex::new(core));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(system)?;
        let (tell, told) = mpsc::channel();
        let (stop, stopped) = oneshot::channel();
        let (theirs, busy) = (Arc::clone(&core), options.busy_poll);
        let control = std::thread::Builder::new()
            .name("lockwright-switch".to_owned())
            .spawn(move || {
                runtime.block_on(control(options, theirs, waiting.then_some(wait), &tell, stopped));
            })
            .map_err(system)?;
        let Bound { address, socket, metrics } =
            told.recv().map_err(|_| ServeError::System("its thread ended".to_owned()))??;
        let stop_packets = Arc::new(AtomicBool::new(false));
        let (theirs, stopped) = (Arc::clone(&core), Arc::clone(&stop_packets));
        let packets = std::thread::Builder::new()
            .name("lockwright-packets".to_owned())
            .spawn(move || plane::run(&socket, &theirs, &stopped, busy))
            .map_err(system)?;
        let (stop, threads) = (Some(stop), vec![control, packets]);
        Ok(Self { address, metrics, core, waiting, stop, stop_packets, threads })
    }

    /// Where it listens.
    ///
    /// ```
    /// # use lockwright_server::{Switch, SwitchOptions};
    /// # let listen = "127.0.0.1:0".parse().unwrap();
    /// # let switch = Switch::start(SwitchOptions { listen, ..SwitchOptions::default() }).unwrap();
    /// assert!(switch.address().ip().is_loopback());
    /// ```
    pub const fn address(&self) -> SocketAddr {
        self.address
    }

    /// Where it answers Prometheus.
    ///
    /// ```
    /// # use lockwright_server::{Switch, SwitchOptions};
    /// # let listen = "127.0.0.1:0".parse().unwrap();
    /// let metrics = Some(listen);
    /// let switch = Switch::start(SwitchOptions { listen, metrics, ..SwitchOptions::default() }).unwrap();
    /// assert!(switch.metrics().is_some());
    /// ```
    pub const fn metrics(&self) -> Option<SocketAddr> {
        self.metrics
    }

    /// Whether it began by waiting for the clients of the run before.
    ///
    /// ```
    /// # use lockwright_server::{Switch, SwitchOptions};
    /// # let listen = "127.0.0.1:0".parse().unwrap();
    /// # let switch = Switch::start(SwitchOptions { listen, ..SwitchOptions::default() }).unwrap();
    /// assert!(!switch.began_waiting());
    /// ```
    pub const fn began_waiting(&self) -> bool {
        self.waiting
    }
}

impl Drop for Switch {
    fn drop(&mut self) {
        self.stop_packets.store(true, Relaxed);
        // Before sessions are closed, which is no goodbye of theirs.
        lock(&self.core).end();
        drop(self.stop.take());
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

fn lock(core: &Mutex<Core>) -> MutexGuard<'_, Core> {
    core.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The decider in the kernel, if there is to be one.
#[cfg(feature = "xdp")]
fn elsewhere(
    options: &SwitchOptions,
    limits: Limits,
) -> Result<Option<Box<dyn kernel::Elsewhere>>, ServeError> {
    if options.xdp.is_empty() {
        return Ok(None);
    }
    let wrong = |why: &dyn std::fmt::Display| ServeError::System(format!("XDP cannot be used: {why}"));
    let (ip, port) = match options.listen {
        SocketAddr::V4(listen) if listen.port() != 0 => (*listen.ip(), listen.port()),
        _ => return Err(wrong(&"it needs an IPv4 address and a port to listen on")),
    };
    let own =
        if ip.is_unspecified() { addresses_of(&options.xdp).map_err(|why| wrong(&why))? } else { vec![ip] };
    let mut program =
        xdp::Program::load(limits, port, &own, &options.allow).map_err(|why| wrong(&xdp::said(&why)))?;
    for interface in &options.xdp {
        program.attach(interface).map_err(|why| wrong(&xdp::said(&why)))?;
    }
    Ok(Some(Box::new(program)))
}

#[cfg(not(feature = "xdp"))]
fn elsewhere(_: &SwitchOptions, _: Limits) -> Result<Option<Box<dyn kernel::Elsewhere>>, ServeError> {
    Ok(None)
}

/// Whether the kernel takes the program of a decider, which is loaded, attached to nothing, and gone again.
///
/// # Errors
/// Why not.
///
/// ```
/// match lockwright_server::try_xdp() {
///     Ok(()) => println!("`lockwright switch --xdp` can be used"),
///     Err(why) => println!("it cannot: {why}"),
/// }
/// ```
#[cfg(feature = "xdp")]
pub fn try_xdp() -> Result<(), ServeError> {
    let limits = Limits { locks: 32, lanes: LANES };
    let loaded = xdp::Program::load(limits, 0, &[], &[]);
    loaded.map(drop).map_err(|error| ServeError::System(xdp::said(&error)))
}

/// IPv4 addresses of these interfaces.
#[cfg(feature = "xdp")]
fn addresses_of(interfaces: &[String]) -> nix::Result<Vec<std::net::Ipv4Addr>> {
    let all = nix::ifaddrs::getifaddrs()?.filter(|address| interfaces.contains(&address.interface_name));
    Ok(all.filter_map(|address| Some(address.address?.as_sockaddr_in()?.ip())).collect())
}

/// A random key for a session.
fn new_key() -> Key {
    let random = key();
    Key([random as u64, (random >> 64) as u64])
}

/// What a decider has bound.
struct Bound {
    address: SocketAddr,
    socket: UdpSocket,
    metrics: Option<SocketAddr>,
}

/// The control plane's thread.
async fn control(
    options: SwitchOptions,
    core: Arc<Mutex<Core>>,
    wait: Option<Duration>,
    tell: &mpsc::Sender<Result<Bound, ServeError>>,
    mut stopped: oneshot::Receiver<()>,
) {
    let host = ControlHost { core: Arc::clone(&core), began: Instant::now() };
    let tcp_options = tcp::ServerOptions {
        secret: options.secret,
        tls: options.tls,
        allow: options.allow,
        heartbeat: options.heartbeat,
        grace: options.grace,
        grace_ended: Some(options.grace.min(GRACE_ENDED)),
        keeps_lease: true,
        ..tcp::ServerOptions::default()
    };
    let failed = |error: BindError| match error {
        BindError::Exposed(address) => ServeError::Exposed(address),
        BindError::Io { address, error } => ServeError::Listen { address, why: error.to_string() },
    };
    // A port that was chosen for TCP may be some UDP socket's: then another one.
    let mut left = if options.listen.port() == 0 { 20 } else { 1 };
    let (server, socket) = loop {
        left -= 1;
        let server = match tcp::Server::bind(options.listen, host.clone(), vec![], tcp_options.clone()).await
        {
            Ok(server) => server,
            Err(error) => return drop(tell.send(Err(failed(error)))),
        };
        let address = server.address();
        match UdpSocket::bind(address) {
            Ok(socket) => break (server, socket),
            Err(error) if left > 0 && error.kind() == ErrorKind::AddrInUse => server.shut_down().await,
            Err(error) => return drop(tell.send(Err(failed(BindError::Io { address, error })))),
        }
    };
    let metrics = match crate::bind(options.metrics).await {
        Ok(listener) => listener,
        Err(error) => return drop(tell.send(Err(error))),
    };
    let bound = metrics.as_ref().and_then(|listener| listener.local_addr().ok());
    let _ = tell.send(Ok(Bound { address: server.address(), socket, metrics: bound }));
    if let Some(listener) = metrics {
        let core = Arc::clone(&core);
        tokio::spawn(answer(listener, Arc::new(move || lock(&core).report().prometheus())));
    }
    let open_at = wait.map(|wait| Instant::now() + wait);
    let mut look = tokio::time::interval(Duration::from_millis(100));
    loop {
        tokio::select! {
            _ = &mut stopped => break,
            _ = look.tick() => {
                let mut core = lock(&core);
                core.answer_late_surveys();
                core.look_elsewhere();
                core.look_for_locks();
                if open_at.is_some_and(|at| Instant::now() >= at) {
                    core.open();
                }
            }
        }
    }
    server.shut_down().await;
}

/// Sessions of the control plane.
#[derive(Clone)]
struct ControlHost {
    core: Arc<Mutex<Core>>,
    began: Instant,
}

fn session(peer: PeerId) -> u32 {
    peer.index().0 as u32
}

impl VerbHost for ControlHost {
    fn capabilities(&self) -> Capabilities {
        Capabilities::CPU
    }

    fn now(&self) -> Time {
        Time(u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    /// There is no memory here.
    fn execute(&self, _: PeerId, verbs: &[RawVerb], _: &mut Vec<u128>) -> Result<(), HostError> {
        verbs.first().map_or(Ok(()), |verb| Err(HostError::NoSuchWord { addr: verb.addr, width: verb.width }))
    }

    async fn watch(&self, _: PeerId, watch: RawWait) -> Result<u128, HostError> {
        Err(HostError::NoSuchWord { addr: watch.addr, width: watch.width })
    }

    fn admit(&self, name: &str) -> Option<PeerId> {
        Some(PeerId::client(lock(&self.core).admit(name) as usize))
    }

    fn attach(&self, peer: PeerId, inbox: Inbox) {
        lock(&self.core).attach(session(peer), inbox);
    }

    fn deliver(&self, from: PeerId, to: PeerId, message: &Message) -> bool {
        if to != lockwright::wire::SERVER {
            return false;
        }
        lock(&self.core).message(session(from), message.clone());
        true
    }

    fn on_session_lost(&self, peer: PeerId, _: SessionEnd) {
        lock(&self.core).departed(session(peer));
    }
}

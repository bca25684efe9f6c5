//! A server, its clients, and a proxy between them that can be cut or frozen.

#![allow(dead_code, unreachable_pub, reason = "every test binary uses its part of this")]

use lockwright_fabric::backend::inproc::InProc;
use lockwright_fabric::backend::tcp::{
    Backlog, ConnectOptions, InProcHost, Server, ServerOptions, SessionEnd, TcpEndpoint,
};
use lockwright_fabric::{Addr, BoxedRole, NodeId, PeerId, Word64};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

pub const HERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// An 8-byte word of node 0.
pub fn word(index: u64) -> Word64 {
    Word64::at(Addr::new(NodeId(0), 8 * index))
}

/// A session outlives whatever a busy machine does to its client: no test ends one by being slow.
pub fn patient() -> ServerOptions {
    ServerOptions {
        heartbeat: Duration::from_secs(10),
        grace: Duration::from_secs(60),
        ..ServerOptions::default()
    }
}

/// Silence is noticed soon. A busy machine may break any connection, and no session.
pub fn quick() -> ServerOptions {
    ServerOptions { heartbeat: Duration::from_millis(100), ..patient() }
}

/// Sessions expire soon. A busy machine may end any of them.
pub fn expiring() -> ServerOptions {
    ServerOptions { grace: Duration::from_millis(1000), ..quick() }
}

/// Sessions that ended.
pub type Ended = Arc<Mutex<Vec<(PeerId, SessionEnd)>>>;

/// Memory that outlives its server, and a list of the sessions that ended.
pub fn host() -> (Arc<InProcHost>, Ended) {
    let ended = Ended::default();
    let log = Arc::clone(&ended);
    let host = InProcHost::new(InProc::new(1, 4096), 0)
        .relay(Backlog::RELAY)
        .on_lost(move |peer, how| log.lock().unwrap().push((peer, how)));
    (Arc::new(host), ended)
}

pub async fn serve(options: ServerOptions) -> (Server<Arc<InProcHost>>, Ended) {
    let (host, ended) = host();
    (Server::bind(HERE, host, vec![], options).await.unwrap(), ended)
}

pub async fn serve_roles(roles: Vec<BoxedRole>) -> Server<Arc<InProcHost>> {
    Server::bind(HERE, host().0, roles, patient()).await.unwrap()
}

pub async fn connect(address: SocketAddr) -> TcpEndpoint {
    TcpEndpoint::connect(address, ConnectOptions::default()).await.unwrap()
}

/// Waits until `holds`; a test that waits in vain is stopped by its runner.
pub async fn until(holds: impl Fn() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

/// What the proxy does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LinkState {
    /// Everything gets through.
    Up,
    /// Nothing gets through, and connections stay open.
    Stalled,
    /// What the server sends is dropped.
    DropsReplies,
    /// Connections are closed, and new ones too.
    Down,
}

/// A proxy between clients and a server, whose link can be made to fail.
#[derive(Debug)]
pub struct Proxy {
    pub address: SocketAddr,
    state: Arc<watch::Sender<LinkState>>,
}

impl Proxy {
    pub async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(HERE).await.unwrap();
        let address = listener.local_addr().unwrap();
        let state = Arc::new(watch::Sender::new(LinkState::Up));
        let sender = Arc::clone(&state);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(forward(client, server, sender.subscribe()));
            }
        });
        Self { address, state }
    }

    pub fn set(&self, state: LinkState) {
        self.state.send_replace(state);
    }
}

async fn forward(mut client: TcpStream, server: SocketAddr, mut state: watch::Receiver<LinkState>) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let (mut up, mut down) = (vec![0; 4096], vec![0; 4096]);
    loop {
        let now = *state.borrow_and_update();
        if now == LinkState::Down {
            return;
        }
        tokio::select! {
            changed = state.changed() => if changed.is_err() { return },
            read = client.read(&mut up), if now != LinkState::Stalled => match read {
                Ok(0) | Err(_) => return,
                Ok(read) => if server.write_all(&up[..read]).await.is_err() { return },
            },
            read = server.read(&mut down), if now != LinkState::Stalled => match read {
                Ok(0) | Err(_) => return,
                Ok(read) => if now != LinkState::DropsReplies && client.write_all(&down[..read]).await.is_err() { return },
            },
        }
    }
}

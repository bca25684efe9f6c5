//! A server, its clients, and a network between them that can be cut or frozen.

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

/// Short times, so that what takes a while does not take long.
pub fn quick() -> ServerOptions {
    ServerOptions {
        heartbeat: Duration::from_millis(100),
        grace: Duration::from_millis(1000),
        ..ServerOptions::default()
    }
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
    Server::bind(HERE, host().0, roles, quick()).await.unwrap()
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

/// What the network does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Weather {
    /// Everything gets through.
    Fair,
    /// Nothing gets through, and nobody is told.
    Frozen,
    /// What the server says gets lost.
    Mute,
    /// Connections are closed, and new ones too.
    Cut,
}

/// A network between clients and a server.
#[derive(Debug)]
pub struct Network {
    pub address: SocketAddr,
    weather: Arc<watch::Sender<Weather>>,
}

impl Network {
    pub async fn before(server: SocketAddr) -> Self {
        let listener = TcpListener::bind(HERE).await.unwrap();
        let address = listener.local_addr().unwrap();
        let weather = Arc::new(watch::Sender::new(Weather::Fair));
        let sender = Arc::clone(&weather);
        tokio::spawn(async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                tokio::spawn(forward(client, server, sender.subscribe()));
            }
        });
        Self { address, weather }
    }

    pub fn turn(&self, weather: Weather) {
        self.weather.send_replace(weather);
    }
}

async fn forward(mut client: TcpStream, server: SocketAddr, mut weather: watch::Receiver<Weather>) {
    let Ok(mut server) = TcpStream::connect(server).await else { return };
    let (mut up, mut down) = (vec![0; 4096], vec![0; 4096]);
    loop {
        let now = *weather.borrow_and_update();
        if now == Weather::Cut {
            return;
        }
        tokio::select! {
            changed = weather.changed() => if changed.is_err() { return },
            read = client.read(&mut up), if now != Weather::Frozen => match read {
                Ok(0) | Err(_) => return,
                Ok(read) => if server.write_all(&up[..read]).await.is_err() { return },
            },
            read = server.read(&mut down), if now != Weather::Frozen => match read {
                Ok(0) | Err(_) => return,
                Ok(read) => if now != Weather::Mute && client.write_all(&down[..read]).await.is_err() { return },
            },
        }
    }
}

//! The tcp backend under the conformance suite: server and clients of one process over the loopback interface, with
//! clients as threads, as tasks of one thread, and behind TLS and a secret.

use lockwright_fabric::backend::inproc::{InProc, block_on};
use lockwright_fabric::backend::tcp::{
    Backlog, ConnectOptions, InProcHost, Secret, Server, ServerOptions, TcpEndpoint, TlsClient, TlsServer,
};
use lockwright_fabric::conformance::{Rig, Shape, Task};
use lockwright_fabric::{Endpoint, NodeId, PeerId};
use tokio::runtime::{Builder, Runtime};
use tokio::task::LocalSet;

/// A server and its clients.
struct Net {
    server: Server<InProcHost>,
    endpoints: Vec<TcpEndpoint>,
    runtime: Runtime,
}

impl Net {
    fn new(shape: Shape, runtime: Runtime, served: ServerOptions, connect: &ConnectOptions) -> Self {
        let host = InProcHost::new(InProc::new(shape.nodes, shape.bytes), 0).relay(Backlog::RELAY);
        let (server, endpoints) = runtime.block_on(async {
            let here = "127.0.0.1:0".parse().unwrap();
            let server = Server::bind(here, host, vec![], served).await.unwrap();
            let mut endpoints = Vec::new();
            for client in 0..shape.clients {
                let ep = TcpEndpoint::connect(server.address(), connect.clone()).await.unwrap();
                assert_eq!(ep.me(), PeerId::client(client));
                endpoints.push(ep);
            }
            (server, endpoints)
        });
        Self { server, endpoints, runtime }
    }

    fn plain(shape: Shape, runtime: Runtime) -> Self {
        Self::new(shape, runtime, ServerOptions::default(), &ConnectOptions::default())
    }
}

/// A thread per client; one more does the reading and serves.
struct Threads(Net);

impl Rig for Threads {
    type E = TcpEndpoint;

    fn run(&mut self, tasks: Vec<Task<TcpEndpoint>>) {
        std::thread::scope(|scope| {
            for (ep, task) in std::iter::zip(&self.0.endpoints, tasks) {
                scope.spawn(move || block_on(task(ep.clone())));
            }
        });
    }

    fn kill(&mut self, node: NodeId) -> bool {
        self.0.server.host().fabric().kill(node);
        true
    }
}

/// Clients and server as tasks of one thread.
struct OneThread(Net);

impl Rig for OneThread {
    type E = TcpEndpoint;

    fn run(&mut self, tasks: Vec<Task<TcpEndpoint>>) {
        let local = LocalSet::new();
        let running: Vec<_> = std::iter::zip(&self.0.endpoints, tasks)
            .map(|(ep, task)| local.spawn_local(task(ep.clone())))
            .collect();
        self.0.runtime.block_on(local.run_until(async {
            for task in running {
                task.await.expect("no client panics");
            }
        }));
    }

    fn kill(&mut self, node: NodeId) -> bool {
        self.0.server.host().fabric().kill(node);
        true
    }
}

fn threads() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap()
}

fn one_thread() -> Runtime {
    Builder::new_current_thread().enable_all().build().unwrap()
}

mod clients_as_threads {
    use super::*;
    lockwright_fabric::conformance_tests!(|shape| Threads(Net::plain(shape, threads())));
}

mod all_on_one_thread {
    use super::*;
    lockwright_fabric::conformance_tests!(|shape| OneThread(Net::plain(shape, one_thread())));
}

mod behind_tls_and_a_secret {
    use super::*;

    fn net(shape: Shape) -> OneThread {
        let made = rcgen::generate_simple_self_signed(vec!["lock.test".to_owned()]).unwrap();
        let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
        let secret = Some(Secret::new("a secret that only the tests know").unwrap());
        let tls = Some(TlsServer::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap());
        let served = ServerOptions { secret: secret.clone(), tls, ..ServerOptions::default() };
        let tls = Some(TlsClient::from_pem(certificate.as_bytes(), "lock.test").unwrap());
        let connect = ConnectOptions { secret, tls, ..ConnectOptions::default() };
        OneThread(Net::new(shape, one_thread(), served, &connect))
    }

    lockwright_fabric::conformance_tests!(net);
}

/// Futures can be spawned anywhere.
#[test]
fn futures_are_send() {
    fn is_send<T: Send>(value: T) -> T {
        value
    }
    fn all(ep: &TcpEndpoint) {
        use lockwright_fabric::{Addr, Cond, Message, Word64};
        let word = Word64::at(Addr::new(NodeId(0), 0));
        drop(is_send(ep.go((word.read(), word.write(1)))));
        drop(is_send(ep.wait_until(word.until(Cond::Eq { mask: 1, value: 1 }))));
        drop(is_send(ep.send(PeerId::client(0), Message::default())));
        drop(is_send(ep.recv(|_, _| Some(()))));
        drop(is_send(ep.closed()));
        drop(is_send(ep.sleep(1)));
    }
    let _ = all;
}

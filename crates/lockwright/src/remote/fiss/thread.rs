//! The thread of a client of a decider: it runs the session's tasks, reads packets and looks after timers.

use super::super::transport::Session;
use super::link::{Link, LinkOptions};
use super::member::Hello;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// How often the thread looks whether packets still come through.
const LOOK: Duration = Duration::from_secs(1);
/// How long the thread waits at the end for the last words to leave.
const FAREWELL: Duration = Duration::from_millis(500);

impl Link {
    /// Reads packets and looks after timers until the client is closed.
    async fn drive(self: Arc<Self>) {
        let mut read: Option<(u32, tokio::net::UdpSocket)> = None;
        loop {
            let (closed, member) = self.look();
            if closed {
                return;
            }
            let Some(member) = member else {
                self.woken().await;
                continue;
            };
            if read.as_ref().is_none_or(|(number, _)| *number != member.number) {
                let socket = member.socket().and_then(tokio::net::UdpSocket::from_std);
                match socket {
                    Ok(socket) => read = Some((member.number, socket)),
                    Err(error) => {
                        self.fail(&mut self.state(), format!("no UDP socket can be had: {error}"));
                        continue;
                    }
                }
            }
            let Some((_, socket)) = &read else { continue };
            let was_reached = member.is_reached();
            let again = match member.say_hello() {
                Hello::Answered => Instant::now() + LOOK,
                Hello::Said(next) => next,
                Hello::Lost => {
                    self.renew(&member);
                    Instant::now() + LOOK
                }
            };
            let (effects, next) = member.tick();
            self.report(effects.settle());
            let until = next.map_or(again, |next| next.min(again));
            tokio::select! {
                _ = socket.readable() => {
                    let effects = member.receive(|bytes| socket.try_recv_from(bytes));
                    self.report(effects.settle());
                }
                () = self.woken() => {}
                () = tokio::time::sleep_until(until.into()) => {}
            }
            if !was_reached && member.is_reached() {
                self.reached();
            }
        }
    }
}

/// A socket for packets to `decider`.
pub(super) fn bind(decider: SocketAddr) -> std::io::Result<UdpSocket> {
    let any: SocketAddr = match decider {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    socket.set_nonblocking(true)?;
    Ok(socket)
}

/// A session, and the address it was had from: packets go there, too.
pub(super) async fn connect(options: &LinkOptions, limit: Duration) -> Result<(Session, SocketAddr), String> {
    let found = tokio::net::lookup_host(&options.decider).await.map_err(|error| error.to_string())?;
    let mut last = "the host has no address".to_owned();
    for address in found {
        match options.transport.connect_within(&address.to_string(), limit).await {
            Ok(session) => return Ok((session, address)),
            Err(why) => last = why,
        }
    }
    Err(last)
}

/// The client's thread.
pub(super) fn run(options: LinkOptions, tell: &mpsc::Sender<Result<Arc<Link>, String>>) {
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(tell.send(Err(error.to_string()))),
    };
    runtime.block_on(async {
        let (session, decider) = match connect(&options, options.open_within).await {
            Ok(found) => found,
            Err(why) => return drop(tell.send(Err(why))),
        };
        let link = Link::new(options);
        link.begin(session, decider);
        let _ = tell.send(Ok(Arc::clone(&link)));
        link.drive().await;
        // The last words have to leave.
        let until = tokio::time::Instant::now() + FAREWELL;
        let alive = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
        while alive() > 0 && tokio::time::Instant::now() < until {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    });
}

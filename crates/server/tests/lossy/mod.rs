//! A network between clients and a decider that loses, doubles and reorders packets, and forwards sessions as they are.

use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// See the module. It ends with the test.
pub(crate) struct Lossy {
    pub(crate) address: SocketAddr,
    pub(crate) lost: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Drop for Lossy {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// What becomes of packets: so many of a hundred are lost, as many doubled, as many overtaken by the next.
struct Fate {
    dice: u64,
    percent: u64,
    held: Option<Vec<u8>>,
    lost: Arc<AtomicU64>,
}

impl Fate {
    fn forward(&mut self, bytes: &[u8], send: impl Fn(&[u8])) {
        self.dice = self.dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let roll = (self.dice >> 33) % 100;
        if roll < self.percent {
            self.lost.fetch_add(1, Relaxed);
        } else if roll < 2 * self.percent {
            send(bytes);
            send(bytes);
        } else if roll < 3 * self.percent && self.held.is_none() {
            self.held = Some(bytes.to_vec());
            return;
        } else {
            send(bytes);
        }
        if let Some(held) = self.held.take() {
            send(&held);
        }
    }
}

impl Lossy {
    pub(crate) fn to(decider: SocketAddr, percent: u64, seed: u64) -> Self {
        let (sessions, packets) = loop {
            let sessions = TcpListener::bind("127.0.0.1:0").unwrap();
            if let Ok(packets) = UdpSocket::bind(sessions.local_addr().unwrap()) {
                break (sessions, packets);
            }
        };
        let address = sessions.local_addr().unwrap();
        let (stop, lost) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        std::thread::spawn(move || {
            for near in sessions.incoming().flatten() {
                let Ok(far) = TcpStream::connect(decider) else { continue };
                for (mut from, mut to) in [(near.try_clone().unwrap(), far.try_clone().unwrap()), (far, near)]
                {
                    std::thread::spawn(move || {
                        let _ = io::copy(&mut from, &mut to);
                        let _ = to.shutdown(std::net::Shutdown::Both);
                    });
                }
            }
        });
        let (stopped, losses) = (Arc::clone(&stop), Arc::clone(&lost));
        std::thread::spawn(move || forward(&packets, decider, percent, seed, &stopped, &losses));
        Self { address, lost, stop }
    }
}

fn forward(
    packets: &UdpSocket,
    decider: SocketAddr,
    percent: u64,
    seed: u64,
    stop: &Arc<AtomicBool>,
    lost: &Arc<AtomicU64>,
) {
    let fate = |seed| Fate { dice: seed, percent, held: None, lost: Arc::clone(lost) };
    packets.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut ways: HashMap<SocketAddr, (UdpSocket, Fate)> = HashMap::new();
    let mut bytes = [0; 2048];
    while !stop.load(Relaxed) {
        let Ok((len, client)) = packets.recv_from(&mut bytes) else { continue };
        let (way, fates) = ways.entry(client).or_insert_with(|| {
            // The decider may be on another machine.
            let way = UdpSocket::bind("0.0.0.0:0").unwrap();
            way.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let (back, packets) = (way.try_clone().unwrap(), packets.try_clone().unwrap());
            let (stop, mut fate_back) = (Arc::clone(stop), fate(seed ^ u64::from(client.port())));
            std::thread::spawn(move || {
                let mut bytes = [0; 2048];
                while !stop.load(Relaxed) {
                    let Ok((len, _)) = back.recv_from(&mut bytes) else { continue };
                    fate_back.forward(&bytes[..len], |bytes| drop(packets.send_to(bytes, client)));
                }
            });
            (way, fate(seed))
        });
        fates.forward(&bytes[..len], |bytes| drop(way.send_to(bytes, decider)));
    }
}

//! A network between clients and a decider that loses, doubles, delays and reorders packets, and forwards sessions as they are.

use lockwright_fabric::random::SplitMix;
use std::collections::HashMap;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

/// The longest delay: some retransmissions of a client, which then overtake what they repeat.
const DELAY_MS: u64 = 30;

/// See the module. It ends with the test.
pub(crate) struct Lossy {
    pub(crate) address: SocketAddr,
    pub(crate) lost: Arc<AtomicU64>,
    /// How often clients were given other addresses.
    #[allow(dead_code, reason = "not every test program moves them")]
    moves: Arc<AtomicU64>,
    stop: Arc<AtomicBool>,
}

impl Drop for Lossy {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}

/// A packet that is under way for longer.
struct Delayed {
    due: Instant,
    by: Arc<UdpSocket>,
    to: SocketAddr,
    bytes: Vec<u8>,
}

/// What becomes of packets: so many of a hundred are lost, as many doubled, as many delayed, as many overtaken by the next.
struct Fate {
    dice: SplitMix,
    percent: u64,
    held: Option<Vec<u8>>,
    lost: Arc<AtomicU64>,
    delayed: mpsc::Sender<Delayed>,
}

impl Fate {
    fn forward(&mut self, bytes: &[u8], by: &Arc<UdpSocket>, to: SocketAddr) {
        let send = |bytes: &[u8]| drop(by.send_to(bytes, to));
        match self.dice.below(100) / self.percent {
            0 => drop(self.lost.fetch_add(1, Relaxed)),
            1 => {
                send(bytes);
                send(bytes);
            }
            2 => {
                let due = Instant::now() + Duration::from_millis(1 + self.dice.below(DELAY_MS));
                let _ = self.delayed.send(Delayed { due, by: Arc::clone(by), to, bytes: bytes.to_vec() });
            }
            3 if self.held.is_none() => {
                self.held = Some(bytes.to_vec());
                return;
            }
            _ => send(bytes),
        }
        if let Some(held) = self.held.take() {
            send(&held);
        }
    }
}

/// Sends packets when they are due, until no more can come.
fn send_delayed(packets: &mpsc::Receiver<Delayed>) {
    let mut waiting: Vec<Delayed> = Vec::new();
    loop {
        let now = Instant::now();
        for packet in waiting.extract_if(.., |packet| packet.due <= now) {
            let _ = packet.by.send_to(&packet.bytes, packet.to);
        }
        let next = waiting.iter().map(|packet| packet.due - now).min();
        match packets.recv_timeout(next.unwrap_or(Duration::from_secs(1))) {
            Ok(packet) => waiting.push(packet),
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => return,
        }
    }
}

impl Lossy {
    /// From now on packets of all clients come from other ports, and what is sent to those before goes nowhere; sessions stay.
    #[allow(dead_code, reason = "as above")]
    pub(crate) fn move_clients(&self) {
        self.moves.fetch_add(1, Relaxed);
    }

    pub(crate) fn to(decider: SocketAddr, percent: u64, seed: u64) -> Self {
        let (sessions, packets) = loop {
            let sessions = TcpListener::bind("127.0.0.1:0").unwrap();
            if let Ok(packets) = UdpSocket::bind(sessions.local_addr().unwrap()) {
                break (sessions, packets);
            }
        };
        let address = sessions.local_addr().unwrap();
        let (stop, lost) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let moves = Arc::<AtomicU64>::default();
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
        let (stopped, losses, moved) = (Arc::clone(&stop), Arc::clone(&lost), Arc::clone(&moves));
        let packets = Arc::new(packets);
        std::thread::spawn(move || forward(&packets, decider, percent, seed, &stopped, &losses, &moved));
        Self { address, lost, moves, stop }
    }
}

fn forward(
    packets: &Arc<UdpSocket>,
    decider: SocketAddr,
    percent: u64,
    seed: u64,
    stop: &Arc<AtomicBool>,
    lost: &Arc<AtomicU64>,
    moves: &Arc<AtomicU64>,
) {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || send_delayed(&told));
    let fate = |seed| Fate {
        dice: SplitMix::new(seed),
        percent,
        held: None,
        lost: Arc::clone(lost),
        delayed: tell.clone(),
    };
    packets.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    let mut ways: HashMap<SocketAddr, (Arc<UdpSocket>, Fate)> = HashMap::new();
    let mut bytes = [0; 2048];
    let mut moved = 0;
    while !stop.load(Relaxed) {
        let Ok((len, client)) = packets.recv_from(&mut bytes) else { continue };
        if std::mem::replace(&mut moved, moves.load(Relaxed)) != moved {
            ways.clear();
        }
        let (way, fates) = ways.entry(client).or_insert_with(|| {
            // The decider may be on another machine.
            let way = Arc::new(UdpSocket::bind("0.0.0.0:0").unwrap());
            way.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let (back, packets) = (Arc::clone(&way), Arc::clone(packets));
            let moves = Arc::clone(moves);
            let (stop, mut fate_back) = (Arc::clone(stop), fate(seed ^ u64::from(client.port())));
            std::thread::spawn(move || {
                let mut bytes = [0; 2048];
                while !stop.load(Relaxed) && moves.load(Relaxed) == moved {
                    let Ok((len, _)) = back.recv_from(&mut bytes) else { continue };
                    fate_back.forward(&bytes[..len], &packets, client);
                }
            });
            (way, fate(seed))
        });
        fates.forward(&bytes[..len], way, decider);
    }
}

//! Three servers on three etcds, eight client processes, and faults at random: servers are killed, paused, stopped and started
//! again, cut off from etcd in both directions or in one, and members of etcd are paused.
//!
//! `LOCKWRIGHT_CLUSTER_SECS` says how long (20), `LOCKWRIGHT_CLUSTER_SEED` repeats the order of faults.

mod counting;
#[path = "../../cluster/tests/members/mod.rs"]
mod members;
mod servers;
mod started;

use counting::{Counting, count_as_told, is_client, seed_and_time};
use lockwright_fabric::random::SplitMix;
use members::{Members, run};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use servers::Cluster;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering::SeqCst};
use std::time::{Duration, Instant};

/// A way to one member of etcd: open, or bytes to it or from it or both are kept.
fn way_to(member: String) -> (String, Arc<AtomicU8>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    let kept = Arc::<AtomicU8>::default();
    let shared = Arc::clone(&kept);
    std::thread::spawn(move || {
        for near in listener.incoming().flatten() {
            let Ok(far) = TcpStream::connect(&member) else { continue };
            let ways = [(1, near.try_clone(), far.try_clone()), (2, Ok(far), Ok(near))];
            for (bit, from, to) in ways {
                let (Ok(mut from), Ok(mut to)) = (from, to) else { continue };
                let kept = Arc::clone(&shared);
                std::thread::spawn(move || {
                    let mut bytes = [0; 16 << 10];
                    while let Ok(read @ 1..) = from.read(&mut bytes) {
                        while kept.load(SeqCst) & bit != 0 {
                            std::thread::sleep(Duration::from_millis(5));
                        }
                        if to.write_all(&bytes[..read]).is_err() {
                            break;
                        }
                    }
                    let _ = (from.shutdown(std::net::Shutdown::Both), to.shutdown(std::net::Shutdown::Both));
                });
            }
        }
    });
    (address, kept)
}

#[test]
fn client() {
    count_as_told();
}

/// What is done to one server or one member of etcd, for a while.
fn fault(
    cluster: &mut Cluster,
    ways: &[Vec<Arc<AtomicU8>>],
    etcds: &[String],
    random: &mut SplitMix,
) -> String {
    let at = random.below(3) as usize;
    let pause = Duration::from_millis(500 + random.below(4500));
    let what = random.below(6);
    let member = random.below(3) as usize;
    let signal = |cluster: &Cluster, signal| cluster.servers[at].1.send(signal);
    match what {
        0 | 1 => {
            let how = if what == 0 { Signal::SIGKILL } else { Signal::SIGTERM };
            signal(cluster, how);
            let _ = cluster.servers[at].1.child.wait();
            std::thread::sleep(pause);
            let listen = cluster.servers[at].0.clone();
            cluster.servers[at].1 = cluster.start_at(&listen, &etcds[at]);
            format!("server {at}: {how}, and started again after {pause:?}")
        }
        2 => {
            signal(cluster, Signal::SIGSTOP);
            std::thread::sleep(pause);
            signal(cluster, Signal::SIGCONT);
            format!("server {at}: paused for {pause:?}")
        }
        3 | 4 => {
            let bits = if what == 3 { 3 } else { 1 + random.below(2) as u8 };
            ways[at].iter().for_each(|way| way.store(bits, SeqCst));
            std::thread::sleep(pause);
            ways[at].iter().for_each(|way| way.store(0, SeqCst));
            format!("server {at}: cut off from etcd ({bits}) for {pause:?}")
        }
        _ => {
            let member_pid = Pid::from_raw(cluster.members.processes[member].id().cast_signed());
            kill(member_pid, Signal::SIGSTOP).expect("paused");
            std::thread::sleep(pause);
            kill(member_pid, Signal::SIGCONT).expect("continued");
            format!("etcd {member}: paused for {pause:?}")
        }
    }
}

#[test]
fn whatever_happens_to_servers_and_etcd_no_count_under_a_lock_is_lost() {
    if is_client() {
        return;
    }
    let Some(members) = Members::start("faults") else { return };
    let (mut random, time) = seed_and_time();
    run(async { drop(members.ready().await) });
    let mut cluster = Cluster { members, servers: Vec::new(), access: Vec::new() };
    let (mut ways, mut etcds) = (Vec::new(), Vec::new());
    for _ in 0..3 {
        let (addresses, kept): (Vec<_>, Vec<_>) =
            cluster.members.endpoints.iter().cloned().map(way_to).unzip();
        let (listen, etcd) =
            (format!("127.0.0.1:{}", cluster.port()), format!("etcd://{}/test", addresses.join(",")));
        let server = cluster.start_at(&listen, &etcd);
        cluster.servers.push((listen, server));
        ways.push(kept);
        etcds.push(etcd);
    }
    cluster.until_even();
    let folder = cluster.members.folder().join("counts");
    std::fs::create_dir(&folder).expect("a folder");
    let clients = Counting::start(&cluster.space(), &folder);
    let until = Instant::now() + time;
    while Instant::now() < until {
        println!("{}", fault(&mut cluster, &ways, &etcds, &mut random));
        std::thread::sleep(Duration::from_millis(200 + random.below(2500)));
    }
    // Whatever is wrong heals by itself.
    cluster.until_even();
    clients.end();
}

//! Every baseline lock between real processes over tcp, around a counter in a file that is read and written in two
//! steps, so that two processes inside at once lose an update.
//!
//! The processes are this very test program, started again with a variable that says what to do.

use lockwright_baselines::{cas::Cas, cas_backoff::CasBackoff, mcs::Mcs, rpc::Rpc};
use lockwright_fabric::backend::inproc::{InProc, block_on};
use lockwright_fabric::backend::tcp::{
    Backlog, ConnectOptions, InProcHost, Server, ServerOptions, TcpEndpoint,
};
use lockwright_fabric::{Endpoint, Word64};
use lockwright_locks::{LockClient, Protocol, Space, Want};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use tokio::runtime::{Builder, Runtime};

const PROCESSES: usize = 3;
const CYCLES: u64 = 300;
const JOB: &str = "LOCKWRIGHT_TCP_TEST_JOB";
const SPACE: Space = Space::of(2);

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime")
}

/// A server for `P`, with lock memory as it starts out and its roles.
async fn serve<P: Protocol>() -> Server<InProcHost> {
    let params = P::Params::default();
    let fabric = InProc::new(SPACE.nodes, P::bytes_per_node(&SPACE, &params));
    for (addr, value) in P::initial_memory(&SPACE, &params) {
        fabric.poke(Word64::at(addr), value);
    }
    let roles = P::roles(&SPACE, &params);
    let here = "127.0.0.1:0".parse().expect("an address");
    Server::bind(here, InProcHost::new(fabric, 0).relay(Backlog::RELAY), roles, ServerOptions::default())
        .await
        .expect("a server")
}

/// The folder of a test, gone with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("lockwright-tcp-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).expect("a folder");
        for lock in 0..SPACE.locks {
            std::fs::write(path.join(lock.to_string()), "0").expect("a counter");
        }
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn read(counter: &Path) -> u64 {
    std::fs::read_to_string(counter).expect("a counter").trim().parse().expect("a number")
}

fn loses_no_update<P: Protocol>() {
    let runtime = runtime();
    let server = runtime.block_on(serve::<P>());
    let folder = Folder::new(P::INFO.name);
    let start = |_| -> Child {
        Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "a_process_of_its_own_does_its_job", "--nocapture"])
            .env(JOB, format!("{} {} {}", P::INFO.name, server.address(), folder.0.display()))
            .stdout(std::process::Stdio::null())
            .spawn()
            .expect("a process")
    };
    let children: Vec<_> = (0..PROCESSES).map(start).collect();
    for mut child in children {
        assert!(child.wait().expect("it ends").success(), "{}: a process failed", P::INFO.name);
    }
    let total: u64 = (0..SPACE.locks).map(|lock| read(&folder.0.join(lock.to_string()))).sum();
    assert_eq!(total, PROCESSES as u64 * CYCLES, "{}", P::INFO.name);
}

/// Not a test by itself: what the processes run. Without a job it is over at once.
#[test]
fn a_process_of_its_own_does_its_job() {
    let Ok(job) = std::env::var(JOB) else { return };
    let [protocol, address, folder] = job.splitn(3, ' ').collect::<Vec<_>>()[..] else {
        panic!("no job: {job}")
    };
    match protocol {
        "cas" => work::<Cas>(address, Path::new(folder)),
        "cas-backoff" => work::<CasBackoff>(address, Path::new(folder)),
        "mcs" => work::<Mcs>(address, Path::new(folder)),
        "rpc" => work::<Rpc>(address, Path::new(folder)),
        other => panic!("{other} is unknown"),
    }
}

fn work<P: Protocol>(address: &str, folder: &Path) {
    let runtime = runtime();
    let address = address.parse().expect("an address");
    let ep = runtime.block_on(TcpEndpoint::connect(address, ConnectOptions::default())).expect("connected");
    let params = P::Params::default();
    P::needs(&params).met_by(P::INFO.name, ep.capabilities()).expect("tcp can do that");
    let client = P::client(ep.clone(), &SPACE, &params);
    for cycle in 0..CYCLES {
        let lock = cycle % SPACE.locks;
        let grant = block_on(client.acquire(Want::exclusive(lock))).expect("granted");
        let counter = folder.join(lock.to_string());
        let seen = read(&counter);
        std::fs::write(&counter, (seen + 1).to_string()).expect("written");
        block_on(client.release(grant)).expect("released");
    }
}

#[test]
fn cas_between_processes_loses_no_update() {
    loses_no_update::<Cas>();
}

#[test]
fn cas_with_backoff_between_processes_loses_no_update() {
    loses_no_update::<CasBackoff>();
}

#[test]
fn mcs_between_processes_loses_no_update() {
    loses_no_update::<Mcs>();
}

#[test]
fn rpc_between_processes_loses_no_update() {
    loses_no_update::<Rpc>();
}

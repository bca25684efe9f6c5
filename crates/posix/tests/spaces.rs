//! Two processes' worth of locks in one space give the answers that one table gives: owners 0 and 1 are of one node, 2 and 3 of
//! another, and every try is held against a table that knows all four. In shared memory, and behind a server.

use lockwright::Client;
use lockwright_fabric::random::SplitMix;
use lockwright_posix::{Extent, FileId, FileLocks, Kind, NoCover, Node, NodeFile, Owner, Request, Stop};
use lockwright_server::{Server, ServerOptions};
use std::sync::Arc;

const OWNERS: u64 = 4;
const UNITS: u64 = 24;

fn file(node: &Node, flocks: bool) -> Arc<NodeFile> {
    node.file(&FileId { name: "1:2".to_owned(), flocks }).unwrap()
}

fn nodes(space: &str) -> [Node; 2] {
    [(); 2].map(|()| Node::open(space, &Client::options()).unwrap())
}

fn same_answers(space: &str, ops: u64) {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let seed =
        std::env::var("LOCKWRIGHT_SEED").map_or(now.as_nanos() as u64 | 1, |seed| seed.parse().unwrap());
    println!("LOCKWRIGHT_SEED={seed}");
    let mut random = SplitMix::new(seed);
    let nodes = nodes(space);
    let files = [false, true].map(|flocks| [file(&nodes[0], flocks), file(&nodes[1], flocks)]);
    let mut tables = [FileLocks::new(NoCover), FileLocks::new(NoCover)];
    let mut granted = 0;
    for turn in 0..ops {
        let number = random.below(OWNERS);
        let (owner, which) = (Owner::Process(number), (number / 2) as usize);
        let flocks = usize::from(random.below(5) == 0);
        let (node, table, file) = (&nodes[which], &mut tables[flocks], &files[flocks][which]);
        let start = random.below(UNITS);
        let end = if random.below(8) == 0 { Extent::END } else { start + 1 + random.below(8) };
        let extent = if flocks == 1 { Extent::WHOLE } else { Extent { start, end } };
        let kind = [Some(Kind::Read), Some(Kind::Write), None, None][random.below(4) as usize];
        let Some(kind) = kind else {
            table.unlock(owner, extent).unwrap();
            node.unlock(file, owner, extent).unwrap();
            continue;
        };
        let request = Request { owner, pid: number as u32, extent, kind };
        let context = || format!("turn {turn}: {request:?} {flocks}");
        if flocks == 0 && random.below(4) == 0 {
            let expected = table.test(owner, extent, kind).unwrap().is_some();
            assert_eq!(node.test(file, &request).unwrap().is_some(), expected, "{}", context());
            continue;
        }
        let expected = match flocks {
            0 => table.lock(owner, number as u32, extent, kind),
            _ => table.flock(owner, number as u32, kind),
        };
        let taken = node.try_lock(file, &request);
        granted += u64::from(taken.is_ok());
        assert_eq!(taken, expected.map_err(|_| Stop::Busy), "{}: {:?}", context(), tables[flocks].table());
    }
    assert!(granted > ops / 20, "a run in which nobody gets anything says little");
}

#[test]
fn two_nodes_in_shared_memory_answer_like_one_table() {
    let path = std::env::temp_dir().join(format!("lockwright-posix-nodes-{}.space", std::process::id()));
    same_answers(&format!("shm:{}", path.display()), 20_000);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn two_nodes_behind_a_server_answer_like_one_table() {
    let options = ServerOptions::default().listen("127.0.0.1:0".parse().unwrap());
    let server = Server::start(options).unwrap();
    same_answers(&format!("tcp://{}/posix", server.address()), 4_000);
}

#[test]
fn a_lock_that_is_cut_into_more_pieces_than_the_space_has_room_for_is_given_back_all_the_same() {
    const BYTES: u64 = 1000;
    let path = format!("/dev/shm/lockwright-posix-pieces-{}", std::process::id());
    let [one, two] = nodes(&format!("shm:{path}"));
    let (ours, theirs) = (file(&one, false), file(&two, false));
    let me = Owner::Process(1);
    let ask = |start, end| {
        let extent = Extent { start, end };
        Request { owner: me, pid: 1, extent, kind: Kind::Write }
    };
    one.try_lock(&ours, &ask(0, BYTES)).unwrap();
    for odd in (1..BYTES).step_by(2) {
        one.unlock(&ours, me, ask(odd, odd + 1).extent).unwrap();
    }
    for even in (0..BYTES).step_by(2) {
        assert_eq!(two.try_lock(&theirs, &ask(even, even + 1)), Err(Stop::Busy), "byte {even}");
    }
    one.unlock(&ours, me, ask(0, BYTES / 2).extent).unwrap();
    two.try_lock(&theirs, &ask(0, BYTES / 2)).unwrap();
    for even in (BYTES / 2..BYTES).step_by(2) {
        one.unlock(&ours, me, ask(even, even + 1).extent).unwrap();
    }
    two.try_lock(&theirs, &ask(0, BYTES)).unwrap();
    std::fs::remove_file(path).unwrap();
}

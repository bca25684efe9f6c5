//! The program in the kernel beside the decider of this process, whose registers are the model's: the same random frames
//! through both (`BPF_PROG_TEST_RUN`), the same packets out of both, the same registers and counts after them, with recoveries in
//! between.
//!
//! `LOCKWRIGHT_XDP_SEED` is the first seed, `LOCKWRIGHT_XDP_SEQUENCES` how many sequences of 500 frames. Skipped without root.

mod addresses;

use super::super::core::{Core, Counts};
use super::super::kernel::Elsewhere;
use super::super::memory::{Memory, Past};
use super::registers::{self, LOCKS_PER_GROUP};
use super::{OBJECT, Program, UNDER_LOCK};
use aya::programs::{TestRun, TestRunOptions, Xdp};
use lockwright::internal::fiss::{Request, Unacked};
use lockwright_fabric::Message;
use lockwright_fabric::backend::tcp::{Inbox, Subnet};
use lockwright_fabric::random::SplitMix;
use lockwright_locks::fisslock::datagram::{self, Ends, HEAD, HELLO, Key, Limits, MAX_WAITERS};
use lockwright_locks::fisslock::pipeline::LockRegisters;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::fmt::Write;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Two groups, the second not full.
const LIMITS: Limits = Limits { locks: 40, lanes: 4 };
const PORT: u16 = 5627;
const OWN: Ipv4Addr = Ipv4Addr::new(10, 9, 0, 1);
const OWN_MAC: [u8; 6] = [2, 9, 0, 0, 0, 0];
const MACHINES: usize = 5;
/// One that is behind another interface.
const APART: u8 = 3;
/// What frames have in front of a packet.
const HEADERS: usize = 42;
const DROP: u32 = 1;
const PASS: u32 = 2;
const TX: u32 = 3;
const REDIRECT: u32 = 4;

/// The coordinator's message with the registers, and an agent in it.
const LOAD: u32 = 27;
const AGENT: u64 = 2 << 56;

struct Dice(SplitMix);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0.next()
    }

    fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }

    fn one_in(&mut self, many: usize) -> bool {
        self.below(many) == 0
    }
}

fn new_key() -> Key {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    Key([NEXT.fetch_add(1, Relaxed), 7])
}

/// Only root loads programs into the kernel.
fn program() -> Option<Program> {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: only root loads programs into the kernel");
        return None;
    }
    Some(load(&[]))
}

fn load(allowed: &[Subnet]) -> Program {
    Program::load(LIMITS, PORT, &[OWN], allowed).unwrap_or_else(|error| panic!("{}", super::said(&error)))
}

fn address(mid: u8) -> SocketAddr {
    (Ipv4Addr::new(10, 9, 1, mid), 40_000 + u16::from(mid)).into()
}

fn frame(from: SocketAddr, payload: &[u8]) -> Vec<u8> {
    let SocketAddr::V4(from) = from else { panic!("{from}") };
    let mut frame = OWN_MAC.to_vec();
    frame.extend([2, 9, 1, 0, 0, from.ip().octets()[3], 8, 0]);
    frame.extend([0x45, 0]);
    frame.extend((28 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 1, 0, 0, 64, 17, 0, 0]);
    frame.extend(from.ip().octets());
    frame.extend(OWN.octets());
    frame.extend(from.port().to_be_bytes());
    frame.extend(PORT.to_be_bytes());
    frame.extend((8 + payload.len() as u16).to_be_bytes());
    frame.extend([0, 0]);
    frame.extend(payload);
    frame
}

fn run(program: &Program, name: &str, frame: &[u8]) -> (u32, Vec<u8>) {
    let program: &Xdp = program.object.program(name).unwrap().try_into().unwrap();
    let mut out = vec![0; 4096];
    let options = TestRunOptions { data_in: Some(frame), data_out: Some(&mut out), ..TestRunOptions::new() };
    let ran = program.test_run(options).unwrap();
    out.truncate(ran.data_size_out as usize);
    (ran.return_value, out)
}

/// Whom a frame is for, and what is in it; its headers must hold together.
fn opened(frame: &[u8]) -> (SocketAddr, Vec<u8>) {
    let short = |at: usize| u16::from_be_bytes([frame[at], frame[at + 1]]);
    let sum: u32 = (14..34).step_by(2).map(|at| u32::from(short(at))).sum();
    assert_eq!((sum & 0xffff) + (sum >> 16), 0xffff, "the header's checksum");
    let to = Ipv4Addr::new(frame[30], frame[31], frame[32], frame[33]);
    assert_eq!(frame[..6], [2, 9, 1, 0, 0, to.octets()[3]], "the receiver's card");
    assert_eq!(frame[6..12], OWN_MAC);
    assert_eq!((&frame[12..16], &frame[26..30]), (&[8, 0, 0x45, 0][..], &OWN.octets()[..]));
    assert_eq!((short(16), short(38)), (frame.len() as u16 - 14, frame.len() as u16 - 34), "lengths");
    assert_eq!((short(34), short(40)), (PORT, 0), "its port, and no checksum");
    ((to, short(36)).into(), frame[HEADERS..].to_vec())
}

/// What the kernel's decider sends because of a frame, and the action.
fn decided(program: &Program, frame: &[u8]) -> (u32, Vec<(SocketAddr, Vec<u8>)>) {
    let (action, out) = run(program, "decide", frame);
    let sends = match action {
        DROP => vec![],
        TX => vec![opened(&out)],
        // Still as it came: it is to be copied.
        REDIRECT if out[30..34] == OWN.octets() => ["grant_copy_alone", "forward_copy_alone"]
            .map(|copy| {
                let (action, out) = run(program, copy, &out);
                assert_eq!(action, PASS, "{copy}");
                opened(&out)
            })
            .to_vec(),
        REDIRECT => vec![opened(&out)],
        action => panic!("action {action}"),
    };
    (action, sends)
}

struct World {
    core: Core,
    keys: Vec<(u8, Key)>,
    epoch: u32,
    dice: Dice,
    /// Of every lane, the last number used.
    seqs: BTreeMap<(u8, u32), u32>,
    sent: Vec<(SocketAddr, Vec<u8>)>,
    /// The last incarnation seen of each lock, so that FREE and GRANT sometimes match.
    seen: BTreeMap<u64, u8>,
}

impl World {
    fn new(seed: u64, program: &mut Program) -> Self {
        let (memory, _) = Memory::begin(None, Duration::from_secs(8), 1).unwrap();
        let past =
            Past { members: Some(BTreeMap::new()), epoch: (seed as u32 & 0xf_ffff) << 8, ..Past::default() };
        let mut core = Core::new(LIMITS, memory, past, new_key, None);
        for _ in 0..MACHINES {
            let session = core.admit("differential");
            core.attach(session, Inbox::new(|_, _| true));
            for message in Unacked::default().say(&Request::Join { seen: 0 }) {
                core.message(session, message);
            }
        }
        let (decider, keys) = core.decider();
        assert_eq!(keys.len(), MACHINES);
        (1..=u8::MAX).for_each(|mid| program.peer(mid, None));
        keys.iter().for_each(|(mid, key)| program.peer(*mid, Some(*key)));
        program.write(decider).unwrap();
        let epoch = decider.registers().1.epoch();
        let (seqs, sent, seen) = (BTreeMap::new(), Vec::new(), BTreeMap::new());
        Self { core, keys, epoch, dice: Dice(SplitMix::new(seed)), seqs, sent, seen }
    }

    /// A recovery, as it ends: another epoch, in which some locks are held, and the others free.
    fn recover(&mut self, program: &mut Program) {
        self.epoch += 1 + self.dice.below(3) as u32;
        let stamp = self.core.decider().0.registers().1.stamp() + self.dice.below(1000) as u64;
        let mut load = Message::new(0, LOAD, &[u64::from(self.epoch), stamp]);
        for lid in 0..LIMITS.locks {
            if self.dice.one_in(2) {
                let mid = self.keys[self.dice.below(MACHINES)].0;
                // Shared, and barred, or not.
                load.tail.extend([lid, u64::from(mid) | AGENT | self.dice.next() & (1 << 48 | 1 << 58)]);
            }
        }
        self.core.load(&load);
        program.write(self.core.decider().0).unwrap();
        self.seqs.clear();
        self.compare(program);
    }

    fn key(&self, mid: u8) -> Key {
        self.keys.iter().find(|(known, _)| *known == mid).map_or(Key([0, 0]), |(_, key)| *key)
    }

    fn machine(&mut self) -> u8 {
        // Rarely the number of none, or of one that is not there.
        match self.dice.below(60) {
            0 => 0,
            1 => 77,
            many => self.keys[many % MACHINES].0,
        }
    }

    fn hello(&mut self, mid: u8) -> Vec<u8> {
        let mut bytes = Vec::new();
        datagram::encode(Ends { from: mid, to: 0 }, &Message::new(0, HELLO, &[]), self.key(mid), &mut bytes);
        bytes
    }

    /// A datagram, and where it comes from.
    fn datagram(&mut self) -> (SocketAddr, Vec<u8>) {
        if !self.sent.is_empty() && self.dice.one_in(6) {
            let at = self.sent.len() - 1 - self.dice.below(self.sent.len().min(8));
            return self.sent[at].clone();
        }
        let from = self.machine();
        let mut source = address(from);
        if self.dice.one_in(60) {
            source.set_port(9);
        }
        let mut bytes = if self.dice.one_in(40) { self.hello(from) } else { self.packet(from) };
        match self.dice.below(40) {
            0 => bytes.truncate(self.dice.below(bytes.len() + 1)),
            1 => bytes.extend(vec![0; self.dice.below(40)]),
            2 => {
                let bit = self.dice.below(bytes.len() * 8);
                bytes[bit / 8] ^= 1 << (bit % 8);
            }
            3 => bytes = (0..self.dice.below(1600)).map(|_| self.dice.next() as u8).collect(),
            _ => {}
        }
        self.sent.push((source, bytes.clone()));
        (source, bytes)
    }

    fn packet(&mut self, from: u8) -> Vec<u8> {
        let mut kind = [1, 1, 1, 1, 1, 2, 3, 3, 4, 4, 4, 5, 6][self.dice.below(13)];
        if self.dice.one_in(80) {
            kind = self.dice.below(10) as u32;
        }
        // Few locks, so that packets meet; of both groups.
        let mut lid = [0, 1, 31, 32, 39][self.dice.below(5)];
        if self.dice.one_in(80) {
            lid = 38 + self.dice.below(5) as u64;
        }
        let inca = if self.dice.one_in(4) {
            self.dice.below(3) as u8
        } else {
            self.seen.get(&lid).copied().unwrap_or(0)
        };
        // Agent, bar, tries and the modes at random; the others seldom.
        let mut flags = self.dice.next() & (0x3205 << 48);
        if self.dice.one_in(20) {
            flags = self.dice.next() & (0x3fff << 48);
        }
        let task = self.dice.next() & 0xff_ffff_ff00;
        let mut mid = if self.dice.one_in(3) { self.machine() } else { from };
        if self.dice.one_in(100) {
            mid = 0;
        }
        let first = u64::from(mid) | task | u64::from(inca) << 40 | flags;
        let lanes = if self.dice.one_in(50) { 7 } else { 3 };
        let lane = self.dice.below(lanes) as u32;
        let last = self.seqs.entry((from, lane)).or_default();
        let seq = match self.dice.below(20) {
            0 => *last,
            1 => last.saturating_sub(1),
            2 => last.saturating_add(self.dice.next() as u32 >> 24),
            _ => *last + 1,
        };
        *last = seq.max(*last);
        let origin = if self.dice.one_in(50) { self.machine() } else { from };
        let number = u64::from(origin) | u64::from(lane) << 8 | u64::from(seq) << 32;
        let epoch = match self.dice.below(50) {
            0 => self.epoch - 1,
            1 => self.epoch + 1,
            // One that never was.
            2 => self.epoch ^ 0x8000_0001,
            _ => self.epoch,
        };
        let mut epoch = u64::from(epoch);
        if self.dice.one_in(200) {
            epoch |= 1 << 40;
        }
        let mut message = Message::new(lid, kind, &[first, number, self.dice.next(), epoch]);
        let waiters = match self.dice.below(12) {
            0 => self.dice.below(MAX_WAITERS + 1),
            1 | 2 => self.dice.below(4),
            _ => 0,
        };
        for _ in 0..waiters {
            message.tail.push(self.dice.next() & 0x0003_00ff_ffff_ff00 | (1 + self.dice.below(255) as u64));
        }
        if self.dice.one_in(30)
            && let Some(waiter) = message.tail.last_mut()
        {
            *waiter = if self.dice.one_in(2) { *waiter & !0xff } else { *waiter | 1 << 50 };
        }
        let to = match self.dice.below(20) {
            0 => self.machine(),
            _ if kind == 6 => self.machine(),
            _ => 0,
        };
        let key = if self.dice.one_in(80) { Key([1, 1]) } else { self.key(from) };
        let mut bytes = Vec::new();
        datagram::encode(Ends { from, to }, &message, key, &mut bytes);
        bytes
    }

    /// Every register of one beside that of the other.
    fn compare(&self, program: &Program) {
        let (decider, _) = self.core.decider();
        let (pipeline, once) = decider.registers();
        for first in (0..LIMITS.locks as usize).step_by(LOCKS_PER_GROUP) {
            let last = (first + LOCKS_PER_GROUP).min(LIMITS.locks as usize);
            let model = registers::group(self.epoch, (first..last).map(|lid| pipeline.registers(lid)));
            let group = (first / LOCKS_PER_GROUP) as u32;
            let mut is = program.groups.get(&group, 0).unwrap();
            if is[80..] != self.epoch.to_le_bytes() {
                is = registers::empty_group(self.epoch);
            }
            assert_eq!(is, model, "locks from {first}");
            for lid in first..last {
                assert_eq!(program.is_free(lid as u64), pipeline.registers(lid).free, "lock {lid}");
            }
        }
        let lanes = LIMITS.lanes as usize;
        for (mid, _) in &self.keys {
            let of_machine = (0..lanes).map(|lane| once.lane(usize::from(mid - 1) * lanes + lane));
            let model = registers::lanes(self.epoch, of_machine);
            let mut is = program.lanes.get(&u32::from(*mid), 0).unwrap();
            if is[388..] != self.epoch.to_le_bytes() {
                is = registers::lanes(self.epoch, std::iter::empty());
            }
            assert_eq!(is, model, "machine {mid}");
        }
        assert_eq!(program.stamp(), once.stamp(), "the stamp");
    }
}

fn number(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(otherwise)
}

/// Says how to repeat a sequence that fails.
struct Replay(u64);

impl Drop for Replay {
    fn drop(&mut self) {
        if std::thread::panicking() {
            println!("replay: LOCKWRIGHT_XDP_SEED={} LOCKWRIGHT_XDP_SEQUENCES=1", self.0);
        }
    }
}

/// A program that runs for a test sees the loopback interface. This machine is said to be behind another.
fn put_apart(program: &mut Program) {
    let mut peer = program.peers.get(&u32::from(APART), 0).unwrap();
    if peer[38] != 0 {
        peer[32] = 2;
        program.peers.set(u32::from(APART), peer, 0).unwrap();
    }
}

#[test]
fn the_kernels_decider_does_what_the_model_does() {
    let Some(mut program) = program() else { return };
    let first = number("LOCKWRIGHT_XDP_SEED", 1);
    let sequences = number("LOCKWRIGHT_XDP_SEQUENCES", 400);
    let (mut packets, mut recoveries, mut outcomes) = (0_u64, 0_u64, BTreeMap::<String, u64>::new());
    for seed in first..first + sequences {
        let _replay = Replay(seed);
        let mut world = World::new(seed, &mut program);
        let before = program.counts();
        let hellos: Vec<_> = world.keys.clone().into_iter().map(|(mid, _)| mid).collect();
        let mut first: Vec<_> = hellos.into_iter().map(|mid| (address(mid), world.hello(mid))).collect();
        for step in 0..500 {
            if world.dice.one_in(150) {
                world.recover(&mut program);
                recoveries += 1;
            }
            let (source, bytes) = first.pop().unwrap_or_else(|| world.datagram());
            let mut expected = Vec::new();
            world.core.datagram(&bytes, source, &mut expected);
            let mut frame = frame(source, &bytes);
            if world.dice.one_in(30) {
                frame.extend([0xee; 5]);
            }
            let (action, sends) = decided(&program, &frame);
            assert_eq!(sends, expected, "seed {seed}, step {step}, {bytes:02x?}");
            put_apart(&mut program);
            if let [(to, bytes)] = &sends[..]
                && bytes[3] != HELLO as u8
            {
                assert_eq!(
                    action,
                    if to.ip() == address(APART).ip() { REDIRECT } else { TX },
                    "seed {seed}, step {step}"
                );
            }
            // A decider's agents learn the incarnation by counting; here it is read off.
            for lid in [0, 1, 31, 32, 39] {
                let (_, _, inca) = world.core.decider().0.peek(lid);
                world.seen.insert(lid, inca);
            }
            for (_, bytes) in &sends {
                let flags = u16::from_le_bytes([bytes[22], bytes[23]]) & 0x01ff;
                *outcomes.entry(format!("kind {} flags {flags:#05x}", bytes[3])).or_default() += 1;
            }
            *outcomes.entry(format!("{} packets", sends.len())).or_default() += 1;
            packets += 1;
            if step % 50 == 0 {
                world.compare(&program);
            }
        }
        world.compare(&program);
        let after = program.counts();
        let since = |count: fn(&Counts) -> u64| count(&after) - count(&before);
        let counts = Counts {
            received: since(|counts| counts.received),
            sent: since(|counts| counts.sent),
            grants: since(|counts| counts.grants),
            passed_on: since(|counts| counts.passed_on),
            malformed: since(|counts| counts.malformed),
            forged: since(|counts| counts.forged),
            astray: 0,
            recoveries: world.core.counts.recoveries,
        };
        assert_eq!(counts, world.core.counts, "seed {seed}");
    }
    let mut said = String::new();
    // What is passed on as it is has any flags.
    let telling = outcomes.iter().filter(|(_, times)| **times >= sequences);
    telling.for_each(|(what, times)| writeln!(said, "  {what}: {times}").unwrap());
    println!(
        "{packets} frames in {sequences} sequences, {recoveries} recoveries, the same from both:\n{said}"
    );
    // Otherwise the dice have missed something that must be seen.
    for seen in [
        "kind 4 flags 0x003", // granted
        "kind 4 flags 0x022", // joined
        "kind 1 flags 0x038", // the agent hears of it
        "kind 1 flags 0x008", // barred
        "kind 1 flags 0x000", // suspended
        "kind 3 flags 0x040", // freed
        "kind 3 flags 0x0c0", // refused
        "kind 4 flags 0x0c1", // a transfer refused
        "kind 4 flags 0x001", // transferred
        "kind 5 flags 0x040", // barred from now on
    ] {
        let times = outcomes.get(seen).copied().unwrap_or(0);
        assert!(times >= sequences / 4, "{seen}: {times}");
    }
}

#[test]
fn what_is_not_for_the_decider_passes_untouched() {
    let Some(mut program) = program() else { return };
    let mut world = World::new(1, &mut program);
    let mid = world.keys[0].0;
    let hello = frame(address(mid), &world.hello(mid));
    let before = program.counts();
    let changes: [fn(&mut Vec<u8>); 11] = [
        |frame| frame[37] ^= 1,                               // another port
        |frame| frame[33] ^= 1,                               // another host
        |frame| frame[12..14].copy_from_slice(&[8, 6]),       // ARP
        |frame| frame[12..14].copy_from_slice(&[0x86, 0xdd]), // IPv6
        |frame| frame[12..14].copy_from_slice(&[0x81, 0]),    // a VLAN's
        |frame| frame[14] = 0x46,                             // options
        |frame| frame[20] = 0x20,                             // a fragment
        |frame| frame[23] = 6,                                // TCP
        |frame| frame[16] = 9,                                // longer than the frame
        |frame| frame[39] = 7,                                // shorter than its header
        |frame| frame.truncate(40),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut frame = hello.clone();
        change(&mut frame);
        assert_eq!(run(&program, "decide", &frame), (PASS, frame), "change {at}");
    }
    let mut dice = Dice(SplitMix::new(3));
    for _ in 0..10_000 {
        let frame: Vec<u8> = (0..14 + dice.below(200)).map(|_| dice.next() as u8).collect();
        assert_eq!(run(&program, "decide", &frame), (PASS, frame));
    }
    assert_eq!(program.counts(), before);
    assert_eq!(run(&program, "decide", &hello).0, TX, "unchanged it is for the decider");
}

#[test]
fn a_closed_decider_answers_nobody_and_one_that_is_gone_is_unknown() {
    let Some(mut program) = program() else { return };
    let mut world = World::new(2, &mut program);
    let mid = world.keys[0].0;
    let hello = frame(address(mid), &world.hello(mid));
    assert_eq!(run(&program, "decide", &hello).0, TX);
    let (ends, first) = (Ends { from: mid, to: 0 }, u64::from(mid));
    let mut bytes = Vec::new();
    let acquire = Message::new(0, 1, &[first, first | 1 << 32, 0, u64::from(world.epoch)]);
    datagram::encode(ends, &acquire, world.key(mid), &mut bytes);
    let acquire = frame(address(mid), &bytes);
    program.configure(world.epoch, true).unwrap();
    assert_eq!(run(&program, "decide", &acquire).0, DROP);
    program.configure(world.epoch, false).unwrap();
    let (action, granted) = run(&program, "decide", &acquire);
    assert_eq!((action, granted[HEADERS + 3], granted.len()), (TX, 4, HEADERS + HEAD));
    program.peer(mid, None);
    let forged = program.counts().forged;
    assert_eq!(run(&program, "decide", &hello).0, DROP);
    assert_eq!(program.counts().forged, forged + 1);
}

/// A writer's request by the first lane, as a frame.
fn acquire(world: &World, mid: u8, lid: u64, seq: u64, epoch: u32) -> Vec<u8> {
    let mid_and_task = u64::from(mid) | seq << 8;
    let number = u64::from(mid) | seq << 32;
    let message = Message::new(lid, 1, &[mid_and_task, number, 0, u64::from(epoch)]);
    let mut bytes = Vec::new();
    datagram::encode(Ends { from: mid, to: 0 }, &message, world.key(mid), &mut bytes);
    frame(address(mid), &bytes)
}

#[test]
fn registers_of_an_earlier_epoch_are_empty_and_those_of_a_later_one_are_left_alone() {
    let Some(mut program) = program() else { return };
    let mut world = World::new(3, &mut program);
    let (mid, epoch) = (world.keys[0].0, world.epoch);
    assert_eq!(run(&program, "decide", &frame(address(mid), &world.hello(mid))).0, TX);
    let kind = |program: &Program, lid, seq, epoch| {
        let (action, out) = run(program, "decide", &acquire(&world, mid, lid, seq, epoch));
        (action == TX).then(|| out[HEADERS + 3])
    };
    let (granted, forwarded) = (Some(4), Some(1));
    assert_eq!((kind(&program, 0, 8, epoch), kind(&program, 33, 9, epoch)), (granted, granted));
    // A recovery: lock 1 is held, and no other.
    let held = LockRegisters { free: false, shared: false, bar: false, mid, inca: 0 };
    let free = LockRegisters { free: true, mid: 0, ..held };
    let after = registers::group(epoch + 1, [free, held].into_iter());
    program.groups.set(0, after, UNDER_LOCK).unwrap();
    // A packet that was on its way through the program all the time: to it the old epoch is the present one.
    assert_eq!(kind(&program, 2, 10, epoch), None);
    assert_eq!(program.groups.get(&0, 0).unwrap(), after);
    program.configure(epoch + 1, false).unwrap();
    // Numbers begin anew, too.
    assert_eq!((kind(&program, 1, 1, epoch + 1), kind(&program, 0, 2, epoch + 1)), (forwarded, granted));
    assert_eq!((kind(&program, 33, 3, epoch + 1), kind(&program, 33, 4, epoch + 1)), (granted, forwarded));
    program.configure(epoch, false).unwrap();
    assert_eq!(kind(&program, 39, 11, epoch), None, "its lane is of the later epoch by now");
}

/// Once all 8,192 groups were written whenever a client left, while packets were dropped and joins had to wait.
#[test]
fn a_recovery_writes_no_register_of_a_free_lock() {
    let Some(mut program) = program() else { return };
    let mut world = World::new(4, &mut program);
    for group in 0..2 {
        assert_eq!(program.groups.get(&group, 0).unwrap(), [0; registers::GROUP], "as the kernel made it");
    }
    let mid = world.keys[0].0;
    assert_eq!(run(&program, "decide", &frame(address(mid), &world.hello(mid))).0, TX);
    let (action, granted) = run(&program, "decide", &acquire(&world, mid, 5, 1, world.epoch));
    assert_eq!((action, granted[HEADERS + 3]), (TX, 4), "and free");
}

#[test]
fn stamps_are_raised_and_never_lowered() {
    let Some(mut program) = program() else { return };
    let now = program.stamp();
    program.raise_stamp(now + 100);
    program.raise_stamp(now + 50);
    assert_eq!(program.stamp(), now + 100);
}

#[test]
fn the_object_is_made_of_this_source() {
    let source = Sha256::digest(include_bytes!("decider.bpf.c"));
    let hash = source.iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").unwrap();
        text
    });
    let is_in = OBJECT.windows(hash.len()).any(|window| window == hash.as_bytes());
    assert!(is_in, "decider.bpf.o is of another decider.bpf.c: `cargo xtask xdp --build` makes it anew");
}

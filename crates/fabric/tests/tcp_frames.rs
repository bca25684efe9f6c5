//! The frame decoder against everything that may come over a network: what was encoded comes back, what was tampered
//! with is an error or another frame, and nothing makes it panic, loop or ask for more than a frame may have.

use lockwright_fabric::backend::tcp::frame::{
    ClientProcess, Decoded, Frame, FrameError, HEADER, Hello, MAX_BODY, MAX_VERBS, Refusal, Welcome, decode,
};
use lockwright_fabric::{
    Addr, Cond, Field, Fields, MaskedCas, Message, NodeId, Op, PeerId, RawVerb, RawWait, RegionId, Width,
};
use proptest::collection::vec;
use proptest::prelude::*;
use std::path::PathBuf;

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

fn addr() -> impl Strategy<Value = Addr> {
    (any::<u64>(), any::<u16>(), any::<u16>()).prop_map(|(offset, node, region)| Addr {
        offset,
        node: NodeId(node),
        region: RegionId(region),
    })
}

fn width() -> impl Strategy<Value = Width> {
    prop_oneof![Just(Width::W64), Just(Width::W128)]
}

fn verb() -> impl Strategy<Value = RawVerb> {
    (addr(), width(), 0..7, any::<[u128; 4]>()).prop_map(|(addr, width, kind, operands)| {
        let [a, b, c, d] = operands.map(|operand| operand & width.mask());
        let fields = Fields { add: a, boundaries: b };
        let op = match kind {
            0 => Op::Read,
            1 => Op::Write(a),
            2 => Op::Cas { expect: a, new: b },
            3 => Op::FetchAdd(a),
            4 => Op::MaskedCas(MaskedCas { compare: a, compare_mask: b, swap: c, swap_mask: d }),
            5 => Op::MaskedFetchAdd(fields),
            _ => Op::GuardedFetchAdd { fields, guard: c, guard_mask: d },
        };
        RawVerb { addr, width, op }
    })
}

fn field() -> impl Strategy<Value = Field> {
    (0u32..128).prop_flat_map(|shift| (1..=128 - shift).prop_map(move |bits| Field { shift, bits }))
}

fn cond() -> impl Strategy<Value = Cond> {
    prop_oneof![
        any::<(u128, u128)>().prop_map(|(mask, value)| Cond::Eq { mask, value }),
        any::<(u128, u128)>().prop_map(|(mask, value)| Cond::Ne { mask, value }),
        (field(), field()).prop_map(|(a, b)| Cond::FieldsEq(a, b)),
        (field(), any::<u128>()).prop_map(|(field, value)| Cond::AtLeast(field, value)),
    ]
}

fn wait() -> impl Strategy<Value = RawWait> {
    (addr(), width(), cond(), proptest::option::of(cond())).prop_map(|(addr, width, cond, or)| RawWait {
        addr,
        width,
        cond,
        or,
    })
}

fn message() -> impl Strategy<Value = Message> {
    (any::<u64>(), any::<u32>(), any::<[u64; 4]>(), vec(any::<u64>(), 0..40))
        .prop_map(|(lock, kind, words, tail)| Message { lock, kind, words, tail })
}

fn peer() -> impl Strategy<Value = PeerId> {
    (1..=u32::MAX).prop_map(PeerId)
}

fn process() -> impl Strategy<Value = ClientProcess> {
    any::<(u128, u64, u64, u64, u32)>().prop_map(|(boot, pid_namespace, time_namespace, start, pid)| {
        ClientProcess { boot, pid_namespace, time_namespace, start, pid }
    })
}

fn hello() -> impl Strategy<Value = Frame> {
    let numbers = any::<(u32, u64, u64)>();
    (numbers, any::<[u8; 16]>(), any::<[u8; 32]>(), process(), "\\PC{0,40}").prop_map(
        |((features, epoch, seen), session, nonce, process, name)| {
            Frame::Hello(Hello { features, session, epoch, seen, nonce, process, name })
        },
    )
}

fn welcome() -> impl Strategy<Value = Frame> {
    let numbers = any::<[u64; 4]>();
    (any::<u16>(), peer(), any::<[u8; 16]>(), numbers, any::<u32>(), any::<bool>(), any::<[u8; 32]>())
        .prop_map(
            |(
                capabilities,
                peer,
                session,
                [epoch, now_ns, heartbeat_ns, grace_ns],
                max_waits,
                resumed,
                proof,
            )| {
                let times = (now_ns, heartbeat_ns, grace_ns);
                let (now_ns, heartbeat_ns, grace_ns) = times;
                Frame::Welcome(Welcome {
                    capabilities,
                    peer,
                    session,
                    epoch,
                    now_ns,
                    heartbeat_ns,
                    grace_ns,
                    max_waits,
                    resumed,
                    proof,
                })
            },
        )
}

fn frame() -> impl Strategy<Value = Frame> {
    let id = any::<u64>();
    let requests = prop_oneof![
        hello(),
        any::<[u8; 32]>().prop_map(Frame::Proof),
        (id, any::<bool>(), vec(verb(), 0..20)).prop_map(|(id, quiet, verbs)| Frame::Go { id, quiet, verbs }),
        (id, wait(), any::<u64>()).prop_map(|(id, wait, timeout_ns)| Frame::Wait { id, wait, timeout_ns }),
        id.prop_map(|id| Frame::Cancel { id }),
        (id, any::<bool>(), peer(), message()).prop_map(|(id, quiet, to, message)| Frame::Send {
            id,
            quiet,
            to,
            message
        }),
        id.prop_map(|seen| Frame::Ping { seen }),
        id.prop_map(|seen| Frame::Ack { seen }),
        Just(Frame::Goodbye),
    ];
    let answers = prop_oneof![
        any::<[u8; 32]>().prop_map(Frame::Challenge),
        welcome(),
        (id, "\\PC{0,60}").prop_map(|(epoch, text)| Frame::Refused { why: Refusal::TooMany, epoch, text }),
        (id, vec(any::<u128>(), 0..40)).prop_map(|(id, olds)| Frame::Done { id, olds }),
        (id, any::<u16>()).prop_map(|(id, node)| Frame::NodeLost { id, node }),
        (id, 1..=u32::MAX).prop_map(|(id, peer)| Frame::PeerLost { id, peer }),
        (id, any::<bool>(), any::<u128>()).prop_map(|(id, met, value)| Frame::Waited { id, met, value }),
        (id, peer(), message()).prop_map(|(seq, from, message)| Frame::Deliver { seq, from, message }),
        Just(Frame::Pong),
    ];
    prop_oneof![requests, answers]
}

/// What holds for any bytes at all.
fn is_sound(bytes: &[u8]) {
    match decode(bytes) {
        // A refusal of a kind that this version does not know is taken as a bad frame.
        Ok(Decoded::Frame(Frame::Refused { why: Refusal::BadFrame, .. }, _)) => {}
        Ok(Decoded::Frame(frame, used)) => {
            assert!((HEADER..=bytes.len()).contains(&used));
            assert_eq!(bytes_of(&frame), bytes[..used], "there is one encoding of {frame:?}");
        }
        Ok(Decoded::Partial(size)) => assert!(size > bytes.len() && size <= HEADER + MAX_BODY),
        Err(_) => {}
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_encoded_comes_back(first in frame(), second in frame()) {
        let mut bytes = bytes_of(&first);
        let used = bytes.len();
        second.encode(&mut bytes);
        prop_assert_eq!(decode(&bytes), Ok(Decoded::Frame(first, used)));
        let rest = bytes.len() - used;
        prop_assert_eq!(decode(&bytes[used..]), Ok(Decoded::Frame(second, rest)));
    }

    #[test]
    fn the_beginning_of_a_frame_asks_for_the_rest(frame in frame()) {
        let bytes = bytes_of(&frame);
        for end in 0..bytes.len() {
            let wanted = if end < 4 { HEADER } else { bytes.len() };
            prop_assert_eq!(decode(&bytes[..end]), Ok(Decoded::Partial(wanted)));
        }
    }

    #[test]
    fn a_frame_that_was_tampered_with_does_no_harm(
        frame in frame(),
        places in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
    ) {
        let mut bytes = bytes_of(&frame);
        for (place, byte) in places {
            let at = place.index(bytes.len());
            bytes[at] = byte;
        }
        is_sound(&bytes);
    }

    #[test]
    fn a_frame_cut_short_with_its_length_adjusted_does_no_harm(frame in frame(), cut in 1usize..64) {
        let mut bytes = bytes_of(&frame);
        let length = bytes.len().saturating_sub(HEADER + cut);
        bytes.truncate(HEADER + length);
        bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
        is_sound(&bytes);
    }

    #[test]
    fn random_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..300), kind in any::<u8>()) {
        is_sound(&bytes);
        let mut framed = vec![0; HEADER];
        framed[..4].copy_from_slice(&(bytes.len() as u32).to_le_bytes());
        framed[4] = kind;
        framed.extend(bytes);
        is_sound(&framed);
    }
}

fn with_body(kind: u8, body: &[u8]) -> Vec<u8> {
    let mut bytes = (body.len() as u32).to_le_bytes().to_vec();
    bytes.extend([kind, 0, 0, 0]);
    bytes.extend([0; 8]);
    bytes.extend(body);
    bytes
}

#[test]
fn errors_say_what_is_wrong() {
    let error = |bytes: &[u8]| decode(bytes).unwrap_err();
    assert_eq!(error(&[0xff; 16]), FrameError::TooLong(u32::MAX as usize));
    assert_eq!(error(&with_body(0x44, &[])), FrameError::Kind(0x44));
    assert_eq!(error(&with_body(0x01, b"GET / HTTP/1.1\r\n")), FrameError::Magic);
    assert_eq!(error(&with_body(0x01, b"lockwrgt\x09\0")), FrameError::Version(9));
    assert_eq!(error(&with_body(0x05, &[0])), FrameError::Trailing);
    assert_eq!(error(&with_body(0x02, &[0; 31])), FrameError::Truncated);
    let many = (MAX_VERBS as u64 + 1).to_le_bytes();
    assert_eq!(error(&with_body(0x03, &many)), FrameError::Verbs(MAX_VERBS + 1));
    let mut verb = [0; 24];
    verb[0] = 1;
    verb[20] = 9;
    verb[21] = 8;
    assert_eq!(error(&with_body(0x03, &verb)), FrameError::Op(9));
    verb[21] = 7;
    assert_eq!(error(&with_body(0x03, &verb)), FrameError::Width(7));
    let mut goodbye = with_body(0x09, &[]);
    goodbye[6] = 1;
    assert_eq!(error(&goodbye), FrameError::Reserved);
}

#[test]
fn a_field_outside_its_word_is_refused() {
    let field = Field { shift: 120, bits: 9 };
    let addr = Addr::new(NodeId(0), 0);
    let wait = RawWait { addr, width: Width::W64, cond: Cond::AtLeast(field, 1), or: None };
    let bytes = bytes_of(&Frame::Wait { id: 1, wait, timeout_ns: 0 });
    assert_eq!(decode(&bytes), Err(FrameError::Field { shift: 120, bits: 9 }));
}

/// The files of `tests/corpus`: one of every frame, and what once was, or might be, trouble. `LOCKWRIGHT_BLESS=1`
/// writes the frames anew after a change of the format.
#[test]
fn the_corpus_is_decoded_as_ever() {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    if std::env::var_os("LOCKWRIGHT_BLESS").is_some() {
        bless(&folder);
    }
    let mut count = 0;
    for file in std::fs::read_dir(&folder).expect("the corpus is there") {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        let bytes = std::fs::read(&path).unwrap();
        let decoded = decode(&bytes);
        match name.split_once('-').expect("a name says what to expect").0 {
            "good" => assert!(matches!(decoded, Ok(Decoded::Frame(..))), "{name}: {decoded:?}"),
            "partial" => assert!(matches!(decoded, Ok(Decoded::Partial(_))), "{name}: {decoded:?}"),
            "bad" => assert!(decoded.is_err(), "{name}: {decoded:?}"),
            other => panic!("{name}: what is {other}?"),
        }
        is_sound(&bytes);
        // And every file with one byte changed, or its end missing.
        for at in 0..bytes.len().min(200) {
            is_sound(&bytes[..at]);
            for change in [0x00, 0x01, 0x7f, 0x80, 0xff] {
                let mut changed = bytes.clone();
                changed[at] ^= change;
                is_sound(&changed);
            }
        }
        count += 1;
    }
    assert!(count >= 25, "only {count} files");
}

fn bless(folder: &std::path::Path) {
    let word = Addr { offset: 64, node: NodeId(1), region: RegionId(0) };
    let verb = |width, op| RawVerb { addr: word, width, op };
    let fields = Fields { add: 0x101, boundaries: 0x8080 };
    let verbs = vec![
        verb(Width::W64, Op::Read),
        verb(Width::W64, Op::Write(7)),
        verb(Width::W128, Op::Cas { expect: 1 << 100, new: 2 }),
        verb(Width::W64, Op::FetchAdd(1)),
        verb(
            Width::W128,
            Op::MaskedCas(MaskedCas { compare: 1, compare_mask: 2, swap: 3, swap_mask: u128::MAX }),
        ),
        verb(Width::W64, Op::MaskedFetchAdd(fields)),
        verb(Width::W64, Op::GuardedFetchAdd { fields, guard: 0x300, guard_mask: 0xf00 }),
    ];
    let low = Field { shift: 0, bits: 16 };
    let high = Field { shift: 64, bits: 64 };
    let wait = |id, cond, or| {
        let wait = RawWait { addr: word, width: Width::W128, cond, or };
        Frame::Wait { id, wait, timeout_ns: 1_000_000 }
    };
    let message = Message { lock: 3, kind: 2, words: [1, 2, 3, 4], tail: vec![5, 6, 7] };
    let hello = Hello {
        features: 0,
        session: [7; 16],
        epoch: 9,
        seen: 4,
        nonce: [3; 32],
        process: ClientProcess { boot: 6, pid_namespace: 5, time_namespace: 4, start: 3, pid: 42 },
        name: "process 42".to_owned(),
    };
    let welcome = Welcome {
        capabilities: 0x1f,
        peer: PeerId::client(3),
        session: [7; 16],
        epoch: 9,
        now_ns: 1,
        heartbeat_ns: 2,
        grace_ns: 3,
        max_waits: 4,
        resumed: true,
        proof: [5; 32],
    };
    let text = "the token is not the server's".to_owned();
    let frames = [
        ("hello", Frame::Hello(hello)),
        ("proof", Frame::Proof([9; 32])),
        ("go", Frame::Go { id: 1, quiet: false, verbs: verbs.clone() }),
        ("go-quiet", Frame::Go { id: 0, quiet: true, verbs: verbs[..1].to_vec() }),
        ("go-empty", Frame::Go { id: 2, quiet: false, verbs: vec![] }),
        ("wait", wait(3, Cond::Eq { mask: 1, value: 1 }, None)),
        ("wait-fields", wait(4, Cond::FieldsEq(low, high), Some(Cond::AtLeast(high, 8)))),
        ("cancel", Frame::Cancel { id: 4 }),
        ("send", Frame::Send { id: 5, quiet: false, to: PeerId::role(0), message: message.clone() }),
        ("ping", Frame::Ping { seen: 6 }),
        ("ack", Frame::Ack { seen: 6 }),
        ("goodbye", Frame::Goodbye),
        ("challenge", Frame::Challenge([8; 32])),
        ("welcome", Frame::Welcome(welcome)),
        ("refused", Frame::Refused { why: Refusal::Unauthorised, epoch: 9, text }),
        ("done", Frame::Done { id: 1, olds: vec![1, u128::MAX] }),
        ("node-lost", Frame::NodeLost { id: 1, node: 2 }),
        ("peer-lost", Frame::PeerLost { id: 5, peer: 7 }),
        ("waited", Frame::Waited { id: 3, met: true, value: 1 }),
        ("deliver", Frame::Deliver { seq: 1, from: PeerId::client(1), message }),
        ("pong", Frame::Pong),
    ];
    std::fs::create_dir_all(folder).unwrap();
    let write = |name: String, bytes: &[u8]| std::fs::write(folder.join(name), bytes).unwrap();
    for (name, frame) in &frames {
        write(format!("good-{name}.bin"), &bytes_of(frame));
    }
    write("bad-http.bin".to_owned(), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n");
    write("bad-tls-hello.bin".to_owned(), b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaaaaaaaaaaaaa");
    write("bad-longest.bin".to_owned(), &[0xff; 64]);
    write("bad-other-version.bin".to_owned(), &with_body(0x01, b"lockwrgt\x02\0rest of a hello to come"));
    write("bad-verb-count.bin".to_owned(), &with_body(0x03, &u64::from(u32::MAX).to_le_bytes()));
    let mut tail = bytes_of(&frames[8].1);
    tail[36..40].copy_from_slice(&u32::MAX.to_le_bytes());
    write("bad-tail-count.bin".to_owned(), &tail);
    write("bad-peer-zero.bin".to_owned(), &with_body(0x86, &[0; 8]));
    write("bad-name.bin".to_owned(), &{
        let mut hello = bytes_of(&frames[0].1);
        *hello.last_mut().unwrap() = 0xff;
        hello
    });
    write("partial-nothing.bin".to_owned(), b"");
    write("partial-header.bin".to_owned(), &[1, 0, 0]);
    write("partial-body.bin".to_owned(), &bytes_of(&frames[2].1)[..40]);
}

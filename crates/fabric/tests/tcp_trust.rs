//! Which clients a server accepts, and what happens to those that misbehave: one clear answer to them, and no effect on
//! other clients.

mod nets;

use lockwright_fabric::backend::inproc::InProc;
use lockwright_fabric::backend::shm::Process;
use lockwright_fabric::backend::tcp::frame::{
    ClientProcess, Decoded, Frame, Hello, MAX_VERBS, Refusal, Welcome, decode,
};
use lockwright_fabric::backend::tcp::{
    Backlog, BindError, CloseReason, ConnectError, ConnectOptions, InProcHost, MAX_TAIL, Secret, Server,
    ServerOptions, TcpEndpoint, TlsClient, TlsServer,
};
use lockwright_fabric::{
    Addr, Cond, Deadline, Endpoint, FabricError, Message, NodeId, Op, RawVerb, RawWait, RegionId, Width,
    Word64,
};
use nets::{HERE, LinkState, Proxy, connect, host, patient, quick, serve, until, word};
use std::io::{ErrorKind, Read, Write};
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

fn secret(text: &str) -> Option<Secret> {
    Some(Secret::new(text).unwrap())
}

const SECRET: &str = "a secret that only the tests know";

fn bytes_of(frame: &Frame) -> Vec<u8> {
    let mut bytes = Vec::new();
    frame.encode(&mut bytes);
    bytes
}

/// The beginning of a connection of `process`, which resumes a session unless that is all zeros.
fn hello_of(process: ClientProcess, session: [u8; 16], epoch: u64) -> Vec<u8> {
    let name = String::new();
    bytes_of(&Frame::Hello(Hello { features: 0, session, epoch, seen: 0, nonce: [1; 32], process, name }))
}

fn hello() -> Vec<u8> {
    hello_of(ClientProcess::default(), [0; 16], 0)
}

/// Sends bytes and returns all frames that come back until the server closes.
async fn answers_to(address: SocketAddr, bytes: &[u8]) -> Vec<Frame> {
    let mut stream = TcpStream::connect(address).await.unwrap();
    stream.write_all(bytes).await.unwrap();
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await.unwrap();
    let (mut frames, mut rest) = (Vec::new(), &answer[..]);
    while let Decoded::Frame(frame, used) = decode(rest).unwrap() {
        frames.push(frame);
        rest = &rest[used..];
    }
    frames
}

fn refusal(frames: &[Frame]) -> (Refusal, &str) {
    match frames.last() {
        Some(Frame::Refused { why, text, .. }) => (*why, text),
        other => panic!("the last word is {other:?}"),
    }
}

#[tokio::test]
async fn a_server_does_not_listen_to_other_machines_unguarded() {
    let everywhere: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let error = Server::bind(everywhere, host().0, vec![], patient()).await.unwrap_err();
    assert!(matches!(error, BindError::Exposed(address) if address == everywhere));
    let text = error.to_string();
    assert!(text.contains("TLS") && text.contains("secret") && text.contains("127.0.0.1"), "{text}");
    assert!(Server::bind("[::]:0".parse().unwrap(), host().0, vec![], patient()).await.is_err());
    let mapped = "[::ffff:10.0.0.1]:0".parse().unwrap();
    assert!(matches!(Server::bind(mapped, host().0, vec![], patient()).await, Err(BindError::Exposed(_))));
    let options = ServerOptions { secret: secret(SECRET), ..patient() };
    assert!(Server::bind(everywhere, host().0, vec![], options).await.is_ok());
}

#[tokio::test]
async fn only_those_who_know_the_secret_come_in() {
    let (server, _) = serve(ServerOptions { secret: secret(SECRET), ..patient() }).await;
    let with = |secret| {
        TcpEndpoint::connect(server.address(), ConnectOptions { secret, ..ConnectOptions::default() })
    };
    let ep = with(secret(SECRET)).await.unwrap();
    assert_eq!(ep.go(word(0).fetch_add(1)).await, Ok(0));
    assert!(matches!(with(None).await, Err(ConnectError::SecretRequired)));
    let wrong = with(secret("another secret of the same kind!!")).await.unwrap_err();
    assert!(matches!(wrong, ConnectError::Refused { why: Refusal::Unauthorised, .. }), "{wrong}");
    // Without a proof nothing is executed, whatever follows.
    let verbs = vec![word(0).write(99).raw()];
    let eager = [hello(), bytes_of(&Frame::Go { id: 1, quiet: false, verbs })].concat();
    assert_eq!(refusal(&answers_to(server.address(), &eager).await).0, Refusal::Unauthorised);
    assert_eq!(ep.go(word(0).read()).await, Ok(1));
}

#[tokio::test]
async fn a_client_with_a_secret_does_not_trust_a_server_without() {
    let (server, _) = serve(patient()).await;
    let options = ConnectOptions { secret: secret(SECRET), ..ConnectOptions::default() };
    assert!(matches!(TcpEndpoint::connect(server.address(), options).await, Err(ConnectError::Unproven)));
}

/// The next frame on a raw connection.
async fn next_frame(stream: &mut TcpStream, buffer: &mut Vec<u8>) -> Frame {
    loop {
        if let Decoded::Frame(frame, used) = decode(buffer).unwrap() {
            buffer.drain(..used);
            return frame;
        }
        let read = stream.read_buf(buffer).await.unwrap();
        assert_ne!(read, 0, "it was closed in the middle of {buffer:?}");
    }
}

/// Challenges one client and welcomes it, whatever it proves. Its own proof is what it makes of the client's.
async fn impostor(make: fn([u8; 32]) -> [u8; 32]) -> SocketAddr {
    let listener = tokio::net::TcpListener::bind(HERE).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        let mut buffer = Vec::new();
        assert!(matches!(next_frame(&mut stream, &mut buffer).await, Frame::Hello(_)));
        stream.write_all(&bytes_of(&Frame::Challenge([7; 32]))).await.unwrap();
        let Frame::Proof(proof) = next_frame(&mut stream, &mut buffer).await else { panic!("no proof") };
        let welcome = Welcome {
            capabilities: 0,
            peer: lockwright_fabric::PeerId(1),
            session: [5; 16],
            epoch: 1,
            now_ns: 1,
            heartbeat_ns: 1_000_000_000,
            grace_ns: 1_000_000_000,
            max_waits: 1,
            resumed: false,
            proof: make(proof),
        };
        stream.write_all(&bytes_of(&Frame::Welcome(welcome))).await.unwrap();
        let _ = stream.read(&mut [0; 64]).await;
    });
    address
}

#[tokio::test]
async fn a_server_that_accepts_any_proof_and_has_none_of_its_own_is_not_trusted() {
    // Nothing, the client's own words, and nearly right.
    let proofs: [fn([u8; 32]) -> [u8; 32]; 3] = [|_| [0; 32], |proof| proof, |proof| proof.map(|byte| !byte)];
    for make in proofs {
        let options = ConnectOptions { secret: secret(SECRET), ..ConnectOptions::default() };
        let connected = TcpEndpoint::connect(impostor(make).await, options).await;
        assert!(matches!(connected, Err(ConnectError::Unproven)), "{connected:?}");
    }
}

#[tokio::test]
async fn the_connection_that_another_replaces_is_told_and_closed() {
    // Not for silence: it is replaced long before the server suspects it.
    let (server, _) = serve(ServerOptions { heartbeat: Duration::from_secs(60), ..patient() }).await;
    let mut old = TcpStream::connect(server.address()).await.unwrap();
    old.write_all(&hello()).await.unwrap();
    let mut buffer = Vec::new();
    let Frame::Welcome(first) = next_frame(&mut old, &mut buffer).await else { panic!("no welcome") };
    let mut new = TcpStream::connect(server.address()).await.unwrap();
    let again = hello_of(ClientProcess::default(), first.session, server.epoch());
    new.write_all(&again).await.unwrap();
    let Frame::Welcome(second) = next_frame(&mut new, &mut Vec::new()).await else { panic!("no welcome") };
    assert!(second.resumed && second.peer == first.peer);
    let last = next_frame(&mut old, &mut buffer).await;
    assert!(matches!(last, Frame::Refused { why: Refusal::Replaced, .. }), "{last:?}");
    let rest = tokio::time::timeout(Duration::from_secs(20), old.read_buf(&mut buffer)).await;
    assert!(matches!(rest, Ok(Ok(0) | Err(_))), "it is still open: {rest:?}");
}

/// A process that has ended.
fn ended_process() -> ClientProcess {
    let mut child = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    let Process { pid, start } = Process::with_pid(child.id()).unwrap().unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    ClientProcess { pid, start, ..ClientProcess::own() }
}

#[tokio::test]
async fn a_session_outlives_closed_and_silent_connections_for_the_lease_unless_its_process_has_ended() {
    let options = ServerOptions { grace_ended: Some(Duration::from_millis(1)), ..quick() };
    let (server, ended) = serve(options).await;
    let connect = async |process, session| {
        let mut stream = TcpStream::connect(server.address()).await.unwrap();
        stream.write_all(&hello_of(process, session, server.epoch())).await.unwrap();
        let answer = next_frame(&mut stream, &mut Vec::new()).await;
        let Frame::Welcome(Welcome { session, .. }) = answer else { panic!("{answer:?}") };
        (stream, session)
    };
    let (mut stream, session) = connect(ClientProcess::own(), [0; 16]).await;
    // Silent, until the server closes it.
    while stream.read_buf(&mut Vec::new()).await.is_ok_and(|read| read > 0) {}
    // Closed by the client's end, which may be a proxy: of a living process, and of one of which nothing is known.
    for process in [ClientProcess::own(), ClientProcess::default()] {
        drop(connect(process, session).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
    assert_eq!(ended.lock().unwrap()[..], [], "its lease is not over");
    drop(connect(ended_process(), session).await);
    until(|| !ended.lock().unwrap().is_empty()).await;
}

#[tokio::test]
async fn tls_is_for_the_named_server_and_its_clients_only() {
    let made = rcgen::generate_simple_self_signed(vec!["lock.test".to_owned()]).unwrap();
    let (certificate, key) = (made.cert.pem(), made.signing_key.serialize_pem());
    let tls = Some(TlsServer::from_pem(certificate.as_bytes(), key.as_bytes()).unwrap());
    let (server, _) = serve(ServerOptions { tls, handshake: Duration::from_secs(3), ..patient() }).await;
    let with =
        |tls| TcpEndpoint::connect(server.address(), ConnectOptions { tls, ..ConnectOptions::default() });
    let trusting = |name| Some(TlsClient::from_pem(certificate.as_bytes(), name).unwrap());
    let ep = with(trusting("lock.test")).await.unwrap();
    assert_eq!(ep.go(word(0).fetch_add(1)).await, Ok(0));
    assert!(matches!(with(trusting("other.test")).await, Err(ConnectError::Io(_))));
    assert!(with(None).await.is_err(), "a client without TLS is told so, and not let in");
    assert_eq!(ep.go(word(0).fetch_add(1)).await, Ok(1));
    assert!(TlsServer::from_pem(b"nonsense", key.as_bytes()).is_err());
    assert!(TlsServer::from_pem(certificate.as_bytes(), certificate.as_bytes()).is_err());
}

#[tokio::test]
async fn nonsense_gets_one_answer_and_disturbs_nobody() {
    let (server, _) = serve(patient()).await;
    let ep = connect(server.address()).await;
    let waiting = ep.wait_until(word(1).until(Cond::Eq { mask: 1, value: 1 }));
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/corpus");
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if !name.starts_with("bad-") {
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let expected = if name.contains("version") { Refusal::Version } else { Refusal::BadFrame };
        // As the first thing said, and after a proper beginning.
        let first = answers_to(server.address(), &bytes).await;
        assert_eq!((refusal(&first).0, first.len()), (expected, 1), "{name}");
        let later = answers_to(server.address(), &[hello(), bytes].concat()).await;
        assert_eq!((refusal(&later).0, later.len()), (expected, 2), "{name}");
    }
    ep.go(word(1).write(1)).await.unwrap();
    assert!(waiting.await.unwrap().met);
}

#[tokio::test]
async fn unexpected_frames_are_refused() {
    let (server, _) = serve(ServerOptions { max_waits: 2, ..patient() }).await;
    let wait = |id, index: u64| {
        let (addr, width) = (word(index).addr(), Width::W64);
        let cond = Cond::Eq { mask: 1, value: 1 };
        let wait = RawWait { addr, width, cond, or: None };
        bytes_of(&Frame::Wait { id, wait, timeout_ns: u64::MAX })
    };
    let cases = [
        (vec![bytes_of(&Frame::Goodbye)], Refusal::Unexpected),
        (vec![hello(), hello()], Refusal::Unexpected),
        (vec![hello(), bytes_of(&Frame::Pong)], Refusal::Unexpected),
        (vec![hello(), bytes_of(&Frame::Ack { seen: 1 })], Refusal::Unexpected),
        (vec![hello(), wait(1, 0), wait(1, 0)], Refusal::Unexpected),
        (vec![hello(), wait(1, 0), wait(2, 0), wait(3, 0)], Refusal::TooMany),
        (vec![hello(), wait(1, 1 << 40)], Refusal::NoSuchWord),
    ];
    for (frames, expected) in cases {
        let answers = answers_to(server.address(), &frames.concat()).await;
        assert_eq!(refusal(&answers).0, expected, "{answers:?}");
    }
}

#[tokio::test]
async fn a_session_cannot_be_guessed_or_taken_over_after_its_end() {
    let (server, ended) = serve(patient()).await;
    let resume = |session| hello_of(ClientProcess::default(), session, server.epoch());
    assert_eq!(refusal(&answers_to(server.address(), &resume([9; 16])).await).0, Refusal::UnknownSession);
    let answers = answers_to(server.address(), &[hello(), bytes_of(&Frame::Goodbye)].concat()).await;
    let Some(Frame::Welcome(Welcome { session, .. })) = answers.first() else { panic!("{answers:?}") };
    until(|| !ended.lock().unwrap().is_empty()).await;
    let again = answers_to(server.address(), &resume(*session)).await;
    assert_eq!(refusal(&again).0, Refusal::UnknownSession);
}

#[tokio::test]
async fn a_verb_on_a_word_that_does_not_exist_ends_the_session_of_who_asked() {
    let (server, _) = serve(patient()).await;
    let other = connect(server.address()).await;
    let lost = |node| Err(FabricError::NodeLost(NodeId(node)));
    let outside = [
        Addr::new(NodeId(0), 4096),
        Addr::new(NodeId(9), 0),
        Addr { offset: 0, node: NodeId(0), region: RegionId(3) },
        Addr { offset: 0, node: NodeId(0), region: RegionId(60_000) },
        Addr::new(NodeId(0), u64::MAX - 7),
    ];
    for addr in outside {
        let ep = connect(server.address()).await;
        // Nothing of the batch is executed.
        assert_eq!(ep.go((word(0).fetch_add(1), Word64::at(addr).write(1))).await.map(drop), lost(0));
        let CloseReason::Refused(text) = ep.closed().await else { panic!("{:?}", ep.close_reason()) };
        assert!(text.contains("no word"), "{text}");
    }
    let askew = RawVerb { addr: Addr::new(NodeId(0), 12), width: Width::W64, op: Op::Read };
    let ep = connect(server.address()).await;
    assert_eq!(ep.go(&[askew][..]).await.map(drop), lost(0));
    assert_eq!(other.go(word(0).fetch_add(1)).await, Ok(0));
}

#[tokio::test]
async fn the_longest_batch_passes_and_a_longer_one_is_refused() {
    let (server, _) = serve(patient()).await;
    let ep = connect(server.address()).await;
    let olds = ep.go([word(0).fetch_add(1); MAX_VERBS]).await.unwrap();
    assert_eq!(olds.last(), Some(&(MAX_VERBS as u64 - 1)));
    let verbs = vec![word(0).fetch_add(1).raw(); MAX_VERBS + 1];
    let long = bytes_of(&Frame::Go { id: 1, quiet: false, verbs });
    let answers = answers_to(server.address(), &[hello(), long].concat()).await;
    assert_eq!(refusal(&answers).0, Refusal::BadFrame);
    assert_eq!(ep.go(word(0).read()).await, Ok(MAX_VERBS as u64));
}

#[tokio::test]
async fn a_client_that_does_not_read_is_cut_off_and_others_go_on() {
    let (server, _) = serve(ServerOptions { max_unwritten: 64 << 10, ..patient() }).await;
    let ep = connect(server.address()).await;
    let address = server.address();
    let verbs = vec![word(0).read().raw(); MAX_VERBS];
    let ask = bytes_of(&Frame::Go { id: 1, quiet: false, verbs });
    let deaf = tokio::task::spawn_blocking(move || {
        let mut stream = std::net::TcpStream::connect(address).unwrap();
        stream.write_all(&hello()).unwrap();
        // Far more answers than the system keeps for a client that never reads.
        let end = (0..100_000).find_map(|_| stream.write_all(&ask).err()).expect("the server cuts it off");
        let mut rest = Vec::new();
        let _ = stream.read_to_end(&mut rest);
        end.kind()
    });
    let mut turns = 0;
    while !deaf.is_finished() {
        assert_eq!(ep.go(word(1).fetch_add(1)).await, Ok(turns));
        turns += 1;
    }
    assert!(matches!(deaf.await.unwrap(), ErrorKind::ConnectionReset | ErrorKind::BrokenPipe));
    assert_eq!(ep.go(word(1).fetch_add(1)).await, Ok(turns));
}

#[tokio::test]
async fn strangers_who_say_nothing_are_shown_out() {
    let options = ServerOptions { handshake: Duration::from_millis(50), max_unauthenticated: 2, ..patient() };
    let (server, _) = serve(options).await;
    let silent = [(); 3].map(|()| TcpStream::connect(server.address()));
    let mut crowd = Vec::new();
    for stream in silent {
        crowd.push(stream.await.unwrap());
    }
    for mut stream in crowd {
        let mut said = Vec::new();
        let _ = stream.read_to_end(&mut said).await;
        // The third was not even listened to.
        assert!(said.is_empty() || refusal_of(&said) == Refusal::Unexpected);
    }
    // Their places are free again once they have taken note.
    let mut ep = TcpEndpoint::connect(server.address(), ConnectOptions::default()).await;
    while ep.is_err() {
        tokio::time::sleep(Duration::from_millis(20)).await;
        ep = TcpEndpoint::connect(server.address(), ConnectOptions::default()).await;
    }
    assert_eq!(ep.unwrap().go(word(0).read()).await, Ok(0));
}

/// A connection from this address of the loopback.
async fn connect_from(source: [u8; 4], server: SocketAddr) -> TcpStream {
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.bind((source, 0).into()).unwrap();
    socket.connect(server).await.unwrap()
}

#[tokio::test]
async fn a_crowd_from_one_address_closes_its_own_oldest_and_nobody_elses() {
    let options = ServerOptions { max_unauthenticated: 8, max_unauthenticated_per_source: 3, ..patient() };
    let (server, _) = serve(options).await;
    let mut other = connect_from([127, 0, 0, 3], server.address()).await;
    let mut crowd = Vec::new();
    for _ in 0..20 {
        crowd.push(connect_from([127, 0, 0, 2], server.address()).await);
    }
    for stream in &mut crowd[..17] {
        assert_eq!(stream.read(&mut [0; 8]).await.unwrap_or(0), 0, "closed for a newer one");
    }
    // The first of all, and the newest of the crowd.
    for stream in [&mut other, &mut crowd[19]] {
        stream.write_all(&hello()).await.unwrap();
        let answer = next_frame(stream, &mut Vec::new()).await;
        assert!(matches!(answer, Frame::Welcome(_)), "{answer:?}");
    }
}

fn refusal_of(bytes: &[u8]) -> Refusal {
    let Ok(Decoded::Frame(Frame::Refused { why, .. }, _)) = decode(bytes) else { panic!("{bytes:?}") };
    why
}

#[tokio::test]
async fn a_full_server_says_so() {
    let (server, ended) = serve(ServerOptions { max_sessions: 2, ..patient() }).await;
    let (first, _second) = (connect(server.address()).await, connect(server.address()).await);
    let third = TcpEndpoint::connect(server.address(), ConnectOptions::default()).await.unwrap_err();
    assert!(matches!(third, ConnectError::Refused { why: Refusal::Full, .. }), "{third}");
    drop(first);
    until(|| !ended.lock().unwrap().is_empty()).await;
    connect(server.address()).await;
}

#[tokio::test]
async fn a_server_of_something_else_is_recognised() {
    let listener = tokio::net::TcpListener::bind(HERE).await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.unwrap();
        stream.write_all(b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n").await.unwrap();
        let _ = stream.read(&mut [0; 64]).await;
    });
    let error = TcpEndpoint::connect(address, ConnectOptions::default()).await.unwrap_err();
    assert!(matches!(error, ConnectError::Foreign(_)), "{error}");
}

/// As many words as a message can have.
fn large() -> Message {
    Message { tail: vec![7; MAX_TAIL], ..Message::default() }
}

#[tokio::test]
async fn a_client_cannot_send_to_another_unless_the_host_relays() {
    let host = InProcHost::new(InProc::new(1, 4096), 0);
    let server = Server::bind(HERE, host, vec![], patient()).await.unwrap();
    let (sender, victim) = (connect(server.address()).await, connect(server.address()).await);
    assert_eq!(sender.send(victim.me(), large()).await, Err(FabricError::PeerLost(victim.me())));
    // Less than the sender's own output buffer holds.
    for _ in 0..100 {
        sender.tell(victim.me(), &large()).unwrap();
    }
    assert_eq!(sender.go(word(0).fetch_add(1)).await, Ok(0), "the server has handled all of it");
    assert_eq!(victim.go(word(0).read()).await, Ok(1));
    assert_eq!(victim.recv_by(Deadline::Now, |_, _| Some(())).await, None);
    assert_eq!(victim.close_reason(), None);
}

#[tokio::test]
async fn a_client_that_floods_another_is_refused_and_the_other_goes_on() {
    let limit = Backlog { messages: 20, ..Backlog::RELAY };
    let host = InProcHost::new(InProc::new(1, 4096), 0).relay(limit);
    let server = Server::bind(HERE, host, vec![], patient()).await.unwrap();
    let proxy = Proxy::before(server.address()).await;
    let (sender, victim) = (connect(server.address()).await, connect(proxy.address).await);
    proxy.set(LinkState::DropsReplies);
    let mut sent = 0;
    while sender.send(victim.me(), Message::new(0, 1, &[sent])).await.is_ok() {
        sent += 1;
    }
    assert_eq!(sent, 20, "what the victim has not acknowledged is bounded");
    assert!(sender.send(victim.me(), large()).await.is_err());
    proxy.set(LinkState::Down);
    until(|| !victim.is_connected()).await;
    proxy.set(LinkState::Up);
    for n in 0..20 {
        assert_eq!(victim.recv(|_, message| Some(message.words[0])).await, n);
    }
    assert_eq!((victim.close_reason(), victim.go(word(0).read()).await), (None, Ok(0)));
}

//! The handshake of a control connection: the version, and, where there is a secret, the proof that both sides know it. What a proof is, `tcp::auth` says; here it is bound to the client's queue pair.

use super::client::{RdmaConnectError, RdmaOptions};
use super::control::{Frame, VERSION, Welcome, version_name};
use super::queue_pair::QueuePairInfo;
use crate::backend::tcp::Secret;
use crate::backend::tcp::auth::{Exchange, Side, random_bytes};
use std::io;
use std::net::SocketAddr;

/// What both sides' proofs are about.
fn exchange(client: [u8; 32], server: [u8; 32], pair: &QueuePairInfo) -> Exchange {
    let mut session = [0; 16];
    session[..4].copy_from_slice(&pair.number.to_le_bytes());
    session[4..8].copy_from_slice(&pair.psn.to_le_bytes());
    session[8..].copy_from_slice(&pair.gid[8..]);
    Exchange { client, server, session }
}

/// The client's side: asks to be let in.
pub(super) fn connect(
    control: &mut (impl io::Read + io::Write),
    host: SocketAddr,
    pair: &QueuePairInfo,
    options: &RdmaOptions,
) -> Result<Welcome, RdmaConnectError> {
    let unreachable = |error: io::Error| {
        let closed = error.kind() == io::ErrorKind::UnexpectedEof;
        let other = "it closed the connection without an answer: is that the address of `serve --rdma`, and of the same version?";
        let error = if closed { io::Error::new(error.kind(), other) } else { error };
        RdmaConnectError::Unreachable { host, error }
    };
    let trust = |what| RdmaConnectError::Trust { host, what };
    let nonce = random_bytes();
    let hello = Frame::Hello { version: VERSION, pair: *pair, nonce, name: options.name.clone() };
    hello.write(control).map_err(unreachable)?;
    let mut asked = None;
    loop {
        match Frame::read(control).map_err(unreachable)? {
            Frame::Challenge { nonce: theirs } if asked.is_none() => {
                let secret = options.secret.as_ref();
                let secret = secret.ok_or_else(|| trust("wants a secret, and none was given"))?;
                let exchange = exchange(nonce, theirs, pair);
                Frame::Proof { proof: secret.prove(Side::Client, &exchange) }
                    .write(control)
                    .map_err(unreachable)?;
                asked = Some(exchange);
            }
            Frame::Welcome(welcome) => {
                let proven = match (&options.secret, &asked) {
                    (None, _) => true,
                    (Some(secret), Some(exchange)) => secret.accepts(Side::Server, exchange, &welcome.proof),
                    (Some(_), None) => false,
                };
                if !proven {
                    return Err(trust(
                        "did not prove that it knows the secret: it is not the one this secret is for",
                    ));
                }
                return Ok(*welcome);
            }
            Frame::Refused { text } => return Err(RdmaConnectError::Refused { host, text }),
            _ => return Err(RdmaConnectError::Refused { host, text: "it makes no sense".to_owned() }),
        }
    }
}

/// What a client said of itself in its handshake.
pub(super) struct ClientHello {
    pub(super) pair: QueuePairInfo,
    pub(super) name: String,
    /// The host's own proof.
    pub(super) proof: [u8; 32],
}

/// The host's side. `None` if the client was refused.
pub(super) fn accept(
    control: &mut (impl io::Read + io::Write),
    secret: Option<&Secret>,
) -> io::Result<Option<ClientHello>> {
    let Frame::Hello { version, pair, nonce, name } = Frame::read(control)? else { return Ok(None) };
    if version != VERSION {
        let text = format!(
            "it speaks version {} of the control protocol, and this client {}; install the same release on both sides",
            version_name(VERSION),
            version_name(version)
        );
        Frame::Refused { text }.write(control)?;
        return Ok(None);
    }
    let Some(secret) = secret else { return Ok(Some(ClientHello { pair, name, proof: [0; 32] })) };
    let ours = random_bytes();
    Frame::Challenge { nonce: ours }.write(control)?;
    let exchange = exchange(nonce, ours, &pair);
    match Frame::read(control)? {
        Frame::Proof { proof } if secret.accepts(Side::Client, &exchange, &proof) => {
            Ok(Some(ClientHello { pair, name, proof: secret.prove(Side::Server, &exchange) }))
        }
        _ => {
            Frame::Refused { text: "the secret is another one".to_owned() }.write(control)?;
            Ok(None)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::PeerId;
    use crate::capability::AtomicScope;
    use std::net::{TcpListener, TcpStream};

    const PAIR: QueuePairInfo = QueuePairInfo { number: 17, psn: 5, lid: 0, gid: [3; 16] };

    /// What comes of a client with one secret and a host with another.
    fn talk(
        client: Option<&str>,
        host: Option<&str>,
        lies: bool,
    ) -> (Result<Welcome, RdmaConnectError>, Option<String>) {
        let secret = |text: Option<&str>| text.map(|text| Secret::new(text).unwrap());
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let host = secret(host);
        let meeting = std::thread::spawn(move || {
            let (mut control, _) = listener.accept().unwrap();
            let met = accept(&mut control, host.as_ref()).ok().flatten();
            if let Some(met) = &met {
                let welcome = Welcome {
                    peer: PeerId::client(1),
                    now_ns: 1,
                    epoch: 1,
                    heartbeat_ms: 1,
                    grace_ms: 1,
                    scope: AtomicScope::Nic,
                    pair: PAIR,
                    proof: if lies { [1; 32] } else { met.proof },
                    regions: vec![],
                };
                Frame::Welcome(Box::new(welcome)).write(&mut control).unwrap();
            }
            met.map(|met| met.name)
        });
        let options =
            RdmaOptions { secret: secret(client), name: "a client".to_owned(), ..RdmaOptions::default() };
        let entered = connect(&mut TcpStream::connect(address).unwrap(), address, &PAIR, &options);
        (entered, meeting.join().unwrap())
    }

    #[test]
    fn only_those_who_share_the_secret_meet() {
        const A: &str = "0123456789abcdef";
        const B: &str = "fedcba9876543210";
        for (client, host) in [(None, None), (Some(A), Some(A))] {
            let (entered, name) = talk(client, host, false);
            assert_eq!(entered.unwrap().peer, PeerId::client(1));
            assert_eq!(name.as_deref(), Some("a client"));
        }
        for (client, host, says) in [
            (None, Some(A), "wants a secret"),
            (Some(A), Some(B), "the secret is another one"),
            (Some(A), None, "did not prove"),
        ] {
            let (entered, _) = talk(client, host, false);
            let error = entered.unwrap_err().to_string();
            assert!(error.contains(says), "{error}");
        }
        assert!(talk(Some(A), Some(A), true).0.unwrap_err().to_string().contains("did not prove"));
    }

    #[test]
    fn another_version_is_refused_with_both_names() {
        let mut wire = io::Cursor::new(Vec::new());
        let hello = Frame::Hello {
            version: u32::from_le_bytes(*b"LWR1"),
            pair: PAIR,
            nonce: [0; 32],
            name: String::new(),
        };
        hello.write(&mut wire).unwrap();
        let asked = wire.position();
        wire.set_position(0);
        assert!(accept(&mut wire, None).unwrap().is_none());
        wire.set_position(asked);
        let Frame::Refused { text } = Frame::read(&mut wire).unwrap() else { panic!("it is refused") };
        assert!(text.contains("LWR4") && text.contains("LWR1"), "{text}");
    }
}

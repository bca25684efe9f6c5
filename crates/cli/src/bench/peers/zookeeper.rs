//! ZooKeeper, by the recipe for locks of its own documentation: an ephemeral sequential node under the lock's, the lowest has the lock,
//! each other watches the one before it. Spoken to by its wire protocol.

use super::process::{Daemon, Folder, find, free_port, quiet};
use super::{Locker, Mode, Offers, Peer, until_connected};
use anyhow::{Context, Result, bail, ensure};
use std::collections::{HashMap, HashSet};
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::time::Duration;

/// The session's, as in its documentation's examples of sessions: twice the least that a server with its default tick allows.
const TIMEOUT: Duration = Duration::from_secs(8);
/// Where Debian has it.
const JAR: &str = "/usr/share/java/zookeeper.jar";

const CREATE: i32 = 1;
const DELETE: i32 = 2;
const EXISTS: i32 = 3;
const CHILDREN: i32 = 8;
const PING: i32 = 11;
const EPHEMERAL_SEQUENTIAL: i32 = 3;
const NO_NODE: i32 = -101;
const NODE_EXISTS: i32 = -110;
/// Numbers of messages that are no answers: an event of a watch, and a ping.
const EVENT: i32 = -1;
const PONG: i32 = -2;

#[derive(Debug)]
pub(super) struct ZooKeeper {
    port: u16,
    _daemon: Option<Daemon>,
}

pub(super) fn at(address: &str) -> Result<Box<dyn Peer>> {
    Ok(Box::new(ZooKeeper { port: address.parse()?, _daemon: None }))
}

pub(super) fn start() -> Result<Result<Box<dyn Peer>, String>> {
    let (Some(java), true) = (find("java", &[]), Path::new(JAR).exists()) else {
        return Ok(Err("zookeeper is not installed".to_owned()));
    };
    let (folder, port) = (Folder::new("zookeeper")?, free_port()?);
    let (data, file) = (folder.0.join("data"), folder.0.join("zoo.cfg"));
    let settings = format!(
        "tickTime=2000\ndataDir={}\nclientPort={port}\nclientPortAddress=127.0.0.1\nadmin.enableServer=false\nmaxClientCnxns=0\n",
        data.display()
    );
    std::fs::write(&file, settings)?;
    let mut command = quiet(&java, None);
    command
        .current_dir(&folder.0)
        .args(["-cp", JAR, "org.apache.zookeeper.server.quorum.QuorumPeerMain"])
        .arg(file);
    let peer = ZooKeeper { port, _daemon: Some(Daemon::start(command, folder, port)?) };
    until_connected(&peer)?;
    Ok(Ok(Box::new(peer)))
}

impl Peer for ZooKeeper {
    fn name(&self) -> &'static str {
        "zookeeper"
    }

    fn is_remote(&self) -> bool {
        true
    }

    fn offers(&self) -> Offers {
        Offers { waits: true, ..Offers::default() }
    }

    fn address(&self) -> String {
        self.port.to_string()
    }

    fn lets_go_after(&self) -> Option<Duration> {
        Some(TIMEOUT)
    }

    fn connect(&self) -> Result<Box<dyn Locker>> {
        let stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT / 3))?;
        let mut client =
            Client { stream, is_connected: false, number: 0, parents: HashSet::new(), held: HashMap::new() };
        let mut hello = vec![0; 12];
        hello.extend_from_slice(&(TIMEOUT.as_millis() as i32).to_be_bytes());
        hello.extend_from_slice(&[0; 8]);
        put_bytes(&mut hello, &[0; 16]);
        client.send(&hello)?;
        client.receive()?;
        client.is_connected = true;
        Ok(Box::new(client))
    }
}

struct Client {
    stream: TcpStream,
    /// A server that has just started may take a connection and never answer it.
    is_connected: bool,
    number: i32,
    parents: HashSet<String>,
    /// The nodes of the locks that are held.
    held: HashMap<String, String>,
}

fn put_bytes(out: &mut Vec<u8>, bytes: &[u8]) {
    out.extend_from_slice(&(bytes.len() as i32).to_be_bytes());
    out.extend_from_slice(bytes);
}

/// Takes a number off the front.
fn take_i32(bytes: &mut &[u8]) -> Result<i32> {
    let (first, rest) = bytes.split_first_chunk().context("an answer of zookeeper was cut short")?;
    *bytes = rest;
    Ok(i32::from_be_bytes(*first))
}

fn take_text(bytes: &mut &[u8]) -> Result<String> {
    let length = take_i32(bytes)?.max(0) as usize;
    let (text, rest) = bytes.split_at_checked(length).context("an answer of zookeeper was cut short")?;
    *bytes = rest;
    Ok(String::from_utf8_lossy(text).into_owned())
}

impl Client {
    fn send(&mut self, body: &[u8]) -> Result<()> {
        let mut message = Vec::new();
        put_bytes(&mut message, body);
        Ok(self.stream.write_all(&message)?)
    }

    /// The next message. Pings while there is none, so that the session lasts.
    fn receive(&mut self) -> Result<Vec<u8>> {
        let (mut bytes, mut filled) = (vec![0; 4], 0);
        while filled < bytes.len() {
            match self.stream.read(&mut bytes[filled..]) {
                Ok(0) => bail!("zookeeper closed the connection"),
                Ok(read) => filled += read,
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    ensure!(self.is_connected, "zookeeper does not answer");
                    let ping: Vec<u8> = [PONG, PING].iter().flat_map(|word| word.to_be_bytes()).collect();
                    self.send(&ping)?;
                }
                Err(error) => return Err(error.into()),
            }
            if filled == 4 && bytes.len() == 4 {
                bytes.resize(4 + take_i32(&mut &bytes[..])?.max(0) as usize, 0);
            }
        }
        bytes.drain(..4);
        Ok(bytes)
    }

    /// Asks, and returns the error's number and the answer.
    fn ask(&mut self, kind: i32, body: impl FnOnce(&mut Vec<u8>)) -> Result<(i32, Vec<u8>)> {
        self.number += 1;
        let mut said: Vec<u8> = [self.number, kind].iter().flat_map(|word| word.to_be_bytes()).collect();
        body(&mut said);
        self.send(&said)?;
        loop {
            let answer = self.receive()?;
            let mut rest = &answer[..];
            if take_i32(&mut rest)? != self.number {
                continue;
            }
            // Its transaction's number comes first.
            let mut rest = rest.get(8..).context("an answer of zookeeper was cut short")?;
            let error = take_i32(&mut rest)?;
            return Ok((error, rest.to_vec()));
        }
    }

    fn create(&mut self, path: &str, flags: i32) -> Result<Option<String>> {
        let (error, answer) = self.ask(CREATE, |out| {
            put_bytes(out, path.as_bytes());
            put_bytes(out, b"");
            // One entry: all rights, for every client.
            out.extend([1_i32, 31].iter().flat_map(|word| word.to_be_bytes()));
            put_bytes(out, b"world");
            put_bytes(out, b"anyone");
            out.extend_from_slice(&flags.to_be_bytes());
        })?;
        match error {
            0 => Ok(Some(take_text(&mut &answer[..])?)),
            NODE_EXISTS => Ok(None),
            error => bail!("zookeeper answered {error}"),
        }
    }

    fn children(&mut self, path: &str) -> Result<Vec<String>> {
        let (error, answer) = self.ask(CHILDREN, |out| {
            put_bytes(out, path.as_bytes());
            out.push(0);
        })?;
        if error != 0 {
            bail!("zookeeper answered {error}");
        }
        let mut rest = &answer[..];
        let count = take_i32(&mut rest)?;
        (0..count).map(|_| take_text(&mut rest)).collect()
    }

    /// Waits until the node is gone.
    fn wait_for(&mut self, path: &str) -> Result<()> {
        let (error, _) = self.ask(EXISTS, |out| {
            put_bytes(out, path.as_bytes());
            out.push(1);
        })?;
        if error == NO_NODE {
            return Ok(());
        }
        while take_i32(&mut &self.receive()?[..])? != EVENT {}
        Ok(())
    }
}

impl Locker for Client {
    fn lock(&mut self, name: &str, _: Mode) -> Result<()> {
        let parent = format!("/{name}");
        if !self.parents.contains(&parent) {
            self.create(&parent, 0)?;
            self.parents.insert(parent.clone());
        }
        let own =
            self.create(&format!("{parent}/lock-"), EPHEMERAL_SEQUENTIAL)?.context("it has a number")?;
        loop {
            let mut children = self.children(&parent)?;
            children.sort();
            let place = children.iter().position(|child| own.ends_with(child.as_str()));
            match place.context("the session is over")? {
                0 => break,
                place => self.wait_for(&format!("{parent}/{}", children[place - 1]))?,
            }
        }
        self.held.insert(name.to_owned(), own);
        Ok(())
    }

    fn unlock(&mut self, name: &str, _: Mode) -> Result<()> {
        let own = self.held.remove(name).context("it is held")?;
        let (error, _) = self.ask(DELETE, |out| {
            put_bytes(out, own.as_bytes());
            out.extend_from_slice(&(-1_i32).to_be_bytes());
        })?;
        if error == 0 { Ok(()) } else { bail!("zookeeper answered {error}") }
    }

    /// Its client library says that the session is over as soon as it hears the server again.
    fn believes(&mut self, name: &str) -> bool {
        let Some(own) = self.held.get(name).cloned() else { return false };
        let asked = self.ask(EXISTS, |out| {
            put_bytes(out, own.as_bytes());
            out.push(0);
        });
        asked.is_ok_and(|(error, _)| error == 0)
    }
}

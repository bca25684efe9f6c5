//! Locks of a server in another process, beside a bare ping-pong with that process; and one that stays with this client, beside
//! a lock in memory.
//!
//! The frames of the ping-pong are as long as a request and its grant. Each process is pinned to a core, the same for both;
//! with one core only there is no row: there the second segment, the unlock's, cannot leave while the server answers.

use super::bare::pin;
use super::measure::Runs;
use super::{Bound, Row};
use anyhow::{Context, Result, bail};
use lockwright::Client;
use lockwright_server::{Server, ServerOptions};
use std::hint::black_box;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};

/// Bytes of a request, and of its grant.
const FRAME: usize = 72;
const CYCLES: u32 = 200;
/// Of a lock that stays here; and as many make it stay.
const RETAINED_CYCLES: u32 = 20_000;

/// The other process: a server, and an echo.
#[derive(Debug)]
pub(super) struct Other {
    child: Child,
    pub(super) server: String,
    echo: String,
}

impl Other {
    pub(super) fn start(core: usize) -> Result<Self> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(["bench", "--partner", &format!("serve@{core}"), "none"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start the other process")?;
        let mut line = String::new();
        BufReader::new(child.stdout.take().context("it has an output")?).read_line(&mut line)?;
        let Some((server, echo)) = line.trim().split_once(' ') else { bail!("the other process failed") };
        Ok(Self { server: server.to_owned(), echo: echo.to_owned(), child })
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

/// The other process's own main: until its input is closed.
pub(super) fn serve(core: usize) -> Result<()> {
    pin(core);
    let server = Server::start(ServerOptions::default().listen("127.0.0.1:0".parse()?))?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    println!("{} {}", server.address(), listener.local_addr()?);
    std::thread::spawn(move || -> Result<()> {
        let (mut stream, _) = listener.accept()?;
        stream.set_nodelay(true)?;
        let mut frame = [0; FRAME];
        loop {
            stream.read_exact(&mut frame)?;
            stream.write_all(&frame)?;
        }
    });
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// A mutex of the server that nobody else wants. The unlock is not waited for.
pub(super) fn uncontended(runs: &Runs) -> Result<Vec<Row>> {
    if std::thread::available_parallelism()?.get() < 2 {
        return Ok(Vec::new());
    }
    let other = Other::start(1)?;
    // On a thread of its own: the client's other thread is pinned with it, and nobody else.
    let measured = std::thread::scope(|threads| {
        threads
            .spawn(|| -> Result<[f64; 4]> {
                pin(0);
                let mut stream = TcpStream::connect(&other.echo)?;
                stream.set_nodelay(true)?;
                let address = format!("tcp://{}", other.server);
                let lock = Client::options().retain(false).open(&address).wait()?.mutex("mutex")?;
                let retained = Client::open(&address).wait()?.mutex("retained")?;
                let memory = parking_lot::Mutex::new(0_u64);
                let mut frame = [0; FRAME];
                let [echo, asked] = runs.take_turns([
                    (CYCLES, &mut || {
                        stream
                            .write_all(&frame)
                            .and_then(|()| stream.read_exact(&mut frame))
                            .expect("it echoes");
                    }),
                    (CYCLES, &mut || drop(lock.lock().wait().expect("the server grants"))),
                ]);
                let [there, here] = runs.take_turns([
                    (RETAINED_CYCLES, &mut || *black_box(&memory).lock() += 1),
                    (RETAINED_CYCLES, &mut || drop(retained.lock().wait().expect("it stays here"))),
                ]);
                Ok([echo, asked, there, here])
            })
            .join()
            .expect("it does not panic")
    });
    let [echo, asked, there, here] = measured?;
    Ok(vec![
        Row {
            what: "tcp mutex, lock and unlock",
            ns: asked,
            against: "a bare tcp ping-pong",
            other_ns: echo,
            bound: Bound::AtMost(1.3),
            made_of: "the round trip, the server's wake-up and its books, a frame more for the unlock",
        },
        Row {
            what: "tcp mutex that stays here",
            ns: here,
            against: "a parking_lot mutex",
            other_ns: there,
            bound: Bound::AtMostAnd(3.0, 100.0),
            made_of: "a look at the clock, whether the session is certain; two short locks; the handle counted for the guard",
        },
    ])
}

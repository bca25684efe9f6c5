//! `serve --http`: a page to look at the server's locks with a browser, and to break one.
//!
//! | path | |
//! |---|---|
//! | `/`, `/page.js`, `/page.css` | the page, which is part of the program |
//! | `/api/spaces` | the names of the server's own spaces; of a cluster, of those in the shards that it serves |
//! | `/api/feed?space=S&q=TEXT&lock=HEX` | events: what the space looks like, about once a second (`summary`) |
//! | `POST /api/break` | takes a lock away from the holder with a token |
//! | `POST /api/login` | trades the server's secret for a cookie |
//! | `/metrics` | for Prometheus |
//!
//! **Trust.** Without a secret the page is for this machine alone: every user may look, and the server's user and root may
//! break locks, by the owner of the browser's socket. With one, those two and all users who have logged in may do both.
//! Requests that change something must come from the page itself: they need a header that other sites' pages cannot send, and
//! an `Origin` that is ours. On loopback the `Host` must be this machine, whatever a foreign name server says.

mod summary;

use self::summary::Question;
use crate::dispatcher::Dispatcher;
use crate::http::{self, Arrival, PATIENCE, Request, Response, Stream};
use crate::{metrics, socket_owner};
use lockwright::LockName;
use lockwright_fabric::backend::tcp::{ConnectionInfo, Secret, TlsServer, connection_info};
use serde_json::{Value, json};
use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;
use std::io;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::AsyncWriteExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Connections at a time, and pages among them.
const CONNECTIONS: usize = 64;
const PAGES: usize = 32;
/// How long a login lasts, and how many there are.
const LOGIN: Duration = Duration::from_secs(12 * 60 * 60);
const LOGINS: usize = 64;
/// Between two looks, at least; and so many times as long as a look takes, so that looking stays cheap.
const PERIOD: Duration = Duration::from_secs(1);
const REST: u32 = 20;
/// A wrong secret is answered late, so that guessing takes for ever.
const WRONG: Duration = Duration::from_millis(500);

/// Nothing from elsewhere, nothing inline, in nobody's frame.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

/// What the page shows: the server's own lock table, or those of the shards that it serves and the map of their cluster.
pub(super) trait View: Debug + Send + Sync {
    /// The lock tables, by shard.
    fn tables(&self) -> Vec<(u16, Dispatcher)>;

    /// Servers and shards of the cluster, as JSON. `None`: the server is alone.
    fn cluster(&self) -> Option<Value>;

    /// As Prometheus reads them.
    fn metrics(&self) -> String;
}

impl View for Dispatcher {
    fn tables(&self) -> Vec<(u16, Dispatcher)> {
        vec![(0, self.clone())]
    }

    fn cluster(&self) -> Option<Value> {
        None
    }

    fn metrics(&self) -> String {
        self.metrics()
    }
}

/// What the page needs to know.
#[derive(Debug)]
pub(super) struct Page {
    view: Arc<dyn View>,
    pub(super) secret: Option<Secret>,
    pub(super) tls: Option<TlsServer>,
    /// By cookie, until when.
    logins: Mutex<HashMap<String, Instant>>,
    pages: Arc<Semaphore>,
}

/// Who asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Visitor {
    /// May look and break.
    Trusted,
    /// May look.
    Local,
    /// Has to log in.
    Stranger,
}

/// Where a request came from, for the log: whose process sent it, as the kernel knows it, and from which address.
#[derive(Clone, Copy, Debug)]
struct Origin<'a> {
    user: Option<u32>,
    info: &'a ConnectionInfo,
}

impl Page {
    pub(super) fn new(view: Arc<dyn View>, secret: Option<Secret>, tls: Option<TlsServer>) -> Arc<Self> {
        let (logins, pages) = (Mutex::default(), Arc::new(Semaphore::new(PAGES)));
        Arc::new(Self { view, secret, tls, logins, pages })
    }

    /// Answers until the server ends.
    pub(super) async fn answer(self: Arc<Self>, listener: TcpListener) {
        http::listen(listener, CONNECTIONS, |stream, arrival| Arc::clone(&self).connection(stream, arrival))
            .await;
    }

    async fn connection(self: Arc<Self>, stream: TcpStream, arrival: Arrival) -> io::Result<()> {
        let Some(info) = connection_info(&stream) else { return Ok(()) };
        match &self.tls {
            None => self.one(stream, &info, arrival).await,
            Some(tls) => {
                let stream = tokio::time::timeout(PATIENCE, tls.accept(stream)).await??;
                self.one(stream, &info, arrival).await
            }
        }
    }

    async fn one(&self, mut stream: impl Stream, info: &ConnectionInfo, arrival: Arrival) -> io::Result<()> {
        let Some((request, _turn)) = arrival.request(&mut stream).await? else { return Ok(()) };
        let loopback = info.server.ip().to_canonical().is_loopback();
        let user = socket_owner::user(info);
        let visitor = if user.is_some_and(|user| user.is_trusted) || self.is_logged_in(&request) {
            Visitor::Trusted
        } else if self.secret.is_none() {
            Visitor::Local
        } else {
            Visitor::Stranger
        };
        if loopback && !request.header("host").is_some_and(is_this_machine) {
            return Response::text("421 Misdirected Request", "this page is for this machine")
                .write(&mut stream)
                .await;
        }
        if (request.method.as_str(), request.path.as_str()) == ("GET", "/api/feed")
            && visitor != Visitor::Stranger
        {
            return self.feed(&request, &mut stream).await;
        }
        let response =
            self.respond(&request, visitor, Origin { user: user.map(|user| user.uid), info }).await;
        tokio::time::timeout(PATIENCE, protected(response).write(&mut stream)).await?
    }

    async fn respond(&self, request: &Request, visitor: Visitor, origin: Origin<'_>) -> Response {
        let asset = |kind, text: &'static str| Response::new("200 OK", kind, text.as_bytes());
        let log_in = || Response::text("401 Unauthorized", "log in with the server's secret");
        match (request.method.as_str(), request.path.as_str()) {
            ("GET", "/") => asset("text/html; charset=utf-8", include_str!("page.html")),
            ("GET", "/page.js") => asset("text/javascript; charset=utf-8", include_str!("page.js")),
            ("GET", "/page.css") => asset("text/css; charset=utf-8", include_str!("page.css")),
            ("POST", _) if !is_from_the_page(request) => {
                Response::text("403 Forbidden", "only the page itself may ask for that")
            }
            ("POST", "/api/login") => self.log_in(&request.body).await,
            (_, path) if visitor == Visitor::Stranger && path.starts_with("/api/") => log_in(),
            ("GET", "/metrics") if visitor == Visitor::Stranger => log_in(),
            ("GET", "/metrics") => metrics::response(self.view.metrics()),
            ("GET", "/api/spaces") => {
                let tables = self.view.tables();
                let names = tables.iter().flat_map(|(_, table)| table.lock_table().directory.space_names());
                let spaces: BTreeSet<_> = names.collect();
                let may_break = visitor == Visitor::Trusted;
                json_response(&json!({ "spaces": spaces, "may_break": may_break }))
            }
            ("POST", "/api/break") if visitor != Visitor::Trusted => Response::text(
                "403 Forbidden",
                "only the server's user and root may break locks here; with --secret-file all users who log in",
            ),
            ("POST", "/api/break") => self.break_grant(&request.body, origin).await,
            ("GET" | "POST", _) => Response::text("404 Not Found", "there is no such page"),
            _ => Response::text("405 Method Not Allowed", "only GET and POST"),
        }
    }

    async fn break_grant(&self, body: &[u8], Origin { user, info }: Origin<'_>) -> Response {
        let bad = |why: &str| Response::text("400 Bad Request", why);
        let Ok(asked) = serde_json::from_slice::<Value>(body) else { return bad("that is not JSON") };
        let name = asked["lock"].as_str().and_then(unhex).and_then(|name| LockName::new(name).ok());
        // As text: JavaScript's numbers have 53 bits.
        let token = asked["token"].as_str().and_then(|token| token.parse::<u64>().ok());
        let (Some(space), Some(name), Some(token)) = (asked["space"].as_str(), name, token) else {
            return bad("a lock is broken by space, lock and token");
        };
        match self.take_away(space, &name, token).await {
            Ok(true) => {
                let from = info.client.to_string();
                tracing::warn!(%name, token, user, from, "a lock is broken, by way of the page");
                json_response(&json!({ "broken": true }))
            }
            Ok(false) => Response::text("409 Conflict", "that grant is over"),
            Err(why) => Response::text("500 Internal Server Error", &why),
        }
    }

    /// Takes a lock away; `false` if there is no such grant here. A shard's must be in etcd first.
    async fn take_away(&self, space: &str, name: &LockName, token: u64) -> Result<bool, String> {
        let mut waits = None;
        for (_, dispatcher) in self.view.tables() {
            let mut table = dispatcher.lock_table();
            let Some(space) = table.directory.find_space(space.as_bytes()) else { continue };
            if table.sharded.is_none() {
                let broken = table.break_own(space, name, token)?;
                table.totals.broken += u64::from(broken);
                return Ok(broken);
            }
            waits = waits.or_else(|| table.break_for_page(space, name, token));
        }
        let Some(mut told) = waits else { return Ok(false) };
        match tokio::time::timeout(PATIENCE, told.recv()).await {
            Ok(Some(broken)) => Ok(broken),
            Ok(None) => Err("its shard is another server's now: break it there".to_owned()),
            Err(_) => Err("etcd does not answer: it may be broken later".to_owned()),
        }
    }

    async fn log_in(&self, body: &[u8]) -> Response {
        if !self.secret.as_ref().is_some_and(|secret| secret.is(body)) {
            tokio::time::sleep(WRONG).await;
            return Response::text("403 Forbidden", "that is not the server's secret");
        }
        let Ok(cookie) = random() else {
            return Response::text("500 Internal Server Error", "no random numbers");
        };
        let mut logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        logins.retain(|_, until| *until > now);
        if logins.len() >= LOGINS {
            return Response::text("503 Service Unavailable", "too many people are logged in");
        }
        logins.insert(cookie.clone(), now + LOGIN);
        let secure = if self.tls.is_some() { "; Secure" } else { "" };
        let lasts = LOGIN.as_secs();
        let cookie =
            format!("lockwright={cookie}; HttpOnly; SameSite=Strict; Path=/; Max-Age={lasts}{secure}");
        json_response(&json!({ "ok": true })).with("Set-Cookie", cookie)
    }

    fn is_logged_in(&self, request: &Request) -> bool {
        let logins = self.logins.lock().unwrap_or_else(PoisonError::into_inner);
        request
            .cookie("lockwright")
            .and_then(|cookie| logins.get(cookie))
            .is_some_and(|until| *until > Instant::now())
    }

    /// Server-sent events, until the browser goes away.
    async fn feed(&self, request: &Request, stream: &mut impl Stream) -> io::Result<()> {
        let Ok(_page) = Arc::clone(&self.pages).try_acquire_owned() else {
            return Response::text("503 Service Unavailable", "too many pages are open").write(stream).await;
        };
        let question = Question {
            space: request.parameter("space").unwrap_or_default(),
            text: request.parameter("q").unwrap_or_default(),
            lock: request.parameter("lock").and_then(|hex| unhex(std::str::from_utf8(&hex).ok()?)),
        };
        let head = Response::new("200 OK", "text/event-stream", &b""[..]);
        protected(head).begin(stream).await?;
        loop {
            let (view, asked) = (Arc::clone(&self.view), question.clone());
            let began = Instant::now();
            // Not on the thread that reads connections: a million names take a while.
            let seen = tokio::task::spawn_blocking(move || asked.answer(&*view)).await;
            let Ok(seen) = seen else { return Ok(()) };
            let event = format!("data: {seen}\n\n");
            tokio::time::timeout(PATIENCE, stream.write_all(event.as_bytes())).await??;
            tokio::time::timeout(PATIENCE, stream.flush()).await??;
            tokio::time::sleep(PERIOD.max(began.elapsed() * REST)).await;
        }
    }
}

fn json_response(value: &Value) -> Response {
    Response::new("200 OK", "application/json", value.to_string().into_bytes())
}

/// With what browsers are told about the page.
fn protected(response: Response) -> Response {
    response
        .with("Content-Security-Policy", POLICY)
        .with("X-Content-Type-Options", "nosniff")
        .with("Referrer-Policy", "no-referrer")
        .with("Cache-Control", "no-store")
}

/// Other sites' pages can neither send this header without asking first, nor choose their `Origin`.
fn is_from_the_page(request: &Request) -> bool {
    let own_origin = |origin: &str| {
        let host = origin.strip_prefix("https://").or_else(|| origin.strip_prefix("http://"));
        host.is_some() && host == request.header("host")
    };
    request.header("x-lockwright").is_some() && request.header("origin").is_none_or(own_origin)
}

/// Whether a `Host` header names the machine that we listen on, by loopback.
fn is_this_machine(host: &str) -> bool {
    let name = match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) && !name.ends_with(':') => name,
        _ => host,
    };
    let name = name.trim_start_matches('[').trim_end_matches(']');
    name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.to_canonical().is_loopback())
}

fn random() -> io::Result<String> {
    use std::io::Read;
    let mut bytes = [0; 16];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(hex(&bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn unhex(text: &str) -> Option<Vec<u8>> {
    let digits: Option<Vec<_>> = text.chars().map(|c| c.to_digit(16).map(|digit| digit as u8)).collect();
    let digits = digits.filter(|digits| digits.len() % 2 == 0)?;
    Some(digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_machine_has_few_names() {
        for host in ["localhost", "localhost:80", "127.0.0.1:5680", "[::1]:5680", "[::1]", "127.9.9.9"] {
            assert!(is_this_machine(host), "{host}");
        }
        for host in
            ["evil.example:5680", "192.0.2.7", "localhost.evil.example", "", "127.0.0.1.evil.example:80"]
        {
            assert!(!is_this_machine(host), "{host}");
        }
    }

    #[test]
    fn names_of_any_bytes_go_through_hexadecimal() {
        let name = b"\x00\xff<script>";
        assert_eq!(unhex(&hex(name)).unwrap(), name);
        assert!(unhex("abc").is_none() && unhex("zz").is_none());
    }
}

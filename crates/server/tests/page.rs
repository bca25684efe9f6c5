//! The page of `serve --http`, by its HTTP: who may ask it for what, and what it says of locks. How it looks and works in a browser is
//! tested by `cargo xtask page`.
#![cfg(target_os = "linux")]

mod apart;

use apart::{eventually, options};
use lockwright::Client;
use lockwright::inspect::{EntryState, Inspector};
use lockwright_server::Server;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};

fn served() -> (Server, SocketAddr) {
    let server = Server::start(options().grace(apart::LONG).http("127.0.0.1:0".parse().unwrap())).unwrap();
    let http = server.http().unwrap();
    (server, http)
}

fn stock(server: &Server) -> String {
    format!("{}/stock", apart::address(server))
}

/// Sends a request, of which `Host` is one header like the others.
fn ask(http: SocketAddr, line: &str, headers: &[(&str, &str)], body: &str) -> TcpStream {
    let mut stream = TcpStream::connect(http).unwrap();
    let headers: String = headers.iter().map(|(name, value)| format!("{name}: {value}\r\n")).collect();
    let length = body.len();
    write!(stream, "{line} HTTP/1.1\r\nContent-Length: {length}\r\n{headers}\r\n{body}").unwrap();
    stream
}

/// The code and all of the answer.
fn answer(http: SocketAddr, line: &str, headers: &[(&str, &str)], body: &str) -> (u16, String) {
    let mut text = String::new();
    ask(http, line, headers, body).read_to_string(&mut text).unwrap();
    (text.split(' ').nth(1).unwrap().parse().unwrap(), text)
}

/// What the page is told first of a lock, whose name is given in hexadecimal.
fn look(http: SocketAddr, lock: &str) -> Value {
    let line = format!("GET /api/feed?space=stock&q=&lock={lock}");
    let stream = ask(http, &line, &[("Host", &http.to_string())], "");
    let lines = BufReader::new(stream).lines().map_while(Result::ok);
    let event = lines.filter_map(|line| line.strip_prefix("data: ").map(str::to_owned)).next();
    serde_json::from_str(&event.unwrap()).unwrap()
}

#[test]
fn only_the_page_itself_breaks_locks_and_only_by_the_name_of_this_machine() {
    let (server, http) = served();
    let guard = Client::open(&stock(&server)).wait().unwrap().mutex("a").unwrap().lock().wait().unwrap();
    let body = json!({ "space": "stock", "lock": "61", "token": guard.token().to_string() }).to_string();
    let host = http.to_string();
    let own = format!("http://{host}");
    let ask = |headers: &[(&str, &str)]| answer(http, "POST /api/break", headers, &body).0;
    for foreign in ["http://evil.example", "null", "https://127.0.0.1", ""] {
        let headers = [("Host", host.as_str()), ("X-Lockwright", "1"), ("Origin", foreign)];
        assert_eq!(ask(&headers), 403, "a page of {foreign:?}");
    }
    assert_eq!(ask(&[("Host", &host), ("Origin", &own)]), 403, "as a form of another page would send it");
    for foreign in ["evil.example", "", "192.0.2.7:80"] {
        assert_eq!(ask(&[("Host", foreign), ("X-Lockwright", "1")]), 421, "by the name {foreign:?}");
    }
    assert_eq!(ask(&[("X-Lockwright", "1"), ("Origin", &own)]), 421, "without a name");
    assert_eq!(guard.state(), lockwright::GuardState::Held);
    assert_eq!(ask(&[("Host", &host), ("X-Lockwright", "1"), ("Origin", &own)]), 200);
    eventually("it is lost", || guard.state() == lockwright::GuardState::Lost);
    let (_, metrics) = answer(http, "GET /metrics", &[("Host", &host)], "");
    assert!(metrics.contains("lockwright_broken_total 1\n"), "{metrics}");
}

#[test]
fn browsers_are_told_to_load_nothing_from_elsewhere() {
    let (_server, http) = served();
    for path in ["/", "/page.js", "/page.css", "/api/spaces", "/nothing"] {
        let (_, text) = answer(http, &format!("GET {path}"), &[("Host", &http.to_string())], "");
        let head = text.split("\r\n\r\n").next().unwrap().to_ascii_lowercase();
        let policy = head.lines().find_map(|line| line.strip_prefix("content-security-policy: "));
        let policy: Vec<_> = policy.expect(path).split("; ").collect();
        for rule in
            ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'", "form-action 'none'"]
        {
            assert!(policy.contains(&rule), "{path}: {policy:?}");
        }
        assert!(!head.contains("unsafe") && head.contains("x-content-type-options: nosniff"), "{head}");
    }
}

#[test]
fn a_retained_lock_is_shown_as_such_and_permits_as_permits() {
    let (server, http) = served();
    let one = Client::open(&stock(&server)).wait().unwrap();
    let lock = one.mutex("a").unwrap();
    let inspector = Inspector::open(&stock(&server)).unwrap();
    eventually("it stays", || {
        drop(lock.lock().wait().unwrap());
        inspector.entries().unwrap().iter().any(|entry| entry.state == EntryState::Retained)
    });
    let seen = look(http, "61");
    assert_eq!((&seen["held"], &seen["retained"]), (&json!(0), &json!(1)), "{seen}");
    let line = &seen["locks"][0];
    assert_eq!((&line["holders"], &line["retained"]), (&json!(0), &json!(1)), "{seen}");
    let entry = &seen["entries"][0];
    assert!(entry["state"] == "retained" && entry["token"].is_string(), "{seen}");
    let permit = one.semaphore("b", 4).unwrap().acquire_many(3).wait().unwrap();
    assert_eq!(look(http, "62")["entries"][0]["permits"], json!([3, 4]));
    drop(permit);
}

#[test]
fn connections_that_say_nothing_keep_nobody_from_page_and_metrics() {
    let here = "127.0.0.1:0".parse().unwrap();
    let server = Server::start(options().http(here).metrics(here)).unwrap();
    for (at, line) in [(server.http().unwrap(), "GET /"), (server.metrics().unwrap(), "GET /metrics")] {
        // Some of them have said a little. All in front of the last one, each for as long as a request may take, would be half a minute.
        let silent: Vec<_> = (0..400)
            .map(|index| {
                let mut stream = TcpStream::connect(at).unwrap();
                stream.write_all(&b"GET / HT"[..index % 8]).unwrap();
                stream
            })
            .collect();
        let mut asks = ask(at, line, &[("Host", &at.to_string())], "");
        asks.set_read_timeout(Some(apart::LONG)).unwrap();
        let mut text = String::new();
        asks.read_to_string(&mut text).expect("it is answered");
        assert!(text.starts_with("HTTP/1.1 200 OK"), "{text}");
        drop(silent);
    }
}

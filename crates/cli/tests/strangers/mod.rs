//! `serve --cluster` and an etcd that is none, or too old: one line that says which, and no server.

use crate::servers::lockwright;
use std::io::{Read, Write};
use std::net::TcpListener;

/// Something that answers every request like this; where it listens.
fn answers(answer: &'static str) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound").to_string();
    std::thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let _ = stream.read(&mut [0; 4096]);
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    address
}

/// The line with which a server refuses to start.
pub(crate) fn refusal(etcd: &str, more: &[&str]) -> String {
    let etcd = format!("etcd://{etcd}/test");
    let mut serve = lockwright(&["serve", "--listen", "127.0.0.1:0", "--cluster", &etcd]);
    let output = serve.args(more).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(2), "{said}");
    // An etcd that does not answer at all may be on its way up: it is asked for some seconds, and a warning says so.
    let lines: Vec<_> = said.lines().filter(|line| !line.contains("trying again for")).collect();
    assert_eq!(lines.len(), 1, "{said}");
    lines[0].to_owned()
}

#[test]
fn a_server_says_in_one_line_that_what_it_was_sent_to_is_no_etcd_or_too_old() {
    for (answer, says) in [
        ("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello", "hello"),
        // As etcd 3.2 does, whose gateway is elsewhere.
        ("HTTP/1.1 404 Not Found\r\nContent-Length: 19\r\n\r\n404 page not found\n", "404"),
        ("SSH-2.0-OpenSSH_9.2p1\r\n", "does not answer like an etcd"),
    ] {
        let at = answers(answer);
        let said = refusal(&at, &[]);
        assert!(said.contains("does not answer like an etcd of version 3.4") && said.contains(&at), "{said}");
        assert!(said.contains(says), "{said}");
    }
    let said = lockwright(&["serve", "--cluster", "10.0.0.1"]).output().expect("it runs");
    assert_eq!(said.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&said.stderr).contains("is no address of a cluster"), "{said:?}");
}

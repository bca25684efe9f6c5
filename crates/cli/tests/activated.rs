//! `lockwright serve` as a service manager starts it: with a socket that listens already (sd_listen_fds(3)).

mod started;

use serde_json::Value;
use started::Started;
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::process::{Command, Output, Stdio};

/// `serve` with `socket` as descriptors 3 and on, `passed` of them.
fn serve(socket: impl Into<OwnedFd>, passed: u32) -> Command {
    let mut command = Command::new("sh");
    let line = format!(
        r#"export LISTEN_PID=$$ LISTEN_FDS={passed}; exec "$0" serve --json --state none 3<&0 4<&0 </dev/null"#
    );
    command.args(["-c", &line, env!("CARGO_BIN_EXE_lockwright")]);
    command.stdin(Stdio::from(socket.into())).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

fn refused(command: &mut Command) -> String {
    let Output { status, stderr, .. } = command.output().unwrap();
    assert_eq!(status.code(), Some(2));
    String::from_utf8(stderr).unwrap()
}

#[test]
fn a_server_serves_on_the_socket_that_it_was_passed_on_and_those_who_came_before_it_are_served() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = socket.local_addr().unwrap();
    // In the socket's queue when the server is not there yet.
    let space = format!("tcp://{address}/stock");
    let args = ["run", "--space", &space, "-w", "20", "job", "--", "echo", "ran"];
    let early = Command::new(env!("CARGO_BIN_EXE_lockwright")).args(args).stdout(Stdio::piped()).spawn();
    let served = Started::new(serve(socket, 1));
    let said: Value = serde_json::from_str(&served.line).unwrap();
    assert_eq!(said["listening"], address.to_string());
    let early = early.unwrap().wait_with_output().unwrap();
    assert_eq!((early.status.code(), &*early.stdout), (Some(0), &b"ran\n"[..]));
}

#[test]
fn what_is_passed_on_and_is_no_listening_socket_is_refused_in_words() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let two = refused(&mut serve(socket.try_clone().unwrap(), 2));
    assert!(two.contains("2 sockets were passed on"), "{two}");
    let connected = TcpStream::connect(socket.local_addr().unwrap()).unwrap();
    let error = refused(&mut serve(connected, 1));
    assert!(error.contains("not a socket that listens"), "{error}");
}

#[test]
fn sockets_that_were_meant_for_another_process_are_left_alone() {
    let socket = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_lockwright"));
    command
        .args(["serve", "--json", "--listen", "127.0.0.1:0"])
        .env("LISTEN_PID", "1")
        .env("LISTEN_FDS", "1");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let said: Value = serde_json::from_str(&Started::new(command).line).unwrap();
    assert_ne!(said["listening"], socket.local_addr().unwrap().to_string());
}

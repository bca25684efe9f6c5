//! `GET /metrics`: just enough of HTTP for Prometheus, curl and a browser.
//!
//! What this file must not do: keep anybody's connection, or read more than a request's head.

use super::dispatcher::Dispatcher;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// The longest head of a request.
const MOST: usize = 8 << 10;
/// How long a request and its answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests at a time.
const AT_ONCE: usize = 16;

/// Answers until the server ends.
pub(super) async fn answer(listener: TcpListener, dispatcher: Dispatcher) {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let dispatcher = dispatcher.clone();
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(PATIENCE, one(stream, &dispatcher)).await;
                    drop(permit);
                });
            }
            // Out of file descriptors, most likely.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn one(mut stream: TcpStream, dispatcher: &Dispatcher) -> std::io::Result<()> {
    let mut head = Vec::new();
    while !head.windows(4).any(|four| four == b"\r\n\r\n") {
        if head.len() > MOST || stream.read_buf(&mut head).await? == 0 {
            return Ok(());
        }
    }
    let line = head.split(|byte| *byte == b'\r').next().unwrap_or_default();
    let mut words = line.split(|byte| *byte == b' ');
    let (status, body) = match (words.next(), words.next()) {
        (Some(b"GET"), Some(b"/metrics")) => ("200 OK", dispatcher.metrics()),
        (Some(b"GET"), Some(_)) => ("404 Not Found", "see /metrics\n".to_owned()),
        _ => ("405 Method Not Allowed", "only GET\n".to_owned()),
    };
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

//! Just enough of HTTP/1.1 for Prometheus, curl and a browser: one request per connection, no bodies of more than a few lines.
//!
//! Connections that have not sent a whole request keep nobody out: the oldest of them is closed for a new one.
//!
//! What this file must not do: keep a connection, or read more than a request may have.

use lockwright_fabric::backend::tcp::{Handshake, Handshakes};
use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// How long a request may take to arrive, and its answer to leave.
pub(super) const PATIENCE: Duration = Duration::from_secs(5);
/// The longest head of a request, and the longest body.
const MOST_HEAD: usize = 8 << 10;
const MOST_BODY: usize = 4 << 10;
const MOST_HEADERS: usize = 64;

/// A connection, encrypted or not.
pub(super) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<S: AsyncRead + AsyncWrite + Unpin + Send> Stream for S {}

/// Serves connections until the server ends: `most` that are answered, and `most` that have not come so far; a quarter of those of one
/// machine.
pub(super) async fn listen<F: Future<Output = io::Result<()>> + Send + 'static>(
    listener: TcpListener,
    most: usize,
    serve: impl Fn(TcpStream, Arrival) -> F,
) {
    let (arriving, room) = (Handshakes::new(most, most / 4), Arc::new(Semaphore::new(most)));
    loop {
        match listener.accept().await {
            Ok((stream, client)) => arriving.begin(client.ip(), |handshake| {
                let served = serve(stream, Arrival { handshake, room: Arc::clone(&room) });
                let served = async move {
                    // A client that went away is no news.
                    let _ = served.await;
                };
                tokio::spawn(served).abort_handle()
            }),
            // Out of file descriptors, most likely.
            Err(_) => {
                arriving.close_oldest();
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    }
}

/// A connection that may be closed for another one.
#[derive(Debug)]
pub(super) struct Arrival {
    handshake: Handshake,
    room: Arc<Semaphore>,
}

impl Arrival {
    /// Its request, when it is its turn; it is not closed for others any more. `None` if it is none, or too long.
    pub(super) async fn request(
        self,
        stream: &mut (impl Stream + ?Sized),
    ) -> io::Result<Option<(Request, OwnedSemaphorePermit)>> {
        let Some(request) = tokio::time::timeout(PATIENCE, Request::read(stream)).await?? else {
            return Ok(None);
        };
        let Ok(turn) = self.room.acquire_owned().await else { return Ok(None) };
        Ok(self.handshake.succeeds().then_some((request, turn)))
    }
}

/// A request that was read.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Request {
    pub(super) method: String,
    pub(super) path: String,
    query: String,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// Reads a request. `None` if it is none, or too long.
    async fn read(stream: &mut (impl Stream + ?Sized)) -> io::Result<Option<Self>> {
        let mut bytes = Vec::new();
        let (mut request, head) = loop {
            if bytes.len() > MOST_HEAD || stream.read_buf(&mut bytes).await? == 0 {
                return Ok(None);
            }
            match parse(&bytes) {
                Ok(Some(parsed)) => break parsed,
                Ok(None) => {}
                Err(_) => return Ok(None),
            }
        };
        let length = request.header("content-length").map_or(Ok(0), str::parse::<usize>);
        let Some(length) = length.ok().filter(|length| *length <= MOST_BODY) else { return Ok(None) };
        while bytes.len() < head + length {
            if stream.read_buf(&mut bytes).await? == 0 {
                return Ok(None);
            }
        }
        request.body = bytes[head..head + length].to_vec();
        Ok(Some(request))
    }

    /// A header, by its name in small letters.
    pub(super) fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(header, _)| header == name).map(|(_, value)| value.as_str())
    }

    /// A parameter of the query, decoded.
    pub(super) fn parameter(&self, name: &str) -> Option<Vec<u8>> {
        let pairs = self.query.split('&').filter_map(|pair| pair.split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| decoded(value)).next()
    }

    /// A cookie.
    pub(super) fn cookie(&self, name: &str) -> Option<&str> {
        let pairs = self.header("cookie")?.split(';').filter_map(|pair| pair.trim().split_once('='));
        pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next()
    }
}

/// The head of a request and its length; `None` if there is more to come.
fn parse(bytes: &[u8]) -> Result<Option<(Request, usize)>, httparse::Error> {
    let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
    let mut head = httparse::Request::new(&mut headers);
    let httparse::Status::Complete(length) = head.parse(bytes)? else { return Ok(None) };
    let target = head.path.unwrap_or_default();
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let text = |header: &httparse::Header<'_>| {
        (header.name.to_ascii_lowercase(), String::from_utf8_lossy(header.value).into_owned())
    };
    let request = Request {
        method: head.method.unwrap_or_default().to_owned(),
        path: path.to_owned(),
        query: query.to_owned(),
        headers: head.headers.iter().map(text).collect(),
        body: Vec::new(),
    };
    Ok(Some((request, length)))
}

/// What stands in a query, with its escapes undone.
fn decoded(text: &str) -> Vec<u8> {
    let mut bytes = text.bytes();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        let digit = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match byte {
            b'+' => out.push(b' '),
            b'%' => match (digit(bytes.next()), digit(bytes.next())) {
                (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
                _ => return out,
            },
            byte => out.push(byte),
        }
    }
    out
}

/// An answer.
#[derive(Debug)]
pub(super) struct Response {
    status: &'static str,
    kind: &'static str,
    headers: Vec<(&'static str, String)>,
    body: Cow<'static, [u8]>,
}

impl Response {
    pub(super) fn new(status: &'static str, kind: &'static str, body: impl Into<Cow<'static, [u8]>>) -> Self {
        Self { status, kind, headers: Vec::new(), body: body.into() }
    }

    /// A line of text.
    pub(super) fn text(status: &'static str, line: &str) -> Self {
        Self::new(status, "text/plain; charset=utf-8", format!("{line}\n").into_bytes())
    }

    pub(super) fn with(mut self, header: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((header, value.into()));
        self
    }

    fn head(&self, length: Option<usize>) -> String {
        let Self { status, kind, .. } = self;
        let mut head = format!("HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nConnection: close\r\n");
        if let Some(length) = length {
            head.push_str(&format!("Content-Length: {length}\r\n"));
        }
        for (name, value) in &self.headers {
            head.push_str(&format!("{name}: {value}\r\n"));
        }
        head + "\r\n"
    }

    /// Writes it, and closes the connection.
    pub(super) async fn write(&self, stream: &mut (impl Stream + ?Sized)) -> io::Result<()> {
        stream.write_all(self.head(Some(self.body.len())).as_bytes()).await?;
        stream.write_all(&self.body).await?;
        stream.shutdown().await
    }

    /// Writes the head of an answer whose body follows bit by bit.
    pub(super) async fn begin(&self, stream: &mut (impl Stream + ?Sized)) -> io::Result<()> {
        stream.write_all(self.head(None).as_bytes()).await?;
        stream.flush().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(mut text: &[u8]) -> Option<Request> {
        let mut stream = tokio::io::join(&mut text, tokio::io::sink());
        Request::read(&mut stream).await.unwrap()
    }

    #[tokio::test]
    async fn a_request_is_read_with_its_query_its_cookies_and_its_body() {
        let text = b"POST /api/break?space=a%20b%ff&q=x+y HTTP/1.1\r\nHost: h\r\nCookie: a=1; s=77\r\ncontent-length: 2\r\n\r\nhi!";
        let request = read(text).await.unwrap();
        assert_eq!((request.method.as_str(), request.path.as_str()), ("POST", "/api/break"));
        assert_eq!(request.parameter("space").unwrap(), b"a b\xff");
        assert_eq!((request.parameter("q").unwrap(), request.parameter("z")), (b"x y".to_vec(), None));
        assert_eq!((request.cookie("s"), request.header("host")), (Some("77"), Some("h")));
        assert_eq!(request.body, b"hi");
    }

    #[tokio::test]
    async fn what_is_no_request_or_too_long_is_none() {
        let long = [b"GET / HTTP/1.1\r\nx: ".to_vec(), vec![b'x'; MOST_HEAD]].concat();
        let body = b"POST / HTTP/1.1\r\nContent-Length: 999999\r\n\r\n".to_vec();
        for text in [b"\x16\x03\x01nonsense".to_vec(), b"GET / HT".to_vec(), long, body] {
            assert_eq!(read(&text).await, None, "{:?}", String::from_utf8_lossy(&text[..20.min(text.len())]));
        }
    }
}

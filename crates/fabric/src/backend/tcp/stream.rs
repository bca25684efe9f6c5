//! Both ends of a connection: a stream as an input buffer, an output buffer and its writing task.

use super::incoming::Incoming;
use super::outgoing::Outgoing;
use std::sync::Arc;
#[cfg(feature = "tls")]
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

/// A plain connection. At most `limit` bytes wait to be written.
pub(super) fn plain(stream: TcpStream, limit: usize) -> (Incoming, Arc<Outgoing>) {
    let (reader, writer) = stream.into_split();
    let out = Outgoing::new(Some(writer), limit);
    tokio::spawn(Arc::clone(&out).write(None));
    (Incoming::new(reader), out)
}

/// A TLS connection.
#[cfg(feature = "tls")]
pub(super) fn sealed(
    stream: impl AsyncRead + AsyncWrite + Send + 'static,
    limit: usize,
) -> (Incoming, Arc<Outgoing>) {
    let (reader, writer) = tokio::io::split(stream);
    let out = Outgoing::new(None, limit);
    tokio::spawn(Arc::clone(&out).write(Some(Box::new(writer))));
    (Incoming::new(reader), out)
}

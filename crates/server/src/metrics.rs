//! `GET /metrics`, for Prometheus.

use super::http::{self, Arrival, PATIENCE, Response};
use std::io;
use std::sync::Arc;
use tokio::net::{TcpListener, TcpStream};

/// Requests at a time.
const AT_ONCE: usize = 16;

/// The metrics, as text.
pub(super) type Source = Arc<dyn Fn() -> String + Send + Sync>;

/// Answers until the server ends.
pub(super) async fn answer(listener: TcpListener, source: Source) {
    http::listen(listener, AT_ONCE, |stream, arrival| one(stream, arrival, Arc::clone(&source))).await;
}

async fn one(mut stream: TcpStream, arrival: Arrival, source: Source) -> io::Result<()> {
    let Some((request, _turn)) = arrival.request(&mut stream).await? else { return Ok(()) };
    let response = match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/metrics") => response(source()),
        ("GET", _) => Response::text("404 Not Found", "see /metrics"),
        _ => Response::text("405 Method Not Allowed", "only GET"),
    };
    tokio::time::timeout(PATIENCE, response.write(&mut stream)).await?
}

/// The metrics, as Prometheus reads them.
pub(super) fn response(text: String) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Response::new("200 OK", kind, text.into_bytes())
}

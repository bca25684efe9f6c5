//! `GET /metrics`, for Prometheus.

use super::http::{Request, Response};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// How long a request and its answer may take.
const PATIENCE: Duration = Duration::from_secs(5);
/// Requests at a time.
const AT_ONCE: usize = 16;

/// The metrics, as text.
pub(super) type Source = Arc<dyn Fn() -> String + Send + Sync>;

/// Answers until the server ends.
pub(super) async fn answer(listener: TcpListener, source: Source) {
    let room = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok(permit) = Arc::clone(&room).acquire_owned().await else { return };
        match listener.accept().await {
            Ok((stream, _)) => {
                let source = Arc::clone(&source);
                tokio::spawn(async move {
                    let _ = tokio::time::timeout(PATIENCE, one(stream, &source)).await;
                    drop(permit);
                });
            }
            // Out of file descriptors, most likely.
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

async fn one(mut stream: TcpStream, source: &Source) -> std::io::Result<()> {
    let Some(request) = Request::read(&mut stream).await? else { return Ok(()) };
    let response = match (request.method.as_str(), request.path.as_str()) {
        ("GET", "/metrics") => response(source()),
        ("GET", _) => Response::text("404 Not Found", "see /metrics"),
        _ => Response::text("405 Method Not Allowed", "only GET"),
    };
    response.write(&mut stream).await
}

/// The metrics, as Prometheus reads them.
pub(super) fn response(text: String) -> Response {
    let kind = "text/plain; version=0.0.4; charset=utf-8";
    Response::new("200 OK", kind, text.into_bytes())
}

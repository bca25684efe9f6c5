//! HTTP/1.1 as far as etcd's gateway needs it: POST, one request at a time on a connection that is kept, answers with a length
//! or in chunks. Whatever else comes is an error, and answers are bounded.

use super::tls::Tls;
use std::io::{self, ErrorKind};
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;

/// The longest answer: a map of some ten thousand sessions.
const MAX_BODY: usize = 64 << 20;
/// As much is read of an answer that says nothing of its length.
const MAX_REST: u64 = 4 << 10;
/// The longest line of a head.
const MAX_LINE: u64 = 16 << 10;

/// Plain, or encrypted.
trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// See the module.
pub(super) struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    /// Plain, and nothing was answered yet.
    is_doubtful: bool,
}

impl std::fmt::Debug for Connection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Connection(…)")
    }
}

fn malformed(what: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.to_owned())
}

/// What does not speak TLS closes the connection where that begins, or answers what makes no sense.
fn no_tls(error: io::Error) -> io::Error {
    use ErrorKind::{ConnectionReset, UnexpectedEof};
    let is_foreign = error.to_string().contains("corrupt message");
    if is_foreign || matches!(error.kind(), ConnectionReset | UnexpectedEof) {
        let kind = if is_foreign { ErrorKind::InvalidData } else { error.kind() };
        return io::Error::new(kind, "it closed the connection where TLS begins, which --etcd-ca asks for");
    }
    error
}

/// What speaks TLS closes the connection when something else comes.
fn no_answer(error: io::Error) -> io::Error {
    use ErrorKind::{ConnectionReset, UnexpectedEof};
    if matches!(error.kind(), ConnectionReset | UnexpectedEof) {
        return io::Error::new(
            error.kind(),
            "it closed the connection without an answer; if it wants TLS, give --etcd-ca",
        );
    }
    error
}

impl Connection {
    pub(super) async fn open(endpoint: &str, tls: Option<&Tls>) -> io::Result<Self> {
        let stream = TcpStream::connect(endpoint).await?;
        stream.set_nodelay(true)?;
        let stream: Box<dyn Stream> = match tls {
            Some(tls) => Box::new(tls.connect(endpoint, stream).await.map_err(no_tls)?),
            None => Box::new(stream),
        };
        Ok(Self { stream: BufReader::new(stream), is_doubtful: tls.is_none() })
    }

    /// The status and the body of the answer.
    pub(super) async fn post(
        &mut self,
        host: &str,
        path: &str,
        token: Option<&str>,
        body: &str,
    ) -> io::Result<(u16, String)> {
        let length = body.len();
        let token = token.map(|token| format!("Authorization: {token}\r\n")).unwrap_or_default();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n{token}\
             Content-Length: {length}\r\n\r\n{body}"
        );
        self.stream.get_mut().write_all(request.as_bytes()).await?;
        let head = self.line().await;
        let head = if self.is_doubtful { head.map_err(no_answer) } else { head }?;
        self.is_doubtful = false;
        let mut words = head.split(' ');
        let is_http = words.next().is_some_and(|word| word.starts_with("HTTP/1."));
        let status = words.next().and_then(|word| word.parse().ok()).filter(|_| is_http);
        let status = status.ok_or_else(|| malformed("it does not speak HTTP"))?;
        let (mut length, mut chunked) = (None, false);
        loop {
            let line = self.line().await?.to_ascii_lowercase();
            if line.is_empty() {
                break;
            }
            if let Some(value) = line.strip_prefix("content-length:") {
                length = value.trim().parse::<usize>().ok();
            }
            chunked |= line.starts_with("transfer-encoding:") && line.contains("chunked");
        }
        let mut body = Vec::new();
        match (chunked, length) {
            (true, _) => while self.chunk(&mut body).await? {},
            (false, Some(length)) => self.read(&mut body, length).await?,
            // The last answer on its connection, as what is no etcd may give one.
            (false, None) => drop((&mut self.stream).take(MAX_REST).read_to_end(&mut body).await?),
        }
        String::from_utf8(body).map(|body| (status, body)).map_err(|_| malformed("an answer is no text"))
    }

    async fn line(&mut self) -> io::Result<String> {
        let mut line = String::new();
        (&mut self.stream).take(MAX_LINE).read_line(&mut line).await?;
        match line.strip_suffix('\n') {
            Some(line) => Ok(line.trim_end_matches('\r').to_owned()),
            None => Err(ErrorKind::UnexpectedEof.into()),
        }
    }

    async fn read(&mut self, body: &mut Vec<u8>, length: usize) -> io::Result<()> {
        let at = body.len();
        if at + length > MAX_BODY {
            return Err(malformed("an answer is too long"));
        }
        body.resize(at + length, 0);
        self.stream.read_exact(&mut body[at..]).await.map(drop)
    }

    /// The next chunk; `false` after the last.
    async fn chunk(&mut self, body: &mut Vec<u8>) -> io::Result<bool> {
        let line = self.line().await?;
        let length = line.split(';').next().and_then(|length| usize::from_str_radix(length.trim(), 16).ok());
        let length = length.ok_or_else(|| malformed("a chunk has no length"))?;
        self.read(body, length).await?;
        // The end of the chunk; behind the last one there are trailers before it.
        while !self.line().await?.is_empty() {}
        Ok(length > 0)
    }
}

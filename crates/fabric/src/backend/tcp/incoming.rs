//! The input buffer of a connection: bytes in, whole frames out.

use super::frame::{Decoded, Frame, FrameError, HEADER, MAX_BODY, decode};
use crate::wait::Time;
use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::{AsyncRead, ReadBuf};

const FIRST: usize = 16 << 10;

/// Why no frame comes.
#[derive(Debug, thiserror::Error)]
pub(super) enum ReadError {
    #[error("the connection was closed")]
    Closed,
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error(transparent)]
    Frame(#[from] FrameError),
}

/// The reading side of a connection, with or without TLS.
pub(super) struct Incoming {
    reader: Box<dyn AsyncRead + Send + Unpin>,
    bytes: Vec<u8>,
    start: usize,
    end: usize,
    /// Of a client: when each ping was sent that was not answered yet.
    pub(super) pings: VecDeque<Time>,
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Incoming").field("unread", &(self.end - self.start)).finish_non_exhaustive()
    }
}

impl Incoming {
    pub(super) fn new(reader: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self { reader: Box::new(reader), bytes: vec![0; FIRST], start: 0, end: 0, pings: VecDeque::new() }
    }

    /// The next frame that has arrived completely.
    pub(super) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        match decode(&self.bytes[self.start..self.end])? {
            Decoded::Frame(frame, used) => {
                self.start += used;
                Ok(Some(frame))
            }
            Decoded::Partial(size) => {
                self.make_room(size);
                Ok(None)
            }
        }
    }

    /// Makes room for a frame of `size` bytes.
    fn make_room(&mut self, size: usize) {
        debug_assert!(size <= HEADER + MAX_BODY, "decode lets no larger frame begin");
        if self.start > 0 {
            self.bytes.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.bytes.len() < size {
            self.bytes.resize(size, 0);
        }
    }

    /// Reads once. Cancel safe.
    pub(super) async fn fill(&mut self) -> Result<(), ReadError> {
        poll_fn(|cx| self.poll_fill(cx)).await
    }

    /// As [`Incoming::fill`], for a caller that unlocks the buffer between polls.
    pub(super) fn poll_fill(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), ReadError>> {
        let mut room = ReadBuf::new(&mut self.bytes[self.end..]);
        let read = ready!(Pin::new(&mut self.reader).poll_read(cx, &mut room)).map(|()| room.filled().len());
        Poll::Ready(self.advance(read?))
    }

    /// Reads once from `socket`, whose buffer this is, without waiting: `WouldBlock` if there is nothing.
    #[cfg(target_os = "linux")]
    pub(super) fn fill_now(&mut self, socket: &mut impl io::Read) -> Result<(), ReadError> {
        let read = socket.read(&mut self.bytes[self.end..])?;
        self.advance(read)
    }

    fn advance(&mut self, bytes: usize) -> Result<(), ReadError> {
        self.end += bytes;
        if bytes == 0 { Err(ReadError::Closed) } else { Ok(()) }
    }

    /// Waits for the next frame.
    pub(super) async fn frame(&mut self) -> Result<Frame, ReadError> {
        loop {
            if let Some(frame) = self.next()? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// Discards input until the other side closes: closing a connection with unread bytes would reset it, and the other side
    /// might not see the last frame.
    pub(super) async fn drain(&mut self) {
        self.start = 0;
        self.end = 0;
        while self.fill().await.is_ok() {
            self.end = 0;
        }
    }
}

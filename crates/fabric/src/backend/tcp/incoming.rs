//! What is read from one connection: bytes in, whole frames out.

use super::frame::{Decoded, Frame, FrameError, HEADER, MAX_BODY, decode};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt};

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
}

impl Incoming {
    pub(super) fn new(reader: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self { reader: Box::new(reader), bytes: vec![0; FIRST], start: 0, end: 0 }
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

    /// Room for a frame of `size` bytes, and always for some more.
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

    /// Reads what there is. Nothing is lost if the future is dropped.
    pub(super) async fn fill(&mut self) -> Result<(), ReadError> {
        match self.reader.read(&mut self.bytes[self.end..]).await? {
            0 => Err(ReadError::Closed),
            read => {
                self.end += read;
                Ok(())
            }
        }
    }

    /// The next frame, waited for.
    pub(super) async fn frame(&mut self) -> Result<Frame, ReadError> {
        loop {
            if let Some(frame) = self.next()? {
                return Ok(frame);
            }
            self.fill().await?;
        }
    }

    /// Reads and forgets until the other side closes: a connection closed with bytes unread would take back what was
    /// written to it last.
    pub(super) async fn drain(&mut self) {
        self.start = 0;
        self.end = 0;
        while self.fill().await.is_ok() {
            self.end = 0;
        }
    }
}

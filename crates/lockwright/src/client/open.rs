//! Opening a space: a future, to be awaited on any executor or waited for by a thread.

use super::{Client, ClientOptions};
use crate::error::OpenError;
use std::pin::Pin;
use std::sync::{Arc, PoisonError};
use std::task::{Context, Poll, Waker};

/// A space that is being opened: `.await` it, or [`wait`](Self::wait) for it. Nothing happens before that.
///
/// Awaited, it connects on a thread of its own, so it never blocks the thread that polls it.
///
/// # Cancelling
/// Dropping it gives up: what was opened meanwhile is closed.
///
/// ```
/// # async fn example() -> Result<(), lockwright::OpenError> {
/// let client = lockwright::Client::open("shm:").await?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "nothing is opened before it is awaited, or waited for"]
pub struct Open {
    state: OpenState,
}

#[derive(Debug)]
enum OpenState {
    New { options: Box<ClientOptions>, address: String },
    Opening(Arc<std::sync::Mutex<Opening>>),
    Done,
}

/// What the thread that opens a space and the task that waits for it share.
#[derive(Debug, Default)]
struct Opening {
    opened: Option<Result<Client, OpenError>>,
    waker: Option<Waker>,
}

impl Open {
    pub(super) fn new(options: ClientOptions, address: String) -> Self {
        Self { state: OpenState::New { options: Box::new(options), address } }
    }

    /// Opens the space on this thread, and blocks it meanwhile: for no time worth mentioning if the space is on this host,
    /// until the server answers or cannot be reached otherwise.
    ///
    /// # Errors
    /// If the address is none, or the space cannot be used.
    ///
    /// # Panics
    /// If it was polled before.
    ///
    /// ```
    /// let client = lockwright::Client::open("mem:").wait()?;
    /// # Ok::<(), lockwright::OpenError>(())
    /// ```
    pub fn wait(self) -> Result<Client, OpenError> {
        match self.state {
            OpenState::New { options, address } => options.open_here(&address),
            _ => panic!("a space was opened with wait() after it was polled"),
        }
    }
}

impl Future for Open {
    type Output = Result<Client, OpenError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let OpenState::New { options, address } = &self.state {
            let (options, address) = (options.clone(), address.clone());
            let opening = Arc::new(std::sync::Mutex::new(Opening::default()));
            let theirs = Arc::clone(&opening);
            let failed =
                |error: std::io::Error| OpenError::Failed { space: address.clone(), why: error.to_string() };
            let thread = std::thread::Builder::new().name("lockwright-open".to_owned());
            let space = address.clone();
            let spawned = thread.spawn(move || {
                let opened = options.open_here(&space);
                let mut opening = theirs.lock().unwrap_or_else(PoisonError::into_inner);
                opening.opened = Some(opened);
                let waker = opening.waker.take();
                drop(opening);
                waker.into_iter().for_each(Waker::wake);
            });
            if let Err(error) = spawned {
                let error = failed(error);
                self.state = OpenState::Done;
                return Poll::Ready(Err(error));
            }
            self.state = OpenState::Opening(opening);
        }
        let OpenState::Opening(opening) = &self.state else {
            panic!("an open was polled after it was done");
        };
        let mut shared = opening.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(opened) = shared.opened.take() else {
            shared.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        drop(shared);
        self.state = OpenState::Done;
        Poll::Ready(opened)
    }
}

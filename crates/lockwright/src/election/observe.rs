//! Observers of an election: a thread looks who leads, and the observer is told of every new token.
//!
//! Only the newest leader that the observer has not heard of is kept, so a slow one costs no memory. An error is told once, when it
//! begins; meanwhile it is tried again. A look takes at most a tenth of the time, however long the listing is.
//!
//! What this file must not do: tell of a leader that the listing is not sure of.

use super::{Election, Leader, Noted};
#[cfg(target_os = "linux")]
use crate::client::Address;
use crate::client::Client;
use crate::name::LockName;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Between two looks, at least.
const PAUSE: Duration = Duration::from_millis(100);
/// The same, where a look asks all clients of the space.
#[cfg(all(target_os = "linux", feature = "fiss"))]
const PAUSE_OF_ALL: Duration = Duration::from_secs(1);
/// How much longer than a look the pause after it is, at least.
const REST: u32 = 9;
/// Between two looks, at most.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// Why it is not known who leads.
///
/// ```
/// # fn example(error: lockwright::ObserveError) {
/// eprintln!("{error}"); // the server cannot be reached, or has no room; the observer goes on trying
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("it is not known who leads {election}: {why}")]
pub struct ObserveError {
    election: LockName,
    why: String,
}

/// Looks who leads.
#[derive(Debug)]
pub(super) struct LeaderLookup {
    name: LockName,
    source: Source,
}

#[derive(Debug)]
enum Source {
    /// What leaders of `mem:` have noted.
    Noted(Arc<Noted>),
    #[cfg(target_os = "linux")]
    Listed { client: Client, inspector: Option<Box<crate::inspect::Inspector>> },
}

impl LeaderLookup {
    pub(super) fn new(election: &Election) -> Self {
        Self { name: election.name.clone(), source: Source::new(&election.client) }
    }

    pub(super) fn look(&mut self) -> Result<Option<Leader>, ObserveError> {
        match &mut self.source {
            Source::Noted(noted) => Ok(noted.leader(&self.name)),
            #[cfg(target_os = "linux")]
            Source::Listed { client, inspector } => {
                let election = &self.name;
                let failed = |why: String| ObserveError { election: election.clone(), why };
                if inspector.is_none() {
                    let opened = crate::inspect::Inspector::open_with(client.address(), client.opened_with());
                    *inspector = Some(Box::new(opened.map_err(|error| failed(error.to_string()))?));
                }
                let entries = inspector.as_ref().expect("just opened").entries_of(election);
                if entries.is_err() {
                    *inspector = None;
                }
                let entries = entries.map_err(|error| failed(error.to_string()))?;
                // The mutex changed hands meanwhile: the next look says who has it.
                let leads = entries.into_iter().filter(|entry| leads(entry) && !entry.changing);
                // In one-sided spaces a client gives a lock back before it strikes itself off.
                let newest = leads.max_by_key(|entry| entry.token);
                Ok(newest.and_then(|entry| Some(Leader { token: entry.token?, name: entry.program })))
            }
        }
    }

    /// Between two looks, at least.
    fn pause(&self) -> Duration {
        match &self.source {
            #[cfg(all(target_os = "linux", feature = "fiss"))]
            Source::Listed { client, .. }
                if matches!(Address::parse(client.address()), Ok(Address::Fiss { .. })) =>
            {
                PAUSE_OF_ALL
            }
            _ => PAUSE,
        }
    }
}

/// Whether a line of a listing is about who holds the mutex.
#[cfg(target_os = "linux")]
fn leads(entry: &crate::inspect::Entry) -> bool {
    let is_mutex = entry.range.is_none() && entry.permits.is_none() && !entry.shared;
    is_mutex && entry.state == crate::inspect::EntryState::Held && entry.alive
}

impl Source {
    fn new(client: &Client) -> Self {
        #[cfg(target_os = "linux")]
        if !matches!(Address::parse(client.address()), Ok(Address::Mem)) {
            return Self::Listed { client: client.clone(), inspector: None };
        }
        Self::Noted(Arc::clone(client.noted()))
    }
}

/// The leaders of an election, one after the other: see [`Election::observe`]. Dropping it ends the look-out.
///
/// It is a stream: [`next`](Self::next) is what `StreamExt::next` is elsewhere, and [`poll_next`](Self::poll_next) makes one of any
/// library, for example by `futures::stream::poll_fn(move |cx| leaders.poll_next(cx))`.
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// let election = client.election("scheduler").unwrap();
/// let mut leaders = election.observe();
/// let _leadership = election.campaign("node-7").wait().unwrap();
/// assert_eq!(leaders.next().wait()?.name, "node-7");
/// # Ok::<(), lockwright::ObserveError>(())
/// ```
pub struct Observer {
    shared: Arc<Shared>,
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer").finish_non_exhaustive()
    }
}

#[derive(Default)]
struct Shared {
    state: Mutex<Seen>,
    changed: Condvar,
}

/// What was seen.
#[derive(Default)]
struct Seen {
    /// Not yet told.
    news: Option<Result<Leader, ObserveError>>,
    waker: Option<Waker>,
    stop: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, Seen> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tell(&self, news: Result<Leader, ObserveError>) {
        let mut state = self.state();
        state.news = Some(news);
        let waker = state.waker.take();
        drop(state);
        self.changed.notify_all();
        waker.into_iter().for_each(Waker::wake);
    }
}

/// What of the looks is news.
#[derive(Debug, Default)]
pub(super) struct News {
    token: Option<u64>,
    failed: bool,
}

impl News {
    pub(super) fn of(
        &mut self,
        look: Result<Option<Leader>, ObserveError>,
    ) -> Option<Result<Leader, ObserveError>> {
        let began = !std::mem::replace(&mut self.failed, look.is_err());
        match look {
            Err(error) => began.then_some(Err(error)),
            Ok(leader) => {
                let leader = leader.filter(|leader| self.token.is_none_or(|told| leader.token > told))?;
                self.token = Some(leader.token);
                Some(Ok(leader))
            }
        }
    }
}

impl Observer {
    pub(super) fn new(election: &Election) -> Self {
        let shared = Arc::new(Shared::default());
        let (theirs, lookup) = (Arc::clone(&shared), LeaderLookup::new(election));
        let thread = std::thread::Builder::new().name("lockwright-observe".to_owned());
        if let Err(error) = thread.spawn(move || run(&theirs, lookup)) {
            shared.tell(Err(ObserveError { election: election.name.clone(), why: error.to_string() }));
        }
        Self { shared }
    }

    /// The next leader that this observer has not been told of; the first is the one who leads already. An error is no end: it is
    /// told once, and looked for on.
    ///
    /// # Cancelling
    /// Dropping the future loses nothing.
    ///
    /// ```
    /// # async fn example(mut leaders: lockwright::Observer) -> Result<(), lockwright::ObserveError> {
    /// let leader = leaders.next().await?;
    /// # Ok(()) }
    /// ```
    #[expect(clippy::should_implement_trait, reason = "as `StreamExt::next`: there is something to wait for")]
    pub fn next(&mut self) -> NextLeader<'_> {
        NextLeader { observer: self }
    }

    /// The same for those who poll. Never `None`: there is always a next election.
    ///
    /// ```
    /// # async fn example(mut leaders: lockwright::Observer) {
    /// let leader = std::future::poll_fn(|cx| leaders.poll_next(cx)).await;
    /// # }
    /// ```
    pub fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Option<Result<Leader, ObserveError>>> {
        let mut state = self.shared.state();
        let Some(news) = state.news.take() else {
            state.waker = Some(cx.waker().clone());
            return Poll::Pending;
        };
        Poll::Ready(Some(news))
    }
}

impl Drop for Observer {
    fn drop(&mut self) {
        self.shared.state().stop = true;
        self.shared.changed.notify_all();
    }
}

/// The next leader, when there is one: see [`Observer::next`].
///
/// ```
/// # fn example(mut leaders: lockwright::Observer) -> Result<(), lockwright::ObserveError> {
/// let leader = leaders.next().wait()?;
/// # Ok(()) }
/// ```
#[derive(Debug)]
#[must_use = "futures do nothing unless awaited"]
pub struct NextLeader<'a> {
    observer: &'a mut Observer,
}

impl NextLeader<'_> {
    /// Blocks this thread until there is another leader.
    ///
    /// # Errors
    /// If it is not known who leads.
    ///
    /// ```
    /// # fn example(mut leaders: lockwright::Observer) -> Result<(), lockwright::ObserveError> {
    /// println!("{} leads", leaders.next().wait()?.name);
    /// # Ok(()) }
    /// ```
    pub fn wait(self) -> Result<Leader, ObserveError> {
        let Shared { state: _, changed } = &*self.observer.shared;
        let mut state = self.observer.shared.state();
        loop {
            if let Some(news) = state.news.take() {
                return news;
            }
            state = changed.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Future for NextLeader<'_> {
    type Output = Result<Leader, ObserveError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.observer.poll_next(cx).map(|news| news.expect("there is always a next election"))
    }
}

fn run(shared: &Shared, mut lookup: LeaderLookup) {
    let mut news = News::default();
    loop {
        let began = Instant::now();
        let seen = news.of(lookup.look());
        if shared.state().stop {
            return;
        }
        seen.into_iter().for_each(|seen| shared.tell(seen));
        let pause = (began.elapsed() * REST).clamp(lookup.pause(), LONGEST_PAUSE);
        let until = Instant::now() + pause;
        let mut state = shared.state();
        loop {
            let left = until.saturating_duration_since(Instant::now());
            if state.stop {
                return;
            }
            if left.is_zero() {
                break;
            }
            state = shared.changed.wait_timeout(state, left).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

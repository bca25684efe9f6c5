//! Elections: of all candidates for a name one leads at a time, and all clients can see which.
//!
//! An election is the mutex of that name: its holder leads. A candidate's name is what its client is called in listings, so every
//! campaign is a client of its own, opened under that name; an observer reads name and token in one line of the listing, which the
//! space, or the leader itself, writes with the grant. In `mem:`, which nobody can list, leaders are noted beside the space.
//!
//! What this file must not do: let a candidate lead that does not hold the mutex.

mod observe;

pub use observe::{NextLeader, ObserveError, Observer};

use crate::backend::BoxFuture;
use crate::client::{Address, Client};
use crate::error::{HandleError, LockError, LostReason, OpenError};
use crate::lock::{AnyGuard, GuardState, LostSignal, MutexGuard, UncertainSignal, Unlock};
use crate::name::LockName;
use std::collections::HashMap;
use std::fmt;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

/// The longest name of a candidate, in bytes.
const CANDIDATE_MAX: usize = 64;
/// What a client may be called in a space that is a file of a host, with the host before it.
#[cfg(target_os = "linux")]
const LOCAL_LABEL_MAX: usize = 56;

/// An election: see [`Client::election`]. Cheap to clone.
///
/// ```
/// use lockwright::Client;
///
/// let client = Client::open("mem:").wait()?; // or any other space
/// let election = client.election("scheduler")?;
/// let leadership = election.campaign("node-7").wait()?;
/// println!("leading; writes carry token {}", leadership.token());
///
/// let leader = election.leader()?.expect("there is one");
/// assert_eq!((leader.name.as_str(), leader.token), ("node-7", leadership.token()));
/// leadership.resign().wait()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct Election {
    client: Client,
    name: LockName,
}

/// A leader, as of the last look.
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// let election = client.election("scheduler").unwrap();
/// let _leadership = election.campaign("node-7").wait().unwrap();
/// let leader: lockwright::Leader = election.leader().unwrap().unwrap();
/// assert_eq!(leader.name, "node-7");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Leader {
    /// What it calls itself; of a client that holds the mutex without a campaign, its program.
    pub name: String,
    /// Its fencing token: a later leader's is larger.
    pub token: u64,
}

/// Why a campaign came to nothing.
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// use lockwright::CampaignError;
/// let election = client.election("scheduler").unwrap();
/// assert!(matches!(election.campaign("").wait(), Err(CampaignError::Candidate(_))));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CampaignError {
    /// Nobody can be called that here.
    #[error("no candidate can be called that here: {0}")]
    Candidate(String),
    /// The space could not be opened once more, for the candidate.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The space has no room for the election.
    #[error(transparent)]
    Handle(#[from] HandleError),
    /// The candidate was not elected.
    #[error(transparent)]
    Lock(#[from] LockError),
}

/// Leaders of a space that nobody can list.
#[derive(Debug, Default)]
pub(crate) struct Noted(Mutex<HashMap<LockName, Leader>>);

impl Noted {
    fn all(&self) -> std::sync::MutexGuard<'_, HashMap<LockName, Leader>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leader(&self, election: &LockName) -> Option<Leader> {
        self.all().get(election).cloned()
    }
}

/// A leader that is noted until this is dropped.
#[derive(Debug)]
struct Note {
    noted: Arc<Noted>,
    election: LockName,
    token: u64,
}

impl Note {
    fn new(noted: &Arc<Noted>, election: &LockName, leader: Leader) -> Self {
        let (noted, election, token) = (Arc::clone(noted), election.clone(), leader.token);
        noted.all().insert(election.clone(), leader);
        Self { noted, election, token }
    }
}

impl Drop for Note {
    fn drop(&mut self) {
        let mut all = self.noted.all();
        if all.get(&self.election).is_some_and(|leader| leader.token == self.token) {
            all.remove(&self.election);
        }
    }
}

impl Client {
    /// The election called `name`. It is the [mutex](Self::mutex) of that name: who holds that, leads, so `lockwright run NAME` on
    /// a shell takes part in it.
    ///
    /// # Errors
    /// If the name cannot be one.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let election = client.election("scheduler")?;
    /// # Ok::<(), lockwright::HandleError>(())
    /// ```
    pub fn election(&self, name: impl AsRef<[u8]>) -> Result<Election, HandleError> {
        let name = LockName::new(name)?;
        self.check().map_err(|pid| HandleError::OtherProcess { pid })?;
        Ok(Election { client: self.clone(), name })
    }
}

impl Election {
    /// What the election is called.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert_eq!(client.election("scheduler")?.name().to_string(), "scheduler");
    /// # Ok::<(), lockwright::HandleError>(())
    /// ```
    pub const fn name(&self) -> &LockName {
        &self.name
    }

    /// Stands for election as `candidate`, and waits until it leads. `.await` it, or `.wait()`. Candidates are elected in the order
    /// in which they came, as far as the space is [fair](crate::guide#fairness).
    ///
    /// A candidate's name has up to 64 bytes, without control characters and without blanks at its ends. On `shm:` and in one-sided
    /// spaces it must fit into 55 bytes together with the host's, and the user's if it comes by verbs. Two candidates of one name are
    /// two candidates. A campaign is a client of its own: it counts as one in the space, and a leader's lease is that of the client's
    /// options.
    ///
    /// ```
    /// # async fn lead(token: u64) {}
    /// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let leadership = client.election("scheduler")?.campaign("node-7").await?;
    /// tokio::select! {
    ///     () = lead(leadership.token()) => leadership.resign().await?,
    ///     reason = leadership.lost() => eprintln!("another candidate leads: {reason}"),
    /// }
    /// # Ok(()) }
    /// ```
    pub fn campaign(&self, candidate: &str) -> Campaign {
        Campaign::new(self, candidate, None)
    }

    /// [`campaign`](Self::campaign) that gives up when it was not elected within `patience` ([`LockError::TimedOut`]).
    ///
    /// ```
    /// # use std::time::Duration;
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let election = client.election("scheduler").unwrap();
    /// let _leadership = election.campaign("node-7").wait().unwrap();
    /// assert!(election.campaign_timeout("node-8", Duration::from_millis(1)).wait().is_err());
    /// ```
    pub fn campaign_timeout(&self, candidate: &str, patience: Duration) -> Campaign {
        Campaign::new(self, candidate, Some(patience))
    }

    /// The leader now, if there is one. One look: blocks the thread while a server is asked, and opens a session for it; use
    /// [`observe`](Self::observe) for more than one.
    ///
    /// # Errors
    /// If the space cannot be looked into.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert_eq!(client.election("scheduler").unwrap().leader()?, None);
    /// # Ok::<(), lockwright::ObserveError>(())
    /// ```
    pub fn leader(&self) -> Result<Option<Leader>, ObserveError> {
        observe::LeaderLookup::new(self).look()
    }

    /// The leaders from now on, beginning with the present one.
    ///
    /// **What an observer may rely on**: every leader that it is told of did lead, under that name and with that token; tokens only
    /// rise; a leader that stays is told of, at the latest a tenth of a second and one look into the space after its election (if
    /// looks take long, they are made less often: they take a tenth of the time at most). **What it may not**: leaders that led for
    /// less than that may be left out, and the leader that it is told of may have been followed by another meanwhile. Only the
    /// token covers that.
    ///
    /// A look into a `fiss://` space asks all its clients, so it is made once a second at most, and a leader whose process is stopped
    /// is not seen. Who leads an exported `shm:` space by way of the server is `lockwright serve` to observers on the host.
    ///
    /// ```
    /// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
    /// let mut leaders = client.election("scheduler")?.observe();
    /// loop {
    ///     let leader = leaders.next().await?;
    ///     println!("{} leads with token {}", leader.name, leader.token);
    /// }
    /// # }
    /// ```
    pub fn observe(&self) -> Observer {
        Observer::new(self)
    }
}

/// Refuses what a listing would show otherwise.
fn check_candidate(candidate: &str, address: &str) -> Result<(), CampaignError> {
    let refuse = |why: String| Err(CampaignError::Candidate(why));
    if candidate.is_empty() || candidate.len() > CANDIDATE_MAX {
        return refuse(format!("a name has 1 to {CANDIDATE_MAX} bytes, not {}", candidate.len()));
    }
    if candidate.trim() != candidate || candidate.contains(char::is_control) {
        return refuse("a name has no control characters, and no blanks at its ends".to_owned());
    }
    #[cfg(target_os = "linux")]
    if let Some(before) = listed_before(address) {
        let room = LOCAL_LABEL_MAX.saturating_sub(before);
        if candidate.len() > room {
            return refuse(format!("on this host a name has {room} bytes at most, not {}", candidate.len()));
        }
    }
    Ok(())
}

/// Bytes in front of a client's name, in spaces whose listings have little room: files of a host, and what may be one.
#[cfg(target_os = "linux")]
fn listed_before(address: &str) -> Option<usize> {
    // The client's pid is kept apart.
    let label = crate::client::label::of(Some(""));
    let (_, before) = label.split_once(' ').expect("a pid, then user and host");
    match Address::parse(address) {
        Ok(Address::Shm(_) | Address::Local(_)) => before.rsplit('@').next().map(str::len),
        Ok(Address::Served { space, .. }) => {
            crate::remote::one_sided::wanted(&space).is_some().then_some(before.len())
        }
        _ => None,
    }
}

/// A campaign under way: await it, or [`wait`](Self::wait) for it.
///
/// # Cancelling
/// Dropping it gives up, as with every [`Acquire`](crate::Acquire).
///
/// ```
/// # async fn example(client: lockwright::Client) -> Result<(), Box<dyn std::error::Error>> {
/// let leadership = client.election("scheduler")?.campaign("node-7").await?;
/// # Ok(()) }
/// ```
#[must_use = "nobody stands for election before it is awaited, or waited for"]
pub struct Campaign {
    election: Election,
    candidate: String,
    patience: Option<Duration>,
    begun: Option<BoxFuture<Result<Leadership, CampaignError>>>,
}

impl fmt::Debug for Campaign {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { election, candidate, .. } = self;
        f.debug_struct("Campaign")
            .field("election", election)
            .field("candidate", candidate)
            .finish_non_exhaustive()
    }
}

impl Campaign {
    fn new(election: &Election, candidate: &str, patience: Option<Duration>) -> Self {
        let (election, candidate) = (election.clone(), candidate.to_owned());
        Self { election, candidate, patience, begun: None }
    }

    /// How the space is opened for the candidate; `None` if this client will do.
    fn reopened(&self) -> Result<Option<crate::client::Open>, CampaignError> {
        let client = &self.election.client;
        check_candidate(&self.candidate, client.address())?;
        client.check().map_err(|pid| HandleError::OtherProcess { pid })?;
        let own = matches!(Address::parse(client.address()), Ok(Address::Mem));
        // A lock that stays with its client is nobody's leadership: it is given back when the leader resigns.
        let options = client.opened_with().clone().program(&self.candidate).retain(false);
        Ok((!own).then(|| options.open(client.address())))
    }

    fn acquire(&self, client: &Client) -> Result<crate::Acquire<MutexGuard>, CampaignError> {
        let mutex = client.mutex(self.election.name.as_bytes())?;
        Ok(match self.patience {
            Some(patience) => mutex.lock_timeout(patience),
            None => mutex.lock(),
        })
    }

    fn elected(&self, guard: MutexGuard) -> Leadership {
        let leader = Leader { name: self.candidate.clone(), token: guard.token() };
        let noted = self.election.client.noted();
        Leadership {
            _note: Note::new(noted, &self.election.name, leader.clone()),
            guard: guard.into(),
            name: leader.name,
        }
    }

    /// Blocks this thread until the candidate leads.
    ///
    /// # Errors
    /// If it does not in time, or the space cannot be used.
    ///
    /// # Panics
    /// If it was polled before.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// let leadership = client.election("scheduler").unwrap().campaign("node-7").wait()?;
    /// # Ok::<(), lockwright::CampaignError>(())
    /// ```
    pub fn wait(self) -> Result<Leadership, CampaignError> {
        assert!(self.begun.is_none(), "a campaign was waited for after it was polled");
        let client = match self.reopened()? {
            Some(open) => open.wait()?,
            None => self.election.client.clone(),
        };
        let guard = self.acquire(&client)?.wait()?;
        Ok(self.elected(guard))
    }
}

impl Future for Campaign {
    type Output = Result<Leadership, CampaignError>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.begun.is_none() {
            let (open, Self { election, candidate, patience, .. }) = (self.reopened()?, &*self);
            let this = Self::new(election, candidate, *patience);
            self.begun = Some(Box::pin(async move {
                let client = match open {
                    Some(open) => open.await?,
                    None => this.election.client.clone(),
                };
                let guard = this.acquire(&client)?.await?;
                Ok(this.elected(guard))
            }));
        }
        self.begun.as_mut().expect("just begun").as_mut().poll(cx)
    }
}

/// Being the leader, until it resigns, is dropped, or is lost.
///
/// ```
/// # let client = lockwright::Client::open("mem:").wait().unwrap();
/// let leadership = client.election("scheduler").unwrap().campaign("node-7").wait().unwrap();
/// assert_eq!(leadership.name(), "node-7");
/// leadership.resign().wait()?;
/// # Ok::<(), lockwright::UnlockError>(())
/// ```
#[derive(Debug)]
#[must_use = "a leader that is dropped resigns at once"]
pub struct Leadership {
    /// Dropped before the guard: nobody is noted as a leader who does not hold the mutex.
    _note: Note,
    guard: AnyGuard,
    name: String,
}

impl Leadership {
    /// The name under which it was elected.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let leadership = client.election("a").unwrap().campaign("node-7").wait().unwrap();
    /// assert_eq!(leadership.name(), "node-7");
    /// ```
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Larger than that of every leader before: a resource refuses smaller ones.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let election = client.election("a").unwrap();
    /// let first = election.campaign("node-7").wait().unwrap().token();
    /// assert!(election.campaign("node-8").wait().unwrap().token() > first);
    /// ```
    pub fn token(&self) -> u64 {
        self.guard.token()
    }

    /// Whether it still leads: see [`AnyGuard::state`].
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let leadership = client.election("a").unwrap().campaign("node-7").wait().unwrap();
    /// assert_eq!(leadership.state(), lockwright::GuardState::Held);
    /// ```
    pub fn state(&self) -> GuardState {
        self.guard.state()
    }

    /// Done when the leadership is found to be lost: see [`AnyGuard::lost`].
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let leadership = client.election("a").unwrap().campaign("node-7").wait().unwrap();
    /// assert!(!leadership.lost().is_lost());
    /// ```
    pub fn lost(&self) -> LostSignal {
        self.guard.lost()
    }

    /// Done when it may be lost, and is time to pause: see [`AnyGuard::uncertain`].
    ///
    /// ```
    /// # async fn example(leadership: lockwright::Leadership) {
    /// let state = leadership.uncertain().await;
    /// # }
    /// ```
    pub fn uncertain(&self) -> UncertainSignal {
        self.guard.uncertain()
    }

    /// Calls `act` if the leadership is found to be lost: see [`AnyGuard::on_lost`].
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let leadership = client.election("a").unwrap().campaign("node-7").wait().unwrap();
    /// leadership.on_lost(|reason| eprintln!("another candidate leads: {reason}"));
    /// ```
    pub fn on_lost(&self, act: impl FnOnce(LostReason) + Send + 'static) {
        self.guard.on_lost(act);
    }

    /// Leads no more, and tells whether it did until then. Dropping the leadership resigns, too.
    ///
    /// ```
    /// # let client = lockwright::Client::open("mem:").wait().unwrap();
    /// # let leadership = client.election("a").unwrap().campaign("node-7").wait().unwrap();
    /// leadership.resign().wait()?;
    /// # Ok::<(), lockwright::UnlockError>(())
    /// ```
    pub fn resign(self) -> Unlock {
        let Self { _note, guard, .. } = self;
        drop(_note);
        guard.unlock()
    }
}

#[cfg(test)]
mod tests;

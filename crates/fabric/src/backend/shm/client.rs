//! What the clones of one endpoint share: its place in the client table, its letters, and the tasks that wait.
//!
//! **Who wakes a waiting task.** A task that runs under [`block_on`](crate::backend::block_on) lets its thread sleep on
//! the client's doorbell itself. A task of an async runtime cannot do that: it leaves its waker here, and a thread of
//! this client's, started when first needed, sleeps on the bell and wakes the tasks whose wait is over.

use super::clients::Joined;
use super::error::SpaceError;
use super::mailbox::{Inbox, Pumped};
use super::shared::{Handle, Shared};
use crate::backend::run::Doorbell;
use crate::backend::sought::Sought;
use crate::backend::wakers::wake_all;
use crate::random::{SharedSplitMix, mix};
use crate::verb::Op;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// One client of a space, in this process.
#[derive(Debug)]
pub(super) struct Client {
    pub(super) shared: Arc<Handle>,
    pub(super) joined: Joined,
    inbox: Mutex<Inbox>,
    /// Letters in the inbox, to be read without its lock.
    letters: AtomicUsize,
    /// Tasks that wait for a letter.
    pub(super) receivers: AtomicUsize,
    dozing: Arc<Dozing>,
    helper: Mutex<Option<JoinHandle<()>>>,
    numbers: AtomicU16,
    random: SharedSplitMix,
}

/// Tasks that cannot sleep on the bell themselves.
#[derive(Debug, Default)]
struct Dozing {
    tasks: Mutex<Vec<Dozer>>,
    next: AtomicU64,
    stop: AtomicBool,
}

#[derive(Debug)]
struct Dozer {
    number: u64,
    /// `None`: it waits for a letter, or for anything.
    sought: Option<Sought>,
    waker: Waker,
}

impl Client {
    pub(super) fn join(shared: &Arc<Handle>) -> Result<Arc<Self>, SpaceError> {
        let joined = shared.join()?;
        let seed = mix(shared.clock.now().0) ^ mix(joined.standing.0);
        Ok(Arc::new(Self {
            shared: Arc::clone(shared),
            joined,
            inbox: Mutex::new(Inbox::new(shared, &joined)),
            letters: AtomicUsize::new(0),
            receivers: AtomicUsize::new(0),
            dozing: Arc::default(),
            helper: Mutex::default(),
            numbers: AtomicU16::new(0),
            random: SharedSplitMix::new(seed),
        }))
    }

    pub(super) fn is_member(&self) -> bool {
        self.shared.is_member(&self.joined)
    }

    /// A number for the next message of several cells.
    pub(super) fn number(&self) -> u16 {
        self.numbers.fetch_add(1, Relaxed)
    }

    pub(super) fn random(&self) -> u64 {
        self.random.next()
    }

    /// Whether there is no letter, as far as a few loads can tell.
    #[inline]
    pub(super) fn has_no_letter(&self) -> bool {
        self.letters.load(SeqCst) == 0 && Inbox::ring_is_empty(&self.shared, self.joined.slot)
    }

    /// Whether nothing has come since the inbox was last pumped.
    #[inline]
    pub(super) fn has_no_new_letter(&self) -> bool {
        Inbox::ring_is_empty(&self.shared, self.joined.slot)
    }

    /// Opens the inbox after taking in what has come. Other receivers of this client are told of it.
    pub(super) fn pump(&self, thorough: bool) -> (MutexGuard<'_, Inbox>, Pumped) {
        let mut inbox = self.inbox.lock().unwrap_or_else(PoisonError::into_inner);
        let pumped = inbox.pump(&self.shared, &self.joined, thorough);
        if pumped.letters > 0 {
            self.letters.store(inbox.letters.len(), SeqCst);
            if self.receivers.load(SeqCst) > 0 {
                self.shared.ring(self.joined.slot);
            }
        }
        (inbox, pumped)
    }

    /// After a letter was taken out.
    pub(super) fn took(&self, inbox: &Inbox) {
        self.letters.store(inbox.letters.len(), SeqCst);
    }

    /// Leaves a waker, under the number in `place` if it has one. The caller looks once more afterwards.
    pub(super) fn doze(self: &Arc<Self>, place: &mut Option<u64>, sought: Option<Sought>, waker: &Waker) {
        self.start_helper();
        let mut tasks = self.dozing.tasks();
        let number = *place.get_or_insert_with(|| self.dozing.next.fetch_add(1, Relaxed));
        match tasks.iter_mut().find(|dozer| dozer.number == number) {
            Some(dozer) => dozer.waker.clone_from(waker),
            None => tasks.push(Dozer { number, sought, waker: waker.clone() }),
        }
    }

    /// Takes a waker back.
    pub(super) fn rise(&self, place: &mut Option<u64>) {
        if let Some(number) = place.take() {
            self.dozing.tasks().retain(|dozer| dozer.number != number);
        }
    }

    fn start_helper(&self) {
        let mut helper = self.helper.lock().unwrap_or_else(PoisonError::into_inner);
        if helper.is_some() {
            return;
        }
        self.listen();
        let (shared, joined, dozing) = (self.shared.share(), self.joined, Arc::clone(&self.dozing));
        let thread = thread::Builder::new()
            .name("lockwright-bell".to_owned())
            .spawn(move || dozing.keep_awake(&shared, &joined))
            .expect("the system can start a thread that wakes tasks");
        *helper = Some(thread);
    }
}

impl Dozing {
    fn tasks(&self) -> MutexGuard<'_, Vec<Dozer>> {
        self.tasks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keep_awake(&self, shared: &Shared, joined: &Joined) {
        while !self.stop.load(SeqCst) {
            let rings = shared.rings(joined.slot);
            let out = !shared.is_member(joined);
            let mut tasks = self.tasks();
            let look = |addr, width| shared.reach(addr, width, &Op::Read).map(|(word, _)| word);
            let over = |dozer: &mut Dozer| out || dozer.sought.is_none_or(|sought| sought.is_over(look));
            let woken: Vec<_> = tasks.extract_if(.., over).map(|dozer| dozer.waker).collect();
            drop(tasks);
            wake_all(woken);
            if !self.stop.load(SeqCst) {
                shared.sleep_on_bell(joined.slot, rings, None);
            }
        }
    }
}

impl Doorbell for Client {
    fn listen(&self) {
        self.shared.listeners(self.joined.slot).fetch_add(1, SeqCst);
    }

    fn ignore(&self) {
        self.shared.listeners(self.joined.slot).fetch_sub(1, SeqCst);
    }

    fn rings(&self) -> u32 {
        self.shared.rings(self.joined.slot)
    }

    fn sleep(&self, rings: u32, limit: Option<Duration>) {
        self.shared.sleep_on_bell(self.joined.slot, rings, limit);
    }

    fn ring(&self) {
        self.shared.ring_always(self.joined.slot);
    }
}

impl Drop for Client {
    /// Leaves the space. Whoever sleeps on the bell holds the client, so nobody does by now but its own helper.
    fn drop(&mut self) {
        if let Some(helper) = self.helper.get_mut().unwrap_or_else(PoisonError::into_inner).take() {
            self.dozing.stop.store(true, SeqCst);
            self.shared.ring_always(self.joined.slot);
            // A task that the helper woke may have dropped the last endpoint.
            if helper.thread().id() != thread::current().id() {
                let _ = helper.join();
            }
        }
        self.shared.leave(&self.joined);
    }
}

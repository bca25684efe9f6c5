//! A station: one protection domain with everything that is needed to post work and to hear that it is done.
//!
//! Work requests carry a *slot*'s number; a slot has room for the results of one batch, or for one letter. Completions are
//! taken from the queue by whoever waits, and by a thread of the station's own when nobody does: it spins for a moment
//! and then sleeps until the NIC rings.
//!
//! This file has batches and completions; [`slots`] says whose turn it is in each slot, [`letters`] is all about letters.

mod letters;
mod slots;

pub(super) use self::letters::bundled;

use self::letters::{Letters, RECEIVES};
use self::slots::{BATCHES, LETTERS, Room, Slots, Ticket};
use super::device::{Device, DeviceError};
use super::fault::Fault;
use super::ffi::{IBV_WC_SUCCESS, ibv_wc};
use super::pair::{Base, Pair};
use super::verbs::{Buffer, Domain, HANDFUL, Queue, Shared};
use super::wire::Wire;
use super::work::{WORD, Work, WorkKind};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::Waker;
use std::time::{Duration, Instant};

/// Verbs of one doorbell.
pub(super) const CHUNK: usize = 16;
/// Work requests under way on one queue pair, at most. Nobody has more than one bundle of letters on its way.
const SENDS: u32 = (BATCHES * CHUNK + LETTERS + CHUNK + 16) as u32;
/// Handfuls of completions that are taken before anything is done about them: all receives.
const HANDFULS: usize = RECEIVES / HANDFUL;
/// Bytes of a batch's results.
const RESULTS: usize = WORD * CHUNK;
/// How long whoever waits looks by itself.
const SPIN: Duration = Duration::from_micros(20);
/// How often the thread looks though nobody rang: in case the station is being closed.
const NAP: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Marks the receives among the numbers of work requests.
const RECEIVE: u64 = 1 << 63;

/// Verbs failed: whether they took effect is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Failed;

/// Who owns a station and is told what comes. Called by whoever takes completions: it must not wait for any.
pub(super) trait Owner: Send + Sync {
    /// A letter came over the queue pair of this number.
    fn letter(&self, pair: u32, bytes: &[u8]);

    /// That was the last of the letters that came together: what they ask for can be done.
    fn settle(&self) {}

    /// The queue pair of this number is in error.
    fn broken(&self, pair: u32);
}

/// See the module.
pub(super) struct Station {
    // Dropped in this order: queue pairs are elsewhere and gone by then.
    results: Buffer,
    letters: Letters,
    pub(super) base: Base,
    slots: Mutex<Slots>,
    /// One at a time takes completions, so that letters keep their order.
    taking: Mutex<()>,
    /// What went wrong last, but for what was merely swept away by it.
    fault: Mutex<Option<Fault>>,
    owner: Box<dyn Owner>,
    closing: AtomicBool,
}

impl fmt::Debug for Station {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Station").field("device", &self.device().name).finish_non_exhaustive()
    }
}

/// The station's own thread, ended when this is dropped.
#[derive(Debug)]
pub(super) struct Keeper(Arc<Station>);

impl Station {
    /// A station on `device`.
    pub(super) fn open(
        device: &Arc<Device>,
        owner: Box<dyn Owner>,
    ) -> Result<(Arc<Self>, Keeper), DeviceError> {
        let domain = Domain::new(device)?;
        let queue = Queue::new(device, 4096)?;
        let shared = Shared::new(&domain, RECEIVES as u32)?;
        let station = Arc::new(Self {
            results: Buffer::new(&domain, BATCHES * RESULTS)?,
            letters: Letters::new(&domain)?,
            base: Base { domain, queue, shared },
            slots: Mutex::new(Slots::new()),
            taking: Mutex::default(),
            fault: Mutex::default(),
            owner,
            closing: AtomicBool::new(false),
        });
        for index in 0..RECEIVES {
            station.post_receive(index);
        }
        let own = Arc::clone(&station);
        let thread = std::thread::Builder::new().name("lockwright-rdma".to_owned()).spawn(move || own.keep());
        thread.map_err(|error| DeviceError::System {
            what: "starting a thread for",
            device: device.name.clone(),
            error,
        })?;
        Ok((Arc::clone(&station), Keeper(station)))
    }

    pub(super) fn device(&self) -> &Device {
        self.base.device()
    }

    /// A queue pair of this station, not connected yet. `lends`: the other side may reach registered memory of this domain.
    pub(super) fn pair(&self, lends: bool) -> Result<Pair, DeviceError> {
        Pair::new(&self.base, SENDS, lends)
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notes over which queue pair a slot's work is posted. Under the wire's lock: a cut comes before or after it.
    pub(super) fn posting(&self, index: usize, pair: u32) {
        self.slots().posting(index, pair);
    }

    /// A queue pair was destroyed: what was under way on it will not complete, and has failed.
    pub(super) fn abandon(&self, pair: u32) {
        let woken = self.slots().abandon(pair);
        woken.into_iter().for_each(Waker::wake);
    }

    /// What went wrong last, in words.
    pub(super) fn fault(&self) -> Option<Fault> {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts up to [`CHUNK`] verbs over `wire` and returns their results. What was posted is executed even if the future is
    /// dropped.
    pub(super) async fn batch(self: &Arc<Self>, wire: &Wire, kinds: &[WorkKind]) -> Result<Vec<u64>, Failed> {
        let mut ticket = Ticket::take(self, Room::Batch).await;
        let works = self.works(ticket.index, kinds);
        let well = self.finish(&mut ticket, wire, &works).await;
        well.then(|| self.results_of(ticket.index, kinds.len())).ok_or(Failed)
    }

    /// The same, but nobody waits for the outcome, nor for room. `false` if nothing was posted.
    pub(super) fn batch_unheard(&self, wire: &Wire, kinds: &[WorkKind]) -> bool {
        let Some(index) = self.slots().take(Room::Batch, false) else { return false };
        let posted = wire.post(index, &self.works(index, kinds));
        if !posted {
            self.slots().free(index);
        }
        posted
    }

    /// The work requests of a batch in slot `index`.
    fn works(&self, index: usize, kinds: &[WorkKind]) -> Vec<Work> {
        let id = self.slots().id(index);
        let mut works = Vec::with_capacity(kinds.len());
        let mut reading = false;
        for (turn, kind) in kinds.iter().enumerate() {
            let place = index * RESULTS + WORD * turn;
            let is_read = matches!(kind, WorkKind::Read { .. });
            if let WorkKind::Write { value, .. } = kind {
                self.results.write(place, &value.to_le_bytes());
            }
            let piece = self.results.piece(place, WORD);
            works.push(Work {
                id,
                kind: *kind,
                piece,
                signal: turn + 1 == kinds.len(),
                fence: reading && !is_read,
            });
            reading |= is_read;
        }
        works
    }

    /// The words that the verbs of a batch found.
    fn results_of(&self, index: usize, count: usize) -> Vec<u64> {
        let read = |turn| {
            let mut word = [0; WORD];
            self.results.read(index * RESULTS + WORD * turn, &mut word);
            u64::from_le_bytes(word)
        };
        (0..count).map(read).collect()
    }

    async fn finish(&self, ticket: &mut Ticket, wire: &Wire, works: &[Work]) -> bool {
        if !wire.post(ticket.index, works) {
            ticket.release();
            return false;
        }
        ticket.await
    }

    /// Takes all completions that are there.
    pub(super) fn drain(&self) {
        let taking = self.taking.lock().unwrap_or_else(PoisonError::into_inner);
        self.take_while(taking, |count| count > 0);
    }

    /// Takes the completions that are there. `false` if there were none, or somebody else is at it.
    fn take(&self) -> bool {
        let Ok(taking) = self.taking.try_lock() else { return false };
        let mut handfuls = 0;
        self.take_while(taking, |count| {
            handfuls += 1;
            count == HANDFUL && handfuls < HANDFULS
        })
    }

    /// Takes completions, and another handful while `more` says so of the last. `false` if there were none.
    fn take_while(&self, taking: MutexGuard<'_, ()>, mut more: impl FnMut(usize) -> bool) -> bool {
        /// Also out of a panic: others may stand behind what was put down.
        struct Settles<'a>(&'a dyn Owner, bool);
        impl Drop for Settles<'_> {
            fn drop(&mut self) {
                if self.1 {
                    self.0.settle();
                }
            }
        }
        let mut letters = Settles(&*self.owner, false);
        // Given back first: what comes meanwhile can be taken by others.
        let _taking = taking;
        let mut any = false;
        loop {
            let count = self.base.queue.poll(|wc| letters.1 |= self.completed(wc));
            any |= count > 0;
            if !more(count) {
                return any;
            }
        }
    }

    /// Does what a completion asks for; `true` if it brought a letter.
    fn completed(&self, wc: &ibv_wc) -> bool {
        let well = wc.status == IBV_WC_SUCCESS;
        if !well {
            self.note(wc);
            // Before anybody hears that it failed: what comes next must not go the same way.
            self.owner.broken(wc.qp_num);
        }
        if wc.wr_id & RECEIVE != 0 {
            return self.received(wc, well);
        }
        self.ended(wc, well);
        false
    }

    /// What was posted from a slot is done.
    fn ended(&self, wc: &ibv_wc, well: bool) {
        let Some((index, waiter)) = self.slots().completed(wc.wr_id, well) else { return };
        if let Some(waiter) = waiter {
            waiter.wake();
        }
        if Slots::room(index) == Room::Letter {
            self.tell_on();
        }
    }

    /// Keeps the reason of a failure, and not that of all that was swept away by it.
    fn note(&self, wc: &ibv_wc) {
        let fault = Fault::new(wc.status, wc.vendor_err);
        let mut kept = self.fault.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.is_none() || !fault.is_flush() {
            *kept = Some(fault);
        }
    }

    /// The thread: takes completions that nobody waits for by looking.
    fn keep(&self) {
        while !self.closing.load(Relaxed) {
            let start = Instant::now();
            while self.take() || start.elapsed() < SPIN {
                std::hint::spin_loop();
            }
            self.base.queue.ask();
            // One may have come between the last look and the request for a ring.
            if self.take() {
                continue;
            }
            let bell = self.base.queue.bell();
            let mut fds = [rustix::event::PollFd::new(&bell, rustix::event::PollFlags::IN)];
            match rustix::event::poll(&mut fds, Some(&NAP)) {
                Ok(rung) if rung > 0 => self.base.queue.hear(),
                Ok(_) => {}
                Err(error) if io::Error::from(error).kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return,
            }
        }
    }
}

impl Drop for Keeper {
    /// The thread ends within [`NAP`], and the station with it. It is not waited for: whoever drops this may hold what a letter
    /// on its way has to get.
    fn drop(&mut self) {
        self.0.closing.store(true, Relaxed);
    }
}

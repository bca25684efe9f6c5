//! A station: one protection domain with everything that is needed to post work and to hear that it is done.
//!
//! Work requests carry a *slot*'s number; a slot has room for the results of one batch, or for one letter. Completions are
//! taken from the queue by whoever waits, and by a thread of the station's own when nobody does: it spins for a moment
//! and then sleeps until the NIC rings.

mod outbox;

pub(super) use self::outbox::bundled;

use super::dc::Remote;
use super::device::{Device, DeviceError};
use super::fault::Fault;
use super::letter::LETTER;
use super::pair::{Base, Pair, Secrets, Transport};
use super::verbs::{Buffer, Domain, HANDFUL, Queue, Shared};
use super::wire::Wire;
use super::work::{Work, WorkKind};
use rdma_mummy_sys::{ibv_wc, ibv_wc_opcode, ibv_wc_status};
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

/// Verbs of one doorbell.
pub(super) const CHUNK: usize = 16;
/// Batches under way at once.
const BATCHES: usize = 32;
/// Letters on their way out at once, or [bundles](Station::send_all) of them.
const LETTERS: usize = 32;
/// Receives posted.
const RECEIVES: usize = 256;
/// Work requests under way on one queue pair, at most. Nobody has more than one bundle of letters on its way.
const SENDS: u32 = (BATCHES * CHUNK + LETTERS + CHUNK + 16) as u32;
/// Handfuls of completions that are taken before anything is done about them: all receives.
const HANDFULS: usize = RECEIVES / HANDFUL;
/// Bytes of a batch's results.
const RESULTS: usize = 16 * CHUNK;
/// How long whoever waits looks by itself.
const SPIN: Duration = Duration::from_micros(20);
/// How often the thread looks though nobody rang: in case the station is being closed.
const NAP: rustix::time::Timespec = rustix::time::Timespec { tv_sec: 0, tv_nsec: 50_000_000 };
/// Marks the receives among the numbers of work requests.
const RECEIVE: u64 = 1 << 63;

/// Letters that wait for room, at most.
const BACKLOG: usize = 1 << 16;

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
    outgoing: Buffer,
    incoming: Buffer,
    pub(super) base: Base,
    slots: Mutex<Slots>,
    /// One at a time takes completions, so that letters keep their order.
    taking: Mutex<()>,
    /// Letters that nobody waits for and that found no room. Locked before a wire, and a wire before the slots.
    backlog: Mutex<VecDeque<(Weak<Wire>, Vec<u8>)>>,
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

#[derive(Debug)]
struct Slots {
    slots: Vec<Slot>,
    free_batches: Vec<usize>,
    free_letters: Vec<usize>,
    /// Those who wait for a slot.
    waiting: Vec<Waker>,
}

#[derive(Debug, Default)]
struct Slot {
    /// Tells a late completion from that of the slot's next user.
    turn: u32,
    /// The queue pair it was posted to.
    pair: u32,
    state: State,
}

#[derive(Debug, Default)]
enum State {
    #[default]
    Free,
    /// The NIC works on it. Without a waiter once the future was dropped.
    Busy {
        waiter: Option<Waker>,
        dropped: bool,
    },
    Done {
        well: bool,
    },
}

/// Work that was posted: done when the NIC says so, with whether all went well.
#[derive(Debug)]
pub(super) struct Ticket {
    station: Arc<Station>,
    index: usize,
    spun: bool,
    over: bool,
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
        let slots = (0..BATCHES + LETTERS).map(|_| Slot::default()).collect();
        let station = Arc::new(Self {
            results: Buffer::new(&domain, BATCHES * RESULTS)?,
            outgoing: Buffer::new(&domain, LETTERS * LETTER)?,
            incoming: Buffer::new(&domain, RECEIVES * LETTER)?,
            base: Base { domain, queue, shared },
            slots: Mutex::new(Slots {
                slots,
                free_batches: (0..BATCHES).collect(),
                free_letters: (BATCHES..BATCHES + LETTERS).collect(),
                waiting: Vec::new(),
            }),
            taking: Mutex::default(),
            backlog: Mutex::default(),
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
    pub(super) fn pair(&self, transport: Transport, lends: bool) -> Result<Pair, DeviceError> {
        Pair::new(&self.base, transport, SENDS, lends, Secrets::random())
    }

    /// What sends letters by DC, each to whom it is said to go.
    pub(super) fn sender(&self) -> Result<Pair, DeviceError> {
        Pair::sender(&self.base, SENDS, Secrets::random())
    }

    fn post_receive(&self, index: usize) {
        self.base.shared.post(RECEIVE | index as u64, self.incoming.piece(index * LETTER, LETTER));
    }

    fn slots(&self) -> MutexGuard<'_, Slots> {
        self.slots.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a slot: of a letter, or else of a batch.
    async fn slot(self: &Arc<Self>, letter: bool) -> Ticket {
        let index = std::future::poll_fn(|cx| {
            let mut slots = self.slots();
            let free = if letter { slots.free_letters.pop() } else { slots.free_batches.pop() };
            let Some(index) = free else {
                slots.waiting.push(cx.waker().clone());
                return Poll::Pending;
            };
            let slot = &mut slots.slots[index];
            slot.turn = slot.turn.wrapping_add(1);
            slot.state = State::Busy { waiter: None, dropped: false };
            Poll::Ready(index)
        });
        Ticket { index: index.await, station: Arc::clone(self), spun: false, over: false }
    }

    /// The number of the work request that ends the slot's turn.
    fn id(&self, index: usize) -> u64 {
        u64::from(self.slots().slots[index].turn) << 16 | index as u64
    }

    /// Notes over which queue pair a slot's work is posted. Under the wire's lock: a cut comes before or after it.
    pub(super) fn posting(&self, index: usize, pair: u32) {
        self.slots().slots[index].pair = pair;
    }

    /// A queue pair was destroyed: what was under way on it will not complete, and has failed.
    pub(super) fn abandon(&self, pair: u32) {
        let (mut slots, mut woken) = (self.slots(), Vec::new());
        for index in 0..slots.slots.len() {
            let slot = &mut slots.slots[index];
            let State::Busy { waiter, dropped } = &mut slot.state else { continue };
            if slot.pair != pair {
                continue;
            }
            woken.extend(waiter.take());
            if *dropped {
                Self::free(&mut slots, index);
            } else {
                slot.state = State::Done { well: false };
            }
        }
        drop(slots);
        woken.into_iter().for_each(Waker::wake);
    }

    /// What went wrong last, in words.
    pub(super) fn fault(&self) -> Option<Fault> {
        *self.fault.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Posts up to [`CHUNK`] verbs over `wire` and returns their results. What was posted is executed even if the future is
    /// dropped.
    pub(super) async fn batch(
        self: &Arc<Self>,
        wire: &Wire,
        kinds: &[WorkKind],
    ) -> Result<Vec<u128>, Failed> {
        let mut ticket = self.slot(false).await;
        let works = self.works(ticket.index, kinds);
        let well = self.finish(&mut ticket, wire, None, &works).await;
        well.then(|| self.results_of(ticket.index, kinds)).ok_or(Failed)
    }

    /// The same, but nobody waits for the outcome, nor for room. `false` if nothing was posted.
    pub(super) fn batch_unheard(&self, wire: &Wire, kinds: &[WorkKind]) -> bool {
        let mut slots = self.slots();
        let Some(index) = slots.free_batches.pop() else { return false };
        let slot = &mut slots.slots[index];
        slot.turn = slot.turn.wrapping_add(1);
        // As if its future had been dropped; and no queue pair that is destroyed just now takes the slot along.
        (slot.state, slot.pair) = (State::Busy { waiter: None, dropped: true }, 0);
        drop(slots);
        let posted = wire.post(index, &self.works(index, kinds), None);
        if !posted {
            Self::free(&mut self.slots(), index);
        }
        posted
    }

    /// The work requests of a batch in slot `index`.
    fn works(&self, index: usize, kinds: &[WorkKind]) -> Vec<Work> {
        let id = self.id(index);
        let mut works = Vec::with_capacity(kinds.len());
        let mut reading = false;
        for (turn, kind) in kinds.iter().enumerate() {
            let place = index * RESULTS + 16 * turn;
            let is_read = matches!(kind, WorkKind::Read { .. });
            if let WorkKind::Write { value, .. } = kind {
                self.results.write(place, &value.to_le_bytes());
            }
            let piece = self.results.piece(place, kind.bytes());
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

    fn results_of(&self, index: usize, kinds: &[WorkKind]) -> Vec<u128> {
        let read = |(turn, kind): (usize, &WorkKind)| {
            let mut word = [0; 16];
            self.results.read(index * RESULTS + 16 * turn, &mut word[..kind.bytes()]);
            u128::from_le_bytes(word)
        };
        kinds.iter().enumerate().map(read).collect()
    }

    async fn finish(&self, ticket: &mut Ticket, wire: &Wire, to: Option<&Remote>, works: &[Work]) -> bool {
        if !wire.post(ticket.index, works, to) {
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
        let well = wc.status == ibv_wc_status::IBV_WC_SUCCESS;
        if !well {
            self.note(wc);
            // Before anybody hears that it failed: what comes next must not go the same way.
            self.owner.broken(wc.qp_num);
        }
        if wc.wr_id & RECEIVE != 0 {
            let index = (wc.wr_id & !RECEIVE) as usize;
            if well && wc.opcode == ibv_wc_opcode::IBV_WC_RECV {
                let mut bytes = vec![0; (wc.byte_len as usize).min(LETTER)];
                self.incoming.read(index * LETTER, &mut bytes);
                self.post_receive(index);
                self.owner.letter(wc.qp_num, &bytes);
                return true;
            }
            self.post_receive(index);
            return false;
        }
        self.ended(wc, well);
        false
    }

    /// What was posted from a slot is done.
    fn ended(&self, wc: &ibv_wc, well: bool) {
        let (index, turn) = ((wc.wr_id & 0xffff) as usize, (wc.wr_id >> 16) as u32);
        let mut slots = self.slots();
        let Some(slot) = slots.slots.get_mut(index).filter(|slot| slot.turn == turn) else { return };
        let State::Busy { waiter, dropped } = &mut slot.state else { return };
        let (waiter, dropped) = (waiter.take(), *dropped);
        slot.state = State::Done { well };
        if dropped {
            Self::free(&mut slots, index);
        }
        drop(slots);
        if let Some(waiter) = waiter {
            waiter.wake();
        }
        if index >= BATCHES {
            let mut backlog = self.backlog.lock().unwrap_or_else(PoisonError::into_inner);
            self.tell_waiting(&mut backlog);
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

    fn free(slots: &mut Slots, index: usize) {
        slots.slots[index].state = State::Free;
        if index < BATCHES {
            slots.free_batches.push(index);
        } else {
            slots.free_letters.push(index);
        }
        for waiter in slots.waiting.drain(..) {
            waiter.wake();
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

impl Ticket {
    /// Gives the slot back: nothing was posted, or it is done.
    fn release(&mut self) {
        self.over = true;
        Station::free(&mut self.station.slots(), self.index);
    }

    fn look(&mut self, waker: Option<&Waker>) -> Option<bool> {
        let mut slots = self.station.slots();
        match &mut slots.slots[self.index].state {
            State::Done { well } => {
                let well = *well;
                Some(well)
            }
            State::Busy { waiter, .. } => {
                *waiter = waker.cloned();
                None
            }
            State::Free => unreachable!("a slot is free only after its ticket is over"),
        }
    }
}

impl Future for Ticket {
    type Output = bool;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<bool> {
        let this = self.get_mut();
        let start = Instant::now();
        while !this.spun {
            this.station.take();
            if this.look(None).is_some() {
                break;
            }
            this.spun = start.elapsed() > SPIN;
        }
        match this.look(Some(cx.waker())) {
            // The results stay readable until the ticket is dropped.
            Some(well) => Poll::Ready(well),
            None => Poll::Pending,
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        let mut slots = self.station.slots();
        match &mut slots.slots[self.index].state {
            State::Busy { waiter, dropped } => {
                *waiter = None;
                *dropped = true;
            }
            _ => Station::free(&mut slots, self.index),
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

//! FARLock (Hu, Zhou, Wang, Vora: "FARLock: Asymmetric RDMA Locking Made Fair", OSDI 2026): an asymmetric lock that grants in
//! the order in which tickets were drawn, whichever side a client is on. After its abstract and the order of steps in the
//! published program (pdclab/farlock), which is what is public.
//!
//! A lock is one cache line on its node:
//!
//! | bytes | word | changed by | meaning |
//! |---|---|---|---|
//! | 0–7 | `tail[Local]` | CPUs of the node only | last of the local queue (`Desc`); 0: empty |
//! | 8–15 | `tail[Remote]` | the NIC only | last of the remote queue |
//! | 16–23 | `flag[Local]` | WRITEs of the local client that draws | 1: it wants Peterson's lock or has it |
//! | 24–31 | `victim` | WRITEs of both | the side that wrote last, and waits if both want it |
//! | 32–39 | `flag[Remote]` | WRITEs of the remote client that draws | the same |
//! | 40–47 | `next` | who has Peterson's lock | the next ticket |
//! | 48–55 | `current` | WRITEs of the holder | the ticket that holds the lock, or is to have it |
//!
//! Behind the locks of a node lie the descriptors of the clients that are at home there, one line each:
//!
//! | bytes | word | written by | meaning |
//! |---|---|---|---|
//! | 0–7 | `behind` | successor | its descriptor; 0: none yet |
//! | 8–15 | `ticket` | owner | 1 + its ticket; 0: none yet |
//! | 16–23 | `draws` | predecessor | 1: it has its ticket, now it is the owner's turn |
//! | 24–31 | `granted` | predecessor | 1: it has released |
//! | 32–39 | `releasable` | successor | 1: it will not look at this descriptor any more |
//!
//! Each side has an MCS queue, and clients of a queue draw tickets one after the other, in its order. `next` is counted up by
//! atomics of the CPU and of the NIC, which do not exclude each other: that is done under Peterson's lock between the two that
//! draw. The head of each queue then waits until `current` is its ticket; clients behind it wait at their own descriptors.
//!
//! A mutex, with one lock at a time for every client, as published: a client has one descriptor. No timeouts, no recovery. A
//! client that is at home nowhere, of which the published program has none, has its descriptor on node 0.

use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Addr, Cond, Endpoint, FabricError, Needs, NodeId, Word64};
use lockwright_locks::{
    Denied, Grant, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, Want,
};
use std::future::poll_fn;
use std::marker::PhantomData;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::Poll;

/// FARLock, with the rules of `R`: the published ones, or a mutant's.
#[derive(Debug)]
pub struct FarLock<R = AsPublished>(PhantomData<R>);

/// Where the mutants differ from it.
pub trait Rules: std::fmt::Debug + 'static {
    /// The name on the command line.
    const NAME: &'static str;
    /// Tickets are drawn under Peterson's lock.
    const EXCLUDES_OTHER_SIDE: bool = true;
    /// A client that finds the other side drawing stays where it is, and does not start over.
    const STAYS: bool = true;
    /// A client draws only when its predecessor has its ticket.
    const DRAWS_IN_ORDER: bool = true;
    /// The head of a queue waits for its ticket.
    const MINDS_TICKET: bool = true;
    /// A client that releases waits until its successor has done with its descriptor.
    const WAITS_FOR_SUCCESSOR: bool = true;
}

/// The published rules.
#[derive(Clone, Copy, Debug)]
pub struct AsPublished;

impl Rules for AsPublished {
    const NAME: &'static str = "farlock";
}

/// Its tunables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarParams {
    /// Clients that a node has descriptors for.
    pub clients: u32,
    /// For the bypass checker: a client counts as waiting from when it asks for Peterson's lock, not from its first verb. What
    /// comes before is bounded by nothing: its order is that of tickets.
    pub waits_from_draw: bool,
}

impl Default for FarParams {
    fn default() -> Self {
        Self { clients: 1_024, waits_from_draw: false }
    }
}

const LINE: u64 = 64;

impl<R: Rules> Protocol for FarLock<R> {
    type Params = FarParams;
    type Client<E: Endpoint> = FarClient<E, R>;

    const INFO: Info = Info {
        name: R::NAME,
        summary: "asymmetric lock in the order of tickets, drawn under Peterson's lock",
        source: "FARLock (OSDI '26)",
        offers: Offers::NONE,
    };

    fn needs(_: &FarParams) -> Needs {
        Needs { masked: true, ..Needs::default() }
    }

    fn bytes_per_node(space: &Space, params: &FarParams) -> u64 {
        space.table_bytes(LINE) + LINE * u64::from(params.clients)
    }

    fn client<E: Endpoint>(ep: E, space: &Space, params: &FarParams) -> FarClient<E, R> {
        FarClient { ep, space: *space, params: *params, busy: Arc::default(), rules: PhantomData }
    }

    fn most_clients(params: &FarParams) -> usize {
        params.clients as usize
    }

    /// The victim and the tickets stay, and descriptors are cleared when they are used.
    fn quiet_mask(space: &Space, _: &FarParams, addr: Addr) -> u64 {
        let is_lock = addr.offset < space.table_bytes(LINE);
        if is_lock && matches!(addr.offset % LINE, 0 | 8 | 16 | 32) { u64::MAX } else { 0 }
    }
}

/// Whose descriptor: bits 0–31 are 1 + the client's index, 32–47 the node it lies on. As a word, 0 is nobody's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Desc(u64);

impl Desc {
    fn from_word(word: u64) -> Option<Self> {
        (word != 0).then_some(Self(word))
    }

    fn word(self, space: &Space, offset: u64) -> Word64 {
        let (client, node) = ((self.0 & 0xffff_ffff) - 1, NodeId((self.0 >> 32) as u16));
        Word64::at(Addr::new(node, space.table_bytes(LINE) + LINE * client + offset))
    }
}

/// What is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FarGrant {
    lock: u64,
    ticket: u64,
}

impl Grant for FarGrant {}

/// A client of the lock.
#[derive(Clone, Debug)]
pub struct FarClient<E, R> {
    ep: E,
    space: Space,
    params: FarParams,
    /// Its descriptor is in use.
    busy: Arc<AtomicBool>,
    rules: PhantomData<R>,
}

impl<E: Endpoint, R: Rules> LockClient for FarClient<E, R> {
    type Grant = FarGrant;

    async fn acquire(&self, want: Want) -> Result<FarGrant, Denied> {
        if want.patience != Patience::Forever {
            return Err(Denied::Unsupported(&Reason("a queued FARLock client cannot give up")));
        }
        if self.busy.swap(true, Relaxed) {
            return Err(Denied::Unsupported(&Reason("a FARLock client has one lock at a time")));
        }
        if self.params.waits_from_draw {
            self.ep.observe(Observation::GaveUp(want.claim));
        }
        let (lock, words) = (want.claim.lock, self.words());
        let clear = [words.behind, words.ticket, words.draws, words.granted, words.releasable]
            .map(|word| word.write(0).raw());
        self.ep.go(&clear[..]).await?;
        let pred = Desc::from_word(self.ep.go(self.tail(lock).swap(self.me().0)).await?);
        if let Some(pred) = pred {
            self.ep.go(pred.word(&self.space, BEHIND).write(self.me().0)).await?;
            let ticket = self.ep.go(pred.word(&self.space, TICKET).read()).await?;
            self.ep.go(pred.word(&self.space, RELEASABLE).write(1)).await?;
            if ticket == 0 && R::DRAWS_IN_ORDER {
                self.ep.wait_until(words.draws.until(IS_SET)).await?;
            }
        }
        let ticket = self.draw(want).await?;
        self.ep.go(words.ticket.write(1 + ticket)).await?;
        if let Some(next) = Desc::from_word(self.ep.go(words.behind.read()).await?) {
            self.ep.go(next.word(&self.space, DRAWS).write(1)).await?;
        }
        if pred.is_some() {
            self.ep.wait_until(words.granted.until(IS_SET)).await?;
        }
        if R::MINDS_TICKET {
            let current = Cond::Eq { mask: u128::MAX, value: u128::from(ticket) };
            self.ep.wait_until(self.word(lock, CURRENT).until(current)).await?;
        }
        Ok(FarGrant { lock, ticket })
    }

    async fn release(&self, FarGrant { lock, ticket }: FarGrant) -> Result<(), Lost> {
        let (words, me) = (self.words(), self.me().0);
        self.ep.go(self.word(lock, CURRENT).write(ticket + 1)).await?;
        let mut behind = self.ep.go(words.behind.read()).await?;
        if behind == 0 && self.ep.go(self.tail(lock).cas(me, 0)).await? == me {
            self.busy.store(false, Relaxed);
            return Ok(());
        }
        if R::WAITS_FOR_SUCCESSOR {
            self.ep.wait_until(words.releasable.until(IS_SET)).await?;
        }
        if behind == 0 {
            behind = self.ep.wait_until(words.behind.until(IS_SET)).await?.value;
        }
        // From here on nobody looks at the descriptor.
        self.busy.store(false, Relaxed);
        let next = Desc::from_word(behind).expect("it was waited for");
        self.ep.go(next.word(&self.space, GRANTED).write(1)).await?;
        Ok(())
    }

    fn locals(&self) -> Vec<u64> {
        vec![u64::from(self.busy.load(Relaxed))]
    }
}

/// Words of a lock. Those of the other side, or of both sides, lie beside each other.
const FLAG: [u64; 2] = [16, 32];
const VICTIM: u64 = 24;
const NEXT: u64 = 40;
const CURRENT: u64 = 48;

/// Words of a descriptor.
const BEHIND: u64 = 0;
const TICKET: u64 = 8;
const DRAWS: u64 = 16;
const GRANTED: u64 = 24;
const RELEASABLE: u64 = 32;

/// Anything but zero.
const IS_SET: Cond = Cond::Ne { mask: u128::MAX, value: 0 };

/// The client's own descriptor.
struct Words {
    behind: Word64,
    ticket: Word64,
    draws: Word64,
    granted: Word64,
    releasable: Word64,
}

impl<E: Endpoint, R: Rules> FarClient<E, R> {
    /// A ticket, drawn under Peterson's lock. No more than one client of each side is here: the others wait for their
    /// predecessors' tickets.
    async fn draw(&self, want: Want) -> Result<u64, FabricError> {
        let lock = want.claim.lock;
        if R::EXCLUDES_OTHER_SIDE {
            self.enter_petersons(want).await?;
        }
        let ticket = self.ep.go(self.word(lock, NEXT).fetch_add(1)).await?;
        self.ep.go(self.flag(lock, self.side(lock)).write(0)).await?;
        Ok(ticket)
    }

    async fn enter_petersons(&self, want: Want) -> Result<(), FabricError> {
        let (lock, side) = (want.claim.lock, self.side(want.claim.lock));
        let (ours, theirs) = (self.flag(lock, side), self.flag(lock, 1 - side));
        let (victim, us) = (self.word(lock, VICTIM), 1 + side as u64);
        let mut counts = self.params.waits_from_draw;
        loop {
            self.ep.mark("farlock draws", &[lock, u64::from(counts)]);
            self.ep.go((ours.write(1), victim.write(us))).await?;
            if std::mem::take(&mut counts) {
                self.ep.observe(Observation::Waiting(want.claim));
            }
            if R::STAYS {
                return self.await_turn(victim, theirs, us).await;
            }
            let (yields, wanted) = self.ep.go((victim.read(), theirs.read())).await?;
            if yields != us || wanted == 0 {
                return Ok(());
            }
            self.ep.go(ours.write(0)).await?;
        }
    }

    /// Until the other side does not want Peterson's lock, or yields.
    async fn await_turn(&self, victim: Word64, theirs: Word64, us: u64) -> Result<(), FabricError> {
        let not_wanted = Cond::Eq { mask: u128::MAX, value: 0 };
        let they_yield = Cond::Ne { mask: u128::MAX, value: u128::from(us) };
        let mut left = pin!(self.ep.wait_until(theirs.until(not_wanted)));
        let mut yielded = pin!(self.ep.wait_until(victim.until(they_yield)));
        let seen = poll_fn(|cx| match left.as_mut().poll(cx) {
            Poll::Ready(seen) => Poll::Ready(seen.map(drop)),
            Poll::Pending => yielded.as_mut().poll(cx).map_ok(drop),
        });
        seen.await
    }

    /// 0: the client's CPU reaches the lock. 1: it does not.
    fn side(&self, lock: u64) -> usize {
        usize::from(self.ep.home() != Some(self.space.place(lock, LINE).node))
    }

    fn word(&self, lock: u64, offset: u64) -> Word64 {
        Word64::at(self.space.place(lock, LINE).plus(offset))
    }

    fn flag(&self, lock: u64, side: usize) -> Word64 {
        self.word(lock, FLAG[side])
    }

    /// The tail of this client's side.
    fn tail(&self, lock: u64) -> Word64 {
        self.word(lock, 8 * self.side(lock) as u64)
    }

    fn me(&self) -> Desc {
        let node = self.ep.home().unwrap_or_default();
        Desc(u64::from(node.0) << 32 | (1 + self.ep.me().index().0 as u64))
    }

    fn words(&self) -> Words {
        let word = |offset| self.me().word(&self.space, offset);
        Words {
            behind: word(BEHIND),
            ticket: word(TICKET),
            draws: word(DRAWS),
            granted: word(GRANTED),
            releasable: word(RELEASABLE),
        }
    }
}

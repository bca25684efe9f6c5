//! The decider as a switch runs it: a packet's header goes through six stages in order, meets every register array once,
//! and leaves with its destinations (FissLock §5.2, Fig. 12).
//!
//! | stage | array, per lock | ACQUIRE | RELEASE | FREE | GRANT with agent | BAR |
//! |---|---|---|---|---|---|---|
//! | MAU selection | – | lock id → (MAU, offset) | ” | ” | ” | ” |
//! | Check | `inca`, 8 bits | shared: +1 | – | 0 if it matches, else invalid | as FREE | – |
//! | Free | `free`, 1 bit | 0 | read | 1 | read | read |
//! | R/W | `r/w`, 1 bit | mode, if it was free | read | read | mode | read |
//! | R/W | `bar`, 1 bit (optional) | see [`Preference`] | read | 0 | from the packet | 1 |
//! | MID | `mid`, 8 bits | machine, if it was free | read | 0 | machine | read |
//! | Destination | – | one or both of requester and agent | agent | back | machine, or back | back |
//!
//! An invalid packet skips every stage up to Destination. FREE and GRANT of an exclusive lock are never invalid: the
//! header carries the mode the lock has (§5.2 footnote 2). Data flow is enforced too: a stage takes what the one before
//! it made.
//!
//! 18 bits per lock are the paper's; the 19th (`bar`) is its optional one, for starvation prevention or write preference
//! (§6). What no packet may do here: touch an array twice, loop, or allocate.

mod mau;
mod once;
mod register;

pub use mau::{CONTROL_MAUS, Switch};
pub use once::{Age, Counted, LaneRegisters, Once};
pub use register::{BitArray, BitOp, Cell, CellArray, CellOp, Place, Port, Predicate, Update};

use lockwright_fabric::observe::Mode;
use std::fmt::Debug;
use std::hash::Hash;
use std::marker::PhantomData;

macro_rules! arrays {
    ($($(#[$doc:meta])* $name:ident;)+) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name;
    )+};
}

arrays! {
    /// The array of incarnations: shared ACQUIREs since the agent came to where it is.
    Inca;
    /// The array that says which locks are free.
    Free;
    /// The array that says which held locks are shared.
    ReadWrite;
    /// The array that says for which shared locks no reader is let in any more.
    Bar;
    /// The array of the machines where the agents are.
    Mid;
}

/// Whom the decider lets in while readers hold a lock (§6).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Preference {
    /// Readers, always: writers may starve. 18 bits per lock.
    ReadersAlways,
    /// Readers, until the agent sends BAR because too many have passed a waiting writer.
    #[default]
    Readers,
    /// Writers: a waiting one keeps readers out (the paper's `ww` bit).
    Writers,
}

/// What a pipeline goes by. The defaults are right; every other value is a mutant.
pub trait Checks: Clone + Debug + Eq + Hash + Send + 'static {
    /// FREE of a shared lock is refused while a shared ACQUIRE is on its way to the agent (§4.2, Fig. 10 right).
    const FREE_IS_CHECKED: bool = true;
    /// So is the transfer of a shared lock (§4.2, Fig. 10 left).
    const GRANT_IS_CHECKED: bool = true;
}

/// The registers of one lock, by the names of their arrays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "they are the arrays of the table above")]
pub struct LockRegisters {
    pub free: bool,
    pub shared: bool,
    pub bar: bool,
    pub mid: u8,
    pub inca: u8,
}

/// What the stages see of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What is asked.
    pub kind: Kind,
    /// The lock, below the number of locks.
    pub lid: usize,
    /// The machine of the requester, or of the next holder. Never zero.
    pub mid: u8,
    /// The mode asked for, or the next holder's.
    pub mode: Mode,
    /// FREE and GRANT: the mode the lock has.
    pub held: Mode,
    /// FREE and GRANT: the incarnation the agent has come to.
    pub inca: u8,
    /// GRANT: whether readers stay out, because writers wait in the queue that travels along. ACQUIRE: whether it waits.
    pub bar: bool,
}

/// The packets whose meaning the pipeline knows (Table 2; BAR is the message that §6 leaves without a name).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A task wants the lock.
    Acquire,
    /// A task that has no agent beside it gives the lock back.
    Release,
    /// The agent gives the lock up.
    Free,
    /// The agent moves to the next holder, and the lock with it.
    Transfer,
    /// The agent wants no more readers to be let in.
    Bar,
}

/// What the pipeline made of a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// What was decided.
    pub verdict: Verdict,
    /// Where the agent is, or was until now. Zero if nowhere.
    pub agent: u8,
}

/// The outcomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Verdict {
    /// Workflow 1: it was free. GRANT with an empty agent to the requester.
    Granted = 1,
    /// Workflow 2: shared already. GRANT to the requester, and ACQUIRE to the agent.
    Joined,
    /// Workflow 3, shared lock: ACQUIRE to the agent, which counts it.
    Barred,
    /// Workflow 3: ACQUIRE to the agent.
    Suspended,
    /// RELEASE goes to the agent (9).
    ToAgent,
    /// FREE (7) or BAR was done, GRANT with an agent (8) goes to the next holder.
    Done,
    /// The incarnation did not match: back to the agent.
    Refused,
}

impl Verdict {
    /// All of them, in the order of their numbers.
    const ALL: [Self; 7] = [
        Self::Granted,
        Self::Joined,
        Self::Barred,
        Self::Suspended,
        Self::ToAgent,
        Self::Done,
        Self::Refused,
    ];

    /// The verdict with this number, as a register keeps it.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.get(usize::from(number).wrapping_sub(1)).copied()
    }
}

/// The register arrays, and the stages over them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pipeline<C> {
    inca: CellArray<Inca, u8>,
    free: BitArray<Free>,
    rw: BitArray<ReadWrite>,
    bar: Option<BitArray<Bar>>,
    mid: CellArray<Mid, u8>,
    bytes_per_mau: usize,
    preference: Preference,
    checks: PhantomData<C>,
}

/// After MAU selection.
struct Selected {
    header: Header,
    place: Place,
}

/// After Check.
struct Checked {
    selected: Selected,
    valid: bool,
}

/// After Free.
struct Freed {
    checked: Checked,
    /// The FREE flag: it was free.
    free: bool,
}

/// After R/W.
struct Moded {
    freed: Freed,
    /// The SHARED flag: a shared ACQUIRE found the lock shared.
    shared: bool,
    barred: bool,
}

/// After MID.
struct Located {
    moded: Moded,
    /// Where the agent was when the packet came.
    agent: u8,
}

/// The one access that a packet has to every array.
struct Ports {
    inca: Port<Inca>,
    free: Port<Free>,
    rw: Port<ReadWrite>,
    bar: Port<Bar>,
    mid: Port<Mid>,
}

impl<C: Checks> Pipeline<C> {
    /// `locks` free locks on `switch`.
    ///
    /// # Panics
    /// If they do not fit.
    pub fn new(locks: usize, switch: Switch, preference: Preference) -> Self {
        assert!(switch.maus_for(locks as u64) <= switch.maus, "{locks} locks do not fit into {switch:?}");
        let bytes_per_mau = switch.registers_per_mau(8) as usize;
        Self {
            inca: CellArray::new(locks, bytes_per_mau),
            free: BitArray::new(locks, true),
            rw: BitArray::new(locks, false),
            bar: (preference != Preference::ReadersAlways).then(|| BitArray::new(locks, false)),
            mid: CellArray::new(locks, bytes_per_mau),
            bytes_per_mau,
            preference,
            checks: PhantomData,
        }
    }

    /// Bits of register memory for all locks together.
    pub fn bits(&self) -> u64 {
        let bar = self.bar.as_ref().map_or(0, BitArray::bits);
        self.inca.bits() + self.free.bits() + self.rw.bits() + bar + self.mid.bits()
    }

    /// A packet goes through.
    ///
    /// # Panics
    /// If there is no such lock.
    pub fn process(&mut self, header: Header) -> Decision {
        let ports = Ports {
            inca: Port::new(),
            free: Port::new(),
            rw: Port::new(),
            bar: Port::new(),
            mid: Port::new(),
        };
        let selected = self.select(header);
        let checked = self.check(selected, ports.inca);
        let freed = self.free(checked, ports.free);
        let moded = self.read_write(freed, ports.rw, ports.bar);
        let located = self.locate(moded, ports.mid);
        destine(&located)
    }

    /// MAU-selection stage.
    fn select(&self, header: Header) -> Selected {
        Selected { header, place: self.place(header.lid) }
    }

    /// Check stage. It comes before the mode is known: every shared ACQUIRE counts, also where nobody will compare.
    fn check(&mut self, selected: Selected, port: Port<Inca>) -> Checked {
        let Header { kind, mode, held, inca, .. } = selected.header;
        let checked = match kind {
            Kind::Free => C::FREE_IS_CHECKED,
            Kind::Transfer => C::GRANT_IS_CHECKED,
            Kind::Acquire | Kind::Release | Kind::Bar => false,
        };
        let op = match kind {
            Kind::Acquire if mode == Mode::Shared => CellOp::COUNT,
            Kind::Acquire | Kind::Release | Kind::Bar => CellOp::READ,
            Kind::Free | Kind::Transfer if held == Mode::Exclusive || !checked => CellOp::set(0),
            Kind::Free | Kind::Transfer => CellOp { when: Predicate::Equals(inca), then: Update::Set(0) },
        };
        let old = self.inca.access(port, selected.place, op);
        let valid = !checked || held == Mode::Exclusive || old == inca;
        Checked { selected, valid }
    }

    /// Free stage.
    fn free(&mut self, checked: Checked, port: Port<Free>) -> Freed {
        let Header { kind, lid, .. } = checked.selected.header;
        let op = match kind {
            Kind::Acquire => BitOp::Clear,
            Kind::Free if checked.valid => BitOp::Set,
            _ => BitOp::Read,
        };
        let free = self.free.access(port, lid, op);
        Freed { checked, free }
    }

    /// R/W stage, and the optional bit beside it.
    fn read_write(&mut self, freed: Freed, rw: Port<ReadWrite>, bar: Port<Bar>) -> Moded {
        let Header { kind, lid, mode, bar: keeps_bar, .. } = freed.checked.selected.header;
        let valid = freed.checked.valid;
        let moves = (kind == Kind::Acquire && freed.free) || (kind == Kind::Transfer && valid);
        let op = match mode {
            _ if !moves => BitOp::Read,
            Mode::Shared => BitOp::Set,
            Mode::Exclusive => BitOp::Clear,
        };
        let was_shared = self.rw.access(rw, lid, op);
        let op = match kind {
            // The paper's ww: an exclusive request that has to wait.
            Kind::Acquire
                if self.preference == Preference::Writers
                    && mode == Mode::Exclusive
                    && !freed.free
                    && keeps_bar =>
            {
                BitOp::Set
            }
            Kind::Bar => BitOp::Set,
            Kind::Transfer if valid && keeps_bar => BitOp::Set,
            Kind::Free | Kind::Transfer if valid => BitOp::Clear,
            _ => BitOp::Read,
        };
        let barred = self.bar.as_mut().is_some_and(|array| array.access(bar, lid, op));
        let shared = kind == Kind::Acquire && mode == Mode::Shared && was_shared && !freed.free;
        Moded { freed, shared, barred }
    }

    /// MID stage.
    fn locate(&mut self, moded: Moded, port: Port<Mid>) -> Located {
        let selected = &moded.freed.checked.selected;
        let valid = moded.freed.checked.valid;
        let op = match selected.header.kind {
            Kind::Acquire if moded.freed.free => CellOp::set(selected.header.mid),
            Kind::Transfer if valid => CellOp::set(selected.header.mid),
            Kind::Free if valid => CellOp::set(0),
            _ => CellOp::READ,
        };
        let agent = self.mid.access(port, selected.place, op);
        Located { moded, agent }
    }

    fn place(&self, lid: usize) -> Place {
        Place { mau: lid / self.bytes_per_mau, offset: lid % self.bytes_per_mau }
    }

    /// What the control plane reads of a lock: mode, `None` if free; agent's machine; incarnation.
    pub fn peek(&self, lid: usize) -> (Option<Mode>, u8, u8) {
        let mode = if self.rw.peek(lid) { Mode::Shared } else { Mode::Exclusive };
        let place = self.place(lid);
        ((!self.free.peek(lid)).then_some(mode), self.mid.peek(place), self.inca.peek(place))
    }

    /// A lock's registers, bit by bit: to copy them into another switch, or to compare them with those of one.
    pub fn registers(&self, lid: usize) -> LockRegisters {
        let place = self.place(lid);
        LockRegisters {
            free: self.free.peek(lid),
            shared: self.rw.peek(lid),
            bar: self.bar.as_ref().is_some_and(|bar| bar.peek(lid)),
            mid: self.mid.peek(place),
            inca: self.inca.peek(place),
        }
    }

    /// Writes a held lock's registers, as the control plane does when it recovers (§5.3, S3).
    pub fn poke(&mut self, lid: usize, mode: Mode, mid: u8, inca: u8, barred: bool) {
        let place = self.place(lid);
        self.free.poke(lid, false);
        self.rw.poke(lid, mode == Mode::Shared);
        if let Some(bar) = &mut self.bar {
            bar.poke(lid, barred);
        }
        self.mid.poke(place, mid);
        self.inca.poke(place, inca);
    }
}

/// Destination stage.
fn destine(located: &Located) -> Decision {
    let Located { moded: Moded { freed, shared, barred }, agent } = located;
    let verdict = match freed.checked.selected.header.kind {
        Kind::Acquire if freed.free => Verdict::Granted,
        Kind::Acquire if *shared && *barred => Verdict::Barred,
        Kind::Acquire if *shared => Verdict::Joined,
        Kind::Acquire => Verdict::Suspended,
        Kind::Release => Verdict::ToAgent,
        Kind::Free | Kind::Transfer if !freed.checked.valid => Verdict::Refused,
        Kind::Free | Kind::Transfer | Kind::Bar => Verdict::Done,
    };
    Decision { verdict, agent: *agent }
}

#[cfg(test)]
mod tests;

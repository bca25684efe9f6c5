//! The life of a client slot: how a client takes it, leaves it, is found dead or evicted, and how it becomes free again.
//!
//! | phase | meaning | next |
//! |---|---|---|
//! | 0 free | no client | 1 when a client takes it |
//! | 1 joining | taken, not reachable yet | 2; 3 if the process ends |
//! | 2 alive | a member | 0 when it leaves; 4 if it leaves names behind; 3 if its process ends or it is evicted |
//! | 3 dead | not a member; lock words may still name it | 4 when an evicted process drops its endpoint; 0 when reaped |
//! | 4 gone | as 3, and its process will not touch the slot any more | 0 when reaped |
//!
//! Every change is one compare-and-swap of the state word, and every return to 0 bumps the generation. So a member's state
//! word is a value that never comes back: the client compares it before every verb and knows that it is still a member.
//!
//! A slot is not reused while the process of an evicted client may still touch its memory.
//!
//! The steps are written once, for the words of a mapped file, where each is done at once, and for the explorer
//! (`check shm-slots`), where others come between any two.

use super::process::Process;

const FREE: u64 = 0;
const JOINING: u64 = 1;
const ALIVE: u64 = 2;
const DEAD: u64 = 3;
const GONE: u64 = 4;

/// A slot's state word: phase (bits 0..4), generation (4..32), pid (32..64).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SlotState(pub u64);

impl SlotState {
    const fn new(phase: u64, generation: u64, pid: u32) -> Self {
        Self(phase | (generation & 0xfff_ffff) << 4 | (pid as u64) << 32)
    }

    const fn phase(self) -> u64 {
        self.0 & 0xf
    }

    /// How often the slot was left.
    pub const fn generation(self) -> u64 {
        self.0 >> 4 & 0xfff_ffff
    }

    /// The process that has it.
    pub const fn pid(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Whether nobody has it.
    pub const fn is_free(self) -> bool {
        self.phase() == FREE
    }

    /// Whether a client is about to become a member.
    pub const fn is_joining(self) -> bool {
        self.phase() == JOINING
    }

    /// Whether it is a member's, as far as its state says.
    pub const fn is_alive(self) -> bool {
        self.phase() == ALIVE
    }

    /// Whether it is on its way from one free state to the next, and its client can be named.
    pub(super) const fn is_listed(self) -> bool {
        matches!(self.phase(), ALIVE | DEAD | GONE)
    }

    const fn with(self, phase: u64) -> Self {
        Self(self.0 & !0xf | phase)
    }

    const fn freed(self, rise: u64) -> Self {
        Self::new(FREE, self.generation() + rise, 0)
    }
}

/// The words of client slots, and what is known of processes. The constants are where mutants differ from what is shipped.
pub trait SlotTable {
    /// A slot that becomes free has another generation.
    const GENERATIONS_RISE: bool = true;
    /// A process is known by pid and start time, and not by its pid alone.
    const STARTS_COUNT: bool = true;
    /// The slot of an evicted client is kept until its process has ended or says that it is done.
    const TOUCHED_ARE_KEPT: bool = true;
    /// An evicted client that is done says so.
    const GONE_IS_SAID: bool = true;
    /// A state is changed only if it is what was read.
    const STATES_ARE_SWAPPED: bool = true;

    /// The state word of a slot.
    fn state(&self, slot: u64) -> impl Future<Output = SlotState>;

    /// Changes it, if it is `from`.
    fn swap(&self, slot: u64, from: SlotState, to: SlotState) -> impl Future<Output = bool>;

    /// The start time of the slot's process.
    fn start(&self, slot: u64) -> impl Future<Output = u64>;

    /// Sets it.
    fn set_start(&self, slot: u64, start: u64) -> impl Future<Output = ()>;

    /// Names that the slot's client uses.
    fn names(&self, slot: u64) -> impl Future<Output = u32>;

    /// Whether the process that has this pid now, if any, is known to have ended.
    fn has_pid_ended(&self, pid: u32) -> impl Future<Output = bool>;

    /// Whether a process is known to have ended.
    fn has_ended(&self, process: Process) -> impl Future<Output = bool>;
}

const fn freed<T: SlotTable>(state: SlotState) -> SlotState {
    state.freed(T::GENERATIONS_RISE as u64)
}

/// Takes a slot if it is free. Nobody else touches its memory until it is [opened](open) or [given back](abandon).
pub async fn take<T: SlotTable>(table: &T, slot: u64, pid: u32) -> Option<SlotState> {
    let state = table.state(slot).await;
    let joining = SlotState::new(JOINING, state.generation(), pid);
    (state.is_free() && table.swap(slot, state, joining).await).then_some(joining)
}

/// Its client is a member from now on, and its state this. `None` if it was taken for dead.
pub async fn open<T: SlotTable>(table: &T, slot: u64, joining: SlotState, start: u64) -> Option<SlotState> {
    table.set_start(slot, start).await;
    let alive = joining.with(ALIVE);
    table.swap(slot, joining, alive).await.then_some(alive)
}

/// A slot that was taken and cannot be opened is free again.
pub async fn abandon<T: SlotTable>(table: &T, slot: u64, joining: SlotState) {
    table.swap(slot, joining, freed::<T>(joining)).await;
}

/// The member whose state is `alive` leaves, or was evicted and is done. One that leaves names behind has to be reaped.
pub async fn leave<T: SlotTable>(table: &T, slot: u64, alive: SlotState) {
    let next = if table.names(slot).await == 0 { freed::<T>(alive) } else { alive.with(GONE) };
    if !table.swap(slot, alive, next).await && T::GONE_IS_SAID {
        table.swap(slot, alive.with(DEAD), alive.with(GONE)).await;
    }
}

/// The process of a slot whose state is `state`; `None` if it has changed since.
pub async fn process<T: SlotTable>(table: &T, slot: u64, state: SlotState) -> Option<Process> {
    let start = table.start(slot).await;
    (table.state(slot).await == state).then_some(Process { pid: state.pid(), start })
}

/// What is known of a slot's client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Probed {
    /// Its process is not known to have ended, and nobody has evicted it.
    pub lives: bool,
    /// It was marked dead just now.
    pub marked: bool,
}

/// Whether the client of a slot lives, by what `has_ended` says of its process. It is marked dead if that has ended.
pub async fn probe<T: SlotTable>(
    table: &T,
    slot: u64,
    state: SlotState,
    has_ended: impl AsyncFnOnce(Process) -> bool,
) -> Probed {
    let ended = match state.phase() {
        ALIVE if !T::STARTS_COUNT => table.has_pid_ended(state.pid()).await,
        // A slot whose state word has changed is not that client's any more.
        ALIVE => match process(table, slot, state).await {
            Some(process) => has_ended(process).await,
            None => true,
        },
        // It may not have written its start time yet.
        JOINING => table.has_pid_ended(state.pid()).await,
        _ => true,
    };
    Probed { lives: !ended, marked: ended && evict(table, slot, state).await }
}

/// Its client is dead from now on, whatever its process does. `false` if it has left, or was dead already.
pub async fn evict<T: SlotTable>(table: &T, slot: u64, state: SlotState) -> bool {
    let mut from = state;
    if !T::STATES_ARE_SWAPPED {
        from = table.state(slot).await;
    }
    matches!(state.phase(), ALIVE | JOINING) && table.swap(slot, from, state.with(DEAD)).await
}

/// Frees the slot of a dead client, unless that still uses names, or its process may still touch the slot.
pub async fn reap<T: SlotTable>(table: &T, slot: u64, state: SlotState) -> bool {
    let untouched = match state.phase() {
        GONE => true,
        DEAD if !T::TOUCHED_ARE_KEPT => true,
        DEAD if !T::STARTS_COUNT => table.has_pid_ended(state.pid()).await,
        DEAD => match process(table, slot, state).await {
            Some(process) => table.has_ended(process).await,
            None => false,
        },
        _ => false,
    };
    untouched && table.names(slot).await == 0 && table.swap(slot, state, freed::<T>(state)).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_word_keeps_its_fields_apart_and_its_generation_wraps() {
        let state = SlotState::new(ALIVE, 0xabc_def0, 4_194_303);
        assert_eq!((state.phase(), state.generation(), state.pid()), (ALIVE, 0xabc_def0, 4_194_303));
        assert_eq!(state.with(DEAD).phase(), DEAD);
        assert_eq!(state.with(DEAD).generation(), 0xabc_def0);
        let freed = SlotState::new(DEAD, 0xfff_ffff, 7).freed(1);
        assert_eq!((freed.generation(), freed.pid(), freed.phase()), (0, 0, FREE));
    }
}

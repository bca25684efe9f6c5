//! The tray: what clients ask, on its way to the books.
//!
//! The [combiner's own list](lockwright_locks::combiner::queue) between whoever reads connections and whoever has the books
//! open. What is asked for most, locks, unlocks and changes of what is held, is in the list itself; of everything else the list has a number, under
//! which it lies in a drawer. That a session is over comes through the list too, behind all that its client has said: nothing it
//! asked for is done later, and its place goes to nobody else before.
//!
//! | word of a note | bits | content |
//! |---|---|---|
//! | 0 | 0–31 | whose |
//! | 0 | 32–39, 40, 41 | kind; exclusive; wait (Lock, Upgrade), answer (Unlock), given up (Downgrade), goodbye (Departed) |
//! | 1 | 0–63 | (all but Departed and Nonsense) its number in the session |
//! | 2 | 0–63 | (Other) its number in the drawer; (the rest of them) the request |
//! | 3, 4, 5 | 0–63 | (Lock) start, end, handle; (Part) start, end, the second piece's request |
//!
//! Every note goes into the list by itself, before its sender can be declared gone: one that still lay beside the list when
//! its session ended could be taken for a note of the next session of that number.
//!
//! What this file must not do: know what becomes of a note.

use lockwright::wire::{Ask, RequestId, Units};
use lockwright_fabric::backend::tcp::SessionEnd;
use lockwright_fabric::observe::Mode;
use lockwright_locks::combiner::core::ClientId;
use lockwright_locks::combiner::queue::{Carried, Combining, Full, Handler, list};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Notes of one thread that can be in the list at a time; who has more to say helps to work them off first.
const DEPTH: u32 = 512;
/// Threads that are none of the server's own, such as those of the RDMA side, have this many ends of the list between them.
const OTHERS: usize = 2;

thread_local! {
    /// Which end of the list this thread has.
    static END: Cell<Option<usize>> = const { Cell::new(None) };
}

/// What a client says, or what is said of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Note {
    Lock {
        seq: u64,
        id: RequestId,
        units: Units,
        wait: bool,
    },
    Unlock {
        seq: u64,
        id: RequestId,
        answer: bool,
    },
    Upgrade {
        seq: u64,
        id: RequestId,
        wait: bool,
    },
    Downgrade {
        seq: u64,
        id: RequestId,
        gives_up: bool,
    },
    Part {
        seq: u64,
        id: RequestId,
        start: u64,
        end: u64,
        rest: RequestId,
    },
    /// Something else, which is in the drawer.
    Other {
        seq: u64,
        number: u64,
    },
    /// A message that makes no sense.
    Nonsense,
    /// The client is gone.
    Departed(SessionEnd),
}

const LOCK: u64 = 0;
const UNLOCK: u64 = 1;
const OTHER: u64 = 2;
const NONSENSE: u64 = 3;
const DEPARTED: u64 = 4;
const UPGRADE: u64 = 5;
const DOWNGRADE: u64 = 6;
const PART: u64 = 7;

const EXCLUSIVE: u64 = 1 << 40;
const FLAG: u64 = 1 << 41;

impl Carried for Note {
    const MOST_WORDS: usize = 6;

    #[inline]
    fn pack(self, client: ClientId, mut put: impl FnMut(usize, u64)) -> usize {
        let flag = |set: bool, bit: u64| if set { bit } else { 0 };
        let (kind, words) = match self {
            Note::Lock { seq, id, units: Units { handle, mode, start, end }, wait } => {
                put(1, seq);
                put(2, id);
                put(3, start);
                put(4, end);
                put(5, handle);
                (LOCK << 32 | flag(mode == Mode::Exclusive, EXCLUSIVE) | flag(wait, FLAG), 6)
            }
            Note::Unlock { seq, id, answer } => {
                put(1, seq);
                put(2, id);
                (UNLOCK << 32 | flag(answer, FLAG), 3)
            }
            Note::Upgrade { seq, id, wait } => {
                put(1, seq);
                put(2, id);
                (UPGRADE << 32 | flag(wait, FLAG), 3)
            }
            Note::Downgrade { seq, id, gives_up } => {
                put(1, seq);
                put(2, id);
                (DOWNGRADE << 32 | flag(gives_up, FLAG), 3)
            }
            Note::Part { seq, id, start, end, rest } => {
                put(1, seq);
                put(2, id);
                put(3, start);
                put(4, end);
                put(5, rest);
                (PART << 32, 6)
            }
            Note::Other { seq, number } => {
                put(1, seq);
                put(2, number);
                (OTHER << 32, 3)
            }
            Note::Nonsense => (NONSENSE << 32, 1),
            Note::Departed(how) => (DEPARTED << 32 | flag(how == SessionEnd::Goodbye, FLAG), 1),
        };
        put(0, u64::from(client.0) | kind);
        words
    }

    #[inline]
    fn unpack(get: impl Fn(usize) -> u64) -> (ClientId, Self, usize) {
        let head = get(0);
        let (client, flag) = (ClientId(head as u32), head & FLAG != 0);
        let (note, words) = match head >> 32 & 0xff {
            LOCK => {
                let mode = if head & EXCLUSIVE != 0 { Mode::Exclusive } else { Mode::Shared };
                let units = Units { handle: get(5), mode, start: get(3), end: get(4) };
                (Note::Lock { seq: get(1), id: get(2), units, wait: flag }, 6)
            }
            UNLOCK => (Note::Unlock { seq: get(1), id: get(2), answer: flag }, 3),
            UPGRADE => (Note::Upgrade { seq: get(1), id: get(2), wait: flag }, 3),
            DOWNGRADE => (Note::Downgrade { seq: get(1), id: get(2), gives_up: flag }, 3),
            PART => (Note::Part { seq: get(1), id: get(2), start: get(3), end: get(4), rest: get(5) }, 6),
            OTHER => (Note::Other { seq: get(1), number: get(2) }, 3),
            NONSENSE => (Note::Nonsense, 1),
            DEPARTED => (Note::Departed(if flag { SessionEnd::Goodbye } else { SessionEnd::Lost }), 1),
            other => unreachable!("only `pack` fills nodes, and it knows no kind {other}"),
        };
        (client, note, words)
    }
}

/// Where notes are put.
#[derive(Debug)]
pub(super) struct Tray {
    ends: Box<[Mutex<Handler<Note>>]>,
    drawer: Mutex<Drawer>,
    next_end: AtomicUsize,
}

#[derive(Debug, Default)]
struct Drawer {
    asks: HashMap<u64, Ask>,
    next: u64,
}

impl Tray {
    /// A tray for so many threads that read connections, and for some others; and where its notes are taken out.
    pub(super) fn new(threads: usize) -> (Self, Combining<Note>) {
        let (ends, combining) = list((threads + OTHERS) as u32, DEPTH);
        let ends = ends.into_iter().map(Mutex::new).collect();
        (Self { ends, drawer: Mutex::default(), next_end: AtomicUsize::new(threads) }, combining)
    }

    /// How many notes there can be.
    pub(super) fn capacity(&self) -> usize {
        self.ends.len() * DEPTH as usize
    }

    /// This thread is the server's thread of that number, and has an end of the list to itself.
    pub(super) fn take_end(number: usize) {
        END.set(Some(number));
    }

    #[inline]
    fn end(&self) -> MutexGuard<'_, Handler<Note>> {
        let number = END.get().unwrap_or_else(|| {
            let number = self.next_end.fetch_add(1, Ordering::Relaxed);
            END.set(Some(number));
            number
        });
        // Threads of the server's own have theirs without a division.
        let number = if number < self.ends.len() { number } else { number % self.ends.len() };
        self.ends[number].lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a note in.
    ///
    /// # Errors
    /// If this thread's notes have to be worked off first.
    #[inline]
    pub(super) fn put(&self, client: u32, note: Note) -> Result<(), Full> {
        self.end().push(ClientId(client), note)
    }

    /// Puts something into the drawer; the number is what the note says.
    pub(super) fn keep(&self, ask: Ask) -> u64 {
        let mut drawer = self.drawer.lock().unwrap_or_else(PoisonError::into_inner);
        drawer.next += 1;
        let number = drawer.next;
        drawer.asks.insert(number, ask);
        number
    }

    /// Takes something out of the drawer.
    pub(super) fn fetch(&self, number: u64) -> Option<Ask> {
        self.drawer.lock().unwrap_or_else(PoisonError::into_inner).asks.remove(&number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_note_comes_out_as_it_went_in() {
        let units = Units { handle: 1 << 63, mode: Mode::Exclusive, start: 3, end: u64::MAX };
        let shared = Units { mode: Mode::Shared, ..units };
        for note in [
            Note::Lock { seq: 1, id: u64::MAX, units, wait: false },
            Note::Lock { seq: u64::MAX, id: 5, units: shared, wait: true },
            Note::Unlock { seq: 7, id: 1 << 40, answer: true },
            Note::Unlock { seq: 7, id: 0, answer: false },
            Note::Upgrade { seq: 7, id: u64::MAX, wait: true },
            Note::Upgrade { seq: 7, id: 0, wait: false },
            Note::Downgrade { seq: 8, id: 3, gives_up: true },
            Note::Downgrade { seq: 8, id: 1 << 50, gives_up: false },
            Note::Part { seq: 9, id: 1, start: 2, end: u64::MAX, rest: 1 << 63 },
            Note::Other { seq: 9, number: u64::MAX },
            Note::Nonsense,
            Note::Departed(SessionEnd::Goodbye),
            Note::Departed(SessionEnd::Lost),
        ] {
            let mut words = [0; Note::MOST_WORDS];
            let count = note.pack(ClientId(u32::MAX), |place, word| words[place] = word);
            assert_eq!(Note::unpack(|place| words[place]), (ClientId(u32::MAX), note, count));
            assert!(words[count..].iter().all(|word| *word == 0), "{count} words are all there is");
        }
    }
}

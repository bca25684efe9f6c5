//! The bell between the list and whoever serves it, under weak memory: the very files of the library, compiled with loom's
//! atomics in place of the standard ones. Loom tries every order with up to two preemptions, and every outcome that the
//! C11 memory model allows.
//!
//! Broken bells are the same file on atomics that do less than they are told ([`deaf`], [`relaxed`], [`stored`]), and one that
//! is rung too early: each must be seen to leave something behind, or to let two serve at once.

#![expect(clippy::duplicate_mod, reason = "one file on several kinds of atomics is what is tested here")]

#[path = "."]
mod combiner {
    //! What surrounds list and bell in the library.

    pub(crate) mod core {
        pub(crate) use lockwright_locks::combiner::core::{ClientId, Request};
    }
    #[expect(unreachable_pub, reason = "public in the library, not in a test")]
    #[path = "../src/combiner/packed.rs"]
    mod packed;
    #[expect(
        unreachable_pub,
        dead_code,
        reason = "public in the library, not in a test; and of several calls some are used"
    )]
    #[path = "../src/combiner/queue.rs"]
    pub(crate) mod queue;
    mod sync {
        pub(super) use loom::sync::{Arc, atomic};
    }
}

use combiner::core::{ClientId, Request};
use combiner::queue::{Combining, Handler, list};
use loom::sync::{Arc, Mutex};
use loom::thread;
use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::TryLockError;

/// A bell on atomics of one's choice, and what the tests call.
macro_rules! bell {
    ($name:ident, $about:literal, $atomics:item) => {
        #[doc = $about]
        #[path = "."]
        mod $name {
            mod sync {
                pub(super) mod atomic {
                    pub(crate) use loom::sync::atomic::Ordering;
                    $atomics
                }
            }
            #[expect(unreachable_pub, reason = "public in the library, not in a test")]
            #[path = "../src/combiner/bell.rs"]
            mod bell;

            impl bell::Clerk for super::Office<bell::Bell> {
                fn pass(&self) -> bool {
                    self.pass_over()
                }

                fn successor(&self, passes: usize) -> Option<impl FnOnce()> {
                    self.successor_after(passes)
                }
            }

            impl super::Rings for bell::Bell {
                fn settle(office: &super::Office<Self>) {
                    office.bell.ring(office);
                }

                fn open(office: &super::Office<Self>, act: impl FnOnce()) {
                    let open = office.door.as_ref().unwrap().lock().unwrap();
                    let turn = office.bell.turn(office);
                    act();
                    drop(open);
                    drop(turn);
                }
            }

            pub(super) type Bell = bell::Bell;
        }
    };
}

bell!(sound, "As it is in the library.", pub(crate) use loom::sync::atomic::AtomicU32;);

bell!(deaf, "Its turn ends without a second look.", pub(crate) use crate::broken::Deaf as AtomicU32;);

bell!(relaxed, "It orders nothing.", pub(crate) use crate::broken::Relaxed as AtomicU32;);

bell!(
    stored,
    "A ring that finds somebody is a store and no exchange.",
    pub(crate) use crate::broken::Stored as AtomicU32;
);

/// Words that do less than they are told.
mod broken {
    use loom::sync::atomic::{AtomicU32, Ordering};

    macro_rules! word {
        ($name:ident, $swap:expr, $exchange:expr) => {
            #[derive(Debug)]
            pub(crate) struct $name(AtomicU32);

            impl $name {
                pub(crate) fn new(value: u32) -> Self {
                    Self(AtomicU32::new(value))
                }

                pub(crate) fn swap(&self, new: u32, order: Ordering) -> u32 {
                    $swap(&self.0, new, order)
                }

                pub(crate) fn compare_exchange(
                    &self,
                    old: u32,
                    new: u32,
                    order: Ordering,
                    failed: Ordering,
                ) -> Result<u32, u32> {
                    $exchange(&self.0, (old, new), order, failed)
                }
            }
        };
    }

    fn exchange(
        word: &AtomicU32,
        (old, new): (u32, u32),
        order: Ordering,
        failed: Ordering,
    ) -> Result<u32, u32> {
        word.compare_exchange(old, new, order, failed)
    }

    const NOBODY: u32 = 0;
    const RUNG: u32 = 2;

    word!(Deaf, AtomicU32::swap, |word: &AtomicU32, (old, new), order, failed| match new {
        NOBODY => Ok(word.swap(NOBODY, order)),
        _ => exchange(word, (old, new), order, failed),
    });

    word!(
        Relaxed,
        |word: &AtomicU32, new, _| word.swap(new, Ordering::Relaxed),
        |word: &AtomicU32, pair, _, _| exchange(word, pair, Ordering::Relaxed, Ordering::Relaxed)
    );

    word!(
        Stored,
        |word: &AtomicU32, new, order| match new {
            RUNG => {
                // Whoever is there may hear it; if nobody is, this one serves.
                let found = exchange(word, (NOBODY, RUNG), order, Ordering::Acquire);
                found.unwrap_or_else(|found| {
                    word.store(RUNG, Ordering::Release);
                    found
                })
            }
            _ => word.swap(new, order),
        },
        exchange
    );
}

/// A bell, whichever.
trait Rings: Sized + Default + Send + Sync + 'static {
    fn settle(office: &Office<Self>);

    /// Opens the books for something that does not come through the list.
    fn open(office: &Office<Self>, act: impl FnOnce());
}

/// What a server has around the bell.
struct Office<B> {
    bell: B,
    /// Nobody ever waits for this: whoever has the turn is alone, or with [`Office::door`] has locked that.
    books: std::sync::Mutex<Books>,
    /// What a server has the books in, where somebody opens them who has not rung.
    door: Option<Mutex<()>>,
    /// Notes in a pass.
    most: usize,
    /// After how many passes turns are handed on, and how many were.
    hands_on: fn(usize) -> bool,
    handed_on: Mutex<usize>,
}

struct Books {
    notes: Combining,
    /// Taken and not yet served.
    batch: VecDeque<(ClientId, Request)>,
    /// Whose notes were served, and which: in order.
    served: Vec<(u32, u32)>,
}

/// Whoever serves a note of this client dies of it.
const DEADLY: u32 = 13;

impl<B: Rings> Office<B> {
    fn books(&self) -> std::sync::MutexGuard<'_, Books> {
        match self.books.try_lock() {
            Ok(books) => books,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => panic!("two are at the books"),
        }
    }

    fn settle(&self) {
        B::settle(self);
    }

    fn open(&self, act: impl FnOnce()) {
        B::open(self, act);
    }

    fn pass_over(&self) -> bool {
        let _open = self.door.as_ref().map(|door| door.lock().unwrap());
        let mut books = self.books();
        let Books { notes, batch, served } = &mut *books;
        let mut taken = Vec::new();
        notes.take_all(self.most, &mut taken);
        let left = taken.len() == self.most;
        batch.extend(taken);
        while let Some((ClientId(client), request)) = batch.pop_front() {
            let Request::Unlock { id } = request else { panic!("nobody asked for {request:?}") };
            if client == DEADLY {
                resume_unwind(Box::new("dead"));
            }
            served.push((client, id));
        }
        left
    }

    fn successor_after(&self, passes: usize) -> Option<impl FnOnce()> {
        (self.hands_on)(passes).then_some(|| *self.handed_on.lock().unwrap() += 1)
    }

    /// What was served, if that is all there is.
    fn served(&self) -> Vec<(u32, u32)> {
        let books = self.books();
        assert!(books.notes.is_empty() && books.batch.is_empty(), "something is left behind");
        books.served.clone()
    }
}

fn office<B: Rings>(threads: u32) -> (Office<B>, Vec<Handler>) {
    let (handlers, notes) = list(threads, 4);
    let books = std::sync::Mutex::new(Books { notes, batch: VecDeque::new(), served: Vec::new() });
    (
        Office {
            bell: B::default(),
            books,
            door: None,
            most: 10,
            hands_on: |_| false,
            handed_on: Mutex::new(0),
        },
        handlers,
    )
}

fn put(handler: &mut Handler, client: u32, id: u32) {
    handler.push(ClientId(client), Request::Unlock { id }).unwrap();
}

fn model(run: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(2);
    builder.check(run);
}

/// Runs each of `threads` with its end of the list, the last one here, and waits for all.
fn all_at_once<B: Rings>(
    office: &Arc<Office<B>>,
    handlers: Vec<Handler>,
    run: fn(u32, &mut Handler, &Office<B>),
) -> Vec<Handler> {
    let mut handlers = handlers.into_iter().zip(1..);
    let (mut mine, me) = handlers.next().unwrap();
    let spawn = |(mut handler, number): (Handler, u32)| {
        let office = Arc::clone(office);
        thread::spawn(move || {
            run(number, &mut handler, &office);
            handler
        })
    };
    let others: Vec<_> = handlers.map(spawn).collect();
    run(me, &mut mine, office);
    others.into_iter().map(|thread| thread.join().unwrap()).chain([mine]).collect()
}

fn sorted(mut all: Vec<(u32, u32)>) -> Vec<(u32, u32)> {
    all.sort_unstable();
    all
}

/// So many threads put a note down and ring.
fn one_note_each<B: Rings>(threads: u32) {
    model(move || {
        let (office, handlers) = office::<B>(threads);
        let office = Arc::new(office);
        let _living = all_at_once(&office, handlers, |me, handler, office| {
            put(handler, me, 0);
            office.settle();
        });
        assert_eq!(sorted(office.served()), (1..=threads).map(|me| (me, 0)).collect::<Vec<_>>());
    });
}

#[test]
fn nothing_is_left_when_two_who_rang_have_returned() {
    one_note_each::<sound::Bell>(2);
}

#[test]
fn nothing_is_left_when_three_who_rang_have_returned() {
    one_note_each::<sound::Bell>(3);
}

#[test]
#[should_panic(expected = "something is left behind")]
fn without_a_second_look_something_is_left() {
    one_note_each::<deaf::Bell>(2);
}

#[test]
#[should_panic(expected = "something is left behind")]
fn with_relaxed_exchanges_something_is_left() {
    one_note_each::<relaxed::Bell>(2);
}

#[test]
#[should_panic(expected = "something is left behind")]
fn with_a_ring_that_is_a_store_something_is_left() {
    one_note_each::<stored::Bell>(3);
}

#[test]
#[should_panic(expected = "something is left behind")]
fn who_rings_before_it_puts_its_note_down_leaves_it() {
    model(|| {
        let (office, handlers) = office::<sound::Bell>(2);
        let office = Arc::new(office);
        let _living = all_at_once(&office, handlers, |me, handler, office| {
            office.settle();
            put(handler, me, 0);
        });
        office.served();
    });
}

fn of(client: u32, all: &[(u32, u32)]) -> Vec<u32> {
    all.iter().filter(|one| one.0 == client).map(|one| one.1).collect()
}

#[test]
fn the_notes_of_a_thread_are_served_in_its_order_whoever_serves_them() {
    model(|| {
        let (mut office, handlers) = office::<sound::Bell>(2);
        // Passes that leave something behind.
        office.most = 1;
        let office = Arc::new(office);
        let _living = all_at_once(&office, handlers, |me, handler, office| {
            put(handler, me, 0);
            office.settle();
            put(handler, me, 1);
            office.settle();
        });
        let all = office.served();
        assert_eq!((of(1, &all), of(2, &all)), (vec![0, 1], vec![0, 1]));
    });
}

#[test]
fn what_is_rung_for_while_the_books_are_open_for_something_else_is_served() {
    model(|| {
        let (mut office, handlers) = office::<sound::Bell>(2);
        office.door = Some(Mutex::new(()));
        let office = Arc::new(office);
        let _living = all_at_once(&office, handlers, |me, handler, office| {
            if me == 1 {
                // What is done with them may ring, too.
                return office.open(|| {
                    put(handler, me, 0);
                    office.settle();
                });
            }
            put(handler, me, 0);
            office.settle();
        });
        assert_eq!(sorted(office.served()), [(1, 0), (2, 0)]);
    });
}

#[test]
fn a_turn_that_is_handed_on_leaves_nothing_once_the_next_one_rang() {
    model(|| {
        let (mut office, handlers) = office::<sound::Bell>(2);
        (office.most, office.hands_on) = (1, |passes| passes > 0);
        let office = Arc::new(office);
        let _living = all_at_once(&office, handlers, |me, handler, office| {
            put(handler, me, 0);
            office.settle();
        });
        while std::mem::take(&mut *office.handed_on.lock().unwrap()) > 0 {
            office.settle();
        }
        assert_eq!(sorted(office.served()), [(1, 0), (2, 0)]);
    });
}

#[test]
fn what_nobody_rang_for_and_what_stands_behind_it_is_served_with_the_next_ring() {
    model(|| {
        let (office, handlers) = office::<sound::Bell>(2);
        let office = Arc::new(office);
        let mut handlers = all_at_once(&office, handlers, |me, handler, office| {
            put(handler, me, 0);
            // The other one is killed here. It may have been slow to link its note, which the list is whole only up to.
            if me == 1 {
                office.settle();
            }
        });
        put(&mut handlers[1], 1, 1);
        office.settle();
        let all = office.served();
        assert_eq!((of(1, &all), of(2, &all)), (vec![0, 1], vec![0]));
    });
}

/// Two put a note down and ring, and a third one's note kills whoever serves it.
fn one_dies_in_its_turn(handed_on: bool) {
    model(move || {
        let (mut office, handlers) = office::<sound::Bell>(2);
        if handed_on {
            office.hands_on = |passes| passes == 0;
        }
        let office = Arc::new(office);
        let _living = all_at_once(&office, handlers, |me, handler, office| {
            if me == 1 {
                put(handler, DEADLY, 0);
            }
            put(handler, me, 0);
            let lives = catch_unwind(AssertUnwindSafe(|| office.settle()));
            let deadly = |dead: Box<dyn std::any::Any + Send>| dead.downcast_ref() == Some(&"dead");
            assert!(lives.map_or_else(deadly, |()| true), "somebody died of something else");
        });
        let handed_on = *office.handed_on.lock().unwrap();
        (0..handed_on).for_each(|_| office.settle());
        assert_eq!(sorted(office.served()), [(1, 0), (2, 0)]);
    });
}

#[test]
fn who_dies_in_its_turn_hands_it_on() {
    one_dies_in_its_turn(true);
}

#[test]
fn who_dies_in_its_turn_with_nobody_to_hand_it_to_serves_the_others_first() {
    one_dies_in_its_turn(false);
}

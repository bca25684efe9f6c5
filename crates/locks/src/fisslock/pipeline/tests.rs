//! The pipeline against Fig. 8, workflow by workflow, and its size.

use super::*;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Right;
impl Checks for Right {}

fn pipeline(locks: usize, preference: Preference) -> Pipeline<Right> {
    Pipeline::new(locks, Switch::TOFINO, preference)
}

fn header(kind: Kind, mid: u8, mode: Mode) -> Header {
    Header { kind, lid: 3, mid, mode, held: mode, inca: 0, bar: false }
}

fn acquire(mid: u8, mode: Mode) -> Header {
    Header { bar: true, ..header(Kind::Acquire, mid, mode) }
}

fn decided(verdict: Verdict, agent: u8) -> Decision {
    Decision { verdict, agent }
}

use Mode::{Exclusive, Shared};

#[test]
fn a_lock_takes_18_bits_and_19_with_the_optional_one() {
    for locks in [1, 64, 1_000, 1_680_000] {
        assert_eq!(pipeline(locks, Preference::ReadersAlways).bits(), 18 * locks as u64);
        assert_eq!(pipeline(locks, Preference::Readers).bits(), 19 * locks as u64);
    }
}

#[test]
fn a_full_switch_holds_1_68_million_locks_in_twelve_maus_of_560_kb() {
    let full = pipeline(1_680_000, Preference::ReadersAlways);
    let bits = full.bits();
    assert_eq!(bits, 18 * 1_680_000);
    assert!(bits <= 12 * 560_000 * 8);
    assert_eq!((full.inca.bits(), full.mid.bits()), (3 * 560_000 * 8, 3 * 560_000 * 8));
}

#[test]
#[should_panic(expected = "do not fit")]
fn one_more_lock_does_not_fit() {
    pipeline(1_680_001, Preference::ReadersAlways);
}

#[test]
fn a_free_lock_is_granted_with_its_agent_and_others_wait_for_the_writer() {
    let mut decider = pipeline(10, Preference::Readers);
    assert_eq!(decider.process(acquire(1, Exclusive)), decided(Verdict::Granted, 0));
    assert_eq!(decider.process(acquire(2, Exclusive)), decided(Verdict::Suspended, 1));
    assert_eq!(decider.process(acquire(2, Shared)), decided(Verdict::Suspended, 1));
    assert_eq!(decider.process(header(Kind::Transfer, 2, Exclusive)), decided(Verdict::Done, 1));
    assert_eq!(decider.peek(3), (Some(Exclusive), 2, 0));
    assert_eq!(decider.process(header(Kind::Free, 2, Exclusive)), decided(Verdict::Done, 2));
    assert_eq!(decider.peek(3), (None, 0, 0));
}

#[test]
fn readers_join_and_the_lock_is_free_only_when_the_agent_knows_them_all() {
    let mut decider = pipeline(10, Preference::Readers);
    assert_eq!(decider.process(acquire(1, Shared)), decided(Verdict::Granted, 0));
    assert_eq!(decider.process(acquire(2, Shared)), decided(Verdict::Joined, 1));
    assert_eq!(decider.process(header(Kind::Release, 2, Shared)), decided(Verdict::ToAgent, 1));
    // The agent has not heard of the second reader yet.
    let free = |inca| Header { inca, ..header(Kind::Free, 1, Shared) };
    assert_eq!(decider.process(free(1)), decided(Verdict::Refused, 1));
    assert_eq!(decider.peek(3), (Some(Shared), 1, 2));
    let transfer = |inca| Header { inca, held: Shared, ..header(Kind::Transfer, 4, Exclusive) };
    assert_eq!(decider.process(transfer(1)), decided(Verdict::Refused, 1));
    assert_eq!(decider.process(transfer(2)), decided(Verdict::Done, 1));
    assert_eq!(decider.peek(3), (Some(Exclusive), 4, 0));
}

#[test]
fn what_was_counted_while_a_writer_held_the_lock_does_not_count_for_readers() {
    let mut decider = pipeline(10, Preference::Readers);
    decider.process(acquire(1, Exclusive));
    decider.process(acquire(2, Shared));
    decider.process(Header { held: Exclusive, ..header(Kind::Transfer, 2, Shared) });
    assert_eq!(decider.peek(3), (Some(Shared), 2, 0));
}

#[test]
fn a_bar_keeps_readers_out_until_the_lock_moves_on() {
    let mut decider = pipeline(10, Preference::Readers);
    decider.process(acquire(1, Shared));
    assert_eq!(decider.process(acquire(3, Exclusive)), decided(Verdict::Suspended, 1));
    assert_eq!(decider.process(acquire(2, Shared)), decided(Verdict::Joined, 1));
    assert_eq!(decider.process(header(Kind::Bar, 1, Shared)), decided(Verdict::Done, 1));
    assert_eq!(decider.process(acquire(4, Shared)), decided(Verdict::Barred, 1));
    let free = Header { inca: 3, ..header(Kind::Free, 1, Shared) };
    assert_eq!(decider.process(free), decided(Verdict::Done, 1));
    decider.process(acquire(1, Shared));
    assert_eq!(decider.process(acquire(4, Shared)), decided(Verdict::Joined, 1));
}

#[test]
fn where_writers_are_preferred_a_waiting_one_is_a_bar() {
    let mut decider = pipeline(10, Preference::Writers);
    decider.process(acquire(1, Shared));
    decider.process(acquire(3, Exclusive));
    assert_eq!(decider.process(acquire(2, Shared)), decided(Verdict::Barred, 1));
    // A writer still waits in the queue that moves along.
    decider.process(Header { inca: 2, held: Shared, bar: true, ..header(Kind::Transfer, 5, Shared) });
    assert_eq!(decider.process(acquire(2, Shared)), decided(Verdict::Barred, 5));
}

#[test]
fn verdicts_have_numbers_that_a_register_can_keep() {
    for verdict in Verdict::ALL {
        assert_eq!(Verdict::from_number(verdict as u8), Some(verdict));
    }
    assert_eq!((Verdict::from_number(0), Verdict::from_number(8)), (None, None));
}

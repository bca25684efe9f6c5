//! Waiting for words and for time.

use super::{Rig, Shape, alone, task};
use crate::addr::{Addr, NodeId, Word64, Word128};
use crate::endpoint::Endpoint;
use crate::wait::{Cond, Deadline, Field};

const WORD: Word64 = Word64::at(Addr::new(NodeId(0), 0));
const WIDE: Word128 = Word128::at(Addr::new(NodeId(0), 32));

/// How long the checks' deadlines are. Nothing is asserted about how much later they end.
const SOON_NS: u64 = 300_000;

const fn is(value: u128) -> Cond {
    Cond::Eq { mask: u128::MAX, value }
}

/// A condition that holds already.
pub fn a_wait_that_is_met_ends_at_once<R: Rig>(make: &impl Fn(Shape) -> R) {
    alone(&mut make(Shape::of(1)), |ep| async move {
        ep.go(WORD.write(0x25)).await.unwrap();
        let end = ep.wait_until(WORD.until(Cond::Eq { mask: 0xf, value: 5 })).await.unwrap();
        assert_eq!((end.value, end.met), (0x25, true));
        let end = ep.wait_until(WORD.until(Cond::Ne { mask: 0xf, value: 6 })).await.unwrap();
        assert_eq!((end.value, end.met), (0x25, true));
        let end = ep.wait_until(WORD.until(Cond::AtLeast(Field { shift: 4, bits: 4 }, 2))).await.unwrap();
        assert_eq!((end.value, end.met), (0x25, true));
    });
}

/// Of two conditions, either will do.
pub fn either_condition_ends_a_wait<R: Rig>(make: &impl Fn(Shape) -> R) {
    for written in [3, 4] {
        make(Shape::of(2)).run(vec![
            task(move |ep: R::E| async move {
                let end = ep.wait_until(WORD.until(is(3)).or(is(4))).await.unwrap();
                assert_eq!((end.value, end.met), (written, true));
            }),
            task(move |ep: R::E| async move {
                ep.sleep(SOON_NS).await;
                ep.go(WORD.write(written)).await.unwrap();
            }),
        ]);
    }
}

/// Two clients take turns: each waits for the number the other writes. Every kind of verb must wake its
/// waiter.
pub fn a_wait_sees_what_another_client_writes<R: Rig>(make: &impl Fn(Shape) -> R) {
    const TURNS: u64 = 300;
    let player = |odd: u64| {
        task(move |ep: R::E| async move {
            let masked = ep.capabilities().masked;
            for turn in (0..TURNS).filter(|turn| turn % 2 == odd) {
                // Now and then the other has parked by the time its number comes.
                if turn % 50 < 2 {
                    ep.sleep(50_000).await;
                }
                let end = ep.wait_until(WORD.until(is(turn.into()))).await.unwrap();
                assert_eq!((end.value, end.met), (turn, true));
                match turn % 10 / 2 {
                    0 => drop(ep.go(WORD.write(turn + 1)).await.unwrap()),
                    1 => drop(ep.go(WORD.cas(turn, turn + 1)).await.unwrap()),
                    2 if masked => drop(ep.go(WORD.swap(turn + 1)).await.unwrap()),
                    3 if masked => drop(ep.go(WORD.masked_fetch_add(1, 1 << 40)).await.unwrap()),
                    _ => drop(ep.go(WORD.fetch_add(1)).await.unwrap()),
                }
            }
        })
    };
    make(Shape::of(2)).run(vec![player(0), player(1)]);
}

/// A verb on one half of a 16-byte word ends a wait for the whole.
pub fn a_wait_for_a_wide_word_sees_a_change_of_its_half<R: Rig>(make: &impl Fn(Shape) -> R) {
    make(Shape::of(2)).run(vec![
        task(|ep: R::E| async move {
            if ep.capabilities().wide {
                let end =
                    ep.wait_until(WIDE.until(Cond::Ne { mask: u128::MAX << 64, value: 0 })).await.unwrap();
                assert_eq!((end.value, end.met), (9 << 64, true));
            }
        }),
        task(|ep: R::E| async move {
            ep.sleep(SOON_NS).await;
            ep.go(Word64::at(WIDE.addr().plus(8)).write(9)).await.unwrap();
        }),
    ]);
}

/// Two fields of a word that come to hold the same number (Citron waits so).
pub fn a_wait_for_fields_sees_them_meet<R: Rig>(make: &impl Fn(Shape) -> R) {
    let fields = Cond::FieldsEq(Field { shift: 0, bits: 8 }, Field { shift: 8, bits: 8 });
    make(Shape::of(2)).run(vec![
        task(move |ep: R::E| async move {
            ep.go(WORD.fetch_add(0x0300)).await.unwrap();
            let end = ep.wait_until(WORD.until(fields)).await.unwrap();
            assert_eq!((end.value, end.met), (0x0303, true));
        }),
        task(move |ep: R::E| async move {
            ep.wait_until(WORD.until(is(0x0300))).await.unwrap();
            for _ in 0..3 {
                ep.sleep(20_000).await;
                ep.go(WORD.fetch_add(1)).await.unwrap();
            }
        }),
    ]);
}

/// `Deadline::Now`: one look, met or not.
pub fn a_wait_without_patience_looks_once<R: Rig>(make: &impl Fn(Shape) -> R) {
    alone(&mut make(Shape::of(1)), |ep| async move {
        ep.go(WORD.write(8)).await.unwrap();
        let end = ep.wait_until(WORD.until(is(9)).by(Deadline::Now)).await.unwrap();
        assert_eq!((end.value, end.met), (8, false));
        let end = ep.wait_until(WORD.until(is(8)).by(Deadline::Now)).await.unwrap();
        assert_eq!((end.value, end.met), (8, true));
    });
}

/// `Deadline::At`: the word as last seen, not met, and the clock has come to it.
pub fn a_wait_gives_up_at_its_deadline_and_not_before<R: Rig>(make: &impl Fn(Shape) -> R) {
    alone(&mut make(Shape::of(1)), |ep| async move {
        ep.go(WORD.write(8)).await.unwrap();
        let deadline = ep.now().await.plus(SOON_NS);
        let end = ep.wait_until(WORD.until(is(9)).by(Deadline::At(deadline))).await.unwrap();
        assert_eq!((end.value, end.met), (8, false));
        assert!(ep.now().await >= deadline, "the wait gave up too early");
        assert!(ep.passed(deadline).await);
        let end = ep.wait_until(WORD.until(is(8)).by(Deadline::At(deadline))).await.unwrap();
        assert!(end.met, "a condition that holds is met however late it is");
    });
}

/// Time never runs backwards, and a sleep is at least as long as it says.
pub fn a_sleep_takes_its_time<R: Rig>(make: &impl Fn(Shape) -> R) {
    alone(&mut make(Shape::of(1)), |ep| async move {
        let mut before = ep.now().await;
        for ns in [0, 1, 500, 5_000, 50_000, SOON_NS] {
            ep.sleep(ns).await;
            let after = ep.now().await;
            assert!(after >= before && after.since(before) >= ns, "{ns} ns took {}", after.since(before));
            before = after;
        }
        assert!(!ep.passed(before.plus(3_600_000_000_000)).await);
    });
}

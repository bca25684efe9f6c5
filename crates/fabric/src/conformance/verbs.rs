//! One client: every verb against [`Op::apply`], batches, lists, dead nodes.

use super::{Rig, Shape, alone};
use crate::addr::{Addr, NodeId, Value, Word, Word64, Word128};
use crate::capability::Capabilities;
use crate::endpoint::{Endpoint, FabricError};
use crate::random::SplitMix;
use crate::verb::{Fields, MaskedCas, Op, RawVerb};

fn at(offset: u64) -> Addr {
    Addr::new(NodeId(0), offset)
}

/// A random verb that `has` allows, biased towards masks and values at which implementations branch.
pub(super) fn random_op<T: Value>(random: &mut SplitMix, has: Capabilities, seen: u128) -> Op {
    let all = T::WIDTH.mask();
    let mut wide = || (u128::from(random.next()) << 64 | u128::from(random.next())) & all;
    let (a, b, c, noise) = (wide(), wide(), wide(), wide());
    let shift = (noise >> 8) % u128::from(T::WIDTH.bytes() * 8 - 24);
    let field = ((1u128 << (noise % 24)) - 1) << shift;
    let mask = match noise >> 16 & 3 {
        0 => 0,
        1 => all,
        2 => field,
        _ => b,
    };
    let hit = noise >> 20 & 3 != 0; // three of four comparisons succeed
    let compare = if hit { seen } else { a };
    let fields = Fields { add: a, boundaries: if noise >> 24 & 1 == 0 { mask } else { b } };
    match noise >> 32 & 7 {
        0 => Op::Read,
        1 => Op::Write(a),
        2 => Op::Cas { expect: compare, new: b },
        3 => Op::FetchAdd(a),
        4 | 5 if has.masked => {
            let swap_mask = if noise >> 26 & 1 == 0 { all } else { b };
            Op::MaskedCas(MaskedCas { compare, compare_mask: mask, swap: c, swap_mask })
        }
        6 if has.masked => Op::MaskedFetchAdd(fields),
        7 if has.guarded => Op::GuardedFetchAdd { fields, guard: compare, guard_mask: mask },
        _ => Op::FetchAdd(1),
    }
}

async fn against_apply<E: Endpoint, T: Value>(ep: &E, word: Word<T>) {
    let mut random = SplitMix::new(u64::from(T::WIDTH.bytes() as u32));
    let mut model = 0u128;
    for step in 0..2000 {
        let op = random_op::<T>(&mut random, ep.capabilities(), model);
        let verb = RawVerb { addr: word.addr(), width: T::WIDTH, op };
        // Where verbs take no waiting, every other one is not waited for.
        let done = if E::IS_IMMEDIATE && step % 2 == 1 {
            ep.try_go(&[verb][..]).expect("verbs take no waiting")
        } else {
            ep.go(&[verb][..]).await
        };
        let old = done.expect("the node is alive")[0];
        let next = op.apply(T::WIDTH, model).unwrap_or(model);
        if !matches!(op, Op::Write(_)) {
            assert_eq!(old, model, "step {step}: old value of {op:?}");
        }
        let now = ep.go(word.read()).await.expect("the node is alive").widen();
        assert_eq!(now, next, "step {step}: {op:?} on {model:#x}");
        model = next;
    }
}

/// Random verbs of every kind, on both widths: old and new values are those of [`Op::apply`].
pub fn every_verb_does_what_apply_says<R: Rig>(make: &impl Fn(Shape) -> R) {
    alone(&mut make(Shape::of(1)), |ep| async move {
        against_apply::<_, u64>(&ep, Word64::at(at(0))).await;
        if ep.capabilities().wide {
            against_apply::<_, u128>(&ep, Word128::at(at(32))).await;
        }
    });
}

/// Verbs that carry, wrap and fill a word change no other word.
pub fn neighbours_of_a_word_are_left_alone<R: Rig>(make: &impl Fn(Shape) -> R) {
    alone(&mut make(Shape::of(1)), |ep| async move {
        let word = |offset| Word64::at(at(offset));
        ep.go(word(8).write(u64::MAX)).await.unwrap();
        assert_eq!(ep.go(word(8).fetch_add(2)).await, Ok(u64::MAX));
        assert_eq!(ep.go((word(0).read(), word(8).read(), word(16).read())).await, Ok((0, 1, 0)));
        if ep.capabilities().masked {
            assert_eq!(ep.go(word(8).masked_fetch_add(u64::MAX, 1 << 63)).await, Ok(1));
            assert_eq!(ep.go(word(8).swap(u64::MAX)).await, Ok(0));
            assert_eq!(ep.go([word(0).read(), word(8).read(), word(16).read()]).await, Ok([0, u64::MAX, 0]));
        }
    });
}

/// The low half of a 16-byte word comes first, and both can be read and written as 8-byte words.
pub fn halves_of_a_wide_word_are_words<R: Rig>(make: &impl Fn(Shape) -> R) {
    alone(&mut make(Shape::of(1)), |ep| async move {
        if !ep.capabilities().wide {
            return;
        }
        let (wide, low, high) = (Word128::at(at(16)), Word64::at(at(16)), Word64::at(at(24)));
        ep.go(wide.write(7 << 64 | 5)).await.unwrap();
        assert_eq!(ep.go((low.read(), high.read())).await, Ok((5, 7)));
        ep.go((high.fetch_add(1), low.write(6))).await.unwrap();
        assert_eq!(ep.go(wide.fetch_add(1 << 64)).await, Ok(8 << 64 | 6));
        assert_eq!(ep.go(high.read()).await, Ok(9));
    });
}

/// A later verb of a batch sees what an earlier one did; results come back in the batch's own shape.
pub fn a_batch_executes_in_order_and_returns_every_old_word<R: Rig>(make: &impl Fn(Shape) -> R) {
    alone(&mut make(Shape::of(1)), |ep| async move {
        let (a, b) = (Word64::at(at(0)), Word64::at(at(8)));
        let (_, first, second, (third, other)) =
            ep.go((a.write(1), a.fetch_add(10), a.cas(11, 12), (a.read(), b.cas(5, 6)))).await.unwrap();
        assert_eq!((first, second, third, other), (1, 11, 12, 0));
        assert_eq!(ep.go([a.fetch_add(1), b.fetch_add(2), a.read(), b.read()]).await, Ok([12, 0, 13, 2]));
    });
}

/// A slice of raw verbs of both widths, up to the limit.
pub fn a_list_of_verbs_is_a_batch_too<R: Rig>(make: &impl Fn(Shape) -> R) {
    alone(&mut make(Shape::of(1)), |ep| async move {
        let word = Word64::at(at(0));
        let full = [word.fetch_add(3).raw(); crate::verb::MAX_BATCH];
        let olds = ep.go(&full[..]).await.unwrap();
        assert!(olds.iter().copied().eq((0..).step_by(3).take(crate::verb::MAX_BATCH)), "{olds:?}");
        assert!(ep.go(&full[..0]).await.unwrap().is_empty(), "an empty batch does nothing");
        if ep.capabilities().wide {
            let wide = Word128::at(at(16));
            let mixed = [wide.fetch_add(1 << 100).raw(), word.read().raw(), wide.read().raw()];
            assert_eq!(ep.go(&mixed[..]).await.unwrap()[..], [0, 96, 1 << 100]);
        }
    });
}

/// A guard that does not hold leaves the word alone and still returns it.
pub fn a_guarded_add_adds_only_where_its_guard_holds<R: Rig>(make: &impl Fn(Shape) -> R) {
    alone(&mut make(Shape::of(1)), |ep| async move {
        if !ep.capabilities().guarded {
            return;
        }
        let word = Word64::at(at(0));
        ep.go(word.write(0x3_ff)).await.unwrap();
        let add = |guard| word.guarded_fetch_add(1, 0x80, guard, 0xf00);
        assert_eq!(ep.go((add(0x200), add(0x300), word.read())).await, Ok((0x3_ff, 0x3_ff, 0x3_00)));
    });
}

/// The same offset on two nodes is two words.
pub fn nodes_have_memory_of_their_own<R: Rig>(make: &impl Fn(Shape) -> R) {
    let shape = Shape { nodes: 3, ..Shape::of(1) };
    alone(&mut make(shape), |ep| async move {
        let word = |node| Word64::at(Addr::new(NodeId(node), 64));
        for node in 0..3 {
            ep.go(word(node).write(u64::from(node) + 1)).await.unwrap();
        }
        for node in 0..3 {
            assert_eq!(ep.go(word(node).read()).await, Ok(u64::from(node) + 1));
        }
    });
}

/// Verbs and waits on a dead node fail; others go on. Skipped where the rig cannot kill a node.
pub fn a_dead_node_is_reported_as_lost<R: Rig>(make: &impl Fn(Shape) -> R) {
    let mut rig = make(Shape { nodes: 2, ..Shape::of(1) });
    if !rig.kill(NodeId(1)) {
        return;
    }
    alone(&mut rig, |ep| async move {
        let word = |node| Word64::at(Addr::new(NodeId(node), 0));
        let lost = FabricError::NodeLost(NodeId(1));
        assert_eq!(ep.go(word(1).fetch_add(1)).await, Err(lost));
        assert_eq!(ep.go((word(1).read(), word(1).write(1))).await, Err(lost));
        let never = crate::wait::Cond::Eq { mask: 1, value: 1 };
        assert_eq!(ep.wait_until(word(1).until(never)).await, Err(lost));
        assert_eq!(ep.go(word(0).fetch_add(1)).await, Ok(0));
    });
}

//! What names of a one-sided space stand for, and the tokens of those that take the place of others.

use super::*;
use lockwright_locks::citron::member::TreeParams;
use lockwright_locks::shiftlock::layout::Stamp;

const NOW_NS: u64 = 1_790_000_000_000_000_000;
/// From here on readers of JSON may round.
const EXACT: u64 = 1 << 53;

fn name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

/// As if the lock had been given back so often.
fn release(space: &OneSidedSpace, lock: u64, times: u64) {
    space.memory.poke(layout::entry(lock), VersionedPortable::put(Stamp::new(times, 3)) as u64);
}

#[test]
fn a_name_whose_lock_is_used_up_goes_on_with_another_when_nobody_has_it_open() {
    let space = OneSidedSpace::new("a", VerbExecutor::Cpu, NOW_NS, Ranges::Exact);
    let (id, base) = space.open_name(&name("a")).unwrap();
    release(&space, id, VersionedPortable::LIMIT);
    assert_eq!(space.open_name(&name("a")), Some((id, base)), "a client has it open");
    space.close_name(&name("a"));
    space.close_name(&name("a"));
    let (other, above) = space.open_name(&name("a")).unwrap();
    assert_ne!(other, id);
    assert!(above >= base + VersionedPortable::LIMIT, "{above} after {base}");
    assert!(above + VersionedPortable::LIMIT < EXACT, "{above}");
}

#[test]
fn an_id_that_goes_to_another_name_gives_out_larger_tokens_for_keys_and_for_ranges() {
    let space = OneSidedSpace::new("a", VerbExecutor::Cpu, NOW_NS, Ranges::Exact);
    let (id, base) = space.open_name(&name("a")).unwrap();
    release(&space, id, 7);
    release(&space, layout::gate(id), 1000);
    space.close_name(&name("a"));
    space.state().next = layout::NAMES;
    let (reused, above) = space.open_name(&name("b")).unwrap();
    assert_eq!(reused, id);
    assert!(above + 7 >= base + 1000, "{above} after {base}");
}

#[test]
fn a_name_whose_ranges_are_on_a_tree_gives_out_larger_tokens_than_the_last_one_of_its_id() {
    let one = TreeParams { locks: 1, units: 4, unit: 1, ..TreeParams::default() };
    let space = OneSidedSpace::new("a", VerbExecutor::Cpu, NOW_NS, Ranges::Tree(one));
    let (id, base) = space.open_name(&name("a")).unwrap();
    assert_eq!(space.open_name(&name("b")), None, "there is one tree");
    let forest = space.forest().unwrap();
    space.memory.poke(forest.tokens(id), 1000);
    space.close_name(&name("a"));
    let node = forest.nodes(id).next().unwrap();
    space.memory.poke(node, 1);
    assert_eq!(space.open_name(&name("b")), None, "a client holds a range of it");
    space.memory.poke(node, 0);
    let (reused, above) = space.open_name(&name("b")).unwrap();
    assert_eq!(reused, id);
    assert!(above >= base + 1000, "{above} after {base}");
}

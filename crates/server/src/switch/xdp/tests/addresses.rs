//! Where packets may come from: a machine's own address, and subnets that clients may be in.

use super::*;

/// Once any HELLO said where its machine is, so that a copy of it diverted the machine's grants.
#[test]
fn a_hello_that_is_repeated_from_elsewhere_is_forged_and_diverts_nothing() {
    let Some(mut program) = program() else { return };
    let mut world = World::new(5, &mut program);
    let mid = world.keys[0].0;
    let hello = world.hello(mid);
    let whole = |out: &[u8]| (opened(out).0, out[HEADERS + 3]);
    let from = |program: &Program, source| run(program, "decide", &frame(source, &hello));
    let (action, out) = from(&program, address(mid));
    assert_eq!((action, whole(&out)), (TX, (address(mid), HELLO as u8)));
    let forged = program.counts().forged;
    let mut port = address(mid);
    port.set_port(9);
    assert_eq!((from(&program, address(mid + 100)).0, from(&program, port).0), (DROP, DROP));
    assert_eq!(program.counts().forged, forged + 2);
    // Nor by a card that says it has the machine's address.
    let mut card = frame(address(mid), &hello);
    card[11] = 77;
    assert_eq!(whole(&run(&program, "decide", &card).1), (address(mid), HELLO as u8));
    let (action, out) = run(&program, "decide", &acquire(&world, mid, 0, 1, world.epoch));
    assert_eq!((action, whole(&out)), (TX, (address(mid), 4)));
    // Under its next key it may be somewhere else.
    program.peer(mid, Some(world.key(mid)));
    assert_eq!(from(&program, port).0, TX);
}

#[test]
fn what_comes_from_where_no_client_may_be_is_dropped_as_forged() {
    if program().is_none() {
        return;
    }
    let mut program = load(&["10.9.1.0/24".parse().unwrap(), "10.9.2.7".parse().unwrap()]);
    let mut world = World::new(6, &mut program);
    let mid = world.keys[0].0;
    let hello = world.hello(mid);
    let forged = program.counts().forged;
    for elsewhere in [[10, 9, 2, 8], [10, 9, 0, 255], [127, 0, 0, 1]] {
        let source = (Ipv4Addr::from(elsewhere), 9).into();
        assert_eq!(run(&program, "decide", &frame(source, &hello)).0, DROP, "{elsewhere:?}");
    }
    assert_eq!(program.counts().forged, forged + 3);
    assert_eq!(run(&program, "decide", &frame(address(mid), &hello)).0, TX);
    program.peer(mid, Some(world.key(mid)));
    assert_eq!(run(&program, "decide", &frame("10.9.2.7:9".parse().unwrap(), &hello)).0, TX);
}

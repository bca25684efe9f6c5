//! The dispatcher without a network: passes of several requests against one by one, deaths between a request and its pass, and
//! several threads at one dispatcher.

use super::dispatcher::{Admission, Dispatcher};
use super::durable::Durable;
use super::lock_table::LockTable;
use super::session::Stage;
use lockwright::LockName;
use lockwright::wire::Kind;
use lockwright::wire::{DenyReason, OLDEST, Request, RequestId, Response, SERVER, Units, VERSION, slot};
use lockwright_fabric::PeerId;
use lockwright_fabric::backend::tcp::{Inbox, SessionEnd, VerbHost};
use lockwright_fabric::observe::Mode;
use lockwright_fabric::random::SplitMix;
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

const NAMES: u64 = 3;
const RANGES: u64 = 3;

/// A dispatcher, and every response to any client, in order.
struct Served {
    dispatcher: Dispatcher,
    said: Arc<Mutex<Vec<(PeerId, Response)>>>,
    first_token: u64,
}

/// Whose request, which, how, and its token if it is held.
type Standing = (usize, RequestId, Units, Option<u64>);

/// A client of it.
#[derive(Clone, Copy)]
struct Visitor {
    peer: PeerId,
    seq: u64,
}

fn dispatcher() -> Dispatcher {
    let durable = Durable::begin(None, Duration::ZERO).unwrap().0;
    Dispatcher::new(LockTable::new(durable, false, vec![], vec![]), Admission::Secret)
}

impl Served {
    fn new() -> Self {
        let dispatcher = dispatcher();
        let first_token = dispatcher.lock_table().durable.first_token();
        Self { dispatcher, said: Arc::default(), first_token }
    }

    /// A client that has named what there is: `NAMES` keyed locks and a range lock.
    fn come_in(&self) -> Visitor {
        let peer = self.dispatcher.admit("1 here test").unwrap();
        let said = Arc::clone(&self.said);
        self.dispatcher.attach(
            peer,
            Inbox::new(move |_, message| {
                said.lock().unwrap().push((peer, Response::decode(&message).unwrap().1));
                true
            }),
        );
        let mut visitor = Visitor { peer, seq: 0 };
        self.say(
            &mut visitor,
            &Request::Open { version: VERSION, key: 1, space: Vec::new(), one_sided: false, seen: 0 },
        );
        for handle in 0..=NAMES {
            let kind = if handle == RANGES { Kind::Ranges } else { Kind::Keyed };
            let name = LockName::new(format!("lock {handle}")).unwrap();
            self.say(&mut visitor, &Request::Name { handle, kind, name });
        }
        self.dispatcher.drain();
        visitor
    }

    fn say(&self, visitor: &mut Visitor, ask: &Request) {
        visitor.seq += 1;
        assert!(self.dispatcher.deliver(visitor.peer, SERVER, &ask.encode(visitor.seq)));
    }

    /// What was said since this was last asked, without mere acknowledgements; tokens counted from the first.
    fn heard(&self) -> Vec<(PeerId, Response)> {
        let mut said = std::mem::take(&mut *self.said.lock().unwrap());
        said.retain(|(_, answer)| *answer != Response::Ack);
        for (_, answer) in &mut said {
            if let Response::Granted { token, .. } | Response::Changed { token, .. } = answer {
                *token -= self.first_token;
            }
        }
        said
    }

    /// Who holds what, and who waits for what.
    fn requests(&self) -> Vec<Standing> {
        let table = self.dispatcher.lock_table();
        let sessions = table.sessions.iter().enumerate();
        let of = |(peer, session): (usize, &Option<super::session::Session>)| -> Vec<_> {
            let requests = session.iter().flat_map(|session| session.slots.iter().flatten());
            let token = |stage: &Stage| match stage {
                Stage::Held { token } => Some(token - self.first_token),
                _ => None,
            };
            requests.map(|request| (peer, request.id, request.units, token(&request.stage))).collect()
        };
        sessions.flat_map(of).collect()
    }

    /// Whether the table say of everything that is held what the combiner says.
    fn assert_table_is_right(&self) {
        let table = self.dispatcher.lock_table();
        let holdings = table.core().holdings();
        let requests = table.sessions.iter().flatten().flat_map(|session| session.slots.iter().flatten());
        let asked = requests.filter(|request| !matches!(request.stage, Stage::Behind));
        assert_eq!(holdings.len(), asked.count());
        let mut upgrades = 0;
        for held in holdings {
            let session = table.sessions[held.client.0 as usize].as_ref().expect("the dead hold nothing");
            let request = session.slots[held.id as usize].as_ref().expect("the table know it");
            let token = if let Stage::Held { token } = request.stage { Some(token) } else { None };
            assert_eq!((token, request.units.mode), (held.token, held.mode), "{request:?}");
            if held.lock != lockwright_locks::combiner::core::NAMES {
                assert_eq!((request.units.start, request.units.end), (held.start, held.end), "{request:?}");
            }
            let waits = held.token.is_some() && held.waits_for > 0;
            assert_eq!(request.upgrades.is_some(), waits, "{request:?}");
            assert_eq!(request.change.is_some(), waits, "{request:?}");
            upgrades += u64::from(waits);
        }
        let now = &table.totals.now;
        assert_eq!(now.holders + now.waiters, table.requests() as u64 + upgrades);
    }

    /// Asserts that no client has left anything.
    fn assert_is_empty(&self) {
        let table = self.dispatcher.lock_table();
        assert_eq!((table.requests(), table.directory.in_use()), (0, 0));
        let totals = &table.totals;
        assert_eq!((totals.sessions, totals.now.holders, totals.now.waiters), (0, 0, 0));
    }
}

fn keyed(handle: u64, mode: Mode) -> Units {
    Units { handle, mode, start: 0, end: u64::MAX, thread: None }
}

fn lock(id: RequestId, units: Units, wait: bool) -> Request {
    Request::Lock { id, units, wait }
}

fn x(handle: u64) -> Units {
    keyed(handle, Mode::Exclusive)
}

fn units(start: u64) -> Units {
    Units { handle: RANGES, mode: Mode::Exclusive, start, end: start + 1, thread: None }
}

/// Repeatable requests.
struct Random(SplitMix);

impl Random {
    fn below(&mut self, limit: u64) -> u64 {
        self.0.below(limit)
    }

    /// Something a client may ask, sensible or not. Ids come from a small set, so that requests meet their like.
    fn ask(&mut self, time: u64) -> Request {
        let epoch = (time / 100) << 32;
        let (id, any) = (epoch | self.below(4), epoch | self.below(8));
        let mode = if self.below(2) == 0 { Mode::Shared } else { Mode::Exclusive };
        match self.below(32) {
            0..7 => lock(id, keyed(self.below(NAMES), mode), self.below(4) > 0),
            7..10 => {
                let start = self.below(8);
                let units = Units { handle: RANGES, mode, start, end: start + self.below(9), thread: None };
                lock(id, units, self.below(4) > 0)
            }
            10..17 => Request::Unlock { id: any, answer: false },
            17 => Request::Unlock { id: any, answer: true },
            20..25 => Request::Upgrade { id: any, wait: self.below(4) > 0 },
            25..27 => Request::Downgrade { id: any, gives_up: self.below(2) == 0 },
            27..32 => {
                let (start, rest) = (self.below(12), epoch | (4 + self.below(4)));
                Request::Part { id: any, start, end: start + self.below(4), rest }
            }
            18 => Request::Break { id: 1 << 40, token: 1, name: LockName::new("lock 0").unwrap() },
            _ => lock(id, keyed(99, mode), true),
        }
    }
}

/// A set of some locks, in any order.
fn set(random: &mut Random, time: u64) -> Request {
    let epoch = (time / 100) << 32;
    let member = |_| {
        let mode = if random.below(2) == 0 { Mode::Shared } else { Mode::Exclusive };
        let (id, handle) = (epoch | random.below(8), random.below(NAMES + 2));
        (id, if handle == RANGES { units(random.below(8)) } else { keyed(handle, mode) })
    };
    Request::LockSet { members: (0..=time % 4).map(member).collect() }
}

/// Lets clients ask at random, with `settle` after as many messages as `group` says, and returns what was said.
fn play(seed: u64, group: impl FnMut() -> u64) -> (Vec<(PeerId, Response)>, Vec<Standing>) {
    play_with(seed, group, Random::ask)
}

fn play_with(
    seed: u64,
    mut group: impl FnMut() -> u64,
    ask: impl Fn(&mut Random, u64) -> Request,
) -> (Vec<(PeerId, Response)>, Vec<Standing>) {
    const CLIENTS: usize = 4;
    let (served, mut random) = (Served::new(), Random(SplitMix::new(seed)));
    let mut clients: Vec<_> = (0..CLIENTS).map(|_| served.come_in()).collect();
    let mut left = group();
    for time in 0..400 {
        let at = random.below(CLIENTS as u64) as usize;
        if random.below(40) == 0 {
            let end = if random.below(2) == 0 { SessionEnd::Goodbye } else { SessionEnd::Lost };
            served.dispatcher.on_session_lost(clients[at].peer, end);
            clients[at] = served.come_in();
            continue;
        }
        let ask = ask(&mut random, time);
        served.say(&mut clients[at], &ask);
        left -= 1;
        if left == 0 {
            served.dispatcher.drain();
            served.assert_table_is_right();
            left = group();
        }
    }
    served.dispatcher.drain();
    let end = (served.heard(), served.requests());
    for client in clients {
        served.dispatcher.on_session_lost(client.peer, SessionEnd::Goodbye);
    }
    served.assert_is_empty();
    end
}

#[test]
fn a_pass_of_several_requests_answers_exactly_as_one_by_one() {
    let mut changes = [0; 5];
    for seed in 0..200 {
        let one_by_one = play(seed, || 1);
        assert!(one_by_one.0.len() > 100, "there is something to compare");
        one_by_one.0.iter().for_each(|(_, answer)| match answer {
            Response::Changed { mode: Mode::Exclusive, .. } => changes[0] += 1,
            Response::Changed { mode: Mode::Shared, .. } => changes[1] += 1,
            Response::Unchanged { why: DenyReason::Deadlock, .. } => changes[2] += 1,
            Response::Unchanged { why: DenyReason::Busy, .. } => changes[3] += 1,
            Response::Granted { id, .. } if slot(*id) >= 4 => changes[4] += 1,
            _ => {}
        });
        let mut sizes = Random(SplitMix::new(!seed));
        assert_eq!(play(seed, move || 1 + sizes.below(60)), one_by_one, "seed {seed}");
    }
    assert!(changes.iter().all(|seen| *seen > 10), "every kind of change: {changes:?}");
}

#[test]
fn sets_that_are_asked_for_and_given_up_at_random_leave_nothing_behind() {
    let mut granted = 0;
    for seed in 0..200 {
        let mut sizes = Random(SplitMix::new(!seed));
        let ask = |random: &mut Random, time| {
            if random.below(3) == 0 { set(random, time) } else { random.ask(time) }
        };
        let (said, _) = play_with(seed, move || 1 + sizes.below(10), ask);
        granted += said.iter().filter(|(_, answer)| matches!(answer, Response::Granted { .. })).count();
    }
    assert!(granted > 1000, "{granted} grants");
}

#[test]
fn a_set_takes_its_locks_one_after_the_other_and_keeps_none_whose_turn_has_not_come() {
    let served = Served::new();
    let [mut holder, mut taker, mut other] = [(); 3].map(|()| served.come_in());
    served.say(&mut holder, &lock(0, x(1), true));
    served.say(&mut taker, &Request::LockSet { members: (0..3).map(|at| (at, x(at))).collect() });
    served.dispatcher.drain();
    served.say(&mut other, &lock(0, x(2), true));
    served.dispatcher.drain();
    let granted = |peer| {
        let mine = served.heard().into_iter().filter(|(to, _)| *to == peer);
        let id = |(_, answer)| if let Response::Granted { id, .. } = answer { Some(id) } else { None };
        mine.filter_map(id).collect::<Vec<_>>()
    };
    assert_eq!(
        granted(other.peer),
        [0],
        "the set waits for the second lock, and has not asked for the third"
    );
    served.say(&mut other, &Request::Unlock { id: 0, answer: false });
    served.say(&mut holder, &Request::Unlock { id: 0, answer: false });
    served.dispatcher.drain();
    assert_eq!(granted(taker.peer), [1, 2]);
    for id in 0..3 {
        served.say(&mut taker, &Request::Unlock { id, answer: false });
    }
    served.dispatcher.drain();
    served.say(&mut other, &Request::LockSet { members: (0..3).map(|at| (at, x(at))).collect() });
    served.dispatcher.drain();
    assert_eq!(granted(other.peer), [0, 1, 2], "all at once, if they are free");
}

#[test]
fn a_session_that_dies_between_its_requests_and_their_pass_loses_nothing_for_others() {
    let served = Served::new();
    let [mut dies, mut waits, mut other] = [(); 3].map(|()| served.come_in());
    served.say(&mut dies, &lock(0, x(0), true));
    served.dispatcher.drain();
    served.say(&mut waits, &lock(0, x(0), true));
    served.dispatcher.drain();
    served.heard();
    // Nothing of this is served before the death is heard of: an unlock, a lock that would be granted, one that would wait.
    served.say(&mut dies, &Request::Unlock { id: 0, answer: false });
    served.say(&mut dies, &lock(1 << 32, x(1), true));
    served.say(&mut dies, &lock(1 << 32 | 1, x(0), true));
    served.say(&mut other, &lock(0, x(1), true));
    served.dispatcher.on_session_lost(dies.peer, SessionEnd::Lost);
    let heard = served.heard();
    let of = |peer| {
        heard.iter().filter(|(to, _)| *to == peer).map(|(_, answer)| answer.clone()).collect::<Vec<_>>()
    };
    assert!(matches!(of(waits.peer)[..], [Response::Granted { id: 0, .. }]), "{heard:?}");
    assert!(matches!(of(other.peer)[..], [Response::Granted { id: 0, .. }]), "{heard:?}");
    // The next client may get its slot, and inherits no request of it.
    let mut next = served.come_in();
    assert_eq!(next.peer, dies.peer);
    served.say(&mut next, &lock(0, x(2), true));
    served.dispatcher.drain();
    assert!(matches!(served.requests()[..], [_, _, _]), "{:?}", served.requests());
    for visitor in [next, waits, other] {
        served.dispatcher.on_session_lost(visitor.peer, SessionEnd::Goodbye);
    }
    served.assert_is_empty();
}

#[test]
fn with_a_full_disk_nothing_is_upgraded_and_what_is_downgraded_keeps_its_token() {
    let served = Served::new();
    let [mut reads, mut writes, mut other] = [(); 3].map(|()| served.come_in());
    served.say(&mut reads, &lock(0, keyed(0, Mode::Shared), true));
    served.say(&mut writes, &lock(0, x(1), true));
    served.dispatcher.drain();
    served.heard();
    served.dispatcher.lock_table().durable.fail();
    served.say(&mut reads, &Request::Upgrade { id: 0, wait: true });
    served.say(&mut writes, &Request::Downgrade { id: 0, gives_up: false });
    served.dispatcher.drain();
    let why = DenyReason::Refused("the disk is full".to_owned());
    let changed = Response::Changed { id: 0, token: 2, mode: Mode::Shared };
    assert_eq!(served.heard(), [(reads.peer, Response::Unchanged { id: 0, why }), (writes.peer, changed)]);
    let modes: Vec<_> = served.requests().iter().map(|(_, _, units, token)| (units.mode, *token)).collect();
    assert_eq!(modes, [(Mode::Shared, Some(1)), (Mode::Shared, Some(2))]);
    // And it is given up as it was held: nobody waits for what is not there.
    served.say(&mut reads, &Request::Downgrade { id: 0, gives_up: true });
    served.say(&mut other, &lock(0, keyed(0, Mode::Shared), false));
    served.dispatcher.drain();
    let heard = served.heard();
    let as_it_was = Response::Changed { id: 0, token: 1, mode: Mode::Shared };
    assert!(heard.contains(&(reads.peer, as_it_was)), "{heard:?}");
    assert!(
        matches!(&heard[..], [_, (peer, Response::Refused { id: 0, .. })] if *peer == other.peer),
        "{heard:?}"
    );
    for visitor in [reads, writes, other] {
        served.dispatcher.on_session_lost(visitor.peer, SessionEnd::Goodbye);
    }
    served.assert_is_empty();
}

#[test]
fn a_combiner_that_panics_loses_nothing_for_those_whose_requests_it_had_taken() {
    let served = Served::new();
    let [mut before, mut deadly, mut behind] = [(); 3].map(|()| served.come_in());
    served.heard();
    // An inbox that panics in the thread that answers this client; no real one is known to.
    served.dispatcher.attach(deadly.peer, Inbox::new(|_, _| std::panic::resume_unwind(Box::new("dead"))));
    let pass = |asks: [(&mut Visitor, Request); 3]| {
        asks.into_iter().for_each(|(visitor, ask)| served.say(visitor, &ask));
        let died = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| served.dispatcher.drain()));
        assert_eq!(died.unwrap_err().downcast_ref(), Some(&"dead"));
        served.heard().into_iter().map(|(peer, _)| peer).collect::<Vec<_>>()
    };
    // It dies while requests are applied: of what it answers at once.
    let heard = pass([
        (&mut before, lock(0, x(0), true)),
        (&mut deadly, Request::Unlock { id: 7, answer: true }),
        (&mut behind, lock(0, x(1), true)),
    ]);
    assert_eq!(heard, [before.peer, behind.peer]);
    // And while what was decided is passed on.
    let heard = pass([
        (&mut before, lock(1, units(0), true)),
        (&mut deadly, lock(1, units(10), true)),
        (&mut behind, lock(1, units(20), true)),
    ]);
    assert_eq!(heard, [before.peer, behind.peer]);
    served.say(&mut behind, &lock(2, units(30), true));
    served.dispatcher.drain();
    assert_eq!(served.heard().len(), 1, "the dispatcher goes on");
    for visitor in [before, deadly, behind] {
        served.dispatcher.on_session_lost(visitor.peer, SessionEnd::Goodbye);
    }
    served.assert_is_empty();
}

#[test]
fn older_clients_are_served_and_those_of_the_future_refused_in_one_line() {
    let served = Served::new();
    for (version, is_served) in [(0, false), (OLDEST, true), (VERSION, true), (VERSION + 1, false)] {
        let peer = served.dispatcher.admit("1 here test").unwrap();
        let said = Arc::clone(&served.said);
        let hear = move |_, message| {
            said.lock().unwrap().push((peer, Response::decode(&message).unwrap().1));
            true
        };
        served.dispatcher.attach(peer, Inbox::new(hear));
        let mut visitor = Visitor { peer, seq: 0 };
        served.say(
            &mut visitor,
            &Request::Open { version, key: 1, space: Vec::new(), one_sided: false, seen: 0 },
        );
        served.dispatcher.drain();
        let said = std::mem::take(&mut *served.said.lock().unwrap());
        match &said[..] {
            [(_, Response::Ack)] => assert!(is_served, "version {version}"),
            [(_, Response::Refused { id: 0, why })] => {
                assert!(
                    !is_served && why.contains(&format!("version {version}")) && !why.contains('\n'),
                    "{why}"
                );
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn threads_that_ask_at_once_are_all_answered_whichever_is_the_combiner() {
    const THREADS: usize = 4;
    const ROUNDS: u64 = 3_000;
    let dispatcher = dispatcher();
    let inside = Mutex::new(0_u64);
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                let peer = dispatcher.admit("1 here test").unwrap();
                let (tell, told) = mpsc::channel();
                let put = move |_, message| tell.send(Response::decode(&message).unwrap().1).is_ok();
                dispatcher.attach(peer, Inbox::new(put));
                let mut seq = 0;
                let mut say = |ask: &Request| {
                    seq += 1;
                    dispatcher.deliver(peer, SERVER, &ask.encode(seq));
                };
                say(&Request::Open {
                    version: VERSION,
                    key: 1,
                    space: Vec::new(),
                    one_sided: false,
                    seen: 0,
                });
                say(&Request::Name { handle: 0, kind: Kind::Keyed, name: LockName::new("a").unwrap() });
                dispatcher.drain();
                for round in 0..ROUNDS {
                    say(&lock(round << 32, x(0), true));
                    dispatcher.drain();
                    loop {
                        match told.recv_timeout(Duration::from_secs(60)).expect("every client is answered") {
                            Response::Granted { .. } => break,
                            Response::Ack => {}
                            other => panic!("{other:?}"),
                        }
                    }
                    *inside.try_lock().expect("nobody else holds the lock") += 1;
                    say(&Request::Unlock { id: round << 32, answer: false });
                    // Often with the next request.
                    if round % 3 == 0 {
                        dispatcher.drain();
                    }
                }
                dispatcher.on_session_lost(peer, SessionEnd::Goodbye);
            });
        }
    });
    assert_eq!(*inside.lock().unwrap(), THREADS as u64 * ROUNDS);
    let table = dispatcher.lock_table();
    assert_eq!((table.requests(), table.directory.in_use(), table.totals.sessions), (0, 0, 0));
}

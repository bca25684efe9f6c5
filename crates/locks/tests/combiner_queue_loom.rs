//! The list between handlers and the combiner under weak memory: the very file of the library, compiled with loom's
//! atomics in place of the standard ones. Loom tries every order with up to two preemptions, and every outcome that the
//! C11 memory model allows.

#[path = "."]
mod combiner {
    //! What surrounds the list in the library.

    pub(crate) mod core {
        pub(crate) use lockwright_locks::combiner::core::{ClientId, Request};
    }
    #[expect(unreachable_pub, reason = "public in the library, not in a test")]
    #[path = "../src/combiner/packed.rs"]
    mod packed;
    #[expect(unreachable_pub, reason = "public in the library, not in a test")]
    #[path = "../src/combiner/queue.rs"]
    pub(crate) mod queue;
    #[path = "../src/combiner/queue_deaths.rs"]
    mod queue_deaths;
    mod sync {
        pub(super) use loom::sync::{Arc, atomic};
    }

    use self::core::{ClientId, Request};
    use self::queue::{Combining, Handler, list};
    use loom::thread;

    fn model(run: impl Fn() + Sync + Send + 'static) {
        let mut builder = loom::model::Builder::new();
        builder.preemption_bound = Some(2);
        builder.check(run);
    }

    fn request(id: u32) -> Request {
        Request::Unlock { id }
    }

    fn push(handler: &mut Handler, client: u32, id: u32) {
        while handler.push(ClientId(client), request(id)).is_err() {
            thread::yield_now();
        }
    }

    /// Takes until so many have come: (client, id) in order.
    fn take(combining: &mut Combining, count: usize) -> Vec<(u32, u32)> {
        // How often it looks before it asks who died is a matter of speed alone.
        combining.patience = 1;
        let mut all = Vec::new();
        while all.len() < count {
            let before = all.len();
            combining.take_all(10, &mut all);
            if all.len() == before {
                thread::yield_now();
            }
        }
        assert_eq!(combining.take(), None, "nothing comes twice");
        assert!(combining.is_empty(), "nothing is left");
        let id = |(client, what): (ClientId, Request)| match what {
            Request::Unlock { id } => (client.0, id),
            other => panic!("nobody asked for {other:?}"),
        };
        all.into_iter().map(id).collect()
    }

    fn of(client: u32, all: &[(u32, u32)]) -> Vec<u32> {
        all.iter().filter(|one| one.0 == client).map(|one| one.1).collect()
    }

    #[test]
    fn two_handlers_lose_nothing() {
        model(|| {
            let (mut handlers, mut combining) = list(2, 2);
            let (mut one, mut other) = (handlers.pop().unwrap(), handlers.pop().unwrap());
            let first = thread::spawn(move || {
                push(&mut one, 1, 0);
                one
            });
            let second = thread::spawn(move || {
                push(&mut other, 2, 0);
                other
            });
            let all = take(&mut combining, 2);
            assert_eq!((of(1, &all), of(2, &all)), (vec![0], vec![0]));
            drop((first.join().unwrap(), second.join().unwrap()));
        });
    }

    #[test]
    fn a_handler_s_requests_keep_their_order_and_its_nodes_carry_what_was_put_in_last() {
        model(|| {
            let (mut handlers, mut combining) = list(1, 2);
            let mut handler = handlers.pop().unwrap();
            let pushing = thread::spawn(move || {
                for id in 0..3 {
                    push(&mut handler, 1, id);
                }
            });
            assert_eq!(of(1, &take(&mut combining, 3)), [0, 1, 2]);
            pushing.join().unwrap();
        });
    }

    #[test]
    fn who_dies_between_exchange_and_link_stops_nobody() {
        model(|| {
            let (mut handlers, mut combining) = list(2, 2);
            let (dying, mut living) = (handlers.pop().unwrap(), handlers.pop().unwrap());
            let death = thread::spawn(move || dying.push_and_die_between(ClientId(1), request(7)));
            let life = thread::spawn(move || {
                push(&mut living, 2, 0);
                living
            });
            let all = take(&mut combining, 2);
            assert_eq!((of(1, &all), of(2, &all)), (vec![7], vec![0]));
            death.join().unwrap();
            drop(life.join().unwrap());
        });
    }

    #[test]
    fn who_dies_after_its_link_is_taken_once() {
        model(|| {
            let (mut handlers, mut combining) = list(2, 2);
            let (dying, mut living) = (handlers.pop().unwrap(), handlers.pop().unwrap());
            let death = thread::spawn(move || dying.push_and_die_after(ClientId(1), request(7)));
            push(&mut living, 2, 0);
            let all = take(&mut combining, 2);
            assert_eq!((of(1, &all), of(2, &all)), (vec![7], vec![0]));
            death.join().unwrap();
        });
    }

    #[test]
    fn who_dies_before_the_exchange_never_came() {
        model(|| {
            let (mut handlers, mut combining) = list(2, 2);
            let (dying, mut living) = (handlers.pop().unwrap(), handlers.pop().unwrap());
            let death = thread::spawn(move || dying.die_before(ClientId(1), request(7)));
            push(&mut living, 2, 0);
            assert_eq!(take(&mut combining, 1), [(2, 0)]);
            death.join().unwrap();
        });
    }
}

//! A host that hands its clients to a service: memory that is lent to some of them, and messages that come together.

use super::{WORD, a_client, until};
use lockwright_fabric::backend::block_on;
use lockwright_fabric::backend::inproc::InProc;
use lockwright_fabric::backend::rdma::{
    HostOptions, RdmaEndpoint, RdmaHost, RdmaOptions, RdmaService, has_device,
};
use lockwright_fabric::backend::tcp::{Inbox, SessionEnd, coalesce_writes};
use lockwright_fabric::{AtomicScope, Endpoint, Message, NodeId, PeerId, RegionId};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// Lends memory to those who say so.
struct Lender {
    memory: Arc<InProc>,
    lent: Mutex<Vec<PeerId>>,
    next: AtomicU32,
}

impl RdmaService for Lender {
    fn admit(&self, name: &str) -> Option<PeerId> {
        let peer = PeerId(self.next.fetch_add(1, Relaxed));
        if name.ends_with("\nlend") {
            self.lent.lock().unwrap().push(peer);
        }
        Some(peer)
    }

    fn memory(&self, peer: PeerId) -> Option<Arc<InProc>> {
        self.lent.lock().unwrap().contains(&peer).then(|| Arc::clone(&self.memory))
    }

    fn attach(&self, _: PeerId, _: Inbox) {}

    fn deliver(&self, _: PeerId, _: PeerId, _: &Message) {}

    fn on_lost(&self, _: PeerId, _: SessionEnd) {}
}

#[test]
fn memory_is_lent_to_those_who_are_to_have_it_and_its_atomics_are_one_step_to_them() {
    if !has_device() {
        return;
    }
    let memory = Arc::new(InProc::new(1, 4096));
    let (lent, next) = (Mutex::default(), AtomicU32::new(1));
    let lender = Lender { memory: Arc::clone(&memory), lent, next };
    let options = HostOptions { heartbeat: Duration::from_millis(50), ..HostOptions::default() };
    let host = RdmaHost::serve(Arc::new(lender), options).unwrap();
    let connect = |name: &str| {
        let options = RdmaOptions { name: name.to_owned(), ..RdmaOptions::default() };
        RdmaEndpoint::connect(host.address(), options).unwrap()
    };
    let (has, has_not) = (connect("one\nlend"), connect("two"));
    let region = RegionId(0);
    assert_eq!((has.lends_in(NodeId(0), region), has_not.lends_in(NodeId(0), region)), (4096, 0));
    assert_eq!(block_on(has.go(WORD.fetch_add(3))), Ok(0));
    assert_eq!(memory.peek(WORD), 3);
    let scopes = [&has, &has_not].map(|ep| ep.capabilities().scope);
    assert_eq!(scopes, [AtomicScope::Global, AtomicScope::Nic]);
    // Heartbeats are answered, again and again.
    std::thread::sleep(Duration::from_millis(200));
    until("a heartbeat is answered", || has.acknowledged() < Duration::from_millis(190));
}

/// Says again what it is told, when all that came together is there.
#[derive(Default)]
struct Echo {
    inbox: Mutex<Option<Inbox>>,
    heard: Mutex<Vec<Message>>,
    settled: AtomicU32,
}

impl RdmaService for Echo {
    fn admit(&self, _: &str) -> Option<PeerId> {
        Some(PeerId::client(0))
    }

    fn attach(&self, _: PeerId, inbox: Inbox) {
        *self.inbox.lock().unwrap() = Some(inbox);
    }

    fn deliver(&self, _: PeerId, _: PeerId, message: &Message) {
        self.heard.lock().unwrap().push(message.clone());
    }

    fn settle(&self) {
        self.settled.fetch_add(1, Relaxed);
        let inbox = self.inbox.lock().unwrap().clone().unwrap();
        coalesce_writes(|| {
            // Not let go of in between: another thread may settle what came next, and must not be first.
            let mut heard = self.heard.lock().unwrap();
            heard.drain(..).for_each(|message| assert!(inbox.deliver(PeerId::role(0), message)));
        });
    }

    fn on_lost(&self, _: PeerId, _: SessionEnd) {}
}

#[test]
fn messages_that_come_together_are_settled_together_and_answers_leave_in_their_order() {
    const THREADS: u64 = 4;
    const EACH: u64 = 50;
    if !has_device() {
        return;
    }
    let echo = Arc::new(Echo::default());
    let host = RdmaHost::serve(Arc::clone(&echo) as Arc<dyn RdmaService>, HostOptions::default()).unwrap();
    let client = a_client(&host);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let client = &client;
            scope.spawn(move || {
                for number in 0..EACH {
                    // Some are long: few of them fit together.
                    let tail = vec![number; if number % 10 == 0 { 300 } else { 0 }];
                    let message = Message { tail, ..Message::new(0, 1, &[thread, number]) };
                    block_on(client.send(PeerId::role(0), message)).unwrap();
                }
            });
        }
        let mut next = [0; THREADS as usize];
        for _ in 0..THREADS * EACH {
            let message = block_on(client.recv(|_, message| Some(message.clone())));
            let [thread, number, ..] = message.words;
            assert_eq!(number, next[thread as usize], "in order, once each");
            assert!(message.tail.iter().all(|word| *word == number));
            next[thread as usize] += 1;
        }
    });
    let settled = echo.settled.load(Relaxed);
    println!("{} messages, settled in {settled} goes", THREADS * EACH);
    assert!((1..=(THREADS * EACH) as u32).contains(&settled), "{settled}");
}

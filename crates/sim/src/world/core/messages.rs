//! Messages between clients and roles, and the roles that answer them.

use super::event::EventKind;
use super::observations::PendingObservations;
use super::threads::Worker;
use super::{Core, TraceEvent};
use lockwright_fabric::{FabricError, Message, NodeId, Outbox, PeerId, Time};

/// A message under way or in a role's queue.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    pub(super) from: Option<PeerId>,
    pub(super) to: Option<PeerId>,
    pub(super) message: Message,
    pub(super) pending: PendingObservations,
    /// How often its sender had told something with an operation.
    pub(super) told: u32,
    /// What of the role deals with it.
    pub(super) worker: Worker,
    /// Whether it keeps its place behind what its sender sent before.
    pub(super) in_order: bool,
    /// A thread has time for it, but what was sent before it is not served yet.
    pub(super) parked: bool,
}

/// When the last message to each peer arrives, of those of one sender that are still under way: whatever it sends later
/// must not overtake them. Few, so that looking at all of them costs less than finding one among all pairs of peers.
#[derive(Debug, Default)]
pub(super) struct LastArrivals(Vec<(PeerId, u64)>);

impl LastArrivals {
    /// A message to `to` could be there at `at_ns`: when will it be? First sent, first there.
    pub(super) fn send(&mut self, now_ns: u64, to: PeerId, at_ns: u64) -> u64 {
        self.0.retain(|(_, last_ns)| *last_ns > now_ns);
        match self.0.iter_mut().find(|(peer, _)| *peer == to) {
            Some((_, last_ns)) => {
                *last_ns = at_ns.max(*last_ns);
                *last_ns
            }
            None => {
                self.0.push((to, at_ns));
                at_ns
            }
        }
    }

    /// When the last message to `to` arrives; zero if all have.
    fn last_ns(&self, to: PeerId) -> u64 {
        self.0.iter().find(|(peer, _)| *peer == to).map_or(0, |(_, last_ns)| *last_ns)
    }
}

/// Where a peer is.
enum Site {
    Node(NodeId),
    Network,
    /// On a machine of its own, without lock memory.
    Elsewhere,
}

impl Core {
    /// Sends on behalf of a client; nothing comes back to one that crashed.
    pub(crate) fn client_send(
        &mut self,
        client: u32,
        to: PeerId,
        message: Message,
        datagram: bool,
    ) -> Option<Result<(), FabricError>> {
        if self.clients[client as usize].crashed {
            return None;
        }
        let exists = match to.index() {
            (role, true) => role < self.roles.len(),
            (other, false) => other < self.clients.len(),
        };
        if !exists {
            return Some(if datagram { Ok(()) } else { Err(FabricError::PeerLost(to)) });
        }
        let (leaves_ns, executed) = self.fate(client, 1);
        if executed == 0 {
            return None;
        }
        self.counters.message(&message);
        if self.trace.is_some() {
            self.note(client, TraceEvent::Sent { to, message: message.clone() });
        }
        self.send(PeerId::client(client as usize), to, message, leaves_ns, datagram);
        (!self.clients[client as usize].crashed).then_some(Ok(()))
    }

    pub(super) fn send(
        &mut self,
        from: PeerId,
        to: PeerId,
        message: Message,
        leaves_ns: u64,
        datagram: bool,
    ) {
        let network = self.faults.plan.network;
        let way_ns = self.way_ns(from, to);
        let jitter_ns = self.model.jitter_ns.min(way_ns);
        let mut at_ns = leaves_ns + way_ns - jitter_ns + self.network.below(2 * jitter_ns + 1);
        if network.extra_delay_ns > 0 {
            at_ns += self.network.below(network.extra_delay_ns + 1);
        }
        if datagram {
            if self.network.chance(network.loss) {
                self.counters.lost += 1;
                return;
            }
            if self.network.chance(network.reorder) {
                self.counters.reordered += 1;
                at_ns += self.message_ns + network.extra_delay_ns;
            }
            if self.network.chance(network.duplication) {
                self.counters.doubled += 1;
                let again_ns = at_ns + 1 + self.network.below(self.message_ns + 1);
                self.fly(from, to, message.clone(), again_ns);
            }
        } else {
            let sent = match from.index() {
                (role, true) => &mut self.roles[role].sent,
                (client, false) => &mut self.clients[client].sent,
            };
            at_ns = sent.send(self.now_ns, to, at_ns);
        }
        let flight = self.fly(from, to, message, at_ns);
        self.flights[flight as usize].in_order = !datagram;
        // What the sender said takes effect when the message does. A lost one leaves it to the next.
        if let (client, false) = from.index() {
            let state = &mut self.clients[client];
            let flight = &mut self.flights[flight as usize];
            flight.pending.take_from(&mut state.pending);
            flight.told = state.told;
        }
    }

    /// How long a message is under way: not at all to a server on the sender's own node (a cache miss), half the way to
    /// a switch, which everything between two nodes passes.
    fn way_ns(&self, from: PeerId, to: PeerId) -> u64 {
        let place = |peer: PeerId| match peer.index() {
            (role, true) => self.roles[role].node.map_or(Site::Network, Site::Node),
            (client, false) => self.clients[client].home.map_or(Site::Elsewhere, Site::Node),
        };
        let serves = from.index().1 || to.index().1;
        match (place(from), place(to)) {
            (Site::Node(a), Site::Node(b)) if a == b && serves => self.model.cpu_access_ns,
            (Site::Network, _) | (_, Site::Network) => self.message_ns / 2,
            _ => self.message_ns,
        }
    }

    pub(super) fn fly(&mut self, from: PeerId, to: PeerId, message: Message, at_ns: u64) -> u32 {
        let flight = self.free_flights.pop().unwrap_or_else(|| {
            self.flights.push(InFlight::default());
            self.flights.len() as u32 - 1
        });
        let slot = &mut self.flights[flight as usize];
        (slot.from, slot.to, slot.message) = (Some(from), Some(to), message);
        (slot.in_order, slot.parked, slot.told) = (false, false, 0);
        self.push(at_ns, EventKind::Deliver(flight));
        flight
    }

    /// A message arrives that `client` sent when it had told something with `told` operations. If the last of them is still
    /// under way, what it tells is in effect all the same: a client that gets the message may go by it, and should the
    /// operation's node be dead it is never executed.
    #[inline]
    fn told_before(&mut self, client: u32, told: u32) {
        let state = &self.clients[client as usize];
        if state.told == told
            && let op = state.told_with
            && self.ops.get(op as usize).is_some_and(|slot| slot.client == client && !slot.pending.is_empty())
        {
            self.take_effect(op);
        }
    }

    pub(super) fn deliver(&mut self, flight: u32) -> Option<u32> {
        let (from, to) = self.ends(flight);
        if let (client, false) = from.index() {
            let flight = &mut self.flights[flight as usize];
            let (pending, told) = (flight.pending.take(), flight.told);
            self.told_before(client as u32, told);
            self.saw_all(client as u32, pending);
        }
        match to.index() {
            (role, true) => {
                let calls = self.calls(from, role);
                let state = &mut self.roles[role];
                let slot = &mut self.flights[flight as usize];
                let (worker, done_ns) =
                    state.assign(self.now_ns, from, &slot.message, calls, &mut self.network);
                slot.worker = worker;
                if slot.in_order {
                    state.queue_of(from, slot.message.lock).push_back(flight);
                }
                self.push(done_ns, EventKind::Serve(flight));
                None
            }
            (client, false) => {
                let message = std::mem::take(&mut self.flights[flight as usize].message);
                self.free_flights.push(flight);
                let state = &mut self.clients[client];
                if state.crashed || state.done {
                    return None;
                }
                if self.trace.is_some() {
                    self.note(client as u32, TraceEvent::Got { from, message: message.clone() });
                }
                let state = &mut self.clients[client];
                state.mail_seq += 1;
                state.mailbox.push_back((state.mail_seq, from, message));
                self.may_go_on(client as u32)
            }
        }
    }

    /// Roles that want to know find out that a client crashed, after everything it sent: their side of its connection
    /// takes as long to notice as a client's takes to notice a lost node.
    #[cold]
    pub(super) fn notify_roles_of_departure(&mut self, client: u32) {
        let from = PeerId::client(client as usize);
        for role in 0..self.roles.len() {
            if self.roles[role].role.wants_departures() {
                let to = PeerId::role(role);
                let sent_ns = self.clients[client as usize].sent.last_ns(to);
                let at_ns = sent_ns.max(self.now_ns + self.model.node_lost_ns);
                self.fly(from, to, Message::new(0, Message::DEPARTED, &[]), at_ns);
            }
        }
    }

    /// Roles that watch the others find out that this one was lost or restarted, as late as others find out about a node.
    #[cold]
    pub(super) fn notify_role_lost(&mut self, lost: usize) {
        let at_ns = self.now_ns + self.model.node_lost_ns;
        for role in 0..self.roles.len() {
            if self.roles[role].role.wants_role_departures() {
                let message = Message::new(0, Message::DEPARTED, &[]);
                self.fly(PeerId::role(lost), PeerId::role(role), message, at_ns);
            }
        }
    }

    pub(super) fn ends(&self, flight: u32) -> (PeerId, PeerId) {
        let slot = &self.flights[flight as usize];
        (slot.from.expect("in flight"), slot.to.expect("in flight"))
    }

    pub(super) fn serve(&mut self, flight: u32) -> Option<u32> {
        let (from, to) = self.ends(flight);
        let (role, worker) = (to.index().0, self.flights[flight as usize].worker);
        if let Some(served_ns) = self.roles[role].served_later(worker, self.now_ns) {
            // The message before it took longer than was known when this one came.
            self.push(served_ns, EventKind::Serve(flight));
            return None;
        }
        if !self.is_next(role, from, flight) {
            return None;
        }
        let message = std::mem::take(&mut self.flights[flight as usize].message);
        self.free_flights.push(flight);
        if self.role_is_up(role) {
            let mut out = Outbox::default();
            self.roles[role].role.on_message(Time(self.now_ns), from, &message, &mut out);
            let line_ns = self.model.cpu_access_ns;
            let lines_ns = (out.lines * line_ns, out.lines_alone * line_ns);
            let leaves_ns = self.roles[role].work(worker, self.now_ns, lines_ns);
            self.do_outbox(role, out, leaves_ns);
        }
        None
    }

    /// Whether everything that `from` sent before is served. If not, the message waits for that; if so, the next one
    /// goes on, should it have waited for this.
    fn is_next(&mut self, role: usize, from: PeerId, flight: u32) -> bool {
        if !self.flights[flight as usize].in_order {
            return true;
        }
        let lock = self.flights[flight as usize].message.lock;
        let queue = self.roles[role].queue_of(from, lock);
        if queue.front() != Some(&flight) {
            self.flights[flight as usize].parked = true;
            return false;
        }
        queue.pop_front();
        match queue.front() {
            None => self.roles[role].forget_queue(from, lock),
            Some(&next) => {
                if std::mem::take(&mut self.flights[next as usize].parked) {
                    self.push(self.now_ns, EventKind::Serve(next));
                }
            }
        }
        true
    }

    /// Whether what `from` sends to this role is a call on its own node.
    fn calls(&self, from: PeerId, role: usize) -> bool {
        match from.index() {
            (client, false) => {
                let node = self.roles[role].node;
                node.is_some() && self.clients[client].home == node
            }
            _ => false,
        }
    }

    pub(super) fn role_timer(&mut self, timer: u32) -> Option<u32> {
        let (role, id) = self.timers[timer as usize];
        self.free_timers.push(timer);
        if self.role_is_up(role) {
            let mut out = Outbox::default();
            self.roles[role].role.on_timer(Time(self.now_ns), id, &mut out);
            self.do_outbox(role, out, self.now_ns);
        }
        None
    }

    fn role_is_up(&self, role: usize) -> bool {
        self.roles[role].node.is_none_or(|node| !self.dead_nodes[node.0 as usize])
    }

    /// Verbs take effect at once, messages leave when the work is done.
    pub(super) fn do_outbox(&mut self, role: usize, out: Outbox, leaves_ns: u64) {
        let node = self.roles[role].node;
        for verb in out.verbs {
            assert_eq!(Some(verb.addr.node), node, "a role's verbs stay on its own node");
            let old = self.memory.read(verb.addr, verb.width);
            if let Some(new) = verb.op.apply(verb.width, old) {
                self.memory.write(verb.addr, verb.width, new);
                if !self.local_waits.is_empty() {
                    self.wake_local_waits(verb.addr);
                }
            }
        }
        let reliable = out.messages.into_iter().map(|(to, message)| (to, message, false));
        let packets = out.datagrams.into_iter().map(|(to, message)| (to, message, true));
        for (to, message, datagram) in reliable.chain(packets) {
            let (index, is_role) = to.index();
            assert!(
                index < if is_role { self.roles.len() } else { self.clients.len() },
                "{to} does not exist"
            );
            self.counters.message(&message);
            self.send(PeerId::role(role), to, message, leaves_ns, datagram);
        }
        for (delay_ns, id) in out.timers {
            let timer = self.timers.len() as u32;
            let timer = self.free_timers.pop().unwrap_or(timer);
            if timer as usize == self.timers.len() {
                self.timers.push((role, id));
            }
            self.timers[timer as usize] = (role, id);
            self.push(self.now_ns + delay_ns, EventKind::RoleTimer(timer));
        }
    }
}

//! Cases: what the explorer runs for a protocol, as data. They stand beside the protocol they are about.

use lockwright_fabric::{NodeId, Time};
use lockwright_locks::{Change, Space, Want};

/// A small situation that the explorer drives through every interleaving.
///
/// ```
/// # use {lockwright_locks::Want, lockwright_sim::case::*};
/// let case = Case::<()>::new("two-writers").clients(2, &[Want::exclusive(0)]).rounds(2).crashes(1);
/// assert_eq!(case.clients.len(), 2);
/// assert_eq!(case.clients[0].rounds.len(), 2);
/// ```
#[derive(Clone, Debug)]
pub struct Case<P> {
    /// Its name, unique within the protocol.
    pub name: &'static str,
    /// The protocol's tunables.
    pub params: P,
    /// The lock memory.
    pub space: Space,
    /// What every client does.
    pub clients: Vec<Script>,
    /// What may go wrong.
    pub faults: Faults,
    /// When a wait with a deadline may give up.
    pub timeouts: Timeouts,
    /// What is checked besides mutual exclusion, which always is.
    pub checks: Checks,
    /// A remote read-modify-write is, to clients at home on the node, a read and a later write.
    pub weak_scope: bool,
    /// Gives the explorer a clock, for protocols whose safety rests on time. Deadlines then go by it, and
    /// `timeouts` is not asked.
    pub clock: Option<Clock>,
    /// Without a clock: a client that was paused finds, when it asks for the time, that more of it has passed than any lease.
    pub sleepers_know: bool,
    /// States after which the explorer stops and says that it is not exhaustive.
    pub max_states: u64,
}

/// What one client does.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Script {
    /// The node the client runs on, if it is one that owns lock memory.
    pub home: Option<NodeId>,
    /// Its rounds, one after the other.
    pub rounds: Vec<Round>,
}

/// Acquire these in order, change them, hold them all, release them in reverse.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Round {
    /// What is acquired.
    pub wants: Vec<Want>,
    /// What is then done with it, and to which of the wants.
    pub changes: Vec<(usize, Change)>,
    /// Whether the client may give up while it waits, at any moment.
    pub cancellable: bool,
}

/// How much may go wrong in one run, each at any moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Clients that crash. A verb in flight then may or may not have happened.
    pub crashes: u8,
    /// Clients that stop for longer than any lease, and come back.
    pub pauses: u8,
    /// With a clock: the most ticks that a pause lasts. Then a pause is the only way to be late: a client that waits for
    /// something that has happened takes note of it in time, too, and the search can be exhaustive.
    pub pause_ticks: Option<u32>,
    /// Datagrams that are lost.
    pub losses: u8,
    /// Datagrams that arrive twice.
    pub duplicates: u8,
    /// Datagrams overtake each other.
    pub reorders: bool,
    /// Switches that are restarted, and lose what they kept in volatile memory.
    pub restarts: u8,
    /// Nodes that are lost, with the role and the clients on them.
    pub node_losses: u8,
}

impl Faults {
    /// Nothing goes wrong.
    pub const NONE: Self = Self {
        crashes: 0,
        pauses: 0,
        pause_ticks: None,
        losses: 0,
        duplicates: 0,
        reorders: false,
        restarts: 0,
        node_losses: 0,
    };
}

/// When a wait with a deadline may end without what it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Timeouts {
    /// At any moment: for timeouts that a user sets.
    Any,
    /// Deadlines up to this time at any moment, for timeouts that a user sets; later ones, which are leases, only when
    /// no other client can move, or could but by giving up.
    AnyUntil(Time),
    /// Only while a client has crashed or is paused, and no healthy one holds a lock: leases are longer than any
    /// critical section of the living.
    #[default]
    WhenFaulty,
    /// Only when no other client can move: leases are longer than everything. For protocols that wait by
    /// `wait_until` and `recv_by`; one that spins always moves.
    WhenStuck,
    /// As [`WhenStuck`](Self::WhenStuck) where something may go wrong, and else never: a lease must not hide a hang
    /// that no fault has caused. For cases to which faults are added later.
    WhenStuckByFaults,
}

/// A clock in coarse ticks, and how slow a verb can be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Clock {
    /// Nanoseconds per tick.
    pub tick_ns: u64,
    /// A client that can move does so within this many ticks, unless it is paused.
    pub delay_ticks: u32,
    /// The clock stops here; a search that comes so far is not exhaustive.
    pub max_ticks: u32,
}

/// What is checked besides mutual exclusion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// From every state, every client that has not crashed can finish.
    pub finish: bool,
    /// Lock memory is free again when all is quiet (not after a crash).
    pub quiet: bool,
    /// Tokens rise with every conflicting grant.
    pub tokens: bool,
    /// Claims are on permits: one on `start..end` is for `start` of the `end - 1` permits of its lock.
    pub permits: bool,
    /// At most so many conflicting grants to others between a client's first verb and its own grant.
    pub bypass: Option<u32>,
}

impl<P: Default> Case<P> {
    /// A case with default tunables, one lock, no clients and no faults.
    pub fn new(name: &'static str) -> Self {
        Self {
            name,
            params: P::default(),
            space: Space::of(1),
            clients: Vec::new(),
            faults: Faults::default(),
            timeouts: Timeouts::default(),
            checks: Checks { finish: true, quiet: true, tokens: false, permits: false, bypass: None },
            weak_scope: false,
            clock: None,
            sleepers_know: false,
            max_states: 50_000_000,
        }
    }
}

impl<P> Case<P> {
    /// Adds `count` clients that each do one round of `wants`.
    #[must_use]
    pub fn clients(mut self, count: usize, wants: &[Want]) -> Self {
        let script = Script { home: None, rounds: vec![Round { wants: wants.to_vec(), ..Round::default() }] };
        self.clients.extend(std::iter::repeat_n(script, count));
        self
    }

    /// The clients added so far run on `node`, except those already placed.
    #[must_use]
    pub fn at_home(mut self, node: NodeId) -> Self {
        for script in &mut self.clients {
            script.home.get_or_insert(node);
        }
        self
    }

    /// Every client does what it does `times` times.
    #[must_use]
    pub fn rounds(mut self, times: usize) -> Self {
        for script in &mut self.clients {
            script.rounds = std::iter::repeat_n(script.rounds.clone(), times).flatten().collect();
        }
        self
    }

    /// A client that waits in the rounds so far may give up at any moment.
    #[must_use]
    pub fn cancellable(mut self) -> Self {
        self.clients
            .iter_mut()
            .flat_map(|script| &mut script.rounds)
            .for_each(|round| round.cancellable = true);
        self
    }

    /// The client added last does this to its first want once it has them all, in its rounds so far.
    #[must_use]
    pub fn then(mut self, change: Change) -> Self {
        self.clients
            .iter_mut()
            .next_back()
            .into_iter()
            .flat_map(|script| &mut script.rounds)
            .for_each(|round| round.changes.push((0, change)));
        self
    }

    /// With these tunables.
    #[must_use]
    pub fn params(mut self, params: P) -> Self {
        self.params = params;
        self
    }

    /// On this space.
    #[must_use]
    pub fn space(mut self, space: Space) -> Self {
        self.space = space;
        self
    }

    /// Up to `count` clients crash.
    #[must_use]
    pub fn crashes(mut self, count: u8) -> Self {
        self.faults.crashes = count;
        self
    }

    /// Up to `count` clients pause and come back.
    #[must_use]
    pub fn pauses(mut self, count: u8) -> Self {
        self.faults.pauses = count;
        self
    }

    /// With a clock: pauses last so many ticks at most.
    #[must_use]
    pub fn for_ticks(mut self, ticks: u32) -> Self {
        self.faults.pause_ticks = Some(ticks);
        self
    }

    /// When waits with a deadline may give up.
    #[must_use]
    pub fn timeouts(mut self, timeouts: Timeouts) -> Self {
        self.timeouts = timeouts;
        self
    }

    /// Check that tokens rise.
    #[must_use]
    pub fn tokens(mut self) -> Self {
        self.checks.tokens = true;
        self
    }

    /// Check that no more permits are out than there are: claims are on those.
    #[must_use]
    pub fn permits(mut self) -> Self {
        self.checks.permits = true;
        self
    }

    /// Check that no client is overtaken more than `bound` times.
    #[must_use]
    pub fn bypass(mut self, bound: u32) -> Self {
        self.checks.bypass = Some(bound);
        self
    }

    /// Do not check that every client can finish: for protocols that cannot recover, under crashes.
    #[must_use]
    pub fn may_hang(mut self) -> Self {
        self.checks.finish = false;
        self
    }

    /// Atomics exclude each other only within a NIC.
    #[must_use]
    pub fn weak_scope(mut self) -> Self {
        self.weak_scope = true;
        self
    }

    /// With a clock.
    #[must_use]
    pub fn clock(mut self, clock: Clock) -> Self {
        self.clock = Some(clock);
        self
    }

    /// Clients can tell from their clocks that they were paused. At most six clients.
    #[must_use]
    pub fn sleepers_know(mut self) -> Self {
        self.sleepers_know = true;
        self
    }

    /// Stop after `states` states.
    #[must_use]
    pub fn max_states(mut self, states: u64) -> Self {
        self.max_states = states;
        self
    }
}

//! The conformance suite: one set of checks for every backend.
//!
//! A backend describes how its clients are run, by a [`Rig`], and calls
//! [`conformance_tests!`](crate::conformance_tests) from its tests, which makes one `#[test]` of every check.
//! The meaning of verbs is [`Op::apply`](crate::Op::apply); what clients that run at the same time may see of
//! each other is checked by [`history`].
//!
//! The checks are plain library code so that backends in other crates can call them. They must not assume
//! threads (a simulator runs all clients on one), nor that time passes by itself, nor how long anything takes.
//!
//! ```
//! use lockwright_fabric::backend::inproc::{InProc, InProcEndpoint, block_on};
//! use lockwright_fabric::conformance::{self, Rig, Shape, Task};
//! use lockwright_fabric::PeerId;
//!
//! struct OneAfterTheOther(InProc);
//!
//! impl Rig for OneAfterTheOther {
//!     type E = InProcEndpoint;
//!     fn run(&mut self, tasks: Vec<Task<InProcEndpoint>>) {
//!         for (client, task) in tasks.into_iter().enumerate() {
//!             block_on(task(self.0.endpoint(PeerId::client(client))));
//!         }
//!     }
//! }
//!
//! let make = |shape: Shape| OneAfterTheOther(InProc::new(shape.nodes, shape.bytes));
//! conformance::verbs::every_verb_does_what_apply_says(&make);
//! ```

pub mod history;
pub mod messages;
pub mod storm;
pub mod verbs;
pub mod waits;

use crate::addr::NodeId;
use crate::endpoint::Endpoint;
use std::pin::Pin;
use std::sync::{Arc, Mutex};

/// What a client does, before it knows its endpoint. The closure can go to another thread; the future stays
/// where it was made.
pub type Task<E> = Box<dyn FnOnce(E) -> Pin<Box<dyn Future<Output = ()>>> + Send>;

/// The fabric that a check wants: fresh, with zeroed memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Clients that will run.
    pub clients: usize,
    /// Memory nodes.
    pub nodes: u16,
    /// Bytes in region 0 of every node.
    pub bytes: u64,
}

impl Shape {
    /// `clients` clients and one node with a page of memory.
    pub const fn of(clients: usize) -> Self {
        Self { clients, nodes: 1, bytes: 4096 }
    }
}

/// How a backend runs clients.
pub trait Rig {
    /// Its endpoint.
    type E: Endpoint;

    /// Runs the i-th task as `PeerId::client(i)`, all of them at the same time, until all are done. A task
    /// that panics makes `run` panic. Every client can be sent messages from before the first task starts
    /// until the last has ended. May be called again: memory stays as it is.
    fn run(&mut self, tasks: Vec<Task<Self::E>>);

    /// Kills a node's memory, before a run. `false` if this backend cannot.
    fn kill(&mut self, node: NodeId) -> bool {
        let _ = node;
        false
    }
}

/// Boxes an `async` closure as a [`Task`].
pub fn task<E, F, Fut>(body: F) -> Task<E>
where
    F: FnOnce(E) -> Fut + Send + 'static,
    Fut: Future<Output = ()> + 'static,
{
    Box::new(move |ep| Box::pin(body(ep)))
}

/// Runs one client and gives back what it returned.
///
/// # Panics
/// If the rig did not run it to its end.
pub fn alone<R: Rig, T: Send + 'static, F, Fut>(rig: &mut R, body: F) -> T
where
    F: FnOnce(R::E) -> Fut + Send + 'static,
    Fut: Future<Output = T> + 'static,
{
    let answer = Arc::new(Mutex::new(None));
    let slot = Arc::clone(&answer);
    rig.run(vec![task(move |ep| async move {
        let value = body(ep).await;
        *slot.lock().expect("nobody panicked") = Some(value);
    })]);
    answer.lock().expect("nobody panicked").take().expect("a rig runs every task to its end")
}

/// Makes one `#[test]` of every check. `$make` is a function or closure from [`Shape`] to a [`Rig`]. Before it, `if` and a
/// condition may stand: where it does not hold (a machine without the device), the checks do nothing.
///
/// ```ignore
/// mod conformance {
///     lockwright_fabric::conformance_tests!(|shape| MyRig::new(shape));
/// }
/// ```
#[macro_export]
macro_rules! conformance_tests {
    (if $ready:expr; $make:expr) => {
        $crate::conformance_tests! { @each $ready, $make;
            verbs: every_verb_does_what_apply_says,
            verbs: neighbours_of_a_word_are_left_alone,
            verbs: halves_of_a_wide_word_are_words,
            verbs: a_batch_executes_in_order_and_returns_every_old_word,
            verbs: a_list_of_verbs_is_a_batch_too,
            verbs: a_guarded_add_adds_only_where_its_guard_holds,
            verbs: nodes_have_memory_of_their_own,
            verbs: a_dead_node_is_reported_as_lost,
            waits: a_wait_that_is_met_ends_at_once,
            waits: either_condition_ends_a_wait,
            waits: a_wait_sees_what_another_client_writes,
            waits: a_wait_for_a_wide_word_sees_a_change_of_its_half,
            waits: a_wait_for_fields_sees_them_meet,
            waits: a_wait_without_patience_looks_once,
            waits: a_wait_gives_up_at_its_deadline_and_not_before,
            waits: a_sleep_takes_its_time,
            messages: messages_of_a_pair_arrive_in_order,
            messages: what_a_receive_does_not_pick_stays_buffered,
            messages: a_message_carries_its_sender_and_all_its_words,
            messages: a_receive_without_patience_looks_once,
            messages: a_receive_gives_up_at_its_deadline_and_not_before,
            messages: a_dropped_receive_takes_nothing,
            messages: a_client_can_write_to_itself,
            messages: many_senders_lose_nothing,
            messages: an_unknown_peer_is_reported_as_lost,
            messages: datagrams_arrive_when_nothing_is_wrong,
            storm: narrow_words_have_one_history,
            storm: wide_words_have_one_history,
            storm: fields_keep_their_sums,
            storm: peterson_keeps_two_clients_apart,
        }
    };
    (@each $ready:expr, $make:expr; $($part:ident: $check:ident,)*) => {
        $(
            #[test]
            fn $check() {
                if $ready {
                    $crate::conformance::$part::$check(&$make);
                }
            }
        )*
    };
    ($make:expr) => {
        $crate::conformance_tests! { if true; $make }
    };
}

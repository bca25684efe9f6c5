//! Everything that recurs in global states, kept once and named by a small number.

use crate::check::Watch;
use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Message, PeerId};
use rustc_hash::FxHashMap;
use std::hash::Hash;
use std::rc::Rc;

/// Gives every distinct value a number.
#[derive(Debug)]
pub(super) struct Interner<T> {
    numbers: FxHashMap<T, u32>,
    values: Vec<T>,
}

impl<T> Default for Interner<T> {
    fn default() -> Self {
        Self { numbers: FxHashMap::default(), values: Vec::new() }
    }
}

impl<T: Clone + Eq + Hash> Interner<T> {
    pub(super) fn number(&mut self, value: T) -> u32 {
        if let Some(&number) = self.numbers.get(&value) {
            return number;
        }
        let number = u32::try_from(self.values.len()).expect("fewer than 2^32 distinct values");
        self.values.push(value.clone());
        self.numbers.insert(value, number);
        number
    }

    pub(super) fn get(&self, number: u32) -> &T {
        &self.values[number as usize]
    }
}

/// A message on its way or in a mailbox.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Envelope {
    pub(super) from: PeerId,
    pub(super) message: Rc<Message>,
    pub(super) datagram: bool,
}

/// The interners of one exploration.
#[derive(Debug, Default)]
pub(super) struct Tables {
    pub(super) values: Interner<u128>,
    pub(super) envelopes: Interner<Envelope>,
    /// Messages in a mailbox, by sender: order matters only between messages of one sender.
    pub(super) mailboxes: Interner<Rc<[u32]>>,
    posted: FxHashMap<(u32, u32), u32>,
    taken: FxHashMap<(u32, usize), u32>,
    pub(super) observations: Interner<Vec<Observation>>,
    pub(super) watches: Interner<Watch>,
    pub(super) timers: Interner<Vec<u64>>,
}

impl Tables {
    /// The mailbox with one more message, behind those of the same sender.
    pub(super) fn with_envelope(&mut self, mailbox: u32, envelope: u32) -> u32 {
        if let Some(&after) = self.posted.get(&(mailbox, envelope)) {
            return after;
        }
        let from = self.envelopes.get(envelope).from;
        let mut envelopes = self.mailboxes.get(mailbox).to_vec();
        let place = envelopes.partition_point(|&other| self.envelopes.get(other).from <= from);
        envelopes.insert(place, envelope);
        let after = self.mailboxes.number(envelopes.into());
        self.posted.insert((mailbox, envelope), after);
        after
    }

    /// The mailbox without the message at `place`.
    pub(super) fn without_envelope(&mut self, mailbox: u32, place: usize) -> u32 {
        if let Some(&after) = self.taken.get(&(mailbox, place)) {
            return after;
        }
        let mut envelopes = self.mailboxes.get(mailbox).to_vec();
        envelopes.remove(place);
        let after = self.mailboxes.number(envelopes.into());
        self.taken.insert((mailbox, place), after);
        after
    }
}

//! Sets: a client asks for several locks in one message, and its user sees them when all are granted.
//!
//! The names of a case with sets are numbered like the units of a lock of ranges. A user takes what its program names in the order of
//! names, as `LockSet` does, whatever the order in which it names them.

use super::client::Client;
use super::model::Op;
use lockwright::internal::{Refused, SetStage, Stage};
use lockwright::wire::{Request, RequestId, Units};
use lockwright_fabric::observe::Mode;
use lockwright_sim::check::{Checker, Violation};
use std::ops::Range;

/// What a client has of a set.
#[derive(Clone, Debug, Default, Hash)]
pub(super) struct Set {
    members: Vec<(RequestId, Units)>,
    /// Once all are granted.
    tokens: Vec<u64>,
}

/// What a client holds, or wants: units, whether alone, and the token if it holds it.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub(super) units: Range<usize>,
    pub(super) alone: bool,
    pub(super) token: Option<u64>,
}

impl Claim {
    /// Whether both cannot be held at the same time.
    pub(super) fn excludes(&self, other: &Self) -> bool {
        (self.alone || other.alone)
            && self.units.start < other.units.end
            && other.units.start < self.units.end
    }
}

impl Set {
    pub(super) fn ids(&self) -> Vec<RequestId> {
        self.members.iter().map(|(id, _)| *id).collect()
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.members.is_empty()
    }

    pub(super) fn claims(&self) -> Vec<Claim> {
        let claim = |(at, (_, units)): (usize, &(RequestId, Units))| {
            let at_name = units.handle as usize;
            let alone = units.mode == Mode::Exclusive;
            Claim { units: at_name..at_name + 1, alone, token: self.tokens.get(at).copied() }
        };
        self.members.iter().enumerate().map(claim).collect()
    }
}

/// Whether a program takes sets.
pub(super) fn takes_sets(programs: &[Vec<Op>]) -> bool {
    programs.iter().flatten().any(|op| matches!(op, Op::LockSet(_)))
}

impl Client {
    /// The user asks for these names.
    pub(super) fn ask_for_set(&mut self, names: &[u64]) {
        let mut names = names.to_vec();
        names.sort_unstable();
        let units =
            |name| Units { handle: name, mode: Mode::Exclusive, start: 0, end: u64::MAX, thread: None };
        let units: Vec<_> = names.into_iter().map(units).collect();
        let ids = self.table.lock_set(&units);
        self.request = ids.first().map(|id| (*id, units[0]));
        self.set = Set { members: ids.into_iter().zip(units).collect(), tokens: Vec::new() };
        self.say_decided();
    }

    /// Whether the future of the set has something to see.
    pub(super) fn has_news_of_set(&self) -> bool {
        !matches!(self.table.clone().set_stage(&self.set.ids()), SetStage::Wanted)
    }

    /// What the future of the set sees when it is polled.
    pub(super) fn look_at_set(&mut self) {
        let ids = self.set.ids();
        match self.table.set_stage(&ids) {
            SetStage::Wanted => return,
            SetStage::Granted => {
                let granted = self.table.see_granted_set(&ids);
                self.set.tokens = granted.iter().map(|granted| granted.token).collect();
                self.holds = self.set.tokens.first().copied();
            }
            SetStage::Failed(id) => {
                let refused = self.table.take_failed(id);
                if !matches!(refused, Some(Refused::Busy)) {
                    self.say(&Request::Unlock { id, answer: false });
                }
                self.drop_set();
            }
        }
        self.done += 1;
    }

    /// What is held or wanted of the set goes back.
    pub(super) fn drop_set(&mut self) {
        let set = std::mem::take(&mut self.set);
        (self.request, self.holds) = (None, None);
        if set.tokens.is_empty() {
            self.table.give_up_set(&set.ids());
            self.say_decided();
            return self.say_stopped();
        }
        // The last taken first.
        for id in set.ids().into_iter().rev() {
            if self.take(id).is_some() {
                self.say(&Request::Unlock { id, answer: false });
            }
        }
    }

    /// Whether a guard of the set is lost: then the user drops all of them.
    pub(super) fn has_lost_of_set(&mut self) -> bool {
        let ids = self.set.ids();
        !self.set.tokens.is_empty()
            && ids.into_iter().any(|id| matches!(self.table.stage(id), Some(Stage::Lost(_))))
    }

    /// Members are granted in order.
    pub(super) fn check_turns(&mut self) -> Result<(), Violation> {
        let ids = self.set.ids();
        let wanted = |client: &mut Self, id| matches!(client.table.stage(id), Some(Stage::Wanted { .. }));
        let first = ids.iter().position(|id| wanted(self, *id));
        let granted = |client: &mut Self, id| matches!(client.table.stage(id), Some(Stage::Granted { .. }));
        if let Some(first) = first
            && ids[first..].iter().any(|id| granted(self, *id))
        {
            let what =
                "a client of a set was granted a lock whose turn had not come, and keeps others from it";
            return Err(Violation::new(Checker::Bypass, what));
        }
        Ok(())
    }

    /// Says what the table has decided.
    fn say_decided(&mut self) {
        for request in self.table.take_said() {
            self.say(&request);
        }
    }
}

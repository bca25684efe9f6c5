//! What a process has of a file in a space, so that other processes keep out: range locks, shared or exclusive.
//!
//! It is made stronger before a lock of the table is granted ([`raise`](Cover::raise): all of it or nothing) and weaker after
//! one is given back ([`settle`](Cover::settle)). Guards are converted, cut and given back in part by the space's own steps,
//! never given up and taken again: no other client can come in between.
//!
//! Nothing here waits in a queue of the space. A waiter for a record lock is in no program's way, but its place in a
//! fair queue would be: programs would be refused locks that nobody holds, and wait in circles where the kernel has none.

use crate::extent::Extent;
use crate::table::{Kind, Piece};
use lockwright::inspect::Entry;
use lockwright::{AnyGuard, ChangeError, GuardState, LockGuard, RangeLock, TryLockError};
use std::collections::HashMap;

/// See the module.
pub trait Cover {
    /// Makes it at least `kind` in all of `extent`.
    ///
    /// # Errors
    /// If others hold some of it, or the space is lost: it is as strong as before.
    fn raise(&mut self, extent: Extent, kind: Kind) -> Result<(), CoverError>;

    /// Makes it what is needed, part by part, where it is stronger.
    ///
    /// # Errors
    /// If it was lost.
    fn settle(&mut self, needed: &[(Extent, Option<Kind>)]) -> Result<(), CoverError>;

    /// A lock of another process's that is in the way of `kind` in `extent`. Takes nothing: nobody is refused because of a look.
    ///
    /// # Errors
    /// If the space cannot say, or what this process had there was lost.
    fn look(&mut self, extent: Extent, kind: Kind) -> Result<Option<Piece>, CoverError>;

    /// What must be settled with `extent`: more of the file if it is stronger than needed there.
    fn unsettled(&self, extent: Extent) -> Extent {
        extent
    }
}

/// Why a cover is not what it should be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CoverError {
    /// Another client holds some of it.
    Busy,
    /// The space cannot be reached, or has taken away what was held of it.
    Lost(String),
}

/// For programs of one process only.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoCover;

impl Cover for NoCover {
    fn raise(&mut self, _: Extent, _: Kind) -> Result<(), CoverError> {
        Ok(())
    }

    fn settle(&mut self, _: &[(Extent, Option<Kind>)]) -> Result<(), CoverError> {
        Ok(())
    }

    fn look(&mut self, _: Extent, _: Kind) -> Result<Option<Piece>, CoverError> {
        Ok(None)
    }
}

/// Range locks of a space.
#[derive(Debug)]
pub struct SpaceCover {
    lock: RangeLock,
    /// In order; none overlaps another.
    guards: Vec<AnyGuard>,
    /// Why what was held is not any more. Until all of it was given back, nothing is granted.
    lost: Option<String>,
    /// Some guards are stronger than needed: the space had no room for the pieces they would be cut into. Others are kept out
    /// of free bytes, until the locks beside them go.
    too_strong: bool,
}

impl SpaceCover {
    /// Nothing yet of what `lock` is for.
    pub fn new(lock: RangeLock) -> Self {
        Self { lock, guards: Vec::new(), lost: None, too_strong: false }
    }

    /// The guards that overlap `extent`: from which to before which.
    fn span(&self, extent: Extent) -> (usize, usize) {
        let first = self.guards.partition_point(|guard| held(guard).end <= extent.start);
        let last = self.guards.partition_point(|guard| held(guard).start < extent.end);
        (first, last)
    }

    /// An error if some of what is held in `extent` was lost.
    fn check(&mut self, extent: Extent) -> Result<(), CoverError> {
        if self.guards.is_empty() {
            self.lost = None;
        }
        let (first, last) = self.span(extent);
        if self.guards[first..last].iter().any(|guard| guard.state() == GuardState::Lost) {
            self.lost = Some("a lock of this file was lost".to_owned());
        }
        self.lost.clone().map_or(Ok(()), |why| Err(CoverError::Lost(why)))
    }

    /// Cuts guards so that none is partly inside `extent`.
    fn cut(&mut self, extent: Extent) -> Result<(), ChangeError> {
        for at in [extent.start, extent.end] {
            let index = self.guards.partition_point(|guard| held(guard).end <= at);
            let Some(guard) = self.guards.get_mut(index) else { continue };
            if held(guard).start < at {
                let right = guard.split(at)?;
                self.guards.insert(index + 1, right);
            }
        }
        Ok(())
    }

    /// What of `extent` no guard is for.
    fn gaps(&self, extent: Extent) -> Vec<Extent> {
        let (first, last) = self.span(extent);
        let mut gaps = Vec::new();
        let mut start = extent.start;
        for held in self.guards[first..last].iter().map(held) {
            if start < held.start {
                gaps.push(Extent { start, end: held.start });
            }
            start = held.end;
        }
        if start < extent.end {
            gaps.push(Extent { start, end: extent.end });
        }
        gaps
    }

    fn acquire(&self, extent: Extent, kind: Kind) -> Result<AnyGuard, CoverError> {
        let taken = match kind {
            Kind::Read => self.lock.try_read(extent.range()).wait().map(LockGuard::into_any),
            Kind::Write => self.lock.try_write(extent.range()).wait().map(LockGuard::into_any),
        };
        taken.map_err(|error| match error {
            TryLockError::Busy => CoverError::Busy,
            error => CoverError::Lost(error.to_string()),
        })
    }

    /// Makes what is shared in `extent`, all of which is held, exclusive.
    fn upgrade(&mut self, extent: Extent) -> Result<(), CoverError> {
        self.cut(extent).map_err(lost)?;
        let (first, last) = self.span(extent);
        let mut upgraded = Vec::new();
        for index in first..last {
            let guard = &mut self.guards[index];
            if !guard.is_shared() {
                continue;
            }
            if let Err(error) = guard.try_upgrade().wait() {
                for index in upgraded {
                    let guard: &mut AnyGuard = &mut self.guards[index];
                    guard.downgrade().wait().map_err(lost)?;
                }
                return Err(match error {
                    ChangeError::Busy | ChangeError::WouldDeadlock => CoverError::Busy,
                    error => lost(error),
                });
            }
            upgraded.push(index);
        }
        Ok(())
    }

    /// Gives back what a guard has of `part`.
    fn give_back(&mut self, index: usize, part: Extent) -> Result<(), ChangeError> {
        let whole = held(&self.guards[index]);
        if part == whole {
            let guard = self.guards.remove(index);
            return guard.unlock().wait().map_err(|error| ChangeError::Refused(error.to_string()));
        }
        let rest = self.guards[index].unlock_part(part.range())?;
        if let Some(rest) = rest {
            self.guards.insert(index + 1, rest);
        }
        Ok(())
    }

    /// Makes a part weaker, or leaves it as it is if there is no room for more pieces.
    fn settle_part(&mut self, part: Extent, need: Option<Kind>) -> Result<(), CoverError> {
        match self.weaken(part, need) {
            Err(ChangeError::TooManyLocks(_)) => {
                self.too_strong = true;
                Ok(())
            }
            outcome => outcome.map_err(lost),
        }
    }

    fn weaken(&mut self, part: Extent, need: Option<Kind>) -> Result<(), ChangeError> {
        let (first, last) = self.span(part);
        match need {
            Some(Kind::Write) => Ok(()),
            Some(Kind::Read) if self.guards[first..last].iter().all(AnyGuard::is_shared) => Ok(()),
            Some(Kind::Read) => {
                self.cut(part)?;
                let (first, last) = self.span(part);
                let exclusive = self.guards[first..last].iter_mut().filter(|guard| !guard.is_shared());
                for guard in exclusive {
                    guard.downgrade().wait()?;
                }
                Ok(())
            }
            None => {
                // From behind: what is given back moves what stands after it.
                let mut outcome = Ok(());
                for index in (first..last).rev() {
                    let Some(part) = held(&self.guards[index]).common(&part) else { continue };
                    let given = self.give_back(index, part);
                    outcome = outcome.and(given);
                }
                outcome
            }
        }
    }
}

impl Cover for SpaceCover {
    fn raise(&mut self, extent: Extent, kind: Kind) -> Result<(), CoverError> {
        self.check(extent)?;
        let mut taken = Vec::new();
        for gap in self.gaps(extent) {
            // Dropped, what was taken is given back.
            taken.push(self.acquire(gap, kind)?);
        }
        if kind == Kind::Write && self.guards_in(extent).any(AnyGuard::is_shared) {
            self.upgrade(extent)?;
        }
        for guard in taken {
            let at = self.guards.partition_point(|other| held(other).start < held(&guard).start);
            self.guards.insert(at, guard);
        }
        Ok(())
    }

    fn settle(&mut self, needed: &[(Extent, Option<Kind>)]) -> Result<(), CoverError> {
        let mut outcome = Ok(());
        for (part, need) in needed {
            let settled = self.settle_part(*part, *need);
            if let Err(CoverError::Lost(why)) = &settled {
                self.lost = Some(why.clone());
            }
            outcome = outcome.and(settled);
        }
        self.too_strong &= !self.guards.is_empty();
        outcome
    }

    fn look(&mut self, extent: Extent, kind: Kind) -> Result<Option<Piece>, CoverError> {
        self.check(extent)?;
        let keeps_out = |guard: &AnyGuard| kind == Kind::Read || !guard.is_shared();
        if self.gaps(extent).is_empty() && self.guards_in(extent).all(keeps_out) {
            return Ok(None);
        }
        let holders = self.lock.holders().map_err(|error| CoverError::Lost(error.to_string()))?;
        // No two grants of a lock have one token, and the pieces of one grant are of one holder.
        let is_ours = |entry: &Entry| self.guards.iter().any(|guard| Some(guard.token()) == entry.token);
        let others = holders.into_iter().filter(|entry| !is_ours(entry));
        let in_the_way = |held: &Piece| held.extent.overlaps(&extent) && held.kind.conflicts(kind);
        Ok(joined(others).into_iter().find(in_the_way))
    }

    fn unsettled(&self, extent: Extent) -> Extent {
        let (first, last) = self.span(extent);
        match self.guards[first..last] {
            [ref left, .., ref right] if self.too_strong => {
                Extent { start: held(left).start.min(extent.start), end: held(right).end.max(extent.end) }
            }
            [ref only] if self.too_strong => {
                Extent { start: held(only).start.min(extent.start), end: held(only).end.max(extent.end) }
            }
            _ => extent,
        }
    }
}

/// What processes hold, by where it begins. The pieces that a process has side by side, of which the space knows one by one, are one.
fn joined(entries: impl Iterator<Item = Entry>) -> Vec<Piece> {
    let host = host();
    let mut entries: Vec<_> = entries.filter_map(|entry| Some((entry.range.clone()?, entry))).collect();
    entries.sort_by_key(|(range, _)| range.start);
    let (mut held, mut last) = (Vec::<Piece>::new(), HashMap::new());
    for (range, Entry { host: on, pid, shared, .. }) in entries {
        let end = range.end.min(Extent::END);
        // A process's number says nothing on another host.
        let named = if on == host { pid } else { 0 };
        let before = last.entry((on, pid, shared)).or_insert(held.len());
        match held.get_mut(*before).filter(|before| before.extent.end == range.start) {
            Some(before) => before.extent.end = end,
            None => {
                *before = held.len();
                let kind = if shared { Kind::Read } else { Kind::Write };
                held.push(Piece { extent: Extent { start: range.start, end }, kind, pid: named });
            }
        }
    }
    held
}

impl SpaceCover {
    fn guards_in(&self, extent: Extent) -> impl Iterator<Item = &AnyGuard> {
        let (first, last) = self.span(extent);
        self.guards[first..last].iter()
    }
}

/// This host, as clients are called by it.
fn host() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    host.trim().replace(char::is_whitespace, "-")
}

fn held(guard: &AnyGuard) -> Extent {
    let range = guard.range().unwrap_or_default();
    Extent { start: range.start, end: range.end }
}

#[expect(clippy::needless_pass_by_value, reason = "it maps errors")]
fn lost(error: ChangeError) -> CoverError {
    CoverError::Lost(error.to_string())
}

//! One file: the table of its locks, and the cover that keeps other processes out.
//!
//! | step of a lock | if it fails |
//! |---|---|
//! | 1. no other owner in the table is in the way | nothing has changed |
//! | 2. the cover is made as strong as the request | the cover is as before, and what was held stays held |
//! | 3. the table is changed | |
//! | 4. the cover is weakened to what is needed now | |
//!
//! So there is no moment at which an owner has a lock by the table that the cover does not have. A conversion keeps what was
//! held until the new kind is there, but for `flock`, whose conversion gives the old lock back first, as the kernel's does.

use crate::cover::{Cover, CoverError};
use crate::extent::Extent;
use crate::table::{Blocker, Kind, LockTable, Owner, Piece};

/// The locks of one file, record locks or flocks.
#[derive(Clone, Debug, Default)]
pub struct FileLocks<C> {
    table: LockTable,
    cover: C,
}

/// Why a lock was not taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// These owners of the same process are in the way: `EAGAIN`, or wait.
    Held(Vec<Owner>),
    /// Another process is in the way: `EAGAIN`, or wait.
    Elsewhere,
    /// The space cannot say, or has taken away what this process had of it: `ENOLCK`.
    Lost(String),
}

/// What `F_GETLK` finds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InTheWay {
    /// A lock of this process's programs.
    Here(Blocker),
    /// A lock of another process's, which is all that is known of its owner.
    Elsewhere(Piece),
}

impl From<CoverError> for Refusal {
    fn from(error: CoverError) -> Self {
        match error {
            CoverError::Busy => Self::Elsewhere,
            CoverError::Lost(why) => Self::Lost(why),
        }
    }
}

impl<C: Cover> FileLocks<C> {
    /// A file without locks, under `cover`.
    pub fn new(cover: C) -> Self {
        Self { table: LockTable::default(), cover }
    }

    /// Who holds what.
    pub fn table(&self) -> &LockTable {
        &self.table
    }

    /// Takes `extent` for `owner`, or changes what it has there to `kind`.
    ///
    /// # Errors
    /// If another holder is in the way, or the space is lost. The owner keeps what it had.
    pub fn lock(&mut self, owner: Owner, pid: u32, extent: Extent, kind: Kind) -> Result<(), Refusal> {
        let held = self.blockers(owner, extent, kind);
        if !held.is_empty() {
            return Err(Refusal::Held(held));
        }
        self.cover.raise(extent, kind)?;
        self.table.set(owner, pid, extent, Some(kind));
        if kind == Kind::Read {
            // It may have been written.
            self.settle(extent)?;
        }
        Ok(())
    }

    /// Gives back what `owner` has of `extent`.
    ///
    /// # Errors
    /// If the space had taken it away before, or cannot be told. The owner has it no more.
    pub fn unlock(&mut self, owner: Owner, extent: Extent) -> Result<(), CoverError> {
        if self.table.pieces(owner).is_empty() {
            return Ok(());
        }
        self.table.set(owner, 0, extent, None);
        self.settle(extent)
    }

    /// Makes the cover what is needed.
    fn settle(&mut self, extent: Extent) -> Result<(), CoverError> {
        self.cover.settle(&self.table.needed(self.cover.unsettled(extent)))
    }

    /// Takes the file as a whole, as `flock` does: what the owner had in another kind is given back first.
    ///
    /// # Errors
    /// As [`lock`](Self::lock), but the owner may have nothing any more.
    pub fn flock(&mut self, owner: Owner, pid: u32, kind: Kind) -> Result<(), Refusal> {
        match self.table.pieces(owner).first() {
            Some(piece) if piece.kind == kind => return Ok(()),
            Some(_) => self.unlock(owner, Extent::WHOLE)?,
            None => {}
        }
        self.lock(owner, pid, Extent::WHOLE, kind)
    }

    /// Owners of this process that are in the way, each once.
    pub fn blockers(&self, owner: Owner, extent: Extent, kind: Kind) -> Vec<Owner> {
        let mut owners: Vec<_> =
            self.table.blockers(owner, extent, kind).map(|blocker| blocker.owner).collect();
        owners.dedup();
        owners
    }

    /// The first lock in the way, as `F_GETLK` tells it. Nothing is taken for it.
    ///
    /// # Errors
    /// If the space is lost.
    pub fn test(&mut self, owner: Owner, extent: Extent, kind: Kind) -> Result<Option<InTheWay>, CoverError> {
        if let Some(blocker) = self.table.blockers(owner, extent, kind).next() {
            return Ok(Some(InTheWay::Here(blocker)));
        }
        Ok(self.cover.look(extent, kind)?.map(InTheWay::Elsewhere))
    }

    /// Whether it can be forgotten.
    pub fn is_unused(&self) -> bool {
        self.table.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cover::NoCover;

    const ME: Owner = Owner::Description(1);
    const YOU: Owner = Owner::Description(2);

    #[test]
    fn a_flock_that_cannot_be_converted_is_gone() {
        let mut file = FileLocks::new(NoCover);
        file.flock(ME, 1, Kind::Read).unwrap();
        file.flock(YOU, 2, Kind::Read).unwrap();
        assert_eq!(file.flock(ME, 1, Kind::Write), Err(Refusal::Held(vec![YOU])));
        file.flock(YOU, 2, Kind::Write).expect("the other one gave its own back first");
    }

    #[test]
    fn a_record_lock_that_cannot_be_converted_stays() {
        let mut file = FileLocks::new(NoCover);
        let all = Extent::WHOLE;
        file.lock(ME, 1, all, Kind::Read).unwrap();
        file.lock(YOU, 2, all, Kind::Read).unwrap();
        assert_eq!(file.lock(ME, 1, all, Kind::Write), Err(Refusal::Held(vec![YOU])));
        assert_eq!(file.lock(YOU, 2, all, Kind::Write), Err(Refusal::Held(vec![ME])));
    }
}

//! Clearing away what the dead left: a word is the sum of what requests added, so the dead's part is taken away by an
//! addition, whatever the living do to the word meanwhile.
//!
//! A record that is settled says what that part is. If its client died while it was changing words, the part is what nobody
//! accounts for, neither the living nor the settled records of others who are dead:
//!
//! | step | |
//! |---|---|
//! | 1 | take the repair lock; also from a client that died with it |
//! | 2 | read the progress of all records: if one of the living is changing, try again later |
//! | 3 | read the word |
//! | 4 | read the progress again: if nothing changed, the word was the sum of these and the dead's when it was read |
//! | 5 | add the difference, negated |
//!
//! 1. **Dead is dead**: nothing of a client takes effect after others take it for dead.
//! 2. **Changing before, settled after**: between two reads of the same settled progress its client changed no word.
//! 3. **One at a time**: two repairs at once would take the same away twice. One that was interrupted left a record that is
//!    changing, and the next one finds out by the sum what was done.
//!
//! A repair never waits: the living are not held up by it, and who calls it has something else to wait for.

use super::acquire::Request;
use super::progress::Progress;
use super::words;
use super::{MemberRules, TreeClient, TreeSpace};
use crate::citron::shape::Node;
use crate::holders::listed::{listed, load_all};
use crate::holders::record::{ClientWord, First, RecordWord};
use crate::holders::space::bits;
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Endpoint, FabricError, PeerId, Word64};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

/// Pause before a client that lost its connection tries again to clear away what it left itself.
const PAUSE_NS: u64 = 100_000;

/// The progress of one record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Seen {
    peer: PeerId,
    record: u8,
    progress: Progress,
}

/// One task of this client repairs, until this is dropped.
struct Repairing<'a>(&'a AtomicBool);

impl Drop for Repairing<'_> {
    fn drop(&mut self) {
        self.0.store(false, SeqCst);
    }
}

impl<E: Endpoint, S: TreeSpace, R: MemberRules> TreeClient<E, S, R> {
    /// Clears away what dead clients left, as far as that can be done now.
    pub(super) async fn reap_all(&self) -> Result<(), FabricError> {
        for listed in listed(&self.space).await? {
            if !listed.is_alive(&self.space).await? {
                self.reap(listed.peer).await?;
            }
        }
        Ok(())
    }

    /// Clears away what `peer`, which is dead, has left. False if some of it has to be tried again: a client is in the middle
    /// of a change, or repairs just now.
    ///
    /// # Errors
    /// If the space's memory cannot be reached.
    pub async fn reap(&self, peer: PeerId) -> Result<bool, FabricError> {
        let layout = self.space.layout();
        let used = self.space.load(layout.client(layout.slot(peer), ClientWord::Used)).await?;
        let words = bits(used)
            .map(|record| (record as u8, self.record(peer, record as u8).word(RecordWord::PROGRESS)));
        let mut left = Vec::new();
        for (record, word) in words {
            if Progress(self.space.load(word).await?).may_have_left() {
                left.push((record, word));
            }
        }
        if left.is_empty() {
            return Ok(true);
        }
        let Some(repairing) = self.lock_repairs().await? else { return Ok(false) };
        let mut is_done = true;
        for (record, word) in left {
            is_done &= self.reap_record(peer, record, word).await?;
        }
        self.unlock_repairs(repairing).await?;
        Ok(is_done)
    }

    async fn reap_record(&self, peer: PeerId, record: u8, word: Word64) -> Result<bool, FabricError> {
        // Another client may have been first.
        let progress = Progress(self.space.load(word).await?);
        if !progress.may_have_left() {
            return Ok(true);
        }
        let claim = self.claim_of(peer, record).await?;
        let place = self.space.place(word);
        if progress.is_changing() {
            if !self.repair_all(&claim).await? {
                return Ok(false);
            }
        } else {
            if R::REPAIRS_ARE_WRITTEN_DOWN {
                self.ep.go(place.write(progress.in_change().0)).await?;
            }
            self.take_away(&claim, progress.occupied()).await?;
        }
        self.ep.go(place.write(0)).await?;
        Ok(true)
    }

    /// Takes away what a settled record says.
    async fn take_away(&self, claim: &Claim, occupied: usize) -> Result<(), FabricError> {
        let Ok(cover) = self.forest.cover(claim) else { return Ok(()) };
        let cover = &cover[..occupied.min(cover.len())];
        for node in self.forest.touched(cover) {
            let share = self.forest.share(cover, claim.mode, node);
            self.ep.go(self.forest.word(claim.lock, node).fetch_add(share.wrapping_neg())).await?;
        }
        Ok(())
    }

    /// After an error of the fabric: what this client's own request left is nobody's, and is cleared away.
    pub(super) async fn disown(&self, request: &Request) -> Result<(), FabricError> {
        self.settle(request.record, 0).await?;
        loop {
            if let Some(repairing) = self.lock_repairs().await? {
                let is_done = self.repair_all(&request.claim).await?;
                self.unlock_repairs(repairing).await?;
                if is_done {
                    return self.clear(request.record).await;
                }
            }
            self.ep.sleep(PAUSE_NS).await;
        }
    }

    /// What `record` gave back of `claim` may not all have been executed: the connection broke.
    ///
    /// # Errors
    /// If the space's memory cannot be reached.
    pub async fn disown_released(&self, record: u8, claim: Claim) -> Result<(), FabricError> {
        match self.forest.cover(&claim) {
            Ok(cover) => self.disown(&Request { record, claim, cover, occupied: 0 }).await,
            Err(_) => Ok(()),
        }
    }

    async fn repair_all(&self, claim: &Claim) -> Result<bool, FabricError> {
        let Ok(cover) = self.forest.cover(claim) else { return Ok(true) };
        for node in self.forest.touched(&cover) {
            if !self.repair(claim.lock, node).await? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Takes away from one word what nobody accounts for. False if the living are in the middle of something.
    async fn repair(&self, lock: u64, node: Node) -> Result<bool, FabricError> {
        if !R::REPAIRS_ADD {
            return self.repair_by_swap(lock, node).await;
        }
        let word = self.forest.word(lock, node);
        let before = self.read_all_records().await?;
        if R::REPAIRS_HEED_CHANGES && before.iter().any(|seen| seen.progress.is_changing()) {
            return Ok(false);
        }
        let accounted = self.accounted(&before, lock, node).await?;
        let value = self.ep.go(word.read()).await?;
        if R::REPAIRS_LOOK_TWICE && self.read_all_records().await? != before {
            return Ok(false);
        }
        // If it has less, a client lost its connection in the middle of something, and is about to disown it.
        let Some(left) = words::without(value, accounted) else { return Ok(false) };
        if left != 0 {
            self.ep.go(word.fetch_add(left.wrapping_neg())).await?;
        }
        Ok(true)
    }

    /// A mutant's repair.
    async fn repair_by_swap(&self, lock: u64, node: Node) -> Result<bool, FabricError> {
        let word = self.forest.word(lock, node);
        let value = self.ep.go(word.read()).await?;
        let records = self.read_all_records().await?;
        if records.iter().any(|seen| seen.progress.is_changing()) {
            return Ok(false);
        }
        let accounted = self.accounted(&records, lock, node).await?;
        Ok(self.ep.go(word.cas(value, accounted)).await? == value)
    }

    /// What was added to a word, by what is written down.
    async fn accounted(&self, settled: &[Seen], lock: u64, node: Node) -> Result<u64, FabricError> {
        let mut sum = 0;
        for seen in settled.iter().filter(|seen| seen.progress.occupied() > 0) {
            let claim = self.claim_of(seen.peer, seen.record).await?;
            if claim.lock == lock
                && let Ok(cover) = self.forest.cover(&claim)
            {
                let occupied = seen.progress.occupied().min(cover.len());
                sum += self.forest.share(&cover[..occupied], claim.mode, node);
            }
        }
        Ok(sum)
    }

    async fn claim_of(&self, peer: PeerId, record: u8) -> Result<Claim, FabricError> {
        let at = self.record(peer, record);
        let words = [RecordWord::First, RecordWord::Start, RecordWord::End].map(|word| at.word(word));
        let read = load_all(&self.space, &words).await?;
        let first = First(read[0]);
        Ok(Claim { lock: first.lock(), mode: first.mode(), start: read[1], end: read[2] })
    }

    /// The progress of all records, but of those that the dead left in the middle of something: nobody knows what is theirs.
    async fn read_all_records(&self) -> Result<Vec<Seen>, FabricError> {
        let (mut records, mut words) = (Vec::new(), Vec::new());
        for listed in listed(&self.space).await? {
            let is_alive = listed.is_alive(&self.space).await?;
            for record in bits(listed.used).map(|record| record as u8) {
                records.push((listed.peer, record, is_alive));
                words.push(self.record(listed.peer, record).word(RecordWord::PROGRESS));
            }
        }
        let read = load_all(&self.space, &words).await?;
        let seen = records.into_iter().zip(read.into_iter().map(Progress));
        let seen = seen.filter(|((.., is_alive), progress)| *is_alive || !progress.is_changing());
        Ok(seen.map(|((peer, record, _), progress)| Seen { peer, record, progress }).collect())
    }

    /// Takes the repair lock, which is the space's, in this client's name, which one of its tasks has at a time. `None` if
    /// another repairs.
    async fn lock_repairs(&self) -> Result<Option<Repairing<'_>>, FabricError> {
        if self.is_repairing.swap(true, SeqCst) {
            return Ok(None);
        }
        let repairing = Repairing(&self.is_repairing);
        if !R::ONE_REPAIRER {
            return Ok(Some(repairing));
        }
        let (word, me) = (self.forest.repair_lock(), u64::from(self.space.me().0));
        let mut holder = self.ep.go(word.cas(0, me)).await?;
        if holder != 0 && holder != me && !self.is_in(PeerId(holder as u32)).await? {
            let found = self.ep.go(word.cas(holder, me)).await?;
            holder = if found == holder { 0 } else { found };
        }
        // It is this client's still if a repair of its failed.
        Ok((holder == 0 || holder == me).then_some(repairing))
    }

    async fn unlock_repairs(&self, repairing: Repairing<'_>) -> Result<(), FabricError> {
        if R::ONE_REPAIRER {
            self.ep.go(self.forest.repair_lock().write(0)).await?;
        }
        drop(repairing);
        Ok(())
    }

    /// Whether `peer` is in the space and alive; the server itself always is.
    async fn is_in(&self, peer: PeerId) -> Result<bool, FabricError> {
        let (_, is_server) = peer.index();
        if is_server {
            return Ok(true);
        }
        match listed(&self.space).await?.iter().find(|listed| listed.peer == peer) {
            Some(listed) => listed.is_alive(&self.space).await,
            None => Ok(false),
        }
    }
}

//! Who is in a space, or was and has not been cleared away after: for repairs, which look at the records of the living.

use super::record::ClientWord;
use super::space::{HolderSpace, MAX_LOADS};
use lockwright_fabric::{FabricError, PeerId, Word64};

/// A client that is in the directory, or has left it and not been cleaned up after.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Listed {
    /// Who.
    pub(crate) peer: PeerId,
    /// Which records it has used.
    pub(crate) used: u64,
    /// Whether it is in.
    pub(crate) is_in: bool,
}

impl Listed {
    /// Whether it is in the space and alive.
    pub(crate) async fn is_alive<S: HolderSpace>(&self, space: &S) -> Result<bool, FabricError> {
        Ok(self.is_in && space.is_alive(self.peer).await?)
    }
}

/// All of them, by slot.
pub(crate) async fn listed<S: HolderSpace>(space: &S) -> Result<Vec<Listed>, FabricError> {
    let layout = space.layout();
    let directory: Vec<_> = (0..layout.directory_words()).map(|index| layout.directory(index)).collect();
    let directory = load_all(space, &directory).await?;
    let owners: Vec<_> = (0..layout.clients()).map(|slot| layout.owner(slot)).collect();
    let owners = (0..).zip(load_all(space, &owners).await?).filter(|(_, owner)| *owner != 0);
    let (slots, owners): (Vec<u64>, Vec<u64>) = owners.unzip();
    let used: Vec<_> = slots.iter().map(|slot| layout.client(*slot, ClientWord::Used)).collect();
    let used = load_all(space, &used).await?;
    let is_in = |slot: u64| directory[slot as usize / 64] >> (slot % 64) & 1 != 0;
    let all = slots.into_iter().zip(owners).zip(used);
    Ok(all
        .map(|((slot, owner), used)| Listed { peer: PeerId(owner as u32), used, is_in: is_in(slot) })
        .collect())
}

/// Loads words in order, as many at a time as the space can.
pub(crate) async fn load_all<S: HolderSpace>(space: &S, words: &[Word64]) -> Result<Vec<u64>, FabricError> {
    let mut values = Vec::with_capacity(words.len());
    for some in words.chunks(S::LOADS.min(MAX_LOADS)) {
        values.extend(space.load_all(some).await?);
    }
    Ok(values)
}

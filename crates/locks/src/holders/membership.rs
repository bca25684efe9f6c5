//! Coming and going: how a client takes over a slot of the table, leaves it, and is evicted from it while others come and go.
//!
//! A slot that is left, or whose client is dead, is the next client's. Others may still be busy with the one before: with its
//! records, which they read with the name of their owner, and with its liveness, which they are about to change.
//!
//! 1. **Nobody's in between.** The owner's name is the first word to go and the last to come, so nobody takes what is half the
//!    one client's and half the other's for either's.
//! 2. **The liveness goes on.** It is swapped, never written: a client that is about to change the last client's liveness, as
//!    it has read it, finds it changed.
//! 3. **Silence is read after the liveness.** A client that suspects or evicts another reads that word first, then the
//!    heartbeat, then whether the slot is still that client's, and swaps exactly the word it has read. Going by what it has read
//!    before, it would evict the new client for the silence of the last.

use super::liveness::{self, Liveness};
use super::record::{ClientRecord, ClientWord, First, RecordWord, TableLayout};
use crate::shiftlock::Shipped;
use lockwright_fabric::{Endpoint, FabricError, PeerId, Time};

/// Where mutants differ from what is shipped. The defaults are what is shipped.
pub trait MembershipRules {
    /// The next client of a slot leaves no suspicion of the last one as it is.
    const LIVENESS_IS_RENEWED: bool = true;
    /// Before evicting, a client looks once more whose the slot is.
    const SLOTS_ARE_READ_AGAIN: bool = true;
}

impl MembershipRules for Shipped {}

/// Takes over the slot of `ep`'s client, which is nobody else's: all records are free.
///
/// # Errors
/// If the memory cannot be reached.
pub async fn join<E: Endpoint>(
    ep: &E,
    layout: &TableLayout,
    now: Time,
    lease_ns: u64,
) -> Result<(), FabricError> {
    join_by::<Shipped, E>(ep, layout, now, lease_ns).await
}

/// [`join`], by the rules of `R`.
///
/// # Errors
/// Likewise.
pub async fn join_by<R: MembershipRules, E: Endpoint>(
    ep: &E,
    layout: &TableLayout,
    now: Time,
    lease_ns: u64,
) -> Result<(), FabricError> {
    let (me, slot) = (ep.me(), layout.slot(ep.me()));
    ep.go(layout.owner(slot).write(0)).await?;
    for record in 0..layout.records() {
        let first = layout.record(slot, record).word(RecordWord::First);
        let before = First(ep.go(first.read()).await?);
        if before.freed() != before {
            ep.go(first.write(before.freed().0)).await?;
        }
    }
    let words = [
        (ClientWord::Heartbeat, now.0),
        (ClientWord::Lease, lease_ns),
        (ClientWord::Used, 0),
        (ClientWord::DependentPid, 0),
        (ClientWord::DependentStart, 0),
    ];
    ep.go(words.map(|(word, value)| layout.client(slot, word).write(value))).await?;
    let word = layout.client(slot, ClientWord::Liveness);
    loop {
        let old = ep.go(word.read()).await?;
        if !R::LIVENESS_IS_RENEWED && !Liveness(old).is_evicted() {
            break;
        }
        if ep.go(word.cas(old, Liveness(old).renewed().0)).await? == old {
            break;
        }
        ep.mark("holders: joins, and a client suspects the last one", &[]);
    }
    let (bits, bit) = (layout.directory(slot / 64), 1 << (slot % 64));
    if ep.go(bits.read()).await? & bit == 0 {
        ep.go(bits.fetch_add(bit)).await?;
    }
    ep.go(layout.owner(slot).write(u64::from(me.0))).await.map(drop)
}

/// The slot of `ep`'s client is nobody's any more.
///
/// # Errors
/// If the memory cannot be reached, or this client was evicted.
pub async fn leave<E: Endpoint>(ep: &E, layout: &TableLayout) -> Result<(), FabricError> {
    let slot = layout.slot(ep.me());
    let (bits, bit) = (layout.directory(slot / 64), 1_u64 << (slot % 64));
    ep.go((layout.owner(slot).write(0), bits.fetch_add(bit.wrapping_neg()))).await.map(drop)
}

/// Evicts `client` if it is `silent`, as [`liveness::evict`] does it; whether it is evicted. `false` also if its slot has another
/// client by now: of one that is gone nobody finds anything when looking again.
///
/// # Errors
/// If the memory cannot be reached, or the calling client was evicted itself.
pub async fn evict<E: Endpoint>(
    ep: &E,
    layout: &TableLayout,
    client: &ClientRecord,
    silent: impl AsyncFn(&ClientRecord, Option<Time>) -> bool,
) -> Result<bool, FabricError> {
    evict_by::<Shipped, E>(ep, layout, client, silent).await
}

/// [`evict`], by the rules of `R`.
///
/// # Errors
/// Likewise.
pub async fn evict_by<R: MembershipRules, E: Endpoint>(
    ep: &E,
    layout: &TableLayout,
    client: &ClientRecord,
    silent: impl AsyncFn(&ClientRecord, Option<Time>) -> bool,
) -> Result<bool, FabricError> {
    let word = layout.client(layout.slot(client.peer), ClientWord::Liveness);
    let silent = async |since| match read_again(ep, layout, client).await {
        _ if !R::SLOTS_ARE_READ_AGAIN => silent(client, since).await,
        Ok(Some(client)) => silent(&client, since).await,
        _ => false,
    };
    liveness::evict(ep, word, silent).await
}

/// `client`, with its heartbeat as it is now; `None` if the slot is not its any more.
async fn read_again<E: Endpoint>(
    ep: &E,
    layout: &TableLayout,
    client: &ClientRecord,
) -> Result<Option<ClientRecord>, FabricError> {
    let slot = layout.slot(client.peer);
    let word = |word| layout.client(slot, word).read();
    let (heartbeat, lease_ns, owner) =
        ep.go((word(ClientWord::Heartbeat), word(ClientWord::Lease), layout.owner(slot).read())).await?;
    let is_its = PeerId(owner as u32) == client.peer;
    Ok(is_its.then_some(ClientRecord { heartbeat: Time(heartbeat), lease_ns, ..*client }))
}

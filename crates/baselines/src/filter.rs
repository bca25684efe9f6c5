//! The filter lock: Peterson's lock for n clients (Peterson 1981; the naive answer of the asymmetric lock's paper, §3).
//!
//! Words of a lock, for n = [`FilterParams::clients`]:
//!
//! | word | meaning |
//! |---|---|
//! | i, below n | the level client i has come to; 0: it wants nothing |
//! | n + l, l from 1 to n − 1 | the victim of level l: who came to it last |
//!
//! Reads and writes only, so it is safe for local and remote clients together wherever those are atomic. What it
//! costs is why nobody uses it: n − 1 levels, at each of which a client watches all others, even when it is alone. A
//! mutex: shared wants are served as exclusive ones.

use lockwright_fabric::observe::Observation;
use lockwright_fabric::{Addr, Endpoint, MAX_BATCH, Needs, Word64};
use lockwright_locks::{
    Denied, Held, Info, LockClient, Lost, Offers, Patience, Protocol, Reason, Space, Want,
};

/// The filter lock.
#[derive(Debug)]
pub struct Filter;

/// Its tunables.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FilterParams {
    /// Clients there can be, which is also one more than the levels. At most 31: a look is one batch.
    pub clients: u8,
    /// Pause between two looks.
    pub pace_ns: u64,
}

impl Default for FilterParams {
    fn default() -> Self {
        Self { clients: 16, pace_ns: 500 }
    }
}

impl Protocol for Filter {
    type Params = FilterParams;
    type Client<E: Endpoint> = FilterClient<E>;

    const INFO: Info = Info {
        name: "filter",
        summary: "filter lock: Peterson's for n clients, reads and writes only",
        source: "Asymmetric Mutual Exclusion for RDMA §3; Peterson 1981",
        offers: Offers::NONE,
    };

    fn needs(_: &FilterParams) -> Needs {
        Needs::default()
    }

    fn bytes_per_node(space: &Space, params: &FilterParams) -> u64 {
        space.table_bytes(stride(params))
    }

    /// # Panics
    /// If there are too many clients for a look in one batch.
    fn client<E: Endpoint>(ep: E, space: &Space, params: &FilterParams) -> FilterClient<E> {
        assert!(usize::from(params.clients) < MAX_BATCH, "a look at everybody is one batch");
        FilterClient { ep, space: *space, params: *params }
    }

    fn quiet_mask(_: &Space, params: &FilterParams, addr: Addr) -> u64 {
        // Victims stay.
        let word = addr.offset % stride(params) / 8;
        if word < u64::from(params.clients) { u64::MAX } else { 0 }
    }
}

const fn stride(params: &FilterParams) -> u64 {
    params.clients as u64 * 16
}

/// A client of the filter lock.
#[derive(Clone, Debug)]
pub struct FilterClient<E> {
    ep: E,
    space: Space,
    params: FilterParams,
}

impl<E: Endpoint> LockClient for FilterClient<E> {
    type Grant = Held;

    async fn acquire(&self, want: Want) -> Result<Held, Denied> {
        let (lock, me) = (want.claim.lock, self.ep.me().index().0 as u64);
        if want.patience != Patience::Forever {
            return Err(Denied::Unsupported(&Reason("a client of a filter lock cannot give up")));
        }
        if me >= u64::from(self.params.clients) {
            return Err(Denied::Unsupported(&Reason("this filter lock has no place for another client")));
        }
        for level in 1..u64::from(self.params.clients) {
            self.ep.go((self.level(lock, me).write(level), self.victim(lock, level).write(me + 1))).await?;
            loop {
                self.ep.mark("filter look", &[level]);
                if self.may_rise(lock, me, level).await? {
                    break;
                }
                self.ep.observe(Observation::Retried(want.claim));
                self.ep.sleep(self.params.pace_ns).await;
            }
        }
        Ok(Held { lock })
    }

    async fn release(&self, grant: Held) -> Result<(), Lost> {
        let me = self.ep.me().index().0 as u64;
        self.ep.go(self.level(grant.lock, me).write(0)).await?;
        Ok(())
    }
}

impl<E: Endpoint> FilterClient<E> {
    /// Another client became this level's victim, or none other has come so far.
    async fn may_rise(&self, lock: u64, me: u64, level: u64) -> Result<bool, Denied> {
        let others = (0..u64::from(self.params.clients)).filter(|other| *other != me);
        let mut look = vec![self.victim(lock, level).read().raw()];
        look.extend(others.map(|other| self.level(lock, other).read().raw()));
        let olds = self.ep.go(look.as_slice()).await?;
        Ok(olds[0] != u128::from(me + 1) || olds[1..].iter().all(|theirs| *theirs < u128::from(level)))
    }

    fn level(&self, lock: u64, client: u64) -> Word64 {
        Word64::at(self.space.place(lock, stride(&self.params)).plus(8 * client))
    }

    fn victim(&self, lock: u64, level: u64) -> Word64 {
        self.level(lock, u64::from(self.params.clients) + level)
    }
}

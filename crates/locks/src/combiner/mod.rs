//! The combiner: reader-writer range locks held by the server, one round trip each ("Server-sided range locking is
//! better than client-sided locking", J. Dezalos, EPFL 2024).
//!
//! Handlers put requests into one linked list (`queue`); one combiner takes them out in order and alone owns a
//! red-black interval tree of everything held and wanted ([`core`]). A request that conflicts with nothing before it is
//! granted at once; any other counts what stands before it and is granted when that count comes to zero. So nobody
//! overtakes an earlier request it conflicts with. `server` and `client` carry this over any fabric, in the
//! thesis's two ways of learning of a grant (polling by RPC, polling a flag) and in ours: the server answers when the
//! lock is granted. `wire` is the thesis's eight-byte request.
//!
//! What it must not do: rely on clients. They are not trusted with lock words; whatever they send, the worst that
//! comes of it is a clear refusal.

pub mod core;
mod tree;

#[cfg(test)]
pub(crate) mod test_random {
    //! Repeatable numbers for tests: SplitMix64.

    pub(crate) struct Random(u64);

    impl Random {
        pub(crate) fn new(seed: u64) -> Self {
            Self(seed)
        }

        pub(crate) fn below(&mut self, limit: u64) -> u64 {
            self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
            (z ^ (z >> 31)) % limit
        }
    }
}

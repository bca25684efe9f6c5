//! The flags of the combiner that is polled by one-sided READs (thesis Alg. 2 `ready`): one word for every request a
//! client can have, zero while it waits, its fencing token once it is granted.
//!
//! The thesis has one byte per client, side by side, and suspects that this cost it its speed. Ours stand 64 bytes
//! apart, a cache line each; unpadded ones are there to measure the difference.

use super::core::ClientId;
use lockwright_fabric::{Addr, NodeId, Word64};

/// Where the flags of one combiner are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Flags {
    /// The combiner's node.
    pub node: NodeId,
    /// For how many clients there are flags.
    pub clients: u32,
    /// How many for each: as many requests can wait at a time.
    pub each: u32,
    /// Whether each has a cache line to itself.
    pub padded: bool,
}

impl Flags {
    /// Bytes of memory they take.
    pub fn bytes(&self) -> u64 {
        u64::from(self.clients) * u64::from(self.each) * self.stride()
    }

    /// Whether there is a flag for that request.
    pub fn has(&self, client: ClientId, id: u32) -> bool {
        (1..=self.clients).contains(&client.0) && id < self.each
    }

    /// The flag of a request.
    ///
    /// # Panics
    /// If there is none.
    pub fn word(&self, client: ClientId, id: u32) -> Word64 {
        assert!(self.has(client, id), "there is no flag for request {id} of client {}", client.0);
        let index = u64::from(client.0 - 1) * u64::from(self.each) + u64::from(id);
        Word64::at(Addr::new(self.node, index * self.stride()))
    }

    fn stride(&self) -> u64 {
        if self.padded { 64 } else { 8 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn padded_flags_share_no_cache_line_and_all_of_them_fit() {
        for padded in [false, true] {
            let flags = Flags { node: NodeId(0), clients: 3, each: 2, padded };
            let places = |id| (1..=3).map(move |client| flags.word(ClientId(client), id).addr().offset);
            let mut offsets: Vec<_> = places(0).chain(places(1)).collect();
            offsets.sort_unstable();
            assert!(offsets.windows(2).all(|pair| pair[1] - pair[0] == if padded { 64 } else { 8 }));
            assert!(offsets[5] + 8 <= flags.bytes());
            assert!(!flags.has(ClientId(4), 0) && !flags.has(ClientId(0), 0) && !flags.has(ClientId(1), 2));
        }
    }
}

//! One pass of the combiner: a batch of requests, served in order.
//!
//! Where the trees are larger than the cache every request waits for memory: what some of them need is then fetched together.
//!
//! What it must not do: change an order.

use super::super::tree::{IntervalTrees, Range, TOGETHER};
use super::{ClientId, Core, Reply, Request, Rules};
use arrayvec::ArrayVec;

/// So many records are near enough to be read when they are needed.
const NEAR: usize = 1 << 14;

impl<R: Rules> Core<R> {
    /// Serves a batch in order, and adds all answers to `replies`. Where the trees are larger than the cache this is much
    /// faster than one by one: their cache misses overlap.
    pub fn serve(&mut self, batch: &[(ClientId, Request)], replies: &mut Vec<Reply>) {
        for some in batch.chunks(TOGETHER) {
            if some.len() > 1 && self.len() > R::Trees::MANY {
                self.prepare(some);
            }
            for (client, request) in some {
                self.serve_one(*client, *request, replies);
            }
        }
    }

    /// Serves one request.
    #[inline]
    pub fn handle(&mut self, client: ClientId, request: Request, replies: &mut Vec<Reply>) {
        self.serve_one(client, request, replies);
    }

    /// Brings into the cache what these requests will need, and finds out where their ranges belong.
    fn prepare(&mut self, batch: &[(ClientId, Request)]) {
        let (mut ending, far) = (ArrayVec::<_, TOGETHER>::new(), self.len() > NEAR);
        self.trees.begin_places();
        for (client, request) in batch {
            match *request {
                Request::Lock { lock, start, end, .. } => {
                    if let Some(tree) = self.known_tree(lock) {
                        self.trees.want_place(Range { tree, start, end });
                    }
                }
                Request::Unlock { id } | Request::Cancel { id } if far => {
                    if let Ok(slot) = self.held(*client, id) {
                        ending.push(slot);
                    }
                }
                _ => {}
            }
        }
        self.trees.fetch(&self.records, &ending);
        self.trees.find_places();
    }
}

//! One pass of the combiner: what waits, served in order.
//!
//! Two things cost time beside the work itself. A request that is put together in memory and taken apart again at once is
//! waited for both times, so what comes from the list is served right out of it. And where the trees are larger than the
//! cache every request waits for memory: then some are taken out at a time, and what they need is fetched together.
//!
//! What it must not do: change an order.

use super::super::queue::Combining;
use super::super::tree::{IntervalTrees, Range, TOGETHER};
use super::{ClientId, Core, Reply, Request, Rules};
use arrayvec::ArrayVec;

/// So many records are near enough to be read when they are needed.
const NEAR: usize = 1 << 14;

impl<R: Rules> Core<R> {
    /// Serves what waits in the list, but not more than `most`, and adds all answers to `replies`. Says how much it was.
    ///
    /// ```
    /// use lockwright_locks::combiner::core::*;
    /// use lockwright_locks::combiner::queue;
    ///
    /// let mut combiner: Core = Core::new(Limits::default());
    /// let (mut handlers, mut list) = queue::list(1, 4);
    /// handlers[0].push(ClientId(7), Request::Unlock { id: 3 }).unwrap();
    /// let mut replies = Vec::new();
    /// assert_eq!(combiner.serve_list(&mut list, 100, &mut replies), 1);
    /// assert_eq!(replies[0].answer, Answer::Refused(Refusal::NotHeld));
    /// ```
    pub fn serve_list(&mut self, list: &mut Combining, most: usize, replies: &mut Vec<Reply>) -> usize {
        if self.len() > R::Trees::MANY {
            return self.serve_far(list, most, replies);
        }
        for served in 0..most {
            let Some((client, request)) = list.take() else { return served };
            self.serve_one(client, request, replies);
        }
        most
    }

    #[inline(never)]
    fn serve_far(&mut self, list: &mut Combining, most: usize, replies: &mut Vec<Reply>) -> usize {
        let (mut served, mut batch) = (0, std::mem::take(&mut self.batch));
        while served < most {
            list.take_all(TOGETHER.min(most - served), &mut batch);
            if batch.is_empty() {
                break;
            }
            self.serve(&batch, replies);
            served += batch.len();
            batch.clear();
        }
        self.batch = batch;
        served
    }

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

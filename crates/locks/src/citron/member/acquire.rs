//! Taking a range: one ordered batch, if nobody is in the way.
//!
//! | verbs | |
//! |---|---|
//! | WRITE, not waited for | the record: which range, and that words are changing |
//! | FAA | of every node of the cover: occupy it |
//! | FAA | of every m-th ancestor: notify it; its old word is a look already |
//! | READ | the other ancestors; the descendants of internal nodes within m − 1 levels |
//! | FAA | the token |
//! | WRITE, not waited for | the record: so many nodes are occupied |

use super::words;
use super::{MemberRules, TreeClient, TreeGrant, TreeSpace};
use crate::citron::MAX_K;
use crate::citron::shape::Node;
use crate::citron::split::Cover;
use crate::holders::ranges::unless;
use crate::protocol::Denied;
use arrayvec::ArrayVec;
use lockwright_fabric::observe::Claim;
use lockwright_fabric::{Cond, Deadline, Endpoint, FabricError, MAX_BATCH, Olds, RawVerb};

/// Verbs that go in one round trip on every fabric; more nodes are left to another batch.
const ONE_TRIP: usize = 16;
/// The longest pause before the second attempt at a node that others want, too; twice that before the third, and so on.
const BACKOFF_NS: u64 = 2_000;
const MOST_DOUBLINGS: u32 = 6;

/// A request under way.
pub(super) struct Request {
    pub(super) record: u8,
    pub(super) claim: Claim,
    pub(super) cover: Cover,
    /// Nodes of the cover that are occupied, from the left.
    pub(super) occupied: usize,
}

/// What has to be waited for, in which word.
type Obstacles = ArrayVec<(Node, Cond), { MAX_BATCH + 1 }>;

/// What came of a batch.
struct Outcome {
    /// Nodes of the cover that stay occupied.
    keeps: usize,
    obstacles: Obstacles,
}

/// A batch, and where in it what is.
#[derive(Default)]
struct Plan {
    verbs: ArrayVec<RawVerb, MAX_BATCH>,
    /// Where each node is occupied.
    takes: ArrayVec<usize, MAX_K>,
    /// Place in the batch, which node of the plan looks, and at which ancestor.
    looks: ArrayVec<(usize, usize, Node), MAX_BATCH>,
    /// The same, at which descendant.
    windows: ArrayVec<(usize, usize, Node), MAX_BATCH>,
    token: Option<usize>,
}

impl<E: Endpoint, S: TreeSpace, R: MemberRules> TreeClient<E, S, R> {
    /// Takes the range if nobody is in its way.
    ///
    /// # Errors
    /// [`Denied::Busy`] if a client is; the record is free again.
    pub async fn try_take(&self, record: u8, claim: Claim) -> Result<TreeGrant, Denied> {
        self.acquire(record, claim, None::<&fn() -> std::future::Pending<()>>).await
    }

    /// Takes the range, however long it takes.
    ///
    /// # Errors
    /// If its memory cannot be reached or this client is evicted; the record is free again.
    pub async fn take(&self, record: u8, claim: Claim) -> Result<TreeGrant, Denied> {
        self.acquire(record, claim, Some(&std::future::pending::<()>)).await
    }

    /// Takes the range, unless it is `given_up`, which is asked whenever it waits for others: then nothing is left of it.
    ///
    /// # Errors
    /// [`Denied::TimedOut`] if it was given up; else as [`take`](Self::take).
    pub async fn take_unless<G: Future<Output = ()>>(
        &self,
        record: u8,
        claim: Claim,
        given_up: impl Fn() -> G,
    ) -> Result<TreeGrant, Denied> {
        self.acquire(record, claim, Some(&given_up)).await
    }

    async fn acquire<G: Future<Output = ()>, F: Fn() -> G>(
        &self,
        record: u8,
        claim: Claim,
        given_up: Option<&F>,
    ) -> Result<TreeGrant, Denied> {
        let cover = self.forest.cover(&claim).map_err(Denied::BadRequest)?;
        let mut request = Request { record, claim, cover, occupied: 0 };
        let taken = match self.occupy(&mut request, given_up).await {
            Ok(token) => self.space.confirm(record).await.map(|()| token).map_err(Denied::from),
            denied => denied,
        };
        match taken {
            Ok(token) => Ok(TreeGrant { record, claim, cover: request.cover, token }),
            Err(Denied::Fabric(error)) => {
                // Which of its verbs were executed is not known.
                let _ = self.disown(&request).await;
                Err(error.into())
            }
            Err(denied) => Err(denied),
        }
    }

    /// Occupies the whole cover, from left to right. Returns the token.
    async fn occupy<G: Future<Output = ()>, F: Fn() -> G>(
        &self,
        request: &mut Request,
        given_up: Option<&F>,
    ) -> Result<u64, Denied> {
        let Request { record, claim, .. } = *request;
        if R::RECORDS_COME_FIRST {
            self.announce(record, &claim).await?;
        }
        let mut failures = 0;
        loop {
            self.ep.mark("citron-member: next nodes", &[request.occupied as u64, self.progress(record).0]);
            let plan = self.plan(request);
            let olds = self.ep.go(plan.verbs.as_slice()).await?;
            if !R::RECORDS_COME_FIRST {
                self.announce(record, &claim).await?;
            }
            let outcome = self.judge(request, &plan, &olds);
            let planned = request.occupied + plan.takes.len();
            request.occupied = outcome.keeps;
            if outcome.obstacles.is_empty() {
                if let Some(token) = plan.token {
                    return Ok(self.granted(request, olds[token] as u64 + 1).await?);
                }
                continue;
            }
            for verbs in self.endings(request, request.occupied..planned).chunks(MAX_BATCH) {
                self.ep.go(verbs).await?;
            }
            let Some(given_up) = given_up else {
                self.leave(request).await?;
                return Err(Denied::Busy);
            };
            if R::SETTLES_BEFORE_WAITING {
                self.settle(record, request.occupied).await?;
            }
            let waits = self.wait_for_all(request, &outcome.obstacles, given_up);
            if !waits.await? {
                self.begin_change(record, request.occupied).await?;
                self.leave(request).await?;
                return Err(Denied::TimedOut);
            }
            if request.occupied == request.cover.len() {
                let token = self.ep.go(self.forest.tokens(claim.lock).fetch_add(1)).await?;
                return Ok(self.granted(request, token + 1).await?);
            }
            if request.occupied < planned {
                failures += 1;
                self.back_off(failures).await;
            }
            self.begin_change(record, request.occupied).await?;
        }
    }

    async fn granted(&self, request: &Request, token: u64) -> Result<u64, FabricError> {
        self.settle_granted(request.record, request.cover.len(), token).await?;
        Ok(token)
    }

    /// The batch for as many of the next nodes as go in one round trip, and at least one.
    fn plan(&self, request: &Request) -> Plan {
        let (lock, mode) = (request.claim.lock, request.claim.mode);
        let word = |node| self.forest.word(lock, node);
        let mut plan = Plan::default();
        let mut looks = ArrayVec::<(usize, Node), MAX_BATCH>::new();
        let mut windows = ArrayVec::<(usize, Node), MAX_BATCH>::new();
        for (at, node) in request.cover.iter().enumerate().skip(request.occupied) {
            let is_common = |above: Node| {
                R::SPARES_COMMON_ANCESTORS && request.cover[..at].iter().any(|held| above.covers(*held))
            };
            let window = self.forest.window(*node).count();
            let verbs = plan.verbs.len()
                + looks.len()
                + windows.len()
                + 1
                + self.forest.above(*node).count()
                + window;
            if verbs + 1 > ONE_TRIP && !plan.takes.is_empty() {
                break;
            }
            let mine = plan.takes.len();
            if !R::LOOKS_AFTER_NOTIFYING {
                for above in self.forest.above(*node).filter(|above| !is_common(*above)) {
                    plan.looks.push((plan.verbs.len(), mine, above));
                    plan.verbs.push(word(above).read().raw());
                }
            }
            plan.takes.push(plan.verbs.len());
            plan.verbs.push(word(*node).fetch_add(words::mark(mode)).raw());
            for above in self.forest.above(*node) {
                let is_looked_at = R::LOOKS_AFTER_NOTIFYING && !is_common(above);
                if self.forest.notifies(*node, above) {
                    if is_looked_at {
                        plan.looks.push((plan.verbs.len(), mine, above));
                    }
                    plan.verbs.push(word(above).fetch_add(words::note(mode)).raw());
                } else if is_looked_at {
                    looks.push((mine, above));
                }
            }
            windows.extend(self.forest.window(*node).map(|below| (mine, below)));
        }
        for (mine, above) in looks {
            plan.looks.push((plan.verbs.len(), mine, above));
            plan.verbs.push(word(above).read().raw());
        }
        for (mine, below) in windows {
            plan.windows.push((plan.verbs.len(), mine, below));
            plan.verbs.push(word(below).read().raw());
        }
        if request.occupied + plan.takes.len() == request.cover.len() && !plan.verbs.is_full() {
            plan.token = Some(plan.verbs.len());
            plan.verbs.push(self.forest.tokens(lock).fetch_add(1).raw());
        }
        plan
    }

    /// The obstacle at the first node that has one.
    fn judge(&self, request: &Request, plan: &Plan, olds: &Olds) -> Outcome {
        let mode = request.claim.mode;
        let mut obstacles = Obstacles::new();
        for (mine, take) in plan.takes.iter().enumerate() {
            let (at, before) = (request.occupied + mine, olds[*take] as u64);
            let node = request.cover[at];
            let mut looks = plan.looks.iter().filter(|(_, of, _)| *of == mine);
            let occupied = looks.find(|(place, ..)| words::is_occupied(mode, olds[*place] as u64));
            if words::has_writer(before) {
                obstacles.push((node, words::NO_WRITER));
            } else if let Some((.., above)) = occupied {
                obstacles.push((*above, words::vacant(mode)));
            }
            if !obstacles.is_empty() {
                return Outcome { keeps: at, obstacles };
            }
            if R::WAITS_FOR_THOSE_BELOW && !words::quiet_here(mode).holds(before.into()) {
                obstacles.push((node, words::quiet_here(mode)));
            }
            let busy = |(place, of, _): &&(usize, usize, Node)| {
                R::WAITS_FOR_THOSE_BELOW && *of == mine && !words::quiet_below(mode).holds(olds[*place])
            };
            let busy = plan.windows.iter().filter(busy);
            obstacles.extend(busy.map(|(.., below)| (*below, words::quiet_below(mode))));
            if !obstacles.is_empty() {
                return Outcome { keeps: at + 1, obstacles };
            }
        }
        Outcome { keeps: request.occupied + plan.takes.len(), obstacles }
    }

    /// Waits until all `obstacles` are gone. False if the request was given up first.
    async fn wait_for_all<G: Future<Output = ()>>(
        &self,
        request: &Request,
        obstacles: &Obstacles,
        given_up: impl Fn() -> G,
    ) -> Result<bool, FabricError> {
        let mut rest = obstacles.as_slice();
        while let Some((node, gone)) = rest.first() {
            self.mark_waiting(request, rest);
            let deadline = self.look_again().await;
            let wait = self.forest.word(request.claim.lock, *node).until(*gone).by(deadline);
            match unless(given_up(), self.ep.wait_until(wait)).await {
                Some(waited) if waited?.met => rest = &rest[1..],
                Some(_) => self.reap_all().await?,
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Of everything that happened, only what is occupied and what is waited for matters.
    fn mark_waiting(&self, request: &Request, rest: &[(Node, Cond)]) {
        let mut locals = ArrayVec::<u64, { 2 * MAX_BATCH + 4 }>::new();
        locals.extend([request.occupied as u64, self.progress(request.record).0]);
        for (node, gone) in rest {
            let Cond::Eq { mask, .. } = gone else {
                unreachable!("counts are waited for until they are zero")
            };
            locals.extend([node.index(), *mask as u64]);
        }
        self.ep.mark("citron-member: waits", &locals);
    }

    /// When a wait ends to look for dead clients.
    async fn look_again(&self) -> Deadline {
        match self.space.patience_ns() {
            Some(ns) => Deadline::At(self.ep.now().await.plus(ns)),
            None => Deadline::Never,
        }
    }

    async fn back_off(&self, failures: u32) {
        let most = BACKOFF_NS << failures.min(MOST_DOUBLINGS);
        self.ep.sleep(self.ep.random() % most).await;
    }
}

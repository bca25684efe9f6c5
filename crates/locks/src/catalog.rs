//! The list of all protocols and mutants. A new protocol is one line here and one folder beside it.

use crate::baseline::lld::{self, Lld};
use crate::baseline::served::{Served, interval::Interval, list::List, maple::Maple};
use crate::baseline::{
    cas, cas_backoff, drtm, dslr, filter, mcs, netlock, parlock, rma_rw, rpc, srvlock, ss,
};
use crate::citron::{Citron, CitronRw};
use crate::combiner::{self, Combiner};
use crate::fisslock::{self, FissLock};
use crate::kept::{self, Fenced, Kept, KeptRanges};
use crate::mutant;
use crate::protocol::Protocol;
use crate::qplock::{self, QpLock};
use crate::shiftlock::narrow::Narrow;
use crate::shiftlock::{ShiftLock, layout::Wide, portable::Portable, stirred_portable::StirredPortable};

/// Somebody who wants to do something with every protocol, each as its own type.
pub trait Visitor {
    /// A protocol.
    fn protocol<P: Protocol>(&mut self);
    /// A protocol for the explorer alone: one that comes to the end of its counts after a few steps.
    fn model<P: Protocol>(&mut self) {}
    /// A broken protocol, and what the checkers must say of it.
    fn mutant<P: Protocol>(&mut self, mutant: Mutant);
    /// A mutant so coarse that it shows in a plain run. What is wrong with the others shows only after faults, with clocks that
    /// differ, with tunables of their own or against a stated bound: they are the explorer's alone to catch.
    fn coarse_mutant<P: Protocol>(&mut self, mutant: Mutant) {
        self.mutant::<P>(mutant);
    }
}

/// A deliberately broken lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mutant {
    /// The protocol it is a mutant of.
    pub of: &'static str,
    /// The checker that must catch it.
    pub caught_by: Checker,
    /// What is broken.
    pub why: &'static str,
}

/// The checkers, by what they find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Checker {
    /// Two conflicting claims were held at once.
    Exclusion,
    /// Somebody can never finish, and nothing moves any more.
    Deadlock,
    /// Somebody can never finish, though things still move.
    Livelock,
    /// Somebody was overtaken too often.
    Bypass,
    /// A token did not rise.
    Tokens,
    /// Lock memory was not free when all was quiet.
    Quiet,
}

impl Checker {
    /// All of them.
    pub const ALL: [Self; 6] =
        [Self::Exclusion, Self::Deadlock, Self::Livelock, Self::Bypass, Self::Tokens, Self::Quiet];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Checker::Exclusion => "mutual exclusion",
            Checker::Deadlock => "deadlock",
            Checker::Livelock => "livelock",
            Checker::Bypass => "bypass bound",
            Checker::Tokens => "token order",
            Checker::Quiet => "lock memory free when quiet",
        }
    }
}

/// Shows every protocol, then every mutant, to `visitor`.
pub fn visit(visitor: &mut impl Visitor) {
    visitor.protocol::<cas::Cas>();
    visitor.protocol::<cas_backoff::CasBackoff>();
    visitor.protocol::<mcs::Mcs>();
    visitor.protocol::<dslr::Dslr>();
    visitor.protocol::<drtm::Drtm>();
    visitor.protocol::<rma_rw::RmaRw>();
    visitor.protocol::<rpc::Rpc>();
    visitor.protocol::<filter::Filter>();
    visitor.protocol::<Citron>();
    visitor.protocol::<CitronRw>();
    visitor.protocol::<ss::StaticSegments>();
    visitor.protocol::<Lld>();
    visitor.protocol::<Served<List>>();
    visitor.protocol::<Served<Interval>>();
    visitor.protocol::<Served<Maple>>();

    visitor.protocol::<ShiftLock<Wide>>();
    visitor.protocol::<ShiftLock<Portable>>();
    visitor.protocol::<Kept>();
    visitor.protocol::<Kept<Fenced, StirredPortable>>();
    visitor.model::<Kept<kept::Ending, Narrow>>();
    visitor.protocol::<KeptRanges>();

    visitor.protocol::<Combiner>();
    visitor.protocol::<Combiner<combiner::PollRpc>>();
    visitor.protocol::<Combiner<combiner::PollFlag>>();
    visitor.protocol::<combiner::Thesis>();
    visitor.protocol::<Combiner<combiner::IntervalTree>>();

    visitor.protocol::<QpLock>();
    visitor.protocol::<QpLock<qplock::AsPrinted>>();
    visitor.protocol::<QpLock<qplock::Extended>>();
    visitor.protocol::<QpLock<qplock::InOrder>>();
    visitor.protocol::<qplock::leased::Leased>();

    visitor.protocol::<FissLock>();
    visitor.protocol::<srvlock::SrvLock>();
    visitor.protocol::<parlock::ParLock>();
    visitor.protocol::<netlock::NetLock>();

    mutant::visit(visitor);
    kept::mutants::visit(visitor);
    lld::visit_mutants(visitor);
    fisslock::mutants::visit(visitor);
    combiner::mutants::visit(visitor);
    qplock::mutants::visit(visitor);
}

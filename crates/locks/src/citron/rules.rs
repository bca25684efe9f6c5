//! Where the mutants of Citron differ from what is shipped: every rule that one of them breaks, by name.

/// Where the mutants of Citron differ from it.
pub trait Rules: std::fmt::Debug + 'static {
    /// The name on the command line.
    const NAME: &'static str;
    /// A tree for readers and writers, with words of its own.
    const READERS: bool = false;
    /// Reader-writer: a writer yields to readers above it.
    const YIELDS_TO_READERS: bool = true;
    /// Reader-writer: a writer waits for readers below it.
    const WAITS_FOR_READERS_BELOW: bool = true;
    /// Handshake: ancestors are looked at after they were notified. Else only before.
    const LOOKS_AFTER_NOTIFYING: bool = true;
    /// An attempt that is undone adds to DCnt of the ancestors it notified.
    const UNDO_COUNTS: bool = true;
    /// Requests above a node that is held are not waited for: they wait for us.
    const SPARES_COMMON_ANCESTORS: bool = true;
    /// A client that has to wait for an ancestor passes its turn at its own node on.
    const PASSES_TURN: bool = true;
    /// Wait mode: a request that took too long to tell its ancestors aborts (Alg. 2 line 32).
    const ABORTS_WHEN_LATE: bool = true;
    /// A range that touches several token words lifts all of them to its token.
    const LEVELS_TOKENS: bool = true;
    /// Before anything is taken away from the dead, a new era begins.
    const RECOVERY_BEGINS_AN_ERA: bool = true;
    /// A client that takes tickets away stops if the queue has moved meanwhile.
    const TAKING_AWAY_STOPS: bool = true;
    /// A client that finds another era in the end than in the beginning starts again.
    const ERA_IS_CHECKED: bool = true;
    /// Growing counts clients that hold or want the root.
    const GROWTH_COUNTS_THE_ROOT: bool = true;
    /// A client that waited for its turn closes the gap that was left before it, and only then looks for notes.
    const CLOSES_GAP_FIRST: bool = true;
    /// Every note remembers whether the tree grew past it while it was there; else only the highest one.
    const EVERY_NOTE_SPANS: bool = true;
    /// A client that goes on for a dead grower makes void what that one may have left half done.
    const GROWTH_IS_FINISHED: bool = true;
    /// A client that has the spillover mutex goes by the era from before it had that; else by that of its nodes.
    const SPILL_HAS_AN_ERA: bool = true;
    /// Wait mode: a client that left its notes looks whether the tree had grown past the highest (Alg. 2 line 33).
    const NOTES_SEE_GROWTH: bool = true;
    /// What ends something compares the generation it began in, where the fabric can.
    const ENDINGS_ARE_GUARDED: bool = true;
}

/// The rules as they are shipped.
#[derive(Debug)]
pub struct Shipped;

impl Rules for Shipped {
    const NAME: &'static str = "citron";
}

/// Reader-writer ranges.
#[derive(Debug)]
pub struct ReaderWriter;

impl Rules for ReaderWriter {
    const NAME: &'static str = "citron-rw";
    const READERS: bool = true;
}

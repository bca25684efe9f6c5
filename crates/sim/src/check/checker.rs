//! The checkers, by name.

/// The checkers, by what they find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Checker {
    /// Two conflicting claims were held at once.
    Exclusion,
    /// A client can never finish, and nothing moves any more.
    Deadlock,
    /// A client can never finish, though things still move.
    Livelock,
    /// A client was overtaken too often.
    Bypass,
    /// A token did not rise.
    Tokens,
    /// Lock memory was not free when all was quiet.
    Quiet,
    /// A holder that is alive and reachable lost its lock.
    Holders,
    /// A lock's value is not what the last holder left, or its death was not told of.
    Values,
}

impl Checker {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Exclusion,
        Self::Deadlock,
        Self::Livelock,
        Self::Bypass,
        Self::Tokens,
        Self::Quiet,
        Self::Holders,
        Self::Values,
    ];

    /// The name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Checker::Exclusion => "mutual exclusion",
            Checker::Deadlock => "deadlock",
            Checker::Livelock => "livelock",
            Checker::Bypass => "bypass bound",
            Checker::Tokens => "token order",
            Checker::Quiet => "lock memory free when quiet",
            Checker::Holders => "living holders keep their locks",
            Checker::Values => "the next holder reads what the last one left",
        }
    }
}

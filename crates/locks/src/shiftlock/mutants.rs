//! Mutants of ShiftLock: the shipped code with one rule changed.

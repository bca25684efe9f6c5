//! Layers: endpoints around an endpoint, of any backend.
//!
//! [`Counted`] counts what a protocol costs, [`Traced`] writes down what happens, [`Faulty`] makes things go
//! wrong. They nest in any order, and a fabric without them pays nothing. A layer must not change what the
//! endpoint beneath it does, except for the faults it was ordered to make.

mod count;
mod fault;
mod trace;

pub use count::{Counted, Counts, Tally};
pub use fault::Faulty;
pub use trace::{Event, Outcome, Timeline, Traced, What};

use crate::verb::{Batch, MAX_BATCH, RawVerb};

/// The verbs of a batch, listed.
///
/// # Panics
/// If there are more than [`MAX_BATCH`].
fn verbs_of<B: Batch>(batch: B) -> arrayvec::ArrayVec<RawVerb, MAX_BATCH> {
    let mut verbs = arrayvec::ArrayVec::new();
    batch.each(&mut |verb| {
        verbs.push(verb);
        0
    });
    verbs
}

/// What a batch returns when its verbs found `olds`.
fn shape<B: Batch>(batch: B, olds: &[u128]) -> B::Old {
    let mut olds = olds.iter();
    batch.each(&mut |_| *olds.next().expect("one old word for every verb"))
}

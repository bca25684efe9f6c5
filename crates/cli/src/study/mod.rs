//! `check`, `sim` and `lab`: the commands of people who study locks.
//!
//! They bring every protocol on two more fabrics into the program, which is most of what there is to compile. Whoever only
//! wants the locks leaves the feature `study` out.

pub(crate) mod check;
mod fault;
pub(crate) mod lab;
mod names;
pub(crate) mod sim;

//! Record locks (`fcntl`, `lockf`) and `flock`s of existing programs, taken from a space.
//!
//! | file | |
//! |---|---|
//! | [`extent`] | which bytes: whence, negative lengths, to the end of the file |
//! | [`table`] | who holds what of one file: conversion, merging, splitting |
//! | [`waits`] | who waits for whom, and whether that is a circle |
//! | [`file`](mod@file) | one file: the table, and a cover above it |
//! | [`cover`] | what this process has of the file in a space, so that others keep out |
//! | [`node`] | all files, as programs use them: blocks, is interrupted, frees on close |
//!
//! Everything but `cover` and `node` is a state machine without I/O. It is held against the kernel's own locks, in random
//! operations by several processes (`tests/kernel.rs`).
//!
//! **Two levels.** Among the programs of one process (a mount's daemon, or a program with the preloaded library) the table
//! decides, exactly as the kernel would. Among such processes the space does: each has a *cover*, range locks of the file
//! which are shared where its programs read and exclusive where one of them writes. A request is granted when the table has
//! nothing against it and the cover is as strong as it needs. It is weakened afterwards, never before.

pub mod cover;
pub mod extent;
pub mod file;
pub mod node;
pub mod table;
pub mod waits;

pub use cover::{Cover, CoverError, NoCover, SpaceCover};
pub use extent::{BadExtent, Extent};
pub use file::{FileLocks, InTheWay, Refusal};
pub use node::{FileId, Node, NodeFile, Pause, Request, Stop};
pub use table::{Blocker, Kind, LockTable, Owner, Piece};
pub use waits::Waits;

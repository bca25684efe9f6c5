//! `liblockwright_posix.so`: `fcntl`, `lockf` and `flock` of an unmodified program, from a space. Loaded by `LD_PRELOAD`. Cargo
//! builds it as `liblockwright_posix_preload.so`, since the crate below has that name; packages have it under its own.
//!
//! | variable | |
//! |---|---|
//! | `LOCKWRIGHT_POSIX` | files and folders whose locks are ours, with `:` in between; of all others the kernel's stay |
//! | `LOCKWRIGHT_SPACE` | the space; `shm:` unless said |
//!
//! | file | |
//! |---|---|
//! | `real` | the functions that are hidden by ours |
//! | `descriptors` | which descriptors are of files that are ours, and of which description |
//! | `calls` | what programs lock by |
//! | `closing` | what closes and duplicates descriptors |
//! | `opening` | what makes new ones of files |
//! | `inside` | whether a thread is at work in here, and what handlers of signals close meanwhile |
//! | `pause` | how a call that blocks waits, and what a signal does to it |
//!
//! What cannot be seen from here: programs that are linked statically, and system calls that are made past libc. A child does
//! not share the locks of descriptions (flocks, `F_OFD_SETLK`) with its parent: on a descriptor that was inherited such locks
//! are refused, `ENOLCK`, and not taken for something else.

// Its functions are C's, with C's pointers.
#![allow(unsafe_code)]

mod calls;
mod closing;
mod descriptors;
mod inside;
mod opening;
mod pause;
mod real;

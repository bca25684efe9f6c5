//! The lab's tests, in one program: it links every protocol on every fabric, and once is enough.

mod catalog;
mod experiments;
mod reports;

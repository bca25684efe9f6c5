//! The lab's tests, in one program: it links every protocol on every fabric, and once is enough.

#![expect(clippy::disallowed_methods, reason = "two cores share the exploring; nothing is measured")]

mod catalog;
mod experiments;
mod reports;

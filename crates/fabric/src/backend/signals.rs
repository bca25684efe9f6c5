//! Whether this process ignores a signal, and how to change that: a program that starts others inherits dispositions, and
//! has to set some of them for itself and back for its children. It is here because it takes `unsafe`.

#![allow(unsafe_code)]

use std::io;
use std::mem::MaybeUninit;

/// Whether `signal` is ignored.
///
/// ```
/// use lockwright_fabric::backend::signals;
/// const SIGUSR2: i32 = 12;
/// signals::set_ignored(SIGUSR2, true)?;
/// assert!(signals::is_ignored(SIGUSR2)?);
/// signals::set_ignored(SIGUSR2, false)?;
/// assert!(!signals::is_ignored(SIGUSR2)?);
/// # Ok::<(), std::io::Error>(())
/// ```
///
/// # Errors
/// If there is no such signal.
pub fn is_ignored(signal: i32) -> io::Result<bool> {
    let mut action = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: without a new action nothing is changed; the old one is written to `action`.
    if unsafe { libc::sigaction(signal, std::ptr::null(), action.as_mut_ptr()) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so it has been written.
    Ok(unsafe { action.assume_init() }.sa_sigaction == libc::SIG_IGN)
}

/// Ignores `signal`, or takes it as every program does that says nothing about it.
///
/// # Errors
/// If there is no such signal, or it cannot be ignored.
pub fn set_ignored(signal: i32, ignored: bool) -> io::Result<()> {
    let to = if ignored { libc::SIG_IGN } else { libc::SIG_DFL };
    // SAFETY: neither disposition runs code of this process.
    match unsafe { libc::signal(signal, to) } {
        libc::SIG_ERR => Err(io::Error::last_os_error()),
        _ => Ok(()),
    }
}

//! Opening and closing a space.

#![allow(unsafe_code, reason = "functions that C calls")]
#![allow(clippy::missing_safety_doc, reason = "what C has to promise stands once, at the head of the header")]

use crate::handles::Table;
use crate::lock::Timeout;
use crate::status::{Failure, Status, call};
use lockwright::{Client, ClientOptions};
use std::cell::Cell;
use std::ffi::{CStr, OsStr, c_char};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

/// One opened space.
pub struct ClientHandle {
    _opaque: [u8; 0],
}

pub(crate) static CLIENTS: Table<Client> = Table::new(8);

/// How a space is opened. Set everything to zero, then `size` to `sizeof(lw_options)`: zero and NULL stand for the
/// defaults.
#[repr(C)]
#[derive(Debug)]
pub struct Options {
    /// `sizeof(lw_options)`: lets the library know which members its caller knows.
    pub size: usize,
    /// How long this process may give no sign of life before others may take its locks; 10 s by default.
    pub lease_ms: u64,
    /// How long a server may take to answer; 5 s by default.
    pub timeout_ms: u64,
    /// How long this program needs to stop its work once a lock of a server is lost; nothing by default.
    pub stop_time_ms: u64,
    /// The secret that the server wants its clients to know, or NULL.
    pub secret: *const c_char,
    /// Certificates (PEM) by which the server is known, or NULL for a connection without encryption.
    pub tls_roots: *const c_char,
    /// A file in which is written down what happens to this client's locks, or NULL.
    pub record: *const c_char,
    /// The user, or NULL, and its password, by which etcd is asked where the servers of a `cluster://` space are.
    pub etcd_user: *const c_char,
    /// With `etcd_user`.
    pub etcd_password: *const c_char,
    /// Certificates (PEM) by which etcd is known, or NULL for a connection to it without encryption.
    pub etcd_roots: *const c_char,
    /// This program's certificate chain (PEM), where etcd wants one of its clients, or NULL. With `etcd_roots`.
    pub etcd_cert: *const c_char,
    /// Its private key (PEM).
    pub etcd_key: *const c_char,
}

/// Opens the space at `address` (`shm:`, `shm:NAME`, `tcp://HOST:PORT/NAME`, `mem:`), and makes it if it is not there.
/// `options` may be NULL. Blocks until the server has answered, if there is one.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn lw_open(
    address: *const c_char,
    options: *const Options,
    client: *mut *mut ClientHandle,
) -> Status {
    call(|| {
        // SAFETY: as the caller promises.
        let (address, options) = unsafe { (text(address, "address")?, client_options(options)?) };
        let out = out(client)?;
        let opened = options.open(address).wait()?;
        let handle = CLIENTS.insert(opened, &Cell::new(0)).map_err(|_| too_many())?;
        // SAFETY: as the caller promises.
        unsafe { out.write(handle as *mut ClientHandle) };
        Ok(())
    })
}

/// Closes a client. Its locks and guards stay valid; the space is left when the last of them is gone, too.
#[unsafe(no_mangle)]
pub extern "C" fn lw_client_close(client: *mut ClientHandle) -> Status {
    call(|| Ok(CLIENTS.remove(client as u64)?))
}

/// Waits until whatever was given up half-way (by a timeout) is done: LW_OK, or LW_TIMED_OUT. Worth a call before a process
/// ends: what it leaves in a queue, others have to clear away.
#[unsafe(no_mangle)]
pub extern "C" fn lw_client_settle(client: *mut ClientHandle, timeout_ms: i64) -> Status {
    call(|| {
        let client = CLIENTS.with(client as u64, Client::clone)?;
        let patience = match Timeout::from_ms(timeout_ms) {
            Timeout::Forever => Duration::from_secs(u64::from(u32::MAX)),
            Timeout::Try => Duration::ZERO,
            Timeout::After(patience) => patience,
        };
        let late = || Failure::new(Status::LW_TIMED_OUT, "something that was given up is not done yet");
        client.settle(patience).then_some(()).ok_or_else(late)
    })
}

/// # Safety
/// `options` is NULL or valid, and so are its texts.
unsafe fn client_options(options: *const Options) -> Result<ClientOptions, Failure> {
    let mut built = Client::options();
    if options.is_null() {
        return Ok(built);
    }
    // SAFETY: `size` is the first member of every version of it.
    if unsafe { options.cast::<usize>().read() } != size_of::<Options>() {
        let why = "`size` of the options is not sizeof(lw_options)";
        return Err(Failure::new(Status::LW_BAD_ARGUMENT, why));
    }
    // SAFETY: it is as large as that, and valid.
    let options = unsafe { &*options };
    let given = |ms: u64| (ms > 0).then(|| Duration::from_millis(ms));
    // SAFETY: as the caller promises.
    let bytes = |text: *const c_char| (!text.is_null()).then(|| unsafe { CStr::from_ptr(text) }.to_bytes());
    if let Some(lease) = given(options.lease_ms) {
        built = built.lease(lease);
    }
    if let Some(timeout) = given(options.timeout_ms) {
        built = built.timeout(timeout);
    }
    if let Some(time) = given(options.stop_time_ms) {
        built = built.stop_time(time);
    }
    if let Some(secret) = bytes(options.secret) {
        built = built.secret(secret);
    }
    if let Some(roots) = bytes(options.tls_roots) {
        built = built.tls(roots);
    }
    if let Some(path) = bytes(options.record) {
        built = built.record(OsStr::from_bytes(path));
    }
    etcd_options(
        built,
        [options.etcd_user, options.etcd_password, options.etcd_roots, options.etcd_cert, options.etcd_key]
            .map(bytes),
    )
}

/// What is said of etcd: user, password, its certificates, the client's own, and its key.
#[cfg(feature = "cluster")]
fn etcd_options(mut built: ClientOptions, given: [Option<&[u8]>; 5]) -> Result<ClientOptions, Failure> {
    let bad = |why: &str| Failure::new(Status::LW_BAD_ARGUMENT, why);
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).map_err(|_| bad("etcd's user is not UTF-8"));
    let [user, password, roots, cert, key] = given;
    match (user, password) {
        (None, None) => {}
        (Some(user), Some(password)) => built = built.etcd_user(text(user)?, text(password)?),
        _ => return Err(bad("etcd_user and etcd_password go together")),
    }
    if let Some(roots) = roots {
        built = built.etcd_tls(roots);
    }
    match (cert, key) {
        (None, None) => Ok(built),
        (Some(cert), Some(key)) if roots.is_some() => Ok(built.etcd_cert(cert, key)),
        _ => Err(bad("etcd_cert goes with etcd_key and etcd_roots")),
    }
}

#[cfg(not(feature = "cluster"))]
fn etcd_options(built: ClientOptions, given: [Option<&[u8]>; 5]) -> Result<ClientOptions, Failure> {
    match given {
        [None, None, None, None, None] => Ok(built),
        _ => Err(lockwright::OpenError::NO_CLUSTER.into()),
    }
}

/// # Safety
/// `text` is NULL or ends with a NUL byte.
unsafe fn text<'a>(text: *const c_char, what: &str) -> Result<&'a str, Failure> {
    let bad = |why: &str| Failure::new(Status::LW_BAD_ARGUMENT, format!("the {what} is {why}"));
    if text.is_null() {
        return Err(bad("NULL"));
    }
    // SAFETY: as the caller promises.
    unsafe { CStr::from_ptr(text) }.to_str().map_err(|_| bad("not UTF-8"))
}

/// Where a result goes, checked before anything is done.
#[inline(always)]
pub(crate) fn out<T>(out: *mut T) -> Result<*mut T, Failure> {
    if out.is_null() {
        return Err(Failure::new(Status::LW_BAD_ARGUMENT, "the pointer for the result is NULL"));
    }
    Ok(out)
}

#[cold]
pub(crate) fn too_many() -> Failure {
    Failure::new(Status::LW_TOO_MANY, "this process has too many handles: free some")
}

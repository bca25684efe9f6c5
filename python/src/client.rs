//! One opened space.

use crate::error::{Failure, seconds};
use crate::lock::{Mutex, RangeLock, RwLock};
use crate::semaphore::Semaphore;
use pyo3::prelude::*;
use std::path::PathBuf;
use std::sync::PoisonError;

/// One opened space: `shm:` (all processes of this user on this host), `shm:NAME`, `tcp://HOST:PORT/NAME`, `mem:`.
///
/// Opening talks to the server if there is one; in asyncio: `await asyncio.to_thread(Client, "tcp://db7")`. The client belongs
/// to the process that opened it: a forked child opens its own.
#[pyclass(frozen, weakref, module = "lockwright")]
pub(crate) struct Client {
    address: String,
    client: std::sync::Mutex<Option<lockwright::Client>>,
    /// Whether a free lock is taken without waiting for anything.
    is_local: bool,
}

/// Text or bytes, as names and secrets are.
#[derive(FromPyObject)]
pub(crate) enum Bytes {
    Text(String),
    Raw(Vec<u8>),
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Text(text) => text.as_bytes(),
            Self::Raw(raw) => raw,
        }
    }
}

impl Client {
    fn client(&self, py: Python<'_>) -> PyResult<lockwright::Client> {
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).clone();
        client.ok_or_else(|| Failure::new("NotHeld", "this client is closed").raise(py))
    }

    /// Makes a handle. Other threads run meanwhile: some spaces are asked, and others may be making a name at this moment.
    fn handle<T: Send>(
        &self,
        py: Python<'_>,
        make: impl FnOnce(&lockwright::Client) -> Result<T, lockwright::HandleError> + Send,
    ) -> PyResult<T> {
        let client = self.client(py)?;
        py.detach(|| make(&client)).map_err(|error| Failure::from(error).raise(py))
    }
}

#[pymethods]
impl Client {
    #[new]
    #[pyo3(signature = (
        address="shm:", *, lease=None, timeout=None, stop_time=None, secret=None, tls_roots=None, record=None,
        etcd_user=None, etcd_roots=None, etcd_cert=None
    ))]
    #[allow(clippy::too_many_arguments, reason = "they are keywords")]
    fn new(
        py: Python<'_>,
        address: &str,
        lease: Option<f64>,
        timeout: Option<f64>,
        stop_time: Option<f64>,
        secret: Option<Bytes>,
        tls_roots: Option<Bytes>,
        record: Option<PathBuf>,
        etcd_user: Option<(String, String)>,
        etcd_roots: Option<Bytes>,
        etcd_cert: Option<(Bytes, Bytes)>,
    ) -> PyResult<Self> {
        let mut options = lockwright::Client::options();
        if let Some(lease) = lease {
            options = options.lease(seconds(lease)?);
        }
        if let Some(timeout) = timeout {
            options = options.timeout(seconds(timeout)?);
        }
        if let Some(time) = stop_time {
            options = options.stop_time(seconds(time)?);
        }
        if let Some(secret) = secret {
            options = options.secret(secret);
        }
        if let Some(roots) = tls_roots {
            options = options.tls(roots.as_ref());
        }
        if let Some(path) = record {
            options = options.record(path);
        }
        let options = etcd_options(py, options, (etcd_user, etcd_roots, etcd_cert))?;
        let opened = py.detach(|| options.open(address).wait());
        let client = opened.map_err(|error| Failure::from(error).raise(py))?;
        let is_local = address.starts_with("shm:") || address.starts_with("mem:");
        Ok(Self { address: address.to_owned(), client: std::sync::Mutex::new(Some(client)), is_local })
    }

    /// The mutex called `name`: text or bytes, 1 to 255 bytes, any but NUL. Keep it: looking a name up costs a little.
    fn mutex(&self, py: Python<'_>, name: Bytes) -> PyResult<Mutex> {
        Ok(Mutex::new(self.handle(py, |client| client.mutex(name))?, self.is_local))
    }

    /// The reader-writer lock called `name`. The mutex of that name is the same lock.
    fn rwlock(&self, py: Python<'_>, name: Bytes) -> PyResult<RwLock> {
        Ok(RwLock::new(self.handle(py, |client| client.rwlock(name))?, self.is_local))
    }

    /// The range lock called `name`. It has nothing to do with the mutex of that name.
    fn range_lock(&self, py: Python<'_>, name: Bytes) -> PyResult<RangeLock> {
        Ok(RangeLock::new(self.handle(py, |client| client.range_lock(name))?, self.is_local))
    }

    /// The semaphore called `name`, with `limit` permits. It has nothing to do with the locks of that name. All who use it at a
    /// time must name the same limit: another one raises Refused when permits are acquired.
    fn semaphore(&self, py: Python<'_>, name: Bytes, limit: i64) -> PyResult<Semaphore> {
        let none =
            || Failure::new("BadRequest", format!("a semaphore cannot have {limit} permits")).raise(py);
        let limit = u64::try_from(limit).map_err(|_| none())?;
        Ok(Semaphore::new(self.handle(py, |client| client.semaphore(name, limit))?, self.is_local))
    }

    /// Waits until whatever was given up half-way is done, for at most `timeout` seconds, and says whether it is.
    fn settle(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let (client, patience) = (self.client(py)?, seconds(timeout)?);
        Ok(py.detach(|| client.settle(patience)))
    }

    /// Closes the client. Its locks and guards stay valid; the space is left when the last of them is gone, too.
    fn close(&self, py: Python<'_>) {
        let client = self.client.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(client));
    }

    fn __enter__(slf: Bound<'_, Self>) -> Bound<'_, Self> {
        slf
    }

    fn __exit__(
        &self,
        py: Python<'_>,
        _class: &Bound<'_, PyAny>,
        _error: &Bound<'_, PyAny>,
        _traceback: &Bound<'_, PyAny>,
    ) {
        self.close(py);
    }

    fn __repr__(&self) -> String {
        format!("<lockwright.Client {:?}>", self.address)
    }
}

/// User and password, the certificates of etcd's members, the client's own chain and its key.
type Etcd = (Option<(String, String)>, Option<Bytes>, Option<(Bytes, Bytes)>);

#[cfg(feature = "cluster")]
fn etcd_options(
    py: Python<'_>,
    mut options: lockwright::ClientOptions,
    (user, roots, cert): Etcd,
) -> PyResult<lockwright::ClientOptions> {
    if let Some((name, password)) = user {
        options = options.etcd_user(name, password);
    }
    if cert.is_some() && roots.is_none() {
        return Err(Failure::new("BadRequest", "etcd_cert goes with etcd_roots").raise(py));
    }
    if let Some(roots) = roots {
        options = options.etcd_tls(roots.as_ref());
    }
    if let Some((chain, key)) = cert {
        options = options.etcd_cert(chain.as_ref(), key.as_ref());
    }
    Ok(options)
}

#[cfg(not(feature = "cluster"))]
#[allow(clippy::needless_pass_by_value, reason = "as it is with the feature")]
fn etcd_options(
    py: Python<'_>,
    options: lockwright::ClientOptions,
    etcd: Etcd,
) -> PyResult<lockwright::ClientOptions> {
    match etcd {
        (None, None, None) => Ok(options),
        _ => Err(Failure::from(lockwright::OpenError::NO_CLUSTER).raise(py)),
    }
}

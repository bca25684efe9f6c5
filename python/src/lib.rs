//! The extension module `lockwright._lockwright`: the library as Python sees it.
//!
//! Two rules keep it free of deadlocks. A thread that waits has released the interpreter. And what the library calls back
//! (wakers, lost locks) never waits for the interpreter: a waker writes to a file descriptor, a lost lock starts a thread.

mod acquire;
mod client;
mod error;
mod guard;
mod lock;
mod semaphore;
mod wait;

use pyo3::prelude::*;

#[pymodule]
fn _lockwright(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<client::Client>()?;
    module.add_class::<lock::Mutex>()?;
    module.add_class::<lock::RwLock>()?;
    module.add_class::<lock::RangeLock>()?;
    module.add_class::<semaphore::Semaphore>()?;
    module.add_class::<acquire::Acquire>()?;
    module.add_class::<guard::Guard>()?;
    module.add_class::<wait::Pending>()?;
    module.add_function(wrap_pyfunction!(acquire::acquire_all, module)?)?;
    Ok(())
}

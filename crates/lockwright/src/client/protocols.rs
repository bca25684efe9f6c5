//! What a space runs, as its client sees it.

use super::Client;
use crate::error::LockError;

/// Which protocols a space runs.
///
/// ```
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let protocols = lockwright::Client::open("mem:").await?.protocols()?;
/// println!("names: {}, ranges: {}", protocols.keyed, protocols.ranges);
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Protocols {
    /// Of mutexes and reader-writer locks, as the laboratory calls it.
    pub keyed: &'static str,
    /// Of range locks; `-`: there are none.
    pub ranges: &'static str,
    /// What was chosen for this space.
    pub parameters: Vec<(&'static str, u64)>,
}

impl Protocols {
    pub(crate) const fn new(keyed: &'static str, ranges: &'static str) -> Self {
        Self { keyed, ranges, parameters: Vec::new() }
    }
}

impl Client {
    /// Which protocols the space runs, with the parameters that were chosen for it.
    ///
    /// # Errors
    /// If a server would have to be asked, and cannot be.
    ///
    /// ```
    /// let client = lockwright::Client::open("mem:").wait().unwrap();
    /// assert_eq!(client.protocols()?.ranges, "combiner");
    /// # Ok::<(), lockwright::LockError>(())
    /// ```
    pub fn protocols(&self) -> Result<Protocols, LockError> {
        self.check().map_err(|pid| LockError::OtherProcess { pid })?;
        self.shared.space.protocols()
    }
}

//! What is said of a lock's value: up to 64 bytes that its exclusive holder leaves for the next one.

/// The longest value of a lock.
pub const MAX_VALUE: usize = 64;

/// What a server says of a lock's value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ValueReport {
    /// `None`: it has none.
    pub bytes: Option<Vec<u8>>,
    /// Whether the last holder that had it open has closed it.
    pub clean: bool,
    /// Whether it outlives the server.
    pub durable: bool,
    /// How long ago it was set, by the server's clock.
    pub age_ns: u64,
}

impl ValueReport {
    const PRESENT: u64 = 1;
    const CLEAN: u64 = 2;
    const DURABLE: u64 = 4;

    pub(super) fn bits(&self) -> u64 {
        let bit = |set: bool, bit: u64| if set { bit } else { 0 };
        bit(self.bytes.is_some(), Self::PRESENT)
            | bit(self.clean, Self::CLEAN)
            | bit(self.durable, Self::DURABLE)
    }

    pub(super) fn of_words(bits: u64, age_ns: u64, bytes: Vec<u8>) -> Self {
        let has = |bit| bits & bit != 0;
        Self {
            bytes: has(Self::PRESENT).then_some(bytes),
            clean: has(Self::CLEAN),
            durable: has(Self::DURABLE),
            age_ns,
        }
    }

    /// What a client's table keeps of it: the bits, the age, and the bytes.
    pub fn keep(&self) -> Vec<u8> {
        let head = [self.bits(), self.age_ns];
        let bytes = self.bytes.as_deref().unwrap_or_default();
        head.iter().flat_map(|word| word.to_le_bytes()).chain(bytes.iter().copied()).collect()
    }

    /// What was kept.
    pub fn kept(kept: &[u8]) -> Option<Self> {
        let (bits, rest) = kept.split_first_chunk::<8>()?;
        let (age, bytes) = rest.split_first_chunk::<8>()?;
        Some(Self::of_words(u64::from_le_bytes(*bits), u64::from_le_bytes(*age), bytes.to_vec()))
    }
}

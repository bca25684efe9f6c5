//! Authentication by a shared secret: both sides prove that they know it, without sending it.
//!
//! Each side sends a nonce of 32 random bytes. A proof is HMAC-SHA256, keyed with the secret, over the side's name, both
//! nonces and the session id: it is valid for one connection and one direction, and does not reveal the secret. Proofs are
//! compared in constant time.
//!
//! A secret authenticates; it neither encrypts nor protects the traffic. That takes TLS.

use super::frame::SessionId;
use hmac::{Hmac, Mac};
use sha2::{Digest, Sha256};
use std::fmt;

/// Shorter secrets could be guessed from a recorded proof.
const MIN_SECRET: usize = 16;

/// A secret that server and clients share.
///
/// ```
/// use lockwright_fabric::backend::tcp::Secret;
/// assert!(Secret::new("short").is_err());
/// let secret = Secret::new("a long and random line of text\n").unwrap();
/// assert_eq!(format!("{secret:?}"), "Secret(…)");
/// ```
#[derive(Clone)]
pub struct Secret(Vec<u8>);

/// The secret is too short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a secret needs at least {MIN_SECRET} bytes, this one has {0}: `head -c 32 /dev/urandom | base64` makes a good one"
)]
pub struct WeakSecret(usize);

impl Secret {
    /// A secret of these bytes; white space around them, such as the end of a line, does not count.
    ///
    /// # Errors
    /// If it is too short to be a secret.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, WeakSecret> {
        let bytes = bytes.as_ref().trim_ascii();
        if bytes.len() < MIN_SECRET { Err(WeakSecret(bytes.len())) } else { Ok(Self(bytes.to_vec())) }
    }

    /// Whether these bytes are the secret. Takes equally long whatever they are.
    pub fn is(&self, bytes: &[u8]) -> bool {
        let bytes = bytes.trim_ascii();
        let digest = |bytes: &[u8]| Sha256::digest(bytes);
        let differ =
            digest(bytes).iter().zip(digest(&self.0)).fold(0, |differ, (one, two)| differ | (one ^ two));
        differ == 0
    }

    fn mac(&self, side: Side, exchange: &Exchange) -> Hmac<Sha256> {
        let mut mac = Hmac::<Sha256>::new_from_slice(&self.0).expect("HMAC takes keys of any length");
        mac.update(match side {
            Side::Client => b"lockwright client",
            Side::Server => b"lockwright server",
        });
        mac.update(&exchange.client);
        mac.update(&exchange.server);
        mac.update(&exchange.session);
        mac
    }

    /// The proof of `side`.
    pub(in crate::backend) fn prove(&self, side: Side, exchange: &Exchange) -> [u8; 32] {
        self.mac(side, exchange).finalize().into_bytes().into()
    }

    /// Whether `proof` is that of `side`.
    pub(in crate::backend) fn accepts(&self, side: Side, exchange: &Exchange, proof: &[u8; 32]) -> bool {
        self.mac(side, exchange).verify_slice(proof).is_ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// The side that proves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::backend) enum Side {
    Client,
    Server,
}

/// What a proof covers.
#[derive(Clone, Copy, Debug)]
pub(in crate::backend) struct Exchange {
    /// The client's nonce.
    pub(in crate::backend) client: [u8; 32],
    /// The server's.
    pub(in crate::backend) server: [u8; 32],
    /// The session that the client asked for.
    pub(in crate::backend) session: SessionId,
}

/// Random bytes for nonces and session ids.
pub(in crate::backend) fn random_bytes<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::getrandom(&mut bytes).expect("the system has random bytes");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_is_good_for_one_side_one_exchange_and_one_secret() {
        let secret = Secret::new("0123456789abcdef").unwrap();
        let exchange = Exchange { client: [1; 32], server: [2; 32], session: [3; 16] };
        let proof = secret.prove(Side::Client, &exchange);
        assert!(secret.accepts(Side::Client, &exchange, &proof));
        assert!(!secret.accepts(Side::Server, &exchange, &proof));
        assert!(!secret.accepts(Side::Client, &Exchange { server: [4; 32], ..exchange }, &proof));
        assert!(!secret.accepts(Side::Client, &Exchange { session: [0; 16], ..exchange }, &proof));
        assert!(!Secret::new("0123456789abcdeF").unwrap().accepts(Side::Client, &exchange, &proof));
    }
}

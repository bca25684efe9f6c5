//! Authentication by a shared token: both sides prove that they know it, without sending it.
//!
//! Each side sends a nonce of 32 random bytes. A proof is HMAC-SHA256, keyed with the token, over the side's name, both
//! nonces and the session id: it is valid for one connection and one direction, and does not reveal the token. Proofs are
//! compared in constant time.
//!
//! A token authenticates; it neither encrypts nor protects the traffic. That takes TLS.

use super::frame::SessionId;
use hmac::{Hmac, Mac};
use sha2::Sha256;
use std::fmt;

/// Shorter tokens could be guessed from a recorded proof.
const MIN_TOKEN: usize = 16;

/// A secret that server and clients share.
///
/// ```
/// use lockwright_fabric::backend::tcp::Token;
/// assert!(Token::new("short").is_err());
/// let token = Token::new("a long and random line of text\n").unwrap();
/// assert_eq!(format!("{token:?}"), "Token(…)");
/// ```
#[derive(Clone)]
pub struct Token(Vec<u8>);

/// The token is too short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a token needs at least {MIN_TOKEN} bytes, this one has {0}: `head -c 32 /dev/urandom | base64` makes a good one"
)]
pub struct WeakToken(usize);

impl Token {
    /// A token of these bytes; white space around them, such as the end of a line, does not count.
    ///
    /// # Errors
    /// If it is too short to be a secret.
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, WeakToken> {
        let bytes = bytes.as_ref().trim_ascii();
        if bytes.len() < MIN_TOKEN { Err(WeakToken(bytes.len())) } else { Ok(Self(bytes.to_vec())) }
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

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
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
    fn a_proof_is_good_for_one_side_one_exchange_and_one_token() {
        let token = Token::new("0123456789abcdef").unwrap();
        let exchange = Exchange { client: [1; 32], server: [2; 32], session: [3; 16] };
        let proof = token.prove(Side::Client, &exchange);
        assert!(token.accepts(Side::Client, &exchange, &proof));
        assert!(!token.accepts(Side::Server, &exchange, &proof));
        assert!(!token.accepts(Side::Client, &Exchange { server: [4; 32], ..exchange }, &proof));
        assert!(!token.accepts(Side::Client, &Exchange { session: [0; 16], ..exchange }, &proof));
        assert!(!Token::new("0123456789abcdeF").unwrap().accepts(Side::Client, &exchange, &proof));
    }
}

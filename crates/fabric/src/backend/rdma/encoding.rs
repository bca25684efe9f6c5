//! Messages as bytes of one SEND.
//!
//! | bytes | what |
//! |---|---|
//! | 0–3 | the peer it is for |
//! | 4–7 | kind |
//! | 8–15 | lock |
//! | 16–47 | four words |
//! | 48–51 | words of the tail |
//! | 52–55 | from the host: its number among the host's messages to this client, from one; else zero |
//! | 56– | the tail |
//!
//! Who sent it is known from the queue pair it came over, and from nothing that the sender says.

use crate::addr::PeerId;
use crate::message::Message;

/// Bytes of the longest message: what one posted receive has room for.
pub(super) const MAX_MESSAGE: usize = 4096;
const HEAD: usize = 56;
/// Words of the longest tail of a message.
pub const MAX_TAIL: usize = (MAX_MESSAGE - HEAD) / 8;

/// The message's bytes. `to`: whom it is for, or, from the host, whom it is from.
///
/// # Panics
/// If the tail is too long: a protocol that needs such has to cut it up.
pub(super) fn encode(to: PeerId, number: u32, message: &Message) -> Vec<u8> {
    let words = message.tail.len();
    assert!(words <= MAX_TAIL, "a message over RDMA has a tail of at most {MAX_TAIL} words, not {words}");
    let mut bytes = Vec::with_capacity(HEAD + 8 * words);
    bytes.extend_from_slice(&to.0.to_le_bytes());
    bytes.extend_from_slice(&message.kind.to_le_bytes());
    bytes.extend_from_slice(&message.lock.to_le_bytes());
    for word in message.words {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes.extend_from_slice(&(words as u32).to_le_bytes());
    bytes.extend_from_slice(&number.to_le_bytes());
    for word in &message.tail {
        bytes.extend_from_slice(&word.to_le_bytes());
    }
    bytes
}

/// Whom the message is for, its number and what it says; `None` if it is none.
pub(super) fn decode(bytes: &[u8]) -> Option<(PeerId, u32, Message)> {
    let u32_at = |at: usize| Some(u32::from_le_bytes(bytes.get(at..at + 4)?.try_into().ok()?));
    let u64_at = |at: usize| Some(u64::from_le_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
    let count = u32_at(48)? as usize;
    if count > MAX_TAIL || bytes.len() != HEAD + 8 * count {
        return None;
    }
    let mut message = Message { lock: u64_at(8)?, kind: u32_at(4)?, ..Message::default() };
    for (index, word) in message.words.iter_mut().enumerate() {
        *word = u64_at(16 + 8 * index)?;
    }
    message.tail = (0..count).map_while(|index| u64_at(HEAD + 8 * index)).collect();
    Some((PeerId(u32_at(0)?), u32_at(52)?, message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_comes_back_as_it_was_and_half_a_message_is_none() {
        let message = Message { lock: 7, kind: 3, words: [1, 2, 3, u64::MAX], tail: vec![9; 5] };
        let bytes = encode(PeerId::client(4), 6, &message);
        assert_eq!(decode(&bytes), Some((PeerId::client(4), 6, message)));
        for cut in 0..bytes.len() {
            assert_eq!(decode(&bytes[..cut]), None);
        }
        let mut lying = bytes;
        lying[48] = 200;
        assert_eq!(decode(&lying), None);
    }
}

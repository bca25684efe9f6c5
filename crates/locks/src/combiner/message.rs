//! Requests and replies as messages.
//!
//! | kind | to | words |
//! |---|---|---|
//! | Lock | server | start, end, id ∣ mode << 32 ∣ wait << 33 |
//! | Unlock, Downgrade, Cancel, Poll | server | id |
//! | UnlockPart | server | start, end, id ∣ rest << 32 |
//! | Upgrade | server | id ∣ wait << 32 |
//! | Raise | server | token |
//! | Permits | server | weight, limit, id ∣ wait << 33 |
//! | Granted, Downgraded | client | id, token |
//! | Busy, Cancelled, Noted, NotYet | client | id |
//! | Refused | client | id, number of the refusal |
//!
//! Messages of two peers are delivered in the order they were sent; ids rely on it.

use super::core::{Answer, Refusal, Request};
use lockwright_fabric::Message;
use lockwright_fabric::observe::Mode;

/// The kinds of messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Lock = 1,
    Unlock,
    UnlockPart,
    Upgrade,
    Downgrade,
    Cancel,
    Raise,
    Poll,
    Granted,
    Downgraded,
    Busy,
    Cancelled,
    Refused,
    /// The request was taken; the grant is to be looked for.
    Noted,
    NotYet,
    Permits,
}

impl Kind {
    const ALL: [Self; 16] = [
        Self::Lock,
        Self::Unlock,
        Self::UnlockPart,
        Self::Upgrade,
        Self::Downgrade,
        Self::Cancel,
        Self::Raise,
        Self::Poll,
        Self::Granted,
        Self::Downgraded,
        Self::Busy,
        Self::Cancelled,
        Self::Refused,
        Self::Noted,
        Self::NotYet,
        Self::Permits,
    ];

    pub(super) fn of(kind: u32) -> Option<Self> {
        Self::ALL.get((kind as usize).wrapping_sub(1)).copied()
    }

    /// A message of this kind.
    pub(super) fn message(self, lock: u64, words: &[u64]) -> Message {
        Message::new(lock, self as u32, words)
    }
}

/// The name of a kind, for traces.
pub(super) fn name(kind: u32) -> &'static str {
    const NAMES: [&str; 16] = [
        "Lock",
        "Unlock",
        "UnlockPart",
        "Upgrade",
        "Downgrade",
        "Cancel",
        "Raise",
        "Poll",
        "Granted",
        "Downgraded",
        "Busy",
        "Cancelled",
        "Refused",
        "Noted",
        "NotYet",
        "Permits",
    ];
    if kind == Message::DEPARTED {
        return "Departed";
    }
    Kind::of(kind).map_or("message", |kind| NAMES[kind as usize - 1])
}

/// What a request looks like on the way.
pub(super) fn encode(request: Request) -> Message {
    let word = |id: u32| u64::from(id);
    match request {
        Request::Lock { id, lock, mode, start, end, wait } => {
            let how = word(id) | u64::from(mode == Mode::Exclusive) << 32 | u64::from(wait) << 33;
            Kind::Lock.message(lock, &[start, end, how])
        }
        Request::Permits { id, lock, weight, limit, wait } => {
            Kind::Permits.message(lock, &[weight, limit, word(id) | u64::from(wait) << 33])
        }
        Request::Unlock { id } => Kind::Unlock.message(0, &[word(id)]),
        Request::UnlockPart { id, start, end, rest } => {
            Kind::UnlockPart.message(0, &[start, end, word(id) | word(rest) << 32])
        }
        Request::Upgrade { id, wait } => Kind::Upgrade.message(0, &[word(id) | u64::from(wait) << 32]),
        Request::Downgrade { id } => Kind::Downgrade.message(0, &[word(id)]),
        Request::Cancel { id } => Kind::Cancel.message(0, &[word(id)]),
        Request::Raise { token } => Kind::Raise.message(0, &[token]),
    }
}

/// The request in a message, if it is one.
pub(super) fn decode(message: &Message) -> Option<Request> {
    let [a, b, c, _] = message.words;
    let (id, rest) = (a as u32, (c >> 32) as u32);
    let request = match Kind::of(message.kind)? {
        Kind::Lock => {
            let mode = if c >> 32 & 1 == 1 { Mode::Exclusive } else { Mode::Shared };
            Request::Lock { id: c as u32, lock: message.lock, mode, start: a, end: b, wait: c >> 33 & 1 == 1 }
        }
        Kind::Permits => {
            let wait = c >> 33 & 1 == 1;
            Request::Permits { id: c as u32, lock: message.lock, weight: a, limit: b, wait }
        }
        Kind::Unlock => Request::Unlock { id },
        Kind::UnlockPart => Request::UnlockPart { id: c as u32, start: a, end: b, rest },
        Kind::Upgrade => Request::Upgrade { id, wait: a >> 32 & 1 == 1 },
        Kind::Downgrade => Request::Downgrade { id },
        Kind::Cancel => Request::Cancel { id },
        Kind::Raise => Request::Raise { token: a },
        _ => return None,
    };
    Some(request)
}

/// What an answer looks like on the way.
pub(super) fn encode_answer(id: u32, answer: Answer) -> Message {
    let id = u64::from(id);
    match answer {
        Answer::Granted { token } => Kind::Granted.message(0, &[id, token]),
        Answer::Downgraded { token } => Kind::Downgraded.message(0, &[id, token]),
        Answer::Busy => Kind::Busy.message(0, &[id]),
        Answer::Cancelled => Kind::Cancelled.message(0, &[id]),
        Answer::Refused(refusal) => Kind::Refused.message(0, &[id, refusal.number()]),
    }
}

/// What a client finds in a message about its request `id`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ServerAnswer {
    Answer(Answer),
    Noted,
    NotYet,
}

/// What `message` says about the request `id`, if it is about that.
pub(super) fn decode_answer(id: u32, message: &Message) -> Option<ServerAnswer> {
    let [about, what, ..] = message.words;
    if about != u64::from(id) {
        return None;
    }
    let answer = match Kind::of(message.kind)? {
        Kind::Granted => Answer::Granted { token: what },
        Kind::Downgraded => Answer::Downgraded { token: what },
        Kind::Busy => Answer::Busy,
        Kind::Cancelled => Answer::Cancelled,
        Kind::Refused => Answer::Refused(*Refusal::ALL.get(what as usize)?),
        Kind::Noted => return Some(ServerAnswer::Noted),
        Kind::NotYet => return Some(ServerAnswer::NotYet),
        _ => return None,
    };
    Some(ServerAnswer::Answer(answer))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_comes_out_as_it_went_in() {
        let (id, start, end, rest) = (u32::MAX, 3, u64::MAX, 7);
        for request in [
            Request::Lock { id, lock: 5, mode: Mode::Exclusive, start, end, wait: false },
            Request::Lock { id: 0, lock: u64::MAX, mode: Mode::Shared, start, end, wait: true },
            Request::Permits { id, lock: 5, weight: 2, limit: u64::MAX - 1, wait: true },
            Request::Permits { id: 0, lock: 0, weight: 1, limit: 1, wait: false },
            Request::Unlock { id },
            Request::UnlockPart { id, start, end, rest },
            Request::UnlockPart { id: 0, start, end, rest: u32::MAX },
            Request::Upgrade { id, wait: true },
            Request::Upgrade { id, wait: false },
            Request::Downgrade { id },
            Request::Cancel { id },
            Request::Raise { token: u64::MAX },
        ] {
            assert_eq!(decode(&encode(request)), Some(request));
        }
    }

    #[test]
    fn every_answer_comes_out_as_it_went_in_and_only_for_its_request() {
        let refusals = Refusal::ALL.map(Answer::Refused);
        let others = [
            Answer::Granted { token: 1 << 40 },
            Answer::Busy,
            Answer::Cancelled,
            Answer::Downgraded { token: 2 },
        ];
        for answer in refusals.into_iter().chain(others) {
            let message = encode_answer(8, answer);
            assert_eq!(decode_answer(8, &message), Some(ServerAnswer::Answer(answer)));
            assert_eq!(decode_answer(9, &message), None);
        }
    }

    #[test]
    fn what_is_no_request_is_not_taken_for_one() {
        for kind in [0, Kind::Granted as u32, Kind::NotYet as u32, 17, 1_000, Message::DEPARTED] {
            assert_eq!(decode(&Message::new(0, kind, &[1, 2, 3, 4])), None);
        }
    }

    #[test]
    fn kinds_have_the_names_traces_show() {
        assert!(Kind::ALL.iter().enumerate().all(|(index, kind)| *kind as usize == index + 1));
        assert_eq!(name(Kind::Raise as u32), "Raise");
        assert_eq!(name(Message::DEPARTED), "Departed");
        assert_eq!(name(99), "message");
    }
}

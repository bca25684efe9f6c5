//! What writers tell each other (§3.3, §3.5.2), and how it goes into a message.
//!
//! Every message names the queue member it is for, since one client can stand in a queue twice, and carries the
//! generation (with RelCnt, or alone): a message from before a recovery is dropped by a client that gets it.

use super::layout::{Member, Stamp};
use lockwright_fabric::Message;

const SUCCESSOR: u32 = 1;
const HANDOVER: u32 = 2;
const MODE_CHANGED: u32 = 3;
const RESET: u32 = 4;
const RESET_ANSWER: u32 = 5;

/// What a message of this kind is called.
pub(super) fn name(kind: u32) -> &'static str {
    match kind {
        SUCCESSOR => "Successor",
        HANDOVER => "Handover",
        MODE_CHANGED => "ModeChanged",
        RESET => "Reset",
        RESET_ANSWER => "ResetAnswer",
        _ => "message",
    }
}

/// "I am behind you": a writer to the one it found at the tail (Alg. 2 line 15).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Successor {
    pub(super) member: Member,
    pub(super) generation: u64,
}

impl Successor {
    pub(super) fn to(self, lock: u64, to: Member) -> Message {
        Message::new(lock, SUCCESSOR, &[to.0, self.member.0, self.generation])
    }

    pub(super) fn read(lock: u64, me: Member, message: &Message) -> Option<Self> {
        let [to, member, generation, _] = message.words;
        let mine = message.lock == lock && message.kind == SUCCESSOR && to == me.0;
        mine.then_some(Self { member: Member(member), generation })
    }
}

/// "It is yours": a writer to the next (Alg. 3 lines 18, 23).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Pass {
    /// What RelCnt is, or will be, when the receiver may enter, and in which generation.
    pub(super) stamp: Stamp,
    /// Writers in a row so far.
    pub(super) cons_wrt: u32,
    /// The lock's epoch. Not in the paper: without it a writer that queued before a change of mode goes by a stale
    /// one, and a reader can wait for ever.
    pub(super) epoch: bool,
    /// ModeChanged: readers come first; wait until RelCnt says that they left.
    pub(super) after_readers: bool,
}

impl Pass {
    pub(super) fn to(self, lock: u64, to: Member) -> Message {
        let kind = if self.after_readers { MODE_CHANGED } else { HANDOVER };
        Message::new(lock, kind, &[to.0, self.stamp.0, u64::from(self.cons_wrt), u64::from(self.epoch)])
    }

    pub(super) fn read(lock: u64, me: Member, message: &Message) -> Option<Self> {
        let [to, stamp, cons_wrt, epoch] = message.words;
        let mine = message.lock == lock && matches!(message.kind, HANDOVER | MODE_CHANGED) && to == me.0;
        mine.then_some(Self {
            stamp: Stamp(stamp),
            cons_wrt: cons_wrt as u32,
            epoch: epoch == 1,
            after_readers: message.kind == MODE_CHANGED,
        })
    }
}

/// "This lock is dead": a waiter to the server (§3.6), where the server does the resets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reset {
    /// The era in which the lock was found dead.
    pub(super) era: u64,
    /// The RelCnt that did not move, and its generation.
    pub(super) stamp: Stamp,
}

impl Reset {
    pub(super) fn to_server(self, lock: u64) -> Message {
        Message::new(lock, RESET, &[self.era, self.stamp.0])
    }

    pub(super) fn read(message: &Message) -> Option<Self> {
        let [era, stamp, ..] = message.words;
        (message.kind == RESET).then_some(Self { era, stamp: Stamp(stamp) })
    }

    /// The server's answer: whether it was done, or the era was over.
    pub(super) fn answer(self, lock: u64, done: bool) -> Message {
        Message::new(lock, RESET_ANSWER, &[self.era, u64::from(done)])
    }

    /// What the server answered to this.
    pub(super) fn read_answer(self, lock: u64, message: &Message) -> Option<bool> {
        let [era, done, ..] = message.words;
        let mine = message.lock == lock && message.kind == RESET_ANSWER && era == self.era;
        mine.then_some(done == 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_come_back_as_they_were_sent_and_only_to_their_member() {
        let (me, other) = (Member(7 << 16), Member(7 << 16 | 1));
        let successor = Successor { member: Member(9), generation: 2 };
        let message = successor.to(5, me);
        assert_eq!(Successor::read(5, me, &message), Some(successor));
        assert_eq!(Successor::read(5, other, &message), None, "another acquisition of the same client");
        assert_eq!(Successor::read(6, me, &message), None, "another lock");
        for after_readers in [false, true] {
            let pass = Pass { stamp: Stamp::new(1 << 50, 7), cons_wrt: 3, epoch: true, after_readers };
            assert_eq!(Pass::read(5, me, &pass.to(5, me)), Some(pass));
            assert_eq!(Successor::read(5, me, &pass.to(5, me)), None);
        }
    }
}

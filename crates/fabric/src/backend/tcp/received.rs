//! What a client knows of the messages of its session: a state machine that the explorer runs, too.
//!
//! They are numbered. A new connection begins behind the last one that was received, so each is taken once and none is left
//! out. The other end is [`SessionState`](super::SessionState).

/// See the module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Received {
    /// The last message received, and the last one acknowledged.
    seen: u64,
    acked: u64,
}

/// What a message is to the client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrival {
    /// The next one.
    New,
    /// One that it has had: sent again, since the server did not know.
    Again,
    /// One is missing between the last one and this: the session cannot go on.
    Gap,
}

impl Received {
    /// Message `seq` has arrived.
    #[inline]
    pub const fn arrive(&mut self, seq: u64) -> Arrival {
        if seq <= self.seen {
            return Arrival::Again;
        }
        if seq > self.seen + 1 {
            return Arrival::Gap;
        }
        self.seen = seq;
        Arrival::New
    }

    /// What is to be acknowledged now, if that is done after `every` messages. It counts as acknowledged.
    #[inline]
    pub const fn due(&mut self, every: u64) -> Option<u64> {
        if self.seen - self.acked >= every { Some(self.acknowledge()) } else { None }
    }

    /// The last message received, which the server is about to be told: by an acknowledgement, a ping or a new connection.
    #[inline]
    pub const fn acknowledge(&mut self) -> u64 {
        self.acked = self.seen;
        self.seen
    }

    /// The last message received.
    pub const fn seen(&self) -> u64 {
        self.seen
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_taken_once_and_none_is_left_out() {
        let mut received = Received::default();
        let arrivals = [1, 2, 1, 4, 3, 4].map(|seq| received.arrive(seq));
        use Arrival::{Again, Gap, New};
        assert_eq!(arrivals, [New, New, Again, Gap, New, New]);
    }

    #[test]
    fn the_server_is_told_after_so_many_messages_or_before_that_by_something_else() {
        let mut received = Received::default();
        let due: Vec<_> = (1..=3).map(|seq| (received.arrive(seq), received.due(2)).1).collect();
        assert_eq!(due, [None, Some(2), None]);
        assert_eq!(received.acknowledge(), 3);
        received.arrive(4);
        assert_eq!(received.due(2), None, "one message since then");
    }
}

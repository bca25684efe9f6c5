//! The combiner as a role: takes requests from messages, gives answers in the way the space has chosen.
//!
//! The same [`Core`] that a TCP server runs; this is its face towards the explorer, the simulator and threads. What a
//! client sends that is not a request is ignored; what is nonsense is refused; a client that departs loses everything,
//! in one step.

use super::core::{Answer, ClientId, Core, Limits, Refusal, Reply, Request, Rules, Status};
use super::flags::Flags;
use super::message::{self, Kind};
use lockwright_fabric::{Message, Outbox, PeerId, Role, Time};

/// How a client learns that a lock which was not free is now its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Learning {
    /// The server answers when the lock is granted: one round trip, and a waiter costs nothing. (Ours.)
    Pushed,
    /// The server answers at once that it took note; the client asks again and again (thesis §4.1, 1).
    PollRpc,
    /// As [`Learning::PollRpc`], but the response says if the lock was granted at once: one thread that executes each
    /// request before it answers (thesis §5.1, "interval tree").
    AnswerThenPoll,
    /// The same, but the client looks at a flag in the server's memory (thesis §4.1, 2).
    PollFlag(Flags),
}

impl Learning {
    /// Cache lines that the one combining thread fetches from other cores for a request, while no other request can be
    /// served. In the thesis a node of the list carries one request (Alg. 3), and a grant sets a flag that was last looked
    /// at by a handler or by the NIC (Alg. 4 line 11). Ours carries several: about a line for a lock and its unlock. A
    /// single thread with the tree in its own cache fetches none.
    fn lines(self, request: &Request) -> u64 {
        match self {
            Self::AnswerThenPoll => 0,
            Self::Pushed => u64::from(!matches!(request, Request::Unlock { .. })),
            Self::PollRpc | Self::PollFlag(_) => 1,
        }
    }

    /// The same for a grant.
    fn lines_to_grant(self) -> u64 {
        match self {
            Self::AnswerThenPoll | Self::Pushed => 0,
            Self::PollRpc | Self::PollFlag(_) => 1,
        }
    }
}

/// A combiner and the way it answers.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct CombinerServer<R: Rules> {
    core: Core<R>,
    learning: Learning,
}

impl<R: Rules> CombinerServer<R> {
    /// Nothing held, nothing wanted.
    pub fn new(learning: Learning) -> Self {
        Self { core: Core::new(Limits::default()), learning }
    }

    fn answer(&mut self, replies: &[Reply], asked: Option<(ClientId, u32)>, out: &mut Outbox) {
        let granted = replies.iter().filter(|reply| matches!(reply.answer, Answer::Granted { .. })).count();
        out.touch_alone(granted as u64 * self.learning.lines_to_grant());
        for Reply { client, id, answer } in replies {
            let peer = PeerId(client.0);
            match (self.learning, answer) {
                (Learning::AnswerThenPoll, Answer::Granted { .. }) if asked == Some((*client, *id)) => {
                    out.send(peer, message::encode_answer(*id, *answer));
                }
                (Learning::PollRpc | Learning::AnswerThenPoll, Answer::Granted { .. }) => {}
                (Learning::PollFlag(flags), Answer::Granted { token }) => {
                    out.post(flags.word(*client, *id).write(*token).raw());
                }
                _ => out.send(peer, message::encode_answer(*id, *answer)),
            }
        }
        // Thesis §4.2: a handler's response to a request says no more than that it was taken.
        if let Some((client, id)) = asked.filter(|_| self.learning != Learning::Pushed) {
            let at_once = self.learning == Learning::AnswerThenPoll;
            let answered = replies.iter().any(|reply| {
                (reply.client, reply.id) == (client, id)
                    && (at_once || !matches!(reply.answer, Answer::Granted { .. }))
            });
            if !answered {
                out.send(PeerId(client.0), Kind::Noted.message(0, &[u64::from(id)]));
            }
        }
    }

    fn poll(&self, client: ClientId, id: u32, out: &mut Outbox) {
        let answer = match self.core.status(client, id) {
            Status::Granted { token } => message::encode_answer(id, Answer::Granted { token }),
            Status::Waiting => Kind::NotYet.message(0, &[u64::from(id)]),
            Status::Unknown => message::encode_answer(id, Answer::Refused(Refusal::NotHeld)),
        };
        out.send(PeerId(client.0), answer);
    }

    fn take(&mut self, client: ClientId, request: Request, out: &mut Outbox) {
        let mut replies = Vec::new();
        let asked = match request {
            Request::Lock { id, .. } | Request::Permits { id, .. } | Request::Upgrade { id, .. } => {
                if let Learning::PollFlag(flags) = self.learning {
                    if !flags.has(client, id) {
                        let answer = Answer::Refused(Refusal::TooLarge);
                        out.send(PeerId(client.0), message::encode_answer(id, answer));
                        return;
                    }
                    // Alg. 3, lock: what the flag still says of an earlier request must not be taken for an answer.
                    out.post(flags.word(client, id).write(0).raw());
                }
                Some((client, id))
            }
            _ => None,
        };
        out.touch_alone(self.learning.lines(&request));
        self.core.handle(client, request, &mut replies);
        if let Request::Unlock { .. } | Request::UnlockPart { .. } = request {
            // Nobody waits for an answer to these, and a late refusal could be taken for that of the next request.
            replies.retain(|reply| !matches!(reply.answer, Answer::Refused(_)));
        }
        self.answer(&replies, asked, out);
    }
}

impl<R: Rules> Role for CombinerServer<R> {
    fn on_message(&mut self, _: Time, from: PeerId, message: &Message, out: &mut Outbox) {
        let client = ClientId(from.0);
        if message.kind == Message::DEPARTED {
            let mut replies = Vec::new();
            self.core.depart(client, &mut replies);
            self.answer(&replies, None, out);
        } else if message.kind == Kind::Poll as u32 {
            self.poll(client, message.words[0] as u32, out);
        } else if let Some(request) = message::decode(message) {
            self.take(client, request, out);
        }
    }

    fn wants_departures(&self) -> bool {
        true
    }
}

//! One question to one server of a cluster: who serves what; or what one server tells another. The session lasts as long as that.

use crate::remote::transport::Transport;
use crate::wire::{PAGE, Request, Response, SERVER};
use lockwright_fabric::backend::tcp::{CloseReason, ConnectOptions, SessionHandler};
use lockwright_fabric::{Message, PeerId};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use tokio::sync::oneshot;

type Answer = Result<Vec<u8>, String>;

/// The pages so far, and who waits for the last.
struct Asker(Mutex<(Vec<u8>, Option<oneshot::Sender<Answer>>)>);

impl Asker {
    fn answer(&self, with: impl FnOnce(&mut Vec<u8>) -> Option<Answer>) {
        let mut asked = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(answer) = with(&mut asked.0)
            && let Some(waits) = asked.1.take()
        {
            let _ = waits.send(answer);
        }
    }
}

impl SessionHandler for Asker {
    fn message(&self, _: PeerId, message: Message) -> Option<Message> {
        match Response::decode(&message)? {
            (_, Response::Page { more, bytes, .. }) => self.answer(|pages| {
                pages.extend(bytes);
                (!more).then(|| Ok(std::mem::take(pages)))
            }),
            (_, Response::Refused { why, .. }) => self.answer(|_| Some(Err(why))),
            _ => {}
        }
        None
    }

    fn reconnected(&self) {
        self.answer(|_| Some(Err("the connection was lost before it answered".to_owned())));
    }

    fn closed(&self, reason: &CloseReason) {
        self.answer(|_| Some(Err(reason.to_string())));
    }
}

/// Says all of these, and returns what the last is answered.
async fn ask(transport: &Transport, server: &str, requests: impl Iterator<Item = Request>) -> Answer {
    let session = transport.connect(server).await.map_err(|error| error.why)?;
    let (tell, told) = oneshot::channel();
    let asker = Arc::new(Asker(Mutex::new((Vec::new(), Some(tell)))));
    let handler: Weak<Asker> = Arc::downgrade(&asker);
    session.set_handler(handler);
    for (seq, request) in (1..).zip(requests) {
        session.tell(SERVER, &request.encode(seq));
    }
    let answer = told.await.unwrap_or_else(|_| Err("it gave no answer".to_owned()));
    session.close();
    answer
}

/// The map, as the server at `server` has it.
///
/// # Errors
/// In words, if it cannot be reached or does not answer.
pub(super) async fn map_of(transport: &Transport, server: &str) -> Result<String, String> {
    let answer = ask(transport, server, std::iter::once(Request::Map { id: 1 })).await;
    String::from_utf8(answer?).map_err(|_| "its map is no text".to_owned())
}

/// Tells the server at `server` the table of a shard that was handed to it.
///
/// # Errors
/// In words, if it has not heard it.
pub async fn hand_table(options: ConnectOptions, server: &str, table: &[u8]) -> Result<(), String> {
    let last = table.len().div_ceil(PAGE).max(1) - 1;
    let parts = table.chunks(PAGE).enumerate();
    let parts = parts.map(|(at, part)| Request::Hand { id: 1, last: at == last, bytes: part.to_vec() });
    ask(&Transport::Tcp(Box::new(options)), server, parts).await.map(drop)
}

//! One question to one server of a cluster: who serves what. The session lasts as long as the question.

use crate::remote::transport::Transport;
use crate::wire::{Request, Response, SERVER};
use lockwright_fabric::backend::tcp::{CloseReason, SessionHandler};
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

/// The map, as the server at `server` has it.
///
/// # Errors
/// In words, if it cannot be reached or does not answer.
pub(super) async fn map_of(transport: &Transport, server: &str) -> Result<String, String> {
    let session = transport.connect(server).await.map_err(|error| error.why)?;
    let (tell, told) = oneshot::channel();
    let asker = Arc::new(Asker(Mutex::new((Vec::new(), Some(tell)))));
    let handler: Weak<Asker> = Arc::downgrade(&asker);
    session.set_handler(handler);
    session.tell(SERVER, &Request::Map { id: 1 }.encode(1));
    let answer = told.await.unwrap_or_else(|_| Err("it gave no answer".to_owned()));
    session.close();
    String::from_utf8(answer?).map_err(|_| "its map is no text".to_owned())
}

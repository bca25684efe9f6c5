//! An endpoint whose client is another process.

use super::words::{decode_error, encode_deadline, encode_verb, encode_wait, whole};
use super::{GO, NOW, Process, RECV, SEND, SLEEP};
use lockwright_fabric::*;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex};
use std::task::Poll;

/// See the module.
#[derive(Clone, Debug)]
pub struct Remote {
    pub process: Arc<Process>,
    messages: Arc<Mutex<VecDeque<(PeerId, Message)>>>,
}

impl Remote {
    pub fn new(process: Process) -> Self {
        Self { process: Arc::new(process), messages: Arc::default() }
    }

    fn post(&self, to: PeerId, message: Message, datagram: bool) -> Result<(), FabricError> {
        let Message { lock, kind, words, tail } = message;
        let mut request = vec![SEND, to.0.into(), datagram.into(), lock, kind.into()];
        request.extend(words.into_iter().chain(tail));
        let answer = self.process.ask(&request);
        if answer[0] == 0 { Ok(()) } else { Err(decode_error(&answer)) }
    }

    fn time(&self) -> Time {
        Time(self.process.ask(&[NOW])[0])
    }
}

impl Endpoint for Remote {
    fn me(&self) -> PeerId {
        self.process.me
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::CPU
    }

    async fn go<B: Batch>(&self, batch: B) -> Result<B::Old, FabricError> {
        let mut request = vec![GO];
        batch.each(&mut |verb| {
            request.extend(encode_verb(&verb));
            0
        });
        let answer = self.process.ask(&request);
        if answer[0] != 0 {
            return Err(decode_error(&answer));
        }
        let mut olds = answer[1..].chunks(2).map(whole);
        Ok(batch.each(&mut |_| olds.next().unwrap()))
    }

    async fn wait_until<T: Value>(&self, wait: Wait<T>) -> Result<Waited<T>, FabricError> {
        let answer = self.process.ask(&encode_wait(&wait));
        if answer[0] != 0 {
            return Err(decode_error(&answer));
        }
        Ok(Waited { value: T::narrow(whole(&answer[1..])), met: answer[3] == 1, polls: 0 })
    }

    async fn send(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        self.post(to, message, false)
    }

    async fn send_datagram(&self, to: PeerId, message: Message) -> Result<(), FabricError> {
        self.post(to, message, true)
    }

    /// Every poll lets the child wait for a moment.
    async fn recv_by<T>(
        &self,
        deadline: Deadline,
        mut pick: impl FnMut(PeerId, &Message) -> Option<T>,
    ) -> Option<T> {
        let mut looked = 0;
        std::future::poll_fn(|cx| {
            loop {
                let mut messages = self.messages.lock().unwrap();
                while looked < messages.len() {
                    let (from, message) = &messages[looked];
                    if let Some(answer) = pick(*from, message) {
                        messages.remove(looked);
                        return Poll::Ready(Some(answer));
                    }
                    looked += 1;
                }
                let now = self.time();
                let soon = match deadline {
                    Deadline::Now => Deadline::Now,
                    Deadline::At(time) => Deadline::At(time.min(now.plus(2_000_000))),
                    Deadline::Never => Deadline::At(now.plus(2_000_000)),
                };
                let [kind, at] = encode_deadline(soon);
                let answer = self.process.ask(&[RECV, kind, at]);
                if answer.is_empty() {
                    break;
                }
                let words = [answer[3], answer[4], answer[5], answer[6]];
                let tail = answer[7..].to_vec();
                let message = Message { lock: answer[1], kind: answer[2] as u32, words, tail };
                messages.push_back((PeerId(answer[0] as u32), message));
            }
            let over = match deadline {
                Deadline::Now => true,
                Deadline::At(time) => self.time() >= time,
                Deadline::Never => false,
            };
            if over {
                return Poll::Ready(None);
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }

    async fn now(&self) -> Time {
        self.time()
    }

    async fn sleep(&self, ns: u64) {
        self.process.ask(&[SLEEP, ns]);
    }

    fn random(&self) -> u64 {
        0
    }
}

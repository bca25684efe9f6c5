//! A server's record of what it granted and took back, which `lockwright-lab check --history` judges beside those of clients.
//!
//! Events are noted with the lock table locked and written by a thread of their own, so that a slow disk delays nobody. The queue
//! between them has a limit: what does not fit is counted, and the record says how much is missing before it goes on.
//!
//! What this file must not do: decide anything.

use lockwright::record::{self, Event};
use std::fs::File;
use std::io::{self, Write};
use std::path::Path;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

/// Events that wait to be written: some megabytes.
const QUEUED: usize = 1 << 15;
/// Bytes per write, about.
const WRITE: usize = 1 << 16;

/// See the module. Clones write the same record.
#[derive(Clone, Debug)]
pub(crate) struct Record {
    lines: SyncSender<String>,
    process: String,
    missed: u64,
    thread: Arc<Mutex<Option<JoinHandle<()>>>>,
}

impl Record {
    /// Goes on with the record at `path`, or begins it.
    pub(crate) fn open(path: &Path) -> io::Result<Self> {
        let (record, lines) = Self::queued(QUEUED);
        let mut file = record::create(path)?;
        file.write_all(record::head("server", &record.process, 0)?.as_bytes())?;
        let thread = std::thread::Builder::new().name("lockwright-record".to_owned());
        let thread = thread.spawn(move || write(&lines, &mut file))?;
        *record.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(record)
    }

    fn queued(queued: usize) -> (Self, Receiver<String>) {
        let (lines, queue) = sync_channel(queued);
        let process = lockwright::internal::label();
        (Self { lines, process, missed: 0, thread: Arc::default() }, queue)
    }

    /// Notes an event.
    pub(crate) fn note(&mut self, event: &Event<'_>) {
        if self.missed > 0 {
            let head = record::head("server", &self.process, self.missed);
            if !head.is_ok_and(|head| self.lines.try_send(head).is_ok()) {
                self.missed += 1;
                return;
            }
            self.missed = 0;
        }
        self.missed += u64::from(self.lines.try_send(record::line_now(event)).is_err());
    }

    /// Writes what is left, and that this is all.
    pub(crate) fn end(self) {
        let Self { lines, process, missed, thread } = self;
        let missed = (missed > 0).then(|| record::head("server", &process, missed).ok()).flatten();
        let _ =
            missed.into_iter().chain(["{\"ended\":1}\n".to_owned()]).try_for_each(|line| lines.send(line));
        drop(lines);
        let thread = thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        let _ = thread.map(JoinHandle::join);
    }
}

/// Writes lines until there are no more, or one cannot be written: the record ends there.
fn write(lines: &Receiver<String>, file: &mut File) {
    while let Ok(mut text) = lines.recv() {
        while text.len() < WRITE
            && let Ok(line) = lines.try_recv()
        {
            text.push_str(&line);
        }
        if let Err(error) = file.write_all(text.as_bytes()) {
            tracing::error!("the record ends here, since it cannot be written: {error}");
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use lockwright::LockName;
    use lockwright::wire::Kind;
    use lockwright_fabric::observe::{Claim, Mode};

    #[test]
    fn a_record_that_fell_behind_says_how_much_it_missed_before_it_goes_on() {
        let (mut record, queue) = Record::queued(2);
        let name = LockName::new("a").unwrap();
        let claim = Claim { lock: 0, mode: Mode::Exclusive, start: 0, end: 1 };
        let note = |record: &mut Record, token| {
            let (event, space, kind) = ("granted", "served/1/s", Kind::Keyed);
            let (client, held) = (None, None);
            record.note(&Event { event, client, space, name: &name, kind, claim, token: Some(token), held });
        };
        for token in 1..=5 {
            note(&mut record, token);
        }
        let written: Vec<_> = queue.try_iter().collect();
        assert!(written.len() == 2 && written[1].contains("\"token\":2"), "{written:?}");
        note(&mut record, 6);
        let written: Vec<_> = queue.try_iter().collect();
        assert!(written[0].contains("\"missed\":3") && written[1].contains("\"token\":6"), "{written:?}");
    }
}

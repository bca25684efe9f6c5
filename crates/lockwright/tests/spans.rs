//! Waits and holds as spans of the crate `tracing`, seen by a subscriber that only keeps their names and times.

use lockwright::Client;
use std::sync::{Arc, Mutex};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// What happened to which span.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<Vec<(u64, String)>>>);

struct Fields(String);

impl tracing::field::Visit for Fields {
    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.push_str(&format!(" {}={value:?}", field.name()));
    }
}

impl Subscriber for Seen {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target() == "lockwright"
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut fields = Fields(span.metadata().name().to_owned());
        span.record(&mut fields);
        let mut seen = self.0.lock().unwrap();
        let id = seen.len() as u64 + 1;
        seen.push((id, fields.0));
        Id::from_u64(id)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, _: &Event<'_>) {}
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
    fn try_close(&self, id: Id) -> bool {
        self.0.lock().unwrap().push((id.into_u64(), "closed".to_owned()));
        true
    }
}

#[test]
fn a_wait_and_a_hold_are_spans_that_end_when_they_do() {
    let seen = Seen::default();
    tracing::subscriber::with_default(seen.clone(), || {
        let client = Client::open("mem:").wait().unwrap();
        let lock = client.mutex("a").unwrap();
        let guard = lock.lock().wait().unwrap();
        let token = guard.token();
        let late = lock.lock_timeout(std::time::Duration::from_millis(1)).wait();
        assert!(late.is_err());
        drop(guard);
        let seen = seen.0.lock().unwrap().clone();
        let spans: Vec<_> = seen.iter().map(|(id, what)| (*id, what.as_str())).collect();
        let hold = format!("lock.hold lock=a mode=\"exclusive\" token={token}");
        assert_eq!(
            spans,
            [(1, &*hold), (2, "lock.wait lock=a mode=\"exclusive\""), (2, "closed"), (1, "closed")]
        );
    });
}

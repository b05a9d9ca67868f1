//! Events for `tracing`: a program of its own, because what other threads of a process do decides
//! whether an event is wanted.

use std::sync::{Arc, Mutex};

use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

use evermap::{Evermap, Options};

/// Notes the targets of events.
#[derive(Clone, Default)]
struct Targets(Arc<Mutex<Vec<String>>>);

impl Subscriber for Targets {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        self.0.lock().unwrap().push(event.metadata().target().to_owned());
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[test]
fn opening_compaction_and_closing_are_told() {
    let targets = Targets::default();
    tracing::subscriber::with_default(targets.clone(), || {
        let map = Evermap::in_memory(Options::new()).unwrap().default_map();
        (0..20_000_u32).for_each(|key| map.put(key.to_le_bytes(), [0; 100]).unwrap());
        (0..20_000_u32).filter(|key| key % 16 > 0).for_each(|key| {
            map.delete(key.to_le_bytes()).unwrap();
        });
        assert!(map.db().compact().unwrap() > 0);
        map.into_db().close().unwrap();
    });
    let told = targets.0.lock().unwrap().clone();
    assert_eq!(told.first().unwrap(), "evermap::open");
    assert!(told.contains(&"evermap::compaction".to_owned()), "{told:?}");
    assert_eq!(told.last().unwrap(), "evermap::open");
}

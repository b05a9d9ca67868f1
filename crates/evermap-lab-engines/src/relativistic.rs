//! The relativistic table and DDDS, whose readers copy inside their sections.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use evermap_papers::relativistic::{
    Allowed, Config, Ddds, Decision as Decided, ResizableTable, Rp,
};
use evermap_pm::{Domain, Guard};
use evermap_server::CacheError;
use evermap_server::memory::{Decision, Entry, Table, each_found};

use crate::keys::{Hash, OwnedKey};

/// The bytes of nodes that may wait for readers before a change waits too.
const BACKLOG: u64 = 64 << 20;
/// How long a change waits then. After it the change is made all the same, because no reader of a
/// server stays in its section for as long.
const PATIENCE: Duration = Duration::from_secs(1);

/// A table whose look-ups take no lock, and return a reference for as long as a guard lives.
pub trait Sections: ResizableTable<OwnedKey, Entry> + 'static {
    /// Returns the entry of a key.
    fn find<'s>(&self, key: &[u8], guard: &'s Guard<'_>) -> Option<&'s Entry>;
}

impl Sections for Rp<OwnedKey, Entry, Hash> {
    fn find<'s>(&self, key: &[u8], guard: &'s Guard<'_>) -> Option<&'s Entry> {
        self.get(key, guard)
    }
}

impl Sections for Ddds<OwnedKey, Entry, Hash> {
    fn find<'s>(&self, key: &[u8], guard: &'s Guard<'_>) -> Option<&'s Entry> {
        self.get(key, guard)
    }
}

/// A table with reader sections.
///
/// Values are copied inside of them, up to the largest one that the protocol accepts, which delays
/// the memory of other items for as long as that takes.
#[derive(Debug)]
pub struct Relativistic<T>(T);

fn domain() -> Arc<Domain> {
    let domain = Domain::new(Box::new(|_| {}));
    domain.set_backlog_limit(BACKLOG);
    Arc::new(domain)
}

impl Relativistic<Rp<OwnedKey, Entry, Hash>> {
    /// Creates the paper's table, which resizes itself.
    ///
    /// # Errors
    ///
    /// `NoSpace`.
    pub fn rp() -> evermap_pm::Result<Self> {
        Ok(Relativistic(Rp::new(domain(), Hash, Config::default())?))
    }
}

impl Relativistic<Ddds<OwnedKey, Entry, Hash>> {
    /// Creates the rival of the paper's table, which resizes itself too.
    ///
    /// # Errors
    ///
    /// `NoSpace`.
    pub fn ddds() -> evermap_pm::Result<Self> {
        Ok(Relativistic(Ddds::new(domain(), Hash, Config::default())?))
    }
}

impl<T: Sections> Table for Relativistic<T> {
    fn read_many(
        &self,
        keys: &[&[u8]],
        each: &mut dyn FnMut(usize, &Entry) -> ControlFlow<()>,
    ) -> Result<(), CacheError> {
        let guard = self.0.domain().pin();
        each_found(keys, |key| self.0.find(key, &guard), each);
        Ok(())
    }

    fn change(
        &self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&Entry>) -> Decision,
    ) -> Result<(), CacheError> {
        let domain = self.0.domain();
        let guard = domain.pin();
        let key = OwnedKey::from(key);
        let changed =
            self.0.change(&key, Allowed::Anything, &guard, &mut |old| match decide(old) {
                Decision::Keep => Decided::Keep,
                Decision::Put(entry) => Decided::Put(entry),
                Decision::Remove => Decided::Remove,
            });
        drop(guard);
        if domain.is_backed_up() {
            // The reader that holds the memory up cannot be helped from here.
            let _ = domain.reduce_backlog(PATIENCE);
        }
        changed.map_err(|error| match error.is_no_space() {
            true => CacheError::OutOfMemory,
            false => CacheError::Other(error.to_string()),
        })
    }

    fn for_each(
        &self,
        each: &mut dyn FnMut(&[u8], &Entry) -> ControlFlow<()>,
    ) -> Result<(), CacheError> {
        let guard = self.0.domain().pin();
        self.0.for_each(&guard, &mut |key, entry| each(key, entry).is_continue());
        Ok(())
    }

    fn len(&self) -> u64 {
        self.0.stats().pairs
    }
}

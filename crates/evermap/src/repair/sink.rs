//! Where the records of a damaged store go.

use std::collections::HashMap;
use std::path::Path;

use evermap_index::MutateMode;
use evermap_index::key::BytesRef;
use evermap_pm::Medium;

use super::source::{Source, SourceMap};
use crate::clock::time_of;
use crate::new_file::NewFile;
use crate::ops::commit::Verdict;
use crate::record::Draft;
use crate::record::control::Control;
use crate::{Error, Evermap, IndexKind, Map, MapOptions, Options, Result};

/// A copy of a record.
pub(super) struct Copied<'c> {
    pub(super) key: &'c [u8],
    pub(super) value: &'c [u8],
    pub(super) flags: u32,
    pub(super) control: Control,
    pub(super) cas: u64,
}

/// Where records go: a new store, or if none is wanted, only a note of their keys.
pub(super) enum Sink {
    Store(NewStore),
    /// The CAS ids by the numbers of the maps and the hashes of the keys.
    Keys(HashMap<(usize, u64), u64>),
}

/// A store whose file gets its name when all of it is there.
pub(super) struct NewStore {
    // Before the file, which is removed when it is dropped.
    maps: Vec<Option<Map>>,
    db: Evermap,
    /// The next CAS id.
    next_cas: u64,
    new: NewFile,
}

/// The purpose of files whose repair is in progress.
const PURPOSE: &str = "repair";

impl Sink {
    /// Creates a store at `path`, if there is one, that can hold what is in `source`.
    pub(super) fn create(path: Option<&Path>, source: &Source, options: Options) -> Result<Self> {
        let Some(path) = path else { return Ok(Sink::Keys(HashMap::new())) };
        let failed = |error| evermap_pm::Error::io("creating", path, error);
        let new = NewFile::create(path, PURPOSE).map_err(failed)?;
        let db = Evermap::open(new.temporary(), options)?;
        let next_cas = source.cas_counter.limit();
        Ok(Sink::Store(NewStore { maps: Vec::new(), db, next_cas, new }))
    }

    /// Binds the key of a record of the map with this number, unless it is bound to a record that
    /// is as new. Returns `true` if the key was not bound.
    pub(super) fn bind(&mut self, number: usize, map: &SourceMap, copied: &Copied) -> Result<bool> {
        match self {
            Sink::Store(store) => store.bind(number, map, copied),
            Sink::Keys(keys) => {
                let newest = keys.entry((number, hash_of(copied.key)));
                let mut is_new = false;
                let newest = newest.or_insert_with(|| {
                    is_new = true;
                    0
                });
                *newest = copied.cas.max(*newest);
                Ok(is_new)
            }
        }
    }

    /// Returns the CAS id of the record that a key of the map with this number is bound to.
    pub(super) fn cas_of(&self, number: usize, key: &[u8]) -> Result<Option<u64>> {
        match self {
            Sink::Store(store) => match store.maps.get(number) {
                Some(Some(map)) => map.get_with(key, |item| item.cas),
                _ => Ok(None),
            },
            Sink::Keys(keys) => Ok(keys.get(&(number, hash_of(key))).copied()),
        }
    }

    /// Makes the map with this number, even if it is to stay empty.
    pub(super) fn make_map(&mut self, number: usize, map: &SourceMap) -> Result<()> {
        match self {
            Sink::Store(store) => store.map(number, map).map(drop),
            Sink::Keys(_) => Ok(()),
        }
    }

    /// Makes the store durable, and gives it its name.
    pub(super) fn publish(self) -> Result<()> {
        let Sink::Store(NewStore { maps, db, next_cas, new }) = self else { return Ok(()) };
        drop(maps);
        db.file.cas_counter.skip_to(db.file.pool.region(), next_cas);
        db.close()?;
        let path = new.temporary().to_owned();
        Ok(new.publish().map_err(|error| evermap_pm::Error::io("creating", &path, error))?)
    }
}

impl NewStore {
    fn bind(&mut self, number: usize, map: &SourceMap, copied: &Copied<'_>) -> Result<bool> {
        self.next_cas = self.next_cas.max(copied.cas.saturating_add(1));
        self.map(number, map)?.bind_copy(copied)
    }

    fn named(&self, name: &str, kind: Option<IndexKind>) -> Result<Map> {
        let options = MapOptions::new();
        match self.db.map(name, options.create(false)) {
            Err(Error::NoSuchMap { .. }) => {
                self.db.map(name, kind.map_or(options, |kind| options.index(kind)))
            }
            // One that was dropped had the name of another, and perhaps another kind.
            found => found,
        }
    }

    fn map(&mut self, number: usize, map: &SourceMap) -> Result<&Map> {
        if self.maps.len() <= number {
            self.maps.resize_with(number + 1, || None);
        }
        if self.maps[number].is_none() {
            let new = match &map.name {
                None => self.db.default_map(),
                Some(name) => self.named(name, map.kind())?,
            };
            if map.due != 0 {
                new.expire_all_at(time_of(map.due))?;
            }
            self.maps[number] = Some(new);
        }
        Ok(self.maps[number].as_ref().expect("just made"))
    }
}

/// Returns a hash of a key, for a list of keys.
fn hash_of(key: &[u8]) -> u64 {
    BytesRef::new(key, 0).hash
}

impl<M: Medium> Map<M> {
    /// Binds a key to a copy of a record, with its CAS id, unless it is bound to a record that is
    /// as new. Returns `true` if the key was not bound.
    fn bind_copy(&self, copied: &Copied<'_>) -> Result<bool> {
        let key = self.begin_change(copied.key)?;
        self.with_space(|| self.try_bind_copy(key, copied))
    }

    fn try_bind_copy(&self, key: BytesRef<'_>, copied: &Copied<'_>) -> Result<bool> {
        let guard = self.enter_writing()?;
        let draft = Draft::reserve(
            &self.db.file.pool,
            self.inner.header.owner(),
            key.bytes,
            copied.value,
            copied.flags,
            copied.control.encode(),
            copied.cas,
        )?;
        draft.persist();
        let mut is_new = false;
        self.commit(key, MutateMode::MayInsert, &guard, Some(&draft), &mut |live| {
            is_new = live.is_none();
            match live {
                Some(live) if live.cas() >= copied.cas => Verdict::Keep,
                _ => Verdict::Publish,
            }
        })?;
        Ok(is_new)
    }
}

//! Namespaces: items whose keys begin with a prefix, which are counted, limited and flushed apart
//! from the others.
//!
//! Each is a named map of the file, so its counts, its limit, its evictions and its flush are those
//! of a map, each O(1) but the evictions. The items of all other keys are in the default map. A key
//! is the whole key in either, so it says by itself where its item is.

use std::cmp::Reverse;
use std::fmt::Display;
use std::ops::ControlFlow;
use std::ptr;
use std::sync::Arc;

use evermap::{Error, Evermap, Map, MapOptions};

use crate::cache::{
    Arithmetic, Cache, CacheError, Hit, Item, NewItem, Side, StoreRequest, Stored, Update,
};

/// What the names of the maps begin with.
const MAP_PREFIX: &str = "namespace/";
/// The record that says which namespaces the items of a file have their places by: their prefixes,
/// in order.
const RECORD_MAP: &str = "namespaces";
const RECORD_KEY: &str = "prefixes";
/// No list of prefixes.
const UNFINISHED: &str = "  ";

/// A namespace that a server is to have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace {
    /// What its keys begin with, without spaces.
    pub prefix: String,
    /// The maximum of bytes that its items take.
    pub limit: u64,
}

/// What happens to an item for which its namespace has no room.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WhenFull {
    /// Other items of the namespace are evicted.
    Evict,
    /// The item is refused.
    Refuse,
}

impl Namespace {
    /// The maximum length of a prefix, in bytes.
    pub const PREFIX_MAX: usize = 128;

    /// Returns the name of the map with the items.
    pub fn map_name(&self) -> String {
        format!("{MAP_PREFIX}{}", self.prefix)
    }
}

/// The items of a file with namespaces.
pub struct Namespaces {
    rest: Map,
    /// Longer prefixes first, so that the first that a key has is the longest.
    spaces: Vec<(Namespace, Map)>,
}

impl Namespaces {
    /// Returns the items of a file with these namespaces. Without any, and if the file had none,
    /// that is its default map.
    ///
    /// If the file had others, what has its place elsewhere now is removed: O(items) once.
    /// Otherwise an item that was out of reach for a while, and out of date since, could come back.
    ///
    /// # Errors
    /// Those of [`Evermap::map`], and of reading and removing.
    pub fn open(
        db: &Evermap,
        namespaces: Vec<Namespace>,
        when_full: WhenFull,
    ) -> evermap::Result<Arc<dyn Cache>> {
        let mut prefixes: Vec<_> = namespaces.iter().map(|space| &space.prefix[..]).collect();
        prefixes.sort_unstable();
        let wanted = prefixes.join(" ");
        let before = match db.map(RECORD_MAP, MapOptions::new().create(false)) {
            Ok(map) => map.get(RECORD_KEY)?,
            Err(Error::NoSuchMap { .. }) => None,
            Err(error) => return Err(error),
        };
        let is_as_before = before.as_deref().unwrap_or_default() == wanted.as_bytes();
        if is_as_before && namespaces.is_empty() {
            return Ok(Arc::new(db.default_map()));
        }
        if is_as_before {
            return Ok(Arc::new(Namespaces::of(db, namespaces, when_full)?));
        }
        let record = db.map(RECORD_MAP, MapOptions::new())?;
        // Until it is done: if this server is killed meanwhile, the next one does it again.
        record.put(RECORD_KEY, UNFINISHED)?;
        db.sync()?;
        for name in db.maps()? {
            let of_name = |space: &Namespace| space.map_name() == name;
            if name.starts_with(MAP_PREFIX) && !namespaces.iter().any(of_name) {
                db.drop_map(&name)?;
            }
        }
        let cache = Namespaces::of(db, namespaces, when_full)?;
        cache.remove_misplaced()?;
        record.put(RECORD_KEY, &wanted)?;
        db.sync()?;
        Ok(Arc::new(cache))
    }

    /// Flushes all items of a file, those of namespaces too.
    ///
    /// # Errors
    /// Those of [`Evermap::map`] and [`Map::clear`].
    pub fn clear_all(db: &Evermap) -> evermap::Result<()> {
        for name in db.maps()?.iter().filter(|name| name.starts_with(MAP_PREFIX)) {
            db.map(name, MapOptions::new().create(false))?.clear()?;
        }
        db.default_map().clear()
    }

    /// Opens the maps of these namespaces, and creates those that the file does not have.
    fn of(
        db: &Evermap,
        mut namespaces: Vec<Namespace>,
        when_full: WhenFull,
    ) -> evermap::Result<Self> {
        namespaces.sort_by_key(|space| Reverse(space.prefix.len()));
        let open = |space: Namespace| {
            let evicts = when_full == WhenFull::Evict;
            let options = MapOptions::new().max_bytes(space.limit).evict(evicts);
            let map = db.map(&space.map_name(), options)?;
            Ok((space, map))
        };
        let spaces = namespaces.into_iter().map(open).collect::<evermap::Result<_>>()?;
        Ok(Namespaces { rest: db.default_map(), spaces })
    }

    /// Removes the items that are in another map than that of their key.
    fn remove_misplaced(&self) -> evermap::Result<()> {
        for map in self.maps() {
            for key in map.keys() {
                match key {
                    Ok(key) if !ptr::eq(self.map_of(&key), map) => drop(map.delete(&key)?),
                    // No client can be shown what cannot be read.
                    Ok(_) => {}
                    Err(error) if error.is_damaged() => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(())
    }

    /// Returns the map with the item of `key`.
    fn map_of(&self, key: &[u8]) -> &Map {
        let space = self.spaces.iter().find(|(space, _)| key.starts_with(space.prefix.as_bytes()));
        space.map_or(&self.rest, |(_, map)| map)
    }

    /// Returns the number of keys at the beginning that are in the same map.
    fn run<'k>(&self, keys: impl Iterator<Item = &'k [u8]>, map: &Map) -> usize {
        keys.take_while(|key| ptr::eq(self.map_of(key), map)).count()
    }

    fn maps(&self) -> impl Iterator<Item = &Map> {
        std::iter::once(&self.rest).chain(self.spaces.iter().map(|(_, map)| map))
    }
}

impl Cache for Namespaces {
    fn now(&self) -> u32 {
        Cache::now(&self.rest)
    }

    fn get_many(
        &self,
        keys: &[&[u8]],
        hit: &mut dyn FnMut(usize, Item<'_>) -> Hit,
    ) -> Result<(), CacheError> {
        let mut at = 0;
        while let Some(first) = keys.get(at) {
            let map = self.map_of(first);
            let count = self.run(keys[at..].iter().copied(), map);
            let mut flow = ControlFlow::Continue(());
            Cache::get_many(map, &keys[at..at + count], &mut |number, item| {
                flow = hit(at + number, item)?;
                Ok(flow)
            })?;
            if flow.is_break() {
                break;
            }
            at += count;
        }
        Ok(())
    }

    fn peek(
        &self,
        key: &[u8],
        hit: &mut dyn FnMut(Item<'_>) -> Result<(), CacheError>,
    ) -> Result<bool, CacheError> {
        Cache::peek(self.map_of(key), key, hit)
    }

    fn get_and_touch(
        &self,
        key: &[u8],
        expiry: u32,
        hit: &mut dyn FnMut(Item<'_>) -> Result<(), CacheError>,
    ) -> Result<bool, CacheError> {
        Cache::get_and_touch(self.map_of(key), key, expiry, hit)
    }

    fn store(
        &self,
        key: &[u8],
        value: &[u8],
        request: &StoreRequest,
    ) -> Result<Stored, CacheError> {
        Cache::store(self.map_of(key), key, value, request)
    }

    fn set_many(
        &self,
        items: &[NewItem<'_>],
        each: &mut dyn FnMut(usize, Result<Stored, CacheError>),
    ) {
        let mut at = 0;
        while let Some(first) = items.get(at) {
            let map = self.map_of(first.key);
            let count = self.run(items[at..].iter().map(|item| item.key), map);
            let items = &items[at..at + count];
            Cache::set_many(map, items, &mut |number, stored| each(at + number, stored));
            at += count;
        }
    }

    fn update(
        &self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&Item<'_>>) -> Result<Update, CacheError>,
    ) -> Result<Option<u64>, CacheError> {
        Cache::update(self.map_of(key), key, decide)
    }

    fn concat(
        &self,
        key: &[u8],
        data: &[u8],
        side: Side,
        value_max: usize,
    ) -> Result<Stored, CacheError> {
        Cache::concat(self.map_of(key), key, data, side, value_max)
    }

    fn arithmetic(&self, key: &[u8], delta: u64, up: bool) -> Result<Arithmetic, CacheError> {
        Cache::arithmetic(self.map_of(key), key, delta, up)
    }

    fn delete(&self, key: &[u8]) -> Result<bool, CacheError> {
        Cache::delete(self.map_of(key), key)
    }

    fn touch(&self, key: &[u8], expiry: u32) -> Result<bool, CacheError> {
        Cache::touch(self.map_of(key), key, expiry)
    }

    fn flush_all(&self, at: Option<u32>) -> Result<(), CacheError> {
        self.maps().try_for_each(|map| Cache::flush_all(map, at))
    }

    fn flush_namespace(&self, prefix: &[u8]) -> Result<bool, CacheError> {
        let of_prefix = |(space, _): &&(Namespace, Map)| space.prefix.as_bytes() == prefix;
        let Some((_, map)) = self.spaces.iter().find(of_prefix) else { return Ok(false) };
        Cache::flush_all(map, None).map(|()| true)
    }

    fn parts(&self) -> usize {
        1 + self.spaces.len()
    }

    fn page_of(
        &self,
        part: usize,
        position: u64,
        each: &mut dyn FnMut(&[u8], Item<'_>),
    ) -> Result<Option<u64>, CacheError> {
        match self.maps().nth(part) {
            Some(map) => Cache::page(map, position, each),
            None => Ok(None),
        }
    }

    fn page(
        &self,
        position: u64,
        each: &mut dyn FnMut(&[u8], Item<'_>),
    ) -> Result<Option<u64>, CacheError> {
        Cache::page(&self.rest, position, each)
    }

    fn is_unsettled(&self) -> bool {
        Cache::is_unsettled(&self.rest)
    }

    fn settle(&self) -> Result<(), CacheError> {
        // The log is that of the file.
        Cache::settle(&self.rest)
    }

    fn damage_met(&self) -> u64 {
        self.maps().map(Cache::damage_met).sum()
    }

    fn memory_limit(&self) -> u64 {
        Cache::memory_limit(&self.rest)
    }

    fn set_memory_limit(&self, bytes: u64) -> Result<(), CacheError> {
        Cache::set_memory_limit(&self.rest, bytes)
    }

    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        Cache::stats(&self.rest, &mut |name, value| match name {
            "curr_items" => each(name, &self.maps().map(Map::len).sum::<u64>()),
            "bytes" => each(name, &self.maps().map(|map| map.bytes().value).sum::<u64>()),
            _ => each(name, value),
        });
        each("evermap_namespaces", &self.spaces.len());
    }

    fn namespace_stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        each("evermap_namespaces", &self.spaces.len());
        for (Namespace { prefix, limit }, map) in &self.spaces {
            each(&format!("evermap_namespaces_items:{prefix}"), &map.len());
            each(&format!("evermap_namespaces_bytes:{prefix}"), &map.bytes().value);
            each(&format!("evermap_namespaces_limit:{prefix}"), limit);
            let evictions = map.stat().map_evictions;
            each(&format!("evermap_namespaces_evictions:{prefix}"), &evictions);
        }
    }

    fn cost_stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) -> Result<(), CacheError> {
        Cache::cost_stats(&self.rest, each)
    }
}

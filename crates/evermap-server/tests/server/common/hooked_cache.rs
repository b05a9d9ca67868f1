//! A cache that calls a function of the test before each lookup.

use std::fmt::Display;

use evermap_server::ModelCache;
use evermap_server::cache::{
    Arithmetic, Cache, CacheError, Hit, Item, Side, StoreRequest, Stored, Update,
};

/// A model cache with a hook.
pub(crate) struct HookedCache<F> {
    pub(crate) cache: ModelCache,
    /// Called with the keys before each lookup.
    pub(crate) before_get: F,
}

type Result<T> = std::result::Result<T, CacheError>;

impl<F: Fn(&[&[u8]]) + Send + Sync + 'static> Cache for HookedCache<F> {
    fn now(&self) -> u32 {
        self.cache.now()
    }

    fn get_many(&self, keys: &[&[u8]], hit: &mut dyn FnMut(usize, Item<'_>) -> Hit) -> Result<()> {
        (self.before_get)(keys);
        self.cache.get_many(keys, hit)
    }

    fn peek(&self, key: &[u8], hit: &mut dyn FnMut(Item<'_>) -> Result<()>) -> Result<bool> {
        self.cache.peek(key, hit)
    }

    fn get_and_touch(
        &self,
        key: &[u8],
        expiry: u32,
        hit: &mut dyn FnMut(Item<'_>) -> Result<()>,
    ) -> Result<bool> {
        self.cache.get_and_touch(key, expiry, hit)
    }

    fn store(&self, key: &[u8], value: &[u8], request: &StoreRequest) -> Result<Stored> {
        self.cache.store(key, value, request)
    }

    fn update(
        &self,
        key: &[u8],
        decide: &mut dyn FnMut(Option<&Item<'_>>) -> Result<Update>,
    ) -> Result<Option<u64>> {
        self.cache.update(key, decide)
    }

    fn concat(&self, key: &[u8], data: &[u8], side: Side, value_max: usize) -> Result<Stored> {
        self.cache.concat(key, data, side, value_max)
    }

    fn arithmetic(&self, key: &[u8], delta: u64, up: bool) -> Result<Arithmetic> {
        self.cache.arithmetic(key, delta, up)
    }

    fn delete(&self, key: &[u8]) -> Result<bool> {
        self.cache.delete(key)
    }

    fn touch(&self, key: &[u8], expiry: u32) -> Result<bool> {
        self.cache.touch(key, expiry)
    }

    fn flush_all(&self, at: Option<u32>) -> Result<()> {
        self.cache.flush_all(at)
    }

    fn page(&self, position: u64, each: &mut dyn FnMut(&[u8], Item<'_>)) -> Result<Option<u64>> {
        self.cache.page(position, each)
    }

    fn memory_limit(&self) -> u64 {
        self.cache.memory_limit()
    }

    fn set_memory_limit(&self, bytes: u64) -> Result<()> {
        self.cache.set_memory_limit(bytes)
    }

    fn stats(&self, each: &mut dyn FnMut(&str, &dyn Display)) {
        self.cache.stats(each);
    }
}

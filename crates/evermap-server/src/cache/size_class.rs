//! Size classes for statistics.
//!
//! memcached divides its memory by the size of the items, and reports about each class of sizes.
//! Tools that draw its statistics expect these classes, so they are computed here in the same way:
//! chunks of 96 bytes and more, each 1.25 times as large as the one before. This store is not
//! divided like that, so the classes say how large the items are and nothing about free memory.
//!
//! To count the items of each class takes a walk through all of them. A large cache is sampled
//! instead: its items are arranged by the hashes of their keys, so that any part of it is as good a
//! sample as any other.

use std::collections::BTreeMap;
use std::fmt::Display;

use super::{Cache, CacheError};

/// The number of items after which the sample is large enough. The error of the share of a class
/// is below 2 % of all items then.
const SAMPLE: u64 = 4096;
/// The maximum number of pages of a sample, so that an almost empty cache that was large once costs
/// no more.
const PAGES_MAX: usize = 256;

/// The bytes that memcached needs for an item beside its key and its value: the header, the CAS id,
/// the end of the key and the end of the value.
const ITEM_BYTES: u64 = 48 + 8 + 1 + 2;

/// The chunk of the first class, in bytes.
const FIRST_CHUNK: u64 = 96;
/// The chunk of the last class, in bytes. Larger items are divided into several of them.
const LAST_CHUNK: u64 = 512 << 10;
/// The memory that memcached assigns to a class at a time, in bytes.
const PAGE: u64 = 1 << 20;
/// The number of classes; the first is 1.
const CLASSES: usize = 39;

/// The bytes of a chunk of each class.
const CHUNKS: [u64; CLASSES] = {
    let mut chunks = [0; CLASSES];
    let mut exact = FIRST_CHUNK;
    let mut at = 0;
    while at < CLASSES - 1 {
        let aligned = exact.next_multiple_of(8);
        chunks[at] = aligned;
        exact = aligned * 5 / 4;
        at += 1;
    }
    chunks[CLASSES - 1] = LAST_CHUNK;
    chunks
};

/// Returns the bytes that memcached would need for an item with a key and a value of these lengths.
pub fn item_bytes(key: usize, value: usize, flags: u32) -> u64 {
    let flags = if flags == 0 { 0 } else { 4 };
    ITEM_BYTES + flags + key as u64 + value as u64
}

/// Returns the class of an item of this number of bytes, from 1 on.
pub fn class_of(bytes: u64) -> usize {
    CHUNKS.partition_point(|&chunk| chunk < bytes).min(CLASSES - 1) + 1
}

/// The items of one class.
#[derive(Clone, Copy, Default)]
struct Class {
    items: u64,
    bytes: u64,
    fetched: u64,
    /// The time since the last access to the item that was not accessed for the longest, in
    /// seconds.
    idle_max: u32,
}

impl Class {
    /// Multiplies what was counted in a sample of `sample` items out of `all`.
    fn scaled(mut self, all: u64, sample: u64) -> Self {
        let scale = |count: u64| {
            let scaled = u128::from(count) * u128::from(all) / u128::from(sample.max(1));
            u64::try_from(scaled).unwrap_or(u64::MAX)
        };
        self.items = scale(self.items);
        self.bytes = scale(self.bytes);
        self.fetched = scale(self.fetched);
        self
    }
}

/// Returns the classes that have items, by number.
fn classes<C: Cache + ?Sized>(cache: &C) -> Result<BTreeMap<usize, Class>, CacheError> {
    let mut classes = BTreeMap::<usize, Class>::new();
    let (mut sample, mut next) = (0, Some(0));
    for _ in 0..PAGES_MAX {
        let Some(position) = next.filter(|_| sample < SAMPLE) else { break };
        next = cache.page(position, &mut |key, item| {
            let bytes = item_bytes(key.len(), item.value.len(), item.flags);
            let class = classes.entry(class_of(bytes)).or_default();
            class.items += 1;
            class.bytes += bytes;
            class.fetched += u64::from(item.fetched);
            class.idle_max = class.idle_max.max(item.idle);
            sample += 1;
        })?;
    }
    if next.is_some() {
        let all = all_items(cache).max(sample);
        for class in classes.values_mut() {
            *class = class.scaled(all, sample);
        }
    }
    Ok(classes)
}

/// Returns the number of items that the cache reports.
fn all_items<C: Cache + ?Sized>(cache: &C) -> u64 {
    let mut all = 0;
    cache.stats(&mut |name, value| {
        if name == "curr_items" {
            all = value.to_string().parse().unwrap_or(0);
        }
    });
    all
}

/// Calls `each` with the name and value of each line of `stats items`.
pub(crate) fn item_stats<C: Cache + ?Sized>(
    cache: &C,
    each: &mut dyn FnMut(&str, &dyn Display),
) -> Result<(), CacheError> {
    for (number, class) in classes(cache)? {
        let mut line =
            |name: &str, value: &dyn Display| each(&format!("items:{number}:{name}"), value);
        line("number", &class.items);
        // There is one queue of items here, which is all of the cache's.
        line("number_hot", &0);
        line("number_warm", &class.fetched);
        line("number_cold", &(class.items - class.fetched.min(class.items)));
        line("age_hot", &0);
        line("age_warm", &0);
        line("age", &class.idle_max);
        line("mem_requested", &class.bytes);
        // The store counts evictions without regard to sizes: see `stats`.
        for name in [
            "evicted",
            "evicted_nonzero",
            "evicted_time",
            "outofmemory",
            "tailrepairs",
            "reclaimed",
            "expired_unfetched",
            "evicted_unfetched",
            "evicted_active",
            "crawler_reclaimed",
            "crawler_items_checked",
            "lrutail_reflocked",
            "moves_to_cold",
            "moves_to_warm",
            "moves_within_lru",
            "direct_reclaims",
            "hits_to_hot",
            "hits_to_warm",
            "hits_to_cold",
            "hits_to_temp",
        ] {
            line(name, &0);
        }
    }
    Ok(())
}

/// Calls `each` with the name and value of each line of `stats slabs`.
pub(crate) fn slab_stats<C: Cache + ?Sized>(
    cache: &C,
    each: &mut dyn FnMut(&str, &dyn Display),
) -> Result<(), CacheError> {
    let classes = classes(cache)?;
    let mut malloced = 0;
    for (number, class) in &classes {
        let chunk = CHUNKS[number - 1];
        // Only an item of the last class can have several chunks.
        let used = match *number {
            CLASSES => class.items.max(class.bytes.div_ceil(chunk)),
            _ => class.items,
        };
        let per_page = PAGE / chunk;
        let pages = used.div_ceil(per_page);
        malloced += pages * PAGE;
        let mut line = |name: &str, value: u64| each(&format!("{number}:{name}"), &value);
        line("chunk_size", chunk);
        line("chunks_per_page", per_page);
        line("total_pages", pages);
        line("total_chunks", pages * per_page);
        line("used_chunks", used);
        line("free_chunks", pages * per_page - used);
        line("free_chunks_end", 0);
        // The commands are counted without regard to sizes: see `stats`.
        for name in [
            "get_hits",
            "cmd_set",
            "delete_hits",
            "incr_hits",
            "decr_hits",
            "cas_hits",
            "cas_badval",
            "touch_hits",
        ] {
            line(name, 0);
        }
    }
    each("active_slabs", &classes.len());
    each("total_malloced", &malloced);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_classes_are_those_of_memcached() {
        assert_eq!(CHUNKS[..6], [96, 120, 152, 192, 240, 304]);
        assert_eq!(CHUNKS[CLASSES - 3..], [315_872, 394_840, 524_288]);
        assert_eq!(class_of(1), 1);
        for (at, &chunk) in CHUNKS.iter().enumerate() {
            assert_eq!((class_of(chunk), class_of(chunk + 1)), (at + 1, (at + 2).min(CLASSES)));
        }
        assert_eq!(class_of(u64::MAX), CLASSES);
    }
}

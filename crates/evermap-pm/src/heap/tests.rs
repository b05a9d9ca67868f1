//! Tests of the heap.

use super::*;
use crate::Result;
use std::ops::ControlFlow;

use crate::PmU64;
use crate::medium::{Dram, Note, Pages};
use crate::pool::Pool;
use crate::region::{Identity, OnSuspect, RegionConfig};
use crate::sim::{self, ImageConfig, Sim, tier};

fn pool(extent_size: u64, capacity: u64) -> Arc<Pool<Dram>> {
    let config = RegionConfig { extent_size, capacity, seed: Some(1) };
    let medium = Dram::reserve(capacity, Pages::Base).unwrap();
    Pool::create(medium, &config, Identity::default()).unwrap()
}

/// Random allocations and frees: blocks never overlap, and the statistics agree with a model.
#[test]
fn blocks_do_not_overlap() {
    for extent_size in [4096, 16384, 1 << 20] {
        blocks_do_not_overlap_with(extent_size);
    }
}

fn blocks_do_not_overlap_with(extent_size: u64) {
    let pool = pool(extent_size, 8 << 20);
    let mut live: BTreeMap<u64, u64> = BTreeMap::new();
    let mut random = 12345u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    for _ in 0..20_000 {
        if next(100) < 55 {
            let size = match next(10) {
                0 => 1 + next(60_000),
                1 => 17_152,
                _ => 1 + next(900),
            };
            let exact = size % 3 == 0;
            let size = if exact { size.next_multiple_of(16) } else { size };
            let got = if exact { pool.allocate_exact(size) } else { pool.allocate(size) };
            let Ok(offset) = got else {
                assert!(got.unwrap_err().is_no_space());
                continue;
            };
            let block = if exact { size } else { pool.block_size(size) };
            assert!(offset + block <= pool.medium().len());
            let before = live.range(..offset + block).next_back();
            assert!(before.is_none_or(|(start, len)| start + len <= offset), "overlap");
            live.insert(offset, block);
        } else if let Some((&offset, _)) = live.range(next(8 << 20)..).next() {
            live.remove(&offset);
            pool.free_unpublished(offset);
        }
    }
    assert_eq!(pool.allocated(), live.keys().copied().collect::<Vec<_>>());
    assert_eq!(pool.heap_stats().allocated_blocks, live.len() as u64);
    assert_eq!(pool.heap_stats().faults, 0);
    for offset in live.into_keys() {
        pool.free_unpublished(offset);
    }
    assert_eq!(pool.heap_stats().allocated_bytes, 0);
}

#[test]
fn double_frees_and_invalid_frees_are_counted() {
    let pool = pool(16384, 1 << 20);
    let block = pool.allocate(100).unwrap();
    let other = pool.allocate(100).unwrap();
    pool.free_unpublished(block);
    pool.free_unpublished(block);
    pool.free_unpublished(other + 16);
    pool.free_unpublished(3);
    assert_eq!(pool.heap_stats().faults, 3);
    assert_eq!(pool.allocated(), [other]);
}

/// Damage refers to a block that was never handed out.
#[test]
fn frees_of_claimed_blocks_are_counted_once() {
    let pool = pool(16384, 1 << 20);
    let block = pool.allocate(100).unwrap();
    let next = pool.allocate(100).unwrap();
    let claimed = next + (next - block);
    pool.free_unpublished(claimed);
    // Returns the claimed blocks, which uses the counts.
    assert!(pool.evacuation(1).is_none());
    assert_eq!(pool.heap_stats().faults, 1);
    assert_eq!(pool.allocated(), [block, next]);
    // All blocks of an extent, while some of them are claimed.
    let third = pool.allocate(100).unwrap();
    for block in [block, next, third] {
        pool.free_unpublished(block);
    }
    let rest = (0..16384 / (next - block)).map(|at| block + at * (next - block));
    rest.for_each(|block| pool.free_unpublished(block));
    assert!(pool.evacuation(1).is_none());
    assert_eq!(pool.allocated(), []);
    assert_eq!(pool.heap_stats().allocated_bytes, 0);
}

#[test]
fn a_full_heap_returns_an_error_and_recovers() {
    let pool = pool(16384, 1 << 20);
    let mut blocks = Vec::new();
    let error = loop {
        match pool.allocate(5000) {
            Ok(block) => blocks.push(block),
            Err(error) => break error,
        }
    };
    assert!(error.is_no_space(), "{error}");
    let count = blocks.len();
    blocks.drain(..).for_each(|block| pool.free_unpublished(block));
    assert_eq!((0..count).filter(|_| pool.allocate(5000).is_ok()).count(), count);
}

fn region(extent_size: u64, capacity: u64) -> Arc<Region<Dram>> {
    let config = RegionConfig { extent_size, capacity, seed: Some(1) };
    let medium = Dram::reserve(capacity, Pages::Base).unwrap();
    Arc::new(Region::create(medium, &config, Identity::default()).unwrap())
}

/// A large object is freed, one of its units is reused, and a crash loses some of the table's
/// entries that say that its units are free. Units that still look like parts of the object
/// must be reclaimed.
#[test]
fn units_of_freed_large_objects_are_reclaimed_after_a_crash() {
    for (reused, lost) in (0..4u64).flat_map(|reused| (0..16u64).map(move |lost| (reused, lost))) {
        let region = region(4096, 1 << 20);
        let before = Heap::open(region.clone(), PreviousUse::Unclean);
        let large = before.allocate(16_000).unwrap();
        let table = |index: u64| region.entry(index);
        let entries: Vec<_> = (0..4).map(|index| region.medium().load(table(index))).collect();
        before.free(large);
        lock(&before.shared).free.remove(0..reused);
        lock(&before.shared).free.remove(reused + 1..4);
        let block = before.allocate(100).unwrap();
        for index in (0..4).filter(|&index| index != reused && lost >> index & 1 == 1) {
            region.medium().store(table(index), entries[index as usize]);
        }
        let after = Heap::open(region.clone(), PreviousUse::Unclean);
        let closed = 1 + (lost & !(1 << reused)).count_ones();
        assert_eq!(after.stats().closed_bytes, u64::from(closed) * 4096);
        after.mark(block);
        after.finish_sweep();
        assert_eq!((after.stats().faults, after.stats().closed_bytes), (0, 0));
        assert_eq!(after.allocated(), [block]);
        let others = std::iter::from_fn(|| after.allocate(4096).ok()).count() as u64;
        assert_eq!(others, after.extents.len - 1);
    }
}

/// A thread may publish the block that it allocated after a fence of its own. The table's entry
/// of the extent, which another thread may have written, must be durable then.
#[test]
fn the_entry_of_an_extent_is_durable_before_a_block_is_allocated() {
    for bytes in [100, 40_000] {
        let sim = Sim::new(1 << 20).unwrap();
        let config = RegionConfig { extent_size: 16384, capacity: 1 << 20, seed: Some(1) };
        let region = Region::create(sim.clone(), &config, Identity::default()).unwrap();
        let heap = Heap::open(Arc::new(region), PreviousUse::Unclean);
        sim.note(Note::Begin(0));
        let block = heap.allocate(bytes).unwrap();
        sim.note(Note::End(0));
        let (index, _) = heap.locate(block).unwrap();
        let entry = heap.region.entry(index);
        let (at, wanted) = (sim.offset_of(entry) as usize, sim.load(entry).to_le_bytes());
        let mut images = 0;
        sim::for_each_image(&sim.trace(), &ImageConfig::default(), |image| {
            if image.point.completed(0) {
                assert_eq!(image.bytes[at..at + 8], wanted);
                images += 1;
            }
            ControlFlow::Continue(())
        });
        assert!(images > 0);
    }
}

/// A damaged entry must not cause allocations over blocks in use.
#[test]
fn nothing_is_allocated_over_units_with_a_damaged_entry() {
    let blocks = Usage::Blocks(BlockKind { size: 64, fixed: false });
    let fits = TableEntry { usage: blocks, units: 1 }.encode(0);
    let (tail, other) = (TableEntry::TAIL.encode(0), TableEntry::FREE.encode(1));
    for damaged in [0, 1, 5, u64::MAX, tail, fits, other] {
        let region = region(16384, 1 << 20);
        let before = Heap::open(region.clone(), PreviousUse::Unclean);
        let large = before.allocate(60_000).unwrap();
        let entry = region.entry(before.locate(large).unwrap().0);
        region.medium().store(entry, damaged);
        let after = Heap::open(region, PreviousUse::Unclean);
        after.mark(large);
        after.finish_sweep();
        let taken: Vec<_> = std::iter::from_fn(|| after.allocate(64).ok()).collect();
        assert!(taken.len() > 1000);
        let whole = large..large + 60_000;
        let over = taken.iter().filter(|block| whole.contains(block)).count();
        // An entry that is valid by accident is trusted.
        assert!(over == 0 || damaged == fits);
    }
}

/// A page of the table is overwritten by zeros: the units that it described can still be read,
/// and nothing is allocated over them.
#[test]
fn nothing_is_allocated_over_units_of_a_zeroed_page_of_the_table() {
    for units in [700, 1100] {
        for page in 0..=units / PAGE_ENTRIES {
            let region = region(4096, 16 << 20);
            let before = Heap::open(region.clone(), PreviousUse::Unclean);
            let blocks: Vec<_> = (0..units).map(|_| before.allocate_exact(4096).unwrap()).collect();
            let (m, described) = (region.medium(), region.described());
            let entries = page * PAGE_ENTRIES..described.min((page + 1) * PAGE_ENTRIES);
            entries.for_each(|index| m.store(region.entry(index), 0));
            let after = Heap::open(region, PreviousUse::Unclean);
            let take = |heap: &Heap<Dram>| -> BTreeSet<u64> {
                std::iter::from_fn(|| heap.allocate_exact(4096).ok()).take(600).collect()
            };
            let early = take(&after);
            blocks.iter().for_each(|&block| after.mark(block));
            after.finish_sweep();
            let late = take(&after);
            let over = |block: &&u64| early.contains(block) || late.contains(block);
            assert_eq!(blocks.iter().filter(over).count(), 0, "page {page} of {units} units");
            assert!(early.len() == 600 && late.len() == 600);
        }
    }
}

/// A region is created in a medium that is longer than its header: nothing in it is in use.
#[test]
fn a_new_region_in_a_long_medium_can_be_used_immediately() {
    let medium = Dram::reserve(256 << 10, Pages::Base).unwrap();
    medium.grow(256 << 10).unwrap();
    let config = RegionConfig { extent_size: 4096, capacity: 256 << 10, seed: Some(1) };
    let pool = Pool::create(medium, &config, Identity::default()).unwrap();
    assert!(pool.allocate(100).is_ok());
}

/// Every order in which the table's entries of a large object become durable.
#[test]
fn an_interrupted_large_allocation_leaves_nothing() {
    for durable in 0..8u32 {
        let region = region(4096, 1 << 20);
        Heap::open(region.clone(), PreviousUse::Unclean).allocate(12_000).unwrap();
        for index in (0..3).filter(|index| durable >> index & 1 == 0) {
            region.medium().store(region.entry(index), 0);
        }
        let heap = Heap::open(region, PreviousUse::Unclean);
        heap.finish_sweep();
        let stats = heap.stats();
        assert_eq!((stats.faults, stats.extent_bytes, stats.allocated_bytes), (0, 0, 0));
    }
}

/// Threads that allocate the same size fill one extent, not one each.
#[test]
fn threads_share_extents() {
    let pool = pool(16384, 1 << 20);
    for _ in 0..8 {
        std::thread::scope(|threads| {
            threads.spawn(|| pool.allocate(64).unwrap());
            threads.spawn(|| pool.allocate(64).unwrap());
        });
    }
    let blocks = pool.heap_stats().allocated_blocks;
    assert_eq!(blocks, 16);
    assert!(pool.heap_stats().extent_bytes <= 2 * 4096, "{:?}", pool.heap_stats());
}

#[test]
fn emptied_extents_serve_other_sizes_and_large_objects() {
    let pool = pool(16384, 1 << 20);
    let small: Vec<_> = std::iter::from_fn(|| pool.allocate(64).ok()).collect();
    assert!(pool.allocate(40_000).is_err());
    small.into_iter().for_each(|block| pool.free_unpublished(block));
    pool.allocate(40_000).unwrap();
    pool.allocate(700).unwrap();
}

/// The blocks of a structure do not keep the extents of freed records in use, neither now nor
/// after a crash.
#[test]
fn fixed_blocks_have_their_own_extents() {
    let region = region(16384, 1 << 20);
    let heap = Heap::open(region.clone(), PreviousUse::Unclean);
    let mut parts = Vec::new();
    let mut records = Vec::new();
    for _ in 0..512 {
        parts.push(heap.allocate_fixed(64).unwrap());
        parts.push(heap.allocate_exact(64).unwrap());
        records.extend((0..4).map(|_| heap.allocate(64).unwrap()));
    }
    let extents = |blocks: &[u64]| -> BTreeSet<u64> {
        blocks.iter().map(|&block| heap.locate(block).unwrap().0).collect()
    };
    assert!(extents(&parts).is_disjoint(&extents(&records)));
    let heap = Heap::open(region, PreviousUse::Unclean);
    parts.iter().chain(&records).for_each(|&block| heap.mark(block));
    heap.finish_sweep();
    let before = heap.stats();
    records.iter().for_each(|&block| heap.free(block));
    let stats = heap.stats();
    assert_eq!(stats.faults, 0);
    assert_eq!(stats.allocated_blocks, parts.len() as u64);
    assert!(before.extent_bytes - stats.extent_bytes >= records.len() as u64 * 64);
    assert!(stats.extent_bytes <= parts.len() as u64 * 64 * 5 / 4);
    assert!(heap.evacuation(1).is_none(), "fixed blocks cannot be moved");
}

/// Every fourth block of many extents remains, and one of them cannot be moved: the other
/// extents can be emptied into each other, and nothing is allocated from those that are.
#[test]
fn sparse_extents_are_emptied_into_others() {
    let pool = pool(16384, 1 << 20);
    let blocks: Vec<_> = (0..256 * 16).map(|_| pool.allocate(64).unwrap()).collect();
    let (kept, freed): (Vec<_>, Vec<_>) = blocks.into_iter().partition(|block| block % 256 == 0);
    freed.into_iter().for_each(|block| pool.free_unpublished(block));
    let full = pool.heap_stats().extent_bytes;
    assert!(pool.evacuation(full).is_none());
    let evacuation = pool.evacuation(full / 2).unwrap();
    assert_eq!(evacuation.remaining(), evacuation.extents());
    let evacuating = |block: &&u64| evacuation.contains(**block);
    let fixed = *kept.iter().find(evacuating).unwrap();
    for block in kept.iter().filter(evacuating).filter(|block| **block != fixed) {
        let new = pool.allocate(64).unwrap();
        assert!(!evacuation.contains(new));
        pool.free_unpublished(*block);
    }
    assert_eq!(evacuation.remaining(), 1);
    drop(evacuation);
    let stats = pool.heap_stats();
    assert!(stats.extent_bytes < full / 4 + 3 * 16384, "{stats:?} of {full}");
    assert_eq!(stats.allocated_blocks, kept.len() as u64);
    assert!(pool.evacuation(full / 2).is_none(), "there is little left to gain");
}

/// One block of each size, then many of all sizes: the file is at most twice as large as
/// requested, and in the end only a little larger.
#[test]
fn a_mix_of_sizes_takes_little_space() {
    let pool = pool(2 << 20, 1 << 30);
    let (mut requested, mut random) = (0u64, 1u64);
    let mut next = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    for class in 0..Classes::new(2 << 20, 16384).len() {
        let size = Classes::new(2 << 20, 16384).size(class);
        pool.allocate(size).unwrap();
        requested += size;
    }
    let check = |requested: u64| {
        let stats = pool.heap_stats();
        assert!(stats.file_bytes <= 2 * requested + (1 << 20), "{stats:?} for {requested}");
    };
    check(requested);
    for count in 0..20_000 {
        let size = if count % 100 == 0 { 1 + next(3 << 20) } else { 1 + next(5120) };
        pool.allocate(size).unwrap();
        requested += size;
        check(requested);
    }
    let stats = pool.heap_stats();
    assert!(stats.file_bytes <= requested * 5 / 4, "{stats:?} for {requested}");
}

/// Objects of several units waste less than a unit each.
#[test]
fn objects_of_a_mebibyte_take_what_they_need() {
    for size in [1 << 20, (1 << 20) + 100, (2 << 20) + 100, 3_333_333] {
        let pool = pool(2 << 20, 1 << 30);
        let blocks: Result<Vec<_>> = (0..100).map(|_| pool.allocate(size)).collect();
        assert!(blocks.is_ok());
        let bytes = pool.heap_stats().file_bytes;
        assert!(bytes <= size * 115, "{bytes} for 100 objects of {size}");
    }
}

/// Processes that allocate some blocks of many sizes and die, with and without a sweep between
/// them.
#[test]
fn processes_that_die_early_take_little_space() {
    let sizes = [40, 100, 300, 1000, 3000, 9000, 20_000];
    for swept in [false, true] {
        let region = region(2 << 20, 1 << 30);
        // All sizes have many extents from before.
        let heap = Heap::open(region.clone(), PreviousUse::Unclean);
        let large = |size: u64| (0..(1 << 20) / size).map(|_| heap.allocate(size).unwrap()).last();
        let live: Vec<u64> = sizes.into_iter().filter_map(large).collect();
        let before = heap.stats().file_bytes;
        for _ in 0..20 {
            let heap = Heap::open(region.clone(), PreviousUse::Unclean);
            if swept {
                live.iter().for_each(|&block| heap.mark(block));
                heap.finish_sweep();
            }
            assert!(sizes.iter().all(|&size| heap.allocate(size).is_ok()));
        }
        let grown = region.medium().len() - before;
        // Space that was not swept counts once per process, in units that hold one block.
        let most = if swept { 1 << 20 } else { 20 * 8 * 16384 * 9 / 8 };
        assert!(grown <= most, "{grown} bytes for 20 in_state, swept: {swept}");
    }
}

/// The table grows, whatever is allocated first, and each open finds its parts.
#[test]
fn the_table_grows_with_the_file() {
    for first in [100, 3 << 20, 40 << 20] {
        let region = region(4096, 256 << 20);
        let before = Heap::open(region.clone(), PreviousUse::Unclean);
        let mut live = vec![before.allocate(first).unwrap()];
        live.extend((0..20_000).map(|_| before.allocate(4000).unwrap()));
        assert!(region.parts().count() >= 3);
        let parts: Vec<_> = region.parts().collect();
        for &block in &live[1..] {
            assert!(parts.iter().all(|part| block + 4096 <= part.start || part.end <= block));
        }
        let after = Heap::open(region.clone(), PreviousUse::Unclean);
        live.iter().for_each(|&block| after.mark(block));
        after.finish_sweep();
        live.sort_unstable();
        assert_eq!(after.allocated(), live);
        assert_eq!(after.stats().faults, 0);
        live.iter().for_each(|&block| after.free(block));
        assert_eq!(after.stats().extent_bytes, 0);
        // All of it can be used again, except the table.
        let blocks = std::iter::from_fn(|| after.allocate(4096).ok()).count() as u64;
        let parts: u64 = region.parts().map(|part| (part.end - part.start).div_ceil(4096)).sum();
        assert_eq!(blocks, after.extents.len - parts);
    }
}

/// A crash while the table grows, over what an earlier process has left there.
#[test]
fn a_part_of_the_table_exists_completely_or_not_at_all() {
    let sim = Sim::new(4 << 20).unwrap();
    let config = RegionConfig { extent_size: 4096, capacity: 4 << 20, seed: Some(1) };
    let region = Region::create(sim.clone(), &config, Identity::default()).unwrap();
    let region = Arc::new(region);
    let heap = Heap::open(region.clone(), PreviousUse::Unclean);
    let first = heap.allocate(511 * 4096).unwrap();
    sim.grow(region.unit_offset(520)).unwrap();
    let left = sim.slice::<PmU64>(region.unit_offset(511), 3 * 512).unwrap();
    left.iter().for_each(|cell| sim.store(cell, TableEntry::TAIL.encode(0)));
    sim.flush(left);
    sim.fence();
    sim.checkpoint();
    sim.note(Note::Begin(0));
    let second = heap.allocate(8192).unwrap();
    sim.note(Note::End(0));
    assert_eq!(region.parts().count(), 1);
    let (mut with, mut without) = (0, 0);
    sim::for_each_image(&sim.trace(), &ImageConfig::default(), |image| {
        let after = Sim::from_image(image.bytes, 4 << 20).unwrap();
        let (region, _) = Region::open(after, Identity::default(), Default::default()).unwrap();
        let region = Arc::new(region);
        *if region.parts().count() == 1 { &mut with } else { &mut without } += 1;
        let heap = Heap::open(region, PreviousUse::Unclean);
        let mut live = vec![first];
        live.extend(image.point.completed(0).then_some(second));
        live.iter().for_each(|&block| heap.mark(block));
        heap.finish_sweep();
        assert_eq!((heap.stats().faults, heap.allocated()), (0, live));
        let third = heap.allocate(12288).unwrap();
        assert!(heap.region.parts().all(|part| third >= part.end || third + 12288 <= part.start));
        ControlFlow::Continue(())
    });
    assert!(with > 0 && without > 0, "{with} and {without}");
}

/// A file was cut off, and is salvaged. An index may still refer to what was there, so nothing is
/// given out there before a sweep, in this opening and in the next.
#[test]
fn what_was_cut_off_is_not_given_out_while_something_refers_to_it() {
    const CAPACITY: u64 = 4 << 20;
    let config = RegionConfig { extent_size: 4096, capacity: CAPACITY, seed: Some(1) };
    // Within the first part of the table, and with a second one that is lost.
    for (count, kept) in [(300, 150), (900, 300)] {
        let sim = Sim::in_memory(CAPACITY).unwrap();
        let pool = Pool::create(sim.clone(), &config, Identity::default()).unwrap();
        let blocks: Vec<u64> = (0..count).map(|_| pool.allocate(2000).unwrap()).collect();
        drop(pool);
        let end = *blocks.iter().max().unwrap() + 2000;
        let cut = blocks[kept].next_multiple_of(4096);
        let mut bytes = sim.contents();
        bytes.truncate(cut as usize);
        for opening in 0..2 {
            let sim = Sim::from_image(&bytes, CAPACITY).unwrap();
            let salvage = OnSuspect::Salvage;
            let (pool, opened) = Pool::open(sim.clone(), Identity::default(), salvage).unwrap();
            assert!(!opened.clean && (opened.suspect || opening > 0));
            let is_lost = |&at: &u64| (cut..end).contains(&at);
            let given = || std::iter::from_fn(|| pool.allocate(1000).ok());
            assert!(given().find(is_lost).is_none(), "before the sweep of opening {opening}");
            if opening == 1 {
                // Some are still referred to.
                let kept: Vec<u64> = blocks.iter().step_by(3).copied().collect();
                pool.sweep(|mark| {
                    kept.iter().for_each(|&block| mark(block));
                    Ok(())
                })
                .unwrap();
                let mut given = given();
                let is_kept = |at: &u64| kept.iter().any(|it| (*it..it + 2000).contains(at));
                assert_eq!(given.find(is_kept), None);
            }
            bytes = sim.contents();
        }
    }
}

/// One of the words that refer to a part of the table is damaged, or both are.
#[test]
fn a_part_of_the_table_is_found_by_either_word() {
    for (damaged, found) in [(0..1, true), (1..2, true), (0..2, false)] {
        let sim = Sim::new(4 << 20).unwrap();
        let config = RegionConfig { extent_size: 4096, capacity: 4 << 20, seed: Some(1) };
        let region = Region::create(sim.clone(), &config, Identity::default()).unwrap();
        let heap = Heap::open(Arc::new(region), PreviousUse::Unclean);
        heap.allocate(600 * 4096).unwrap();
        let words = heap.region.part_words(1);
        damaged.for_each(|copy| sim.store(words[copy], sim.load(words[copy]) ^ 1 << 20));
        let opened = Region::open(sim.clone(), Identity::default(), Default::default());
        match opened {
            Ok((region, _)) => assert!(found && region.parts().count() == 1),
            Err(error) => assert!(!found && error.to_string().contains("extent table")),
        }
    }
}

/// Whatever the table says, and whatever is freed or marked, nothing panics, nothing is
/// allocated twice, and no part of the table is allocated.
#[test]
fn a_damaged_table_causes_no_further_damage() {
    let mut random = 99u64;
    let mut next = |below: u64| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) % below
    };
    for round in 0..300 {
        let extent_size = [4096, 16384][round % 2];
        let pool = pool(extent_size, 8 << 20);
        let mut live: Vec<u64> = (0..800)
            .map(|at| pool.allocate(if at % 40 == 0 { 30_000 } else { 16 + next(9000) }))
            .map(Result::unwrap)
            .collect();
        if round % 3 == 0 {
            pool.close().unwrap();
        }
        let region = pool.share_region();
        let (m, described) = (region.medium(), region.described());
        // Entries are changed, zeroed, exchanged, copied from elsewhere, or overwritten by a
        // page of something else.
        for _ in 0..1 + next(20) {
            let (one, other) = (region.entry(next(described)), region.entry(next(described)));
            let word = match next(6) {
                0 => 0,
                1 => m.load(one) ^ 1 << next(64),
                2 => m.load(other),
                3 => next(1 << 33) << 32 | next(7),
                4 => next(1 << 10) << 32 | next(1 << 10) << 8 | [1, 5][next(2) as usize],
                _ => 2 | next(400) << 32,
            };
            m.store(one, word);
        }
        if round % 10 == 0 {
            let page = region.entry(0);
            let start = m.offset_of(page);
            let cells = m.slice::<PmU64>(start, 512).unwrap();
            let with = [0, TableEntry::TAIL.encode(0), 0x0123_4567_89ab_cdef][next(3) as usize];
            cells.iter().for_each(|cell| m.store(cell, with));
        }
        let previous = [PreviousUse::Closed, PreviousUse::Unclean][usize::from(round % 3 != 0)];
        let heap = Heap::open(region.clone(), previous);
        if heap.needs_sweep() {
            live.extend((0..20).map(|_| next(9 << 20)));
            live.iter().for_each(|&block| heap.mark(block));
            heap.finish_sweep();
        }
        for _ in 0..50 {
            heap.free(live[next(live.len() as u64) as usize]);
            heap.free(next(9 << 20));
        }
        let mut taken = BTreeMap::new();
        for part in region.parts() {
            taken.insert(part.start, part.end);
        }
        let mut allocate = |size: u64| {
            let Ok(block) = heap.allocate(size) else { return false };
            let before = taken.range(..block + size).next_back();
            assert!(before.is_none_or(|(_, &end)| end <= block), "allocated twice");
            assert!(block >= region.unit_offset(0) && block + size <= m.len());
            taken.insert(block, block + size).is_none()
        };
        while allocate([100, 5000, 30_000][next(3) as usize]) {}
        drop(heap.evacuation(1));
        heap.stats();
        heap.allocated();
        match heap.save_snapshot() {
            Ok(()) => drop(Heap::open(region.clone(), PreviousUse::Closed)),
            Err(error) => assert!(error.is_no_space(), "{error}"),
        }
    }
}

/// The heap of a completely zeroed table can save a snapshot too.
#[test]
fn a_zeroed_table_can_be_closed() {
    let pool = pool(16384, 1 << 20);
    pool.close().unwrap();
    let region = pool.share_region();
    (0..region.described()).for_each(|at| region.medium().store(region.entry(at), 0));
    let heap = Heap::open(region, PreviousUse::Closed);
    heap.save_snapshot().unwrap();
}

/// Otherwise opening a large store would take longer. Until the sweep ends, only what is marked has
/// bits.
#[test]
fn opening_after_a_crash_prepares_no_bits() {
    let region = region(1 << 20, 64 << 20);
    let heap = Heap::open(region.clone(), PreviousUse::None);
    let blocks: Vec<u64> = (0..10_000).map(|_| heap.allocate(1024).unwrap()).collect();
    let heap = Heap::open(region, PreviousUse::Unclean);
    let extents_with_bits = || {
        let mut count = 0;
        heap.for_each_extent(|_, extent| count += usize::from(!extent.bits.is_empty()));
        count
    };
    assert_eq!(extents_with_bits(), 0);
    heap.mark(blocks[9_999]);
    assert_eq!(extents_with_bits(), 1);
    heap.free(blocks[0]);
    heap.finish_sweep();
    assert_eq!(heap.allocated(), [blocks[9_999]]);
}

/// Under a limit, what is in use and what takes memory stay below it, and all of it can be used for
/// blocks of any size.
#[test]
fn a_limit_holds_for_any_drift_of_sizes() {
    const LIMIT: u64 = 4 << 20;
    let pool = pool(1 << 20, 64 << 20);
    pool.heap().set_limit(LIMIT);
    let mut random = 99u64;
    let mut next = |below: usize| {
        random = random.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (random >> 33) as usize % below
    };
    let mut live: Vec<(u64, u64)> = Vec::new();
    for round in 0..tier().choose(30, 60) {
        let size = [100, 3_000, 40_000, 300_000, 700, 1_500_000][round % 6];
        let error = loop {
            match pool.allocate(size) {
                Ok(offset) => live.push((offset, size)),
                Err(error) => break error,
            }
            let room = pool.heap().room();
            assert!(room.used <= LIMIT && room.held <= LIMIT, "{room:?}");
            assert_eq!(room.used, pool.heap_stats().used_bytes);
        };
        assert!(error.is_no_space() && error.to_string().contains("memory limit"), "{error}");
        // Most of it, in scattered places; at times all of it.
        live.retain(|&(offset, _)| {
            let goes = round % 10 == 9 || next(100) < 70;
            if goes {
                pool.free_unpublished(offset);
            }
            !goes
        });
        if live.is_empty() {
            let unused = pool.heap().room();
            assert!(unused.used < 64 << 10, "{unused:?}");
            let large = pool.allocate(LIMIT - (128 << 10)).unwrap();
            assert!(pool.heap().room().held <= LIMIT);
            pool.free_unpublished(large);
        }
    }
    assert_eq!(pool.heap_stats().faults, 0);
}

/// Free blocks, and what was claimed, are counted for each size.
#[test]
fn the_demand_for_each_size_is_known() {
    let pool = pool(1 << 20, 16 << 20);
    let of = |size: u64| {
        let demands = pool.heap().demands();
        *demands.iter().find(|it| it.block_size == size).unwrap()
    };
    let blocks: Vec<u64> = (0..1000).map(|_| pool.allocate(128).unwrap()).collect();
    pool.allocate_fixed(128).unwrap();
    pool.allocate(300_000).unwrap();
    let used = of(128);
    assert!(used.claimed >= 128_000 && used.claimed < 160_000, "{used:?}");
    assert!(of(0).claimed >= 300_000);
    // Every other one, so that no extent becomes free.
    blocks.iter().step_by(2).for_each(|&block| pool.free_unpublished(block));
    assert_eq!(of(128).free, used.free + 500 * 128);
    // All of it: the extents are gone, but for what the thread has claimed.
    blocks.iter().skip(1).step_by(2).for_each(|&block| pool.free_unpublished(block));
    pool.heap().return_magazines(|_| true);
    assert_eq!(of(128).free, 0);
    assert_eq!(pool.heap_stats().faults, 0);
}

#[test]
fn the_owner_is_called_when_the_budget_is_spent() {
    let pool = pool(1 << 20, 16 << 20);
    let called = Arc::new(AtomicU64::new(0));
    let count = called.clone();
    pool.heap().on_budget_spent(Box::new(move || {
        count.fetch_add(1, Ordering::Relaxed);
    }));
    let allocate = || {
        (0..1000).for_each(|_| assert!(pool.allocate(128).is_ok()));
    };
    allocate();
    assert_eq!(called.load(Ordering::Relaxed), 0, "there is no budget");
    pool.heap().set_budget(Some(200_000));
    allocate();
    assert!(called.load(Ordering::Relaxed) == 0 && !pool.heap().is_budget_spent());
    (0..3).for_each(|_| allocate());
    assert_eq!(called.load(Ordering::Relaxed), 1, "once");
    assert!(pool.heap().is_budget_spent());
    pool.heap().set_budget(Some(1 << 20));
    pool.allocate(2 << 20).unwrap();
    assert_eq!(called.load(Ordering::Relaxed), 2);
}

/// Blocks of chosen extents are found, and moving them empties the extents.
#[test]
fn sparse_extents_are_emptied() {
    let pool = pool(1 << 20, 64 << 20);
    let mut live: BTreeSet<u64> = (0..40_000).map(|_| pool.allocate(128).unwrap()).collect();
    let large = pool.allocate(300_000).unwrap();
    let mut at = 0;
    live.retain(|&block| {
        at += 1;
        let stays = at % 3 == 0;
        if !stays {
            pool.free_unpublished(block);
        }
        stays
    });
    let found = |from: u64| pool.heap().extent_from(from);
    let (mut seen, mut next, mut bytes) = (BTreeSet::new(), 0, 0);
    while let Some(extent) = found(next) {
        next = extent.next;
        bytes += extent.bytes;
        assert_eq!(extent.offsets().count(), extent.taken as usize);
        seen.extend(extent.offsets());
    }
    assert!(live.iter().chain([&large]).all(|block| seen.contains(block)));
    assert_eq!(bytes, pool.heap_stats().extent_bytes);
    let used = pool.heap().room().used;
    let extents = pool.heap().sparse_extents(128, 1 << 20);
    let mut evacuation = pool.heap().begin_evacuation();
    assert!(extents.iter().all(|&extent| evacuation.add(extent)));
    assert!(!evacuation.add(extents[0]), "it is being emptied already");
    for &extent in &extents {
        for block in found(extent).unwrap().offsets() {
            assert!(evacuation.contains(block) && live.contains(&block));
            let copy = pool.allocate(128).unwrap();
            assert!(!evacuation.contains(copy));
            pool.free_unpublished(block);
        }
    }
    assert_eq!(evacuation.remaining(), 0);
    drop(evacuation);
    assert!(pool.heap().room().used + (1 << 20) <= used);
    assert!(pool.heap().sparse_extents(144, 1 << 20).is_empty());
}

/// Where the region does not become longer, blocks are moved out of the way of larger ones. Fixed
/// blocks are kept together meanwhile.
#[test]
fn scattered_units_are_put_together() {
    const GOAL: u64 = 5 << 20;
    let pool = pool(1 << 20, 64 << 20);
    let heap = pool.heap();
    heap.set_limit(4 << 20);
    heap.set_length_goal(GOAL);
    let mut small = Vec::new();
    let mut fixed = Vec::new();
    while let Ok(block) = pool.allocate(3_000) {
        small.push(block);
        if small.len() % 50 == 0 {
            fixed.push(pool.allocate_exact(16 << 10).unwrap());
        }
    }
    assert!(heap.region.medium().len() <= GOAL);
    let apart = fixed.windows(2).filter(|pair| pair[0].abs_diff(pair[1]) > 16 << 10).count();
    assert!(apart < fixed.len() / 4, "{apart} of {} fixed blocks are apart", fixed.len());
    // All of every other extent.
    let mut live: BTreeSet<u64> = small.into_iter().collect();
    let (mut next, mut goes) = (0, false);
    while let Some(extent) = heap.extent_from(next) {
        (next, goes) = (extent.next, !goes);
        for block in extent.offsets().filter(|_| goes) {
            if live.remove(&block) {
                pool.free_unpublished(block);
            }
        }
    }
    heap.return_claimed();
    let size = 600_000;
    assert!(heap.room().left() > 2 * size && heap.can_have_neighbours(size));
    let mut made = 0;
    let mut large = Vec::new();
    while heap.room().left() > size + size / 2 {
        match pool.allocate(size) {
            Ok(block) => large.push(block),
            Err(error) => {
                assert!(error.to_string().contains(NEIGHBOURS), "{error}");
                let window = heap.window(size).expect("movable blocks are everywhere");
                assert!(heap.window(size).is_none(), "one at a time");
                for &block in &live.clone() {
                    if window.evacuation().contains(block) {
                        let copy = pool.allocate(3_000).unwrap();
                        assert!(!window.evacuation().contains(copy));
                        assert!(live.remove(&block) && live.insert(copy));
                        pool.free_unpublished(block);
                    }
                }
                assert!(window.is_free());
                drop(window);
                made += 1;
                large.push(pool.allocate(size).unwrap());
            }
        }
        let room = heap.room();
        assert!(room.used <= room.limit && room.held <= room.limit, "{room:?}");
        assert_eq!(room.used, heap.stats().used_bytes);
    }
    assert!(made > 0 && heap.region.medium().len() <= GOAL);
    let expected: BTreeSet<u64> = live.iter().chain(&large).chain(&fixed).copied().collect();
    assert_eq!(heap.allocated().into_iter().collect::<BTreeSet<u64>>(), expected);
    // What can never be: fixed blocks are in the way.
    assert!(!heap.can_have_neighbours(63 << 20) && heap.window(63 << 20).is_none());
    assert_eq!(heap.stats().faults, 0);
}

/// At a lower limit, the memory of units that were never used is returned too.
#[test]
fn the_end_of_the_file_is_returned_under_a_lower_limit() {
    let pool = pool(1 << 20, 64 << 20);
    let blocks: Vec<u64> = (0..20_000).map(|_| pool.allocate(1_000).unwrap()).collect();
    let heap = pool.heap();
    assert!(heap.room().held > heap.room().used, "it has grown ahead of need");
    blocks.iter().for_each(|&block| pool.free_unpublished(block));
    heap.return_claimed();
    heap.set_limit(1 << 20);
    while heap.return_excess(1 << 20) {}
    let room = heap.room();
    assert!(room.held <= 1 << 20 && room.used <= room.held, "{room:?}");
    assert_eq!(heap.stats().faults, 0);
}

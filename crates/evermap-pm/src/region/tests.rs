//! Tests of the region.

use std::ops::ControlFlow;

use super::table::TABLE;
use super::*;
use crate::sim::{Event, ImageConfig, Sim, for_each_image};

const IDENTITY: Identity = Identity { boot: [1, 2], device: 3, inode: 4, birth: 5 };

fn syncs(sim: &Sim) -> usize {
    sim.trace().records().iter().filter(|record| record.event == Event::Sync).count()
}

#[test]
fn opening_syncs_once_if_the_region_was_closed_and_never_otherwise() {
    let sim = Sim::new(1 << 16).unwrap();
    let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
    let region = Region::create(sim.clone(), &config, IDENTITY).unwrap();
    assert_eq!(syncs(&sim), 0);
    region.close().unwrap();
    for (clean, expected) in [(true, 1), (false, 0)] {
        sim.checkpoint();
        let (_, opened) = Region::open(sim.clone(), IDENTITY, OnSuspect::Refuse).unwrap();
        assert_eq!((opened.clean, syncs(&sim)), (clean, expected));
    }
}

/// A region that counts as written back must not do so when it is changed by a process that does
/// not write its stores back, whether or not it was closed.
#[test]
fn leaving_persistent_memory_syncs() {
    let durable = Identity { boot: Identity::persistent(0), device: 0, ..IDENTITY };
    for (before, now, expected) in
        [(durable, IDENTITY, 1), (durable, durable, 0), (IDENTITY, IDENTITY, 0)]
    {
        let sim = Sim::new(1 << 20).unwrap();
        drop(Region::create(sim.clone(), &small(), before).unwrap());
        sim.checkpoint();
        Region::open(sim.clone(), now, OnSuspect::Refuse).unwrap();
        assert_eq!(syncs(&sim), expected, "{now:?}");
    }
}

fn small() -> RegionConfig {
    RegionConfig { extent_size: 4096, capacity: 1 << 20, seed: None }
}

/// Opens a region that was created under the identity `before`, closed or not, under the
/// identity `now`.
fn opened(before: Identity, closed: bool, now: Identity) -> Result<Opened> {
    let sim = Sim::new(1 << 20).unwrap();
    let region = Region::create(sim.clone(), &small(), before).unwrap();
    if closed {
        region.close().unwrap();
    }
    Region::open(sim, now, OnSuspect::Refuse).map(|(_, opened)| opened)
}

#[test]
fn only_the_same_file_in_the_same_boot_is_trusted() {
    let unknown = || Identity { boot: Identity::unknown_boot(), ..IDENTITY };
    let memory = Identity { boot: Identity::MEMORY, ..IDENTITY };
    let mut cases = vec![
        (IDENTITY, IDENTITY, ""),
        (memory, memory, ""),
        // In a container with another boot id, or of a version that stored the boot id.
        (IDENTITY, memory, ""),
        (IDENTITY, Identity { boot: [1, 3], ..IDENTITY }, "was restarted"),
        (IDENTITY, Identity { device: 9, ..IDENTITY }, "another device"),
        (IDENTITY, unknown(), "cannot be read"),
        (unknown(), IDENTITY, "cannot be read"),
        (unknown(), unknown(), "cannot be read"),
    ];
    let durable = |count| Identity { boot: Identity::persistent(count), device: 0, ..IDENTITY };
    cases.extend([
        (durable(2), durable(2), ""),
        (durable(2), IDENTITY, ""),
        (durable(2), durable(3), "lost what had been written"),
        (IDENTITY, durable(2), "did not write its stores back"),
        (unknown(), durable(2), "did not write its stores back"),
    ]);
    let restored = Identity { boot: Identity::DURABLE, ..IDENTITY };
    cases.extend([IDENTITY, memory, unknown(), durable(2)].map(|now| (restored, now, "")));
    for before in [IDENTITY, memory, durable(2), restored] {
        cases.push((before, Identity { inode: 9, ..before }, "a copy"));
        cases.push((before, Identity { birth: 9, ..before }, "a copy"));
    }
    for (before, now, wanted) in cases {
        assert!(opened(before, true, now).unwrap().clean);
        match opened(before, false, now) {
            Ok(opened) => {
                assert!(!opened.clean && !opened.suspect && wanted.is_empty(), "{now:?}");
            }
            Err(error) => {
                let text = error.to_string();
                assert!(matches!(error.kind(), ErrorKind::Suspect { .. }), "{text}");
                assert!(!wanted.is_empty() && text.contains(wanted), "{text}");
            }
        }
    }
}

/// The entry of an extent of one unit, for blocks of 64 bytes.
const USED: u64 = 1 | 1 << 8 | 4 << 32;

/// Returns a region whose file has `in_file` units, and whose table says that the first
/// `in_use` are used.
fn with_extents(in_file: u64, in_use: u64) -> Sim {
    let sim = Sim::new(1 << 20).unwrap();
    let region = Region::create(sim.clone(), &small(), IDENTITY).unwrap();
    sim.grow(region.unit_offset(in_file)).unwrap();
    assert_eq!(region.units_in_file(), in_file);
    (0..in_use).for_each(|index| sim.store(region.entry(index), USED));
    region.close().unwrap();
    sim
}

#[test]
fn a_damaged_entry_beyond_the_end_does_not_look_like_truncation() {
    for index in [4, 5, 6, 7, 40, 100, 200, 250] {
        // Zeros except for one bit, and words of all kinds.
        let bits = (0..64).map(|bit| 1 << bit);
        for word in bits.chain([u64::MAX, 0x1234_5678_9abc_def0, 2 | 1 << 60]) {
            let sim = with_extents(4, 3);
            sim.store(sim.at(TABLE + index * 8).unwrap(), word);
            let (region, opened) = Region::open(sim, IDENTITY, OnSuspect::Refuse).unwrap();
            assert!(opened.clean && !opened.suspect);
            assert_eq!(region.table_faults(), 1);
            assert_eq!(region.medium().load(region.entry(index)), 0);
            assert_eq!(region.medium().load(region.entry(2)), USED, "nothing else is");
        }
    }
    // One that looks like an extent, far from all others.
    let sim = with_extents(4, 3);
    sim.store(sim.at(TABLE + 99 * 8).unwrap(), USED);
    let (region, _) = Region::open(sim, IDENTITY, OnSuspect::Refuse).unwrap();
    assert_eq!(region.table_faults(), 1);
}

#[test]
fn a_truncated_file_is_refused_or_salvaged() {
    let sim = with_extents(4, 7);
    let refused = Region::open(sim.clone(), IDENTITY, OnSuspect::Refuse).map(drop).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("32768 bytes") && text.contains("45056 at least"), "{text}");
    assert!(text.contains("cut off") && text.contains("on_suspect = salvage"), "{text}");
    let (region, _) = Region::open(sim, IDENTITY, OnSuspect::Salvage).unwrap();
    // What refers to the lost units finds zeros, however the file grows.
    assert_eq!(region.units_in_file(), 7);
    assert!((0..7).all(|index| region.medium().load(region.entry(index)) == USED));
    assert_eq!((region.table_faults(), region.damage_mark()), (3, DamageMark::Found));
}

/// A refusal must not destroy anything that a later salvaging open needs.
#[test]
fn a_refusal_stores_nothing() {
    let sim = Sim::new(1 << 20).unwrap();
    let region = Region::create(sim.clone(), &small(), IDENTITY).unwrap();
    sim.store(region.entry(99), u64::MAX);
    let before = sim.contents();
    let other = Identity { boot: [8, 8], ..IDENTITY };
    assert!(Region::open(sim.clone(), other, OnSuspect::Refuse).is_err());
    assert!(sim.contents() == before);
}

/// After any crash during a creation, it can be started again, as an opening says, or the region is
/// complete.
#[test]
fn an_interrupted_creation_is_started_again() {
    let sim = Sim::new(1 << 20).unwrap();
    sim.note(Note::Begin(0));
    Region::create(sim.clone(), &small(), IDENTITY).unwrap();
    sim.note(Note::End(0));
    let (mut blank, mut refusals, mut whole) = (0, 0, 0);
    for_each_image(&sim.trace(), &ImageConfig::default(), |image| {
        let after = Sim::from_image(image.bytes, 1 << 20).unwrap();
        if Region::is_blank(&after) {
            assert!(!image.point.completed(0));
            let again = Sim::from_image(image.bytes, 1 << 20).unwrap();
            // It can also be opened once its second copy is complete.
            let opened = Region::open(again, IDENTITY, OnSuspect::Refuse).map(drop);
            if let Err(refused) = opened {
                assert!(matches!(refused.kind(), ErrorKind::NotAStore { .. }), "{refused}");
                refusals += 1;
            }
            Region::create(after, &small(), IDENTITY).unwrap();
            blank += 1;
        } else {
            Region::open(after, IDENTITY, OnSuspect::Refuse).unwrap();
            whole += 1;
        }
        ControlFlow::Continue(())
    });
    assert!(blank > 10 && refusals > 10 && whole > 0, "{blank}, {refusals} and {whole}");
}

#[test]
fn zeros_are_not_a_region_and_do_not_become_one() {
    for bytes in [8192, 12288, 1 << 16] {
        let sim = Sim::new(1 << 20).unwrap();
        sim.grow(bytes).unwrap();
        assert!(!Region::is_blank(&sim));
        let refused = Region::open(sim, IDENTITY, OnSuspect::Salvage).map(drop).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::NotAStore { .. }), "{refused}");
    }
}

/// Asserts that after `work` every crash leaves these words at these offsets.
fn assert_durable_after(sim: &Sim, work: impl FnOnce(), words: &[(u64, u64)]) {
    sim.note(Note::Begin(0));
    work();
    sim.note(Note::End(0));
    let mut images = 0;
    for_each_image(&sim.trace(), &ImageConfig::default(), |image| {
        if image.point.completed(0) {
            images += 1;
            for &(at, word) in words {
                assert_eq!(image.bytes[at as usize..][..8], word.to_le_bytes(), "at {at}");
            }
        }
        ControlFlow::Continue(())
    });
    assert!(images > 0);
}

/// A new region has no extents and empty root slots, whatever the memory contained before, and
/// whatever a crash loses after its creation.
#[test]
fn a_creation_erases_former_contents() {
    let sim = Sim::new(1 << 16).unwrap();
    let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
    sim.grow(TABLE + 16 * 8).unwrap();
    let cells = [TABLE - 8, TABLE, TABLE + 8];
    for at in cells {
        sim.store(sim.at::<PmU64>(at).unwrap(), u64::MAX);
    }
    sim.checkpoint();
    let create = || drop(Region::create(sim.clone(), &config, IDENTITY).unwrap());
    assert_durable_after(&sim, create, &cells.map(|at| (at, 0)));
}

/// Tags of this generation must not outlive it: the next open would take them for its own.
#[test]
fn a_generation_is_durable_before_the_region_is_used() {
    let sim = Sim::new(1 << 16).unwrap();
    let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
    let region = Region::create(sim.clone(), &config, IDENTITY).unwrap();
    let (at, next) =
        (sim.offset_of(&region.header().generation[0]), region.generation().wrapping_add(1));
    sim.checkpoint();
    let open = || drop(Region::open(sim.clone(), IDENTITY, OnSuspect::Refuse).unwrap());
    assert_durable_after(&sim, open, &[(at, next)]);
}

#[test]
fn a_header_of_zeros_is_refused() {
    let sim = Sim::new(1 << 16).unwrap();
    let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
    Region::create(sim.clone(), &config, IDENTITY).unwrap().close().unwrap();
    let words = sim.slice::<PmU64>(HEADER_WORDS, size_of::<Header>() as u64 / 8).unwrap();
    words.iter().for_each(|word| sim.store(word, 0));
    for on_suspect in [OnSuspect::Refuse, OnSuspect::Salvage] {
        let refused = Region::open(sim.clone(), IDENTITY, on_suspect).map(drop).unwrap_err();
        assert!(refused.to_string().contains("the header is lost"), "{refused}");
    }
}

/// What was saved when the region was closed is not true any more, and tags of the lost openings
/// must not be taken for those of the next one.
#[test]
fn a_header_of_an_earlier_time_is_noticed() {
    let sim = Sim::new(1 << 16).unwrap();
    let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
    Region::create(sim.clone(), &config, IDENTITY).unwrap().close().unwrap();
    let words = sim.slice::<PmU64>(HEADER_WORDS, size_of::<Header>() as u64 / 8).unwrap();
    let before: Vec<_> = words.iter().map(|word| sim.load(word)).collect();
    let open = |on_suspect| Region::open(sim.clone(), IDENTITY, on_suspect);
    let (region, opened) = open(OnSuspect::Refuse).unwrap();
    assert!(opened.clean && !opened.suspect);
    let lost = region.generation();
    drop(region);
    words.iter().zip(before).for_each(|(word, before)| sim.store(word, before));
    let refused = open(OnSuspect::Refuse).map(drop).unwrap_err();
    assert!(refused.to_string().contains("is older than the rest"), "{refused}");
    let (region, opened) = open(OnSuspect::Salvage).unwrap();
    assert!(opened.suspect && !opened.clean && opened.recover_all);
    assert!(region.generation() > lost, "the generation is used once");
    region.close().unwrap();
    let (_, opened) = open(OnSuspect::Refuse).unwrap();
    assert!(opened.clean);
}

/// A process dies after it has stored a superblock and a root slot, without making them
/// durable. The next open relies on them.
#[test]
fn an_open_makes_durable_what_it_relies_on() {
    let sim = Sim::new(1 << 16).unwrap();
    let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
    let region = Region::create(sim.clone(), &config, IDENTITY).unwrap();
    let superblock = sim.at::<Superblock>(0).unwrap();
    let words = [&superblock.check, &superblock.magic, &region.header().roots[7]];
    let stored = words.map(|word| (sim.offset_of(word), sim.load(word)));
    words.iter().for_each(|word| sim.store(word, !sim.load(word)));
    sim.checkpoint();
    words.iter().zip(stored).for_each(|(word, (_, stored))| sim.store(word, stored));
    let open = || drop(Region::open(sim.clone(), IDENTITY, OnSuspect::Refuse).unwrap());
    assert_durable_after(&sim, open, &stored);
}

#[test]
fn a_raised_format_survives_the_loss_of_either_copy() {
    for lost in [0, SECOND_COPY] {
        let sim = Sim::new(1 << 16).unwrap();
        let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
        let region = Region::create(sim.clone(), &config, IDENTITY).unwrap();
        assert_eq!(region.format(), FORMAT_AT_FIRST);
        region.raise_format(FORMAT).unwrap();
        region.raise_format(FORMAT_AT_FIRST).unwrap();
        assert_eq!(region.format(), FORMAT, "it only rises");
        region.close().unwrap();
        let copy = sim.at::<Superblock>(lost).unwrap();
        sim.store(&copy.check, 0);
        let (region, _) = Region::open(sim.clone(), IDENTITY, OnSuspect::Refuse).unwrap();
        assert_eq!(region.format(), FORMAT);
        for at in [0, SECOND_COPY] {
            assert!(Region::superblock_verifies(&sim, at), "repaired");
            assert_eq!(sim.load(&sim.at::<Superblock>(at).unwrap().format) as u32, FORMAT);
        }
    }
}

#[test]
fn an_older_format_is_refused() {
    let sim = Sim::new(1 << 16).unwrap();
    let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
    let region = Region::create(sim.clone(), &config, IDENTITY).unwrap();
    for at in [SECOND_COPY, 0] {
        region.write_superblock_as(at, FORMAT_AT_FIRST - 1);
    }
    let refused = Region::open(sim, IDENTITY, OnSuspect::Salvage).map(drop).unwrap_err();
    assert!(refused.to_string().contains("has format 4"), "{refused}");
}

#[test]
fn a_newer_format_is_refused() {
    let sim = Sim::new(1 << 16).unwrap();
    let config = RegionConfig { extent_size: 4096, capacity: 1 << 16, seed: None };
    let region = Region::create(sim.clone(), &config, IDENTITY).unwrap();
    for at in [SECOND_COPY, 0] {
        region.write_superblock_as(at, FORMAT + 1);
    }
    let refused = Region::open(sim, IDENTITY, OnSuspect::Refuse).map(drop).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::NewerFormat { .. }), "{refused}");
}

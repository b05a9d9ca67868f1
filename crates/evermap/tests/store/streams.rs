//! Values that are written and read in pieces.

use std::io::{self, Read, Seek, SeekFrom, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common::{self, Kept, assert_sound, value_of};
use evermap::{Clock, Error, Map, MapOptions, Options};
use evermap_pm::Medium;
use evermap_pm::region::Identity;
use evermap_pm::sim::Sim;

const KEY: &[u8] = b"key";
const CAPACITY: u64 = 16 << 20;

fn options() -> Options {
    common::small(CAPACITY)
}

fn store() -> Map<Sim> {
    let medium = common::exclusive(CAPACITY);
    common::create_medium(medium, Identity::default(), &options()).unwrap()
}

/// Writes a value for [`KEY`] in pieces of `piece` bytes.
fn put_in_pieces<M: Medium>(
    store: &Map<M>,
    key: &[u8],
    value: &[u8],
    piece: usize,
) -> evermap::Result<u64> {
    let mut writer = store.set(key).meta(common::meta(7, 0)).value_writer(value.len())?;
    for piece in value.chunks(piece) {
        writer.write_all(piece).unwrap();
    }
    writer.finish()
}

/// Reading verifies the checksum too.
#[test]
fn pieces_of_every_size_make_the_same_value_at_every_alignment() {
    let store = store();
    let key = b"some key!";
    for key in (0..=key.len()).map(|len| &key[..len]) {
        for len in (0..20).chain([97, 1000]) {
            let value = value_of(b"", len, len as usize);
            for piece in [1, 2, 3, 7, 8, 9, 16, 50, 2000] {
                put_in_pieces(&store, key, &value, piece).unwrap();
                let found = store.get_with(key, |item| (item.value == value, item.flags));
                assert_eq!(found.unwrap(), Some((true, 7)), "{key:?} {len} {piece}");
                store.delete(key).unwrap();
            }
        }
    }
    assert_sound(&store);
}

#[test]
fn a_value_that_comes_in_pieces_replaces_one_at_its_end() {
    let store = store();
    store.put(KEY, b"old").unwrap();
    let value = value_of(KEY, 1, 100_000);
    let mut writer = store.value_writer(KEY, value.len()).unwrap();
    for piece in value.chunks(999) {
        assert_eq!(store.get(KEY).unwrap().as_deref(), Some(&b"old"[..]));
        writer.write_all(piece).unwrap();
    }
    assert_eq!((writer.written(), writer.remaining()), (value.len(), 0));
    assert_sound(&store);
    let cas = writer.finish().unwrap();
    assert_eq!(store.get_with(KEY, |item| item.cas).unwrap(), Some(cas));
    assert!(store.get(KEY).unwrap() == Some(value));
    assert!(put_in_pieces(&store, b"new", b"1", 1).unwrap() > cas);
    assert_sound(&store);
    assert_eq!(store.len(), 2);
}

/// Asserts that a value that is being written takes no space, and changes nothing, after `use_up`.
fn assert_discarded(use_up: impl FnOnce(&Map<Sim>)) {
    let store = store();
    store.put(KEY, b"old").unwrap();
    let before = store.space().unwrap().allocated_bytes;
    use_up(&store);
    assert_eq!(store.get(KEY).unwrap().as_deref(), Some(&b"old"[..]));
    assert_eq!(store.space().unwrap().allocated_bytes, before);
    assert_sound(&store);
}

#[test]
fn a_value_that_is_not_finished_is_discarded() {
    assert_discarded(|store| {
        let mut writer = store.value_writer(KEY, 100_000).unwrap();
        writer.write_all(&[1; 5000]).unwrap();
        // The block is allocated, and a check does not report it.
        assert!(store.space().unwrap().allocated_bytes > 100_000);
        assert_sound(store);
    });
    assert_discarded(|store| {
        let mut writer = store.value_writer(KEY, 10).unwrap();
        writer.write_all(&[1; 9]).unwrap();
        assert!(matches!(
            writer.finish(),
            Err(Error::ValueLength { expected: 10, written: 9, .. })
        ));
    });
}

#[test]
fn a_value_does_not_become_longer_than_announced() {
    let store = store();
    let mut writer = store.value_writer(KEY, 10).unwrap();
    writer.write_all(&[1; 8]).unwrap();
    let error = writer.write(&[1; 3]).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("11 bytes instead of 10"), "{error}");
    writer.write_all(&[1; 2]).unwrap();
    writer.finish().unwrap();
    assert_eq!(store.get(KEY).unwrap().as_deref(), Some(&[1; 10][..]));
    let too_long = store.value_writer(KEY, evermap::VALUE_MAX + 1);
    assert!(matches!(too_long.map(drop), Err(Error::ValueTooLong { .. })));
    let key = vec![0; evermap::KEY_MAX + 1];
    assert!(matches!(store.put_from(&key, 1, io::empty()), Err(Error::KeyTooLong { .. })));
}

/// A source that returns some bytes, an interruption, the rest of the bytes, and then an error.
struct Failing(Vec<io::Result<Vec<u8>>>);

impl Read for Failing {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let next = self.0.remove(0)?;
        out[..next.len()].copy_from_slice(&next);
        Ok(next.len())
    }
}

#[test]
fn a_source_may_be_interrupted_and_be_longer_than_the_value() {
    let store = store();
    let interrupted = || Err(io::ErrorKind::Interrupted.into());
    let source = Failing(vec![Ok(b"abc".into()), interrupted(), Ok(b"def".into())]);
    store.put_from(KEY, 6, source).unwrap();
    assert_eq!(store.get(KEY).unwrap().as_deref(), Some(&b"abcdef"[..]));
    let mut source = &b"0123456789"[..];
    store.put_from(KEY, 6, &mut source).unwrap();
    assert_eq!(store.get(KEY).unwrap().as_deref(), Some(&b"012345"[..]));
    assert_eq!(source, b"6789");
    store.put_from(KEY, 0, io::empty()).unwrap();
    assert_eq!(store.get(KEY).unwrap().as_deref(), Some(&b""[..]));
}

#[test]
fn a_source_that_ends_or_fails_changes_nothing() {
    assert_discarded(|store| {
        let error = store.put_from(KEY, 100, &[1; 99][..]).unwrap_err();
        assert!(matches!(&error, Error::ValueLength { expected: 100, written: 99, .. }), "{error}");
        assert!(error.to_string().starts_with("value of key \"key\" has 99 bytes"), "{error}");
    });
    assert_discarded(|store| {
        let broken = Err(io::ErrorKind::BrokenPipe.into());
        let error = store.put_from(KEY, 100, Failing(vec![Ok(vec![1; 60]), broken])).unwrap_err();
        assert!(
            matches!(&error, Error::Source { read: 60, source }
                if source.kind() == io::ErrorKind::BrokenPipe),
            "{error}"
        );
    });
}

/// The source is code of the caller, and may use the store.
#[test]
fn a_source_may_use_the_store() {
    struct Using<'s>(&'s Map<Sim>);
    impl Read for Using<'_> {
        fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
            self.0.put(KEY, b"meanwhile").unwrap();
            self.0.put_from(b"other", 3, io::repeat(3)).unwrap();
            self.0.db().purge().unwrap();
            assert_sound(self.0);
            out.fill(1);
            Ok(out.len())
        }
    }
    let store = store();
    store.put_from(KEY, 1000, Using(&store)).unwrap();
    assert_eq!(store.get(KEY).unwrap(), Some(vec![1; 1000]));
    assert_eq!(store.get(b"other").unwrap(), Some(vec![3; 3]));
}

#[test]
fn closing_discards_unfinished_values_without_waiting() {
    let memory = Kept::new(CAPACITY);
    let store = memory.open(&options()).unwrap();
    store.put(KEY, b"old").unwrap();
    let before = store.space().unwrap().allocated_bytes;
    let mut writers: Vec<_> = (0..3).map(|_| store.value_writer(KEY, 100_000).unwrap()).collect();
    writers.iter_mut().for_each(|writer| writer.write_all(&[1; 50_000]).unwrap());
    let mut whole = store.value_writer(KEY, 3).unwrap();
    whole.write_all(b"new").unwrap();
    store.db().clone().close().unwrap();
    assert!(matches!(whole.finish(), Err(Error::Closed)));
    let error = writers[0].write(&[1]).unwrap_err();
    assert_eq!(error.to_string(), Error::Closed.to_string());
    let closed = memory.copy();
    drop(writers);
    // The writers of the first have ended after it was closed; those of the second have not.
    for memory in [memory, closed] {
        let store = memory.open(&options()).unwrap();
        assert!(store.stat().clean_open);
        assert_eq!(store.space().unwrap().allocated_bytes, before);
        assert_eq!(store.get(KEY).unwrap().as_deref(), Some(&b"old"[..]));
        assert_sound(&store);
    }
}

#[test]
fn dropping_a_map_discards_its_unfinished_values() {
    let store = store();
    let map = store.db().map("users", MapOptions::new()).unwrap();
    let mut writer = map.value_writer(KEY, 10).unwrap();
    writer.write_all(&[1; 10]).unwrap();
    store.db().drop_map("users").unwrap();
    store.db().reclaim_dropped().unwrap();
    assert!(matches!(writer.finish(), Err(Error::Dropped { .. })));
    assert_sound(&store);
}

#[test]
fn a_kill_in_the_middle_leaves_the_old_value_and_all_space() {
    let memory = Kept::new(CAPACITY);
    let store = memory.open(&options()).unwrap();
    store.put(KEY, b"old").unwrap();
    let before = store.space().unwrap().allocated_bytes;
    let mut writer = store.value_writer(KEY, 100_000).unwrap();
    writer.write_all(&[1; 100_000]).unwrap();
    let dead = memory.copy();
    writer.finish().unwrap();
    let store = dead.open(&options()).unwrap();
    assert_eq!(store.get(KEY).unwrap().as_deref(), Some(&b"old"[..]));
    store.db().recover().unwrap();
    assert_eq!(store.space().unwrap().allocated_bytes, before);
    assert_sound(&store);
}

/// A panic at each flush of `finish`: before the record is published, its block is freed;
/// afterwards, it is the value.
#[test]
fn a_panic_in_the_middle_leaves_the_old_value_or_the_new_one() {
    for flushes in 0.. {
        let memory = Kept::new(CAPACITY);
        let store = memory.open(&options()).unwrap();
        store.put(KEY, b"old").unwrap();
        let mut writer = store.value_writer(KEY, 1000).unwrap();
        writer.write_all(&[1; 1000]).unwrap();
        memory.panic_at_flush(flushes);
        let finished = catch_unwind(AssertUnwindSafe(|| writer.finish().unwrap()));
        if !memory.cancel_panic() {
            finished.unwrap();
            assert!(flushes > 2);
            return;
        }
        drop(store);
        let store = memory.open(&options()).unwrap();
        let value = store.get(KEY).unwrap().unwrap();
        assert!(value == b"old" || value == [1; 1000], "{flushes}");
        store.db().recover().unwrap();
        assert_sound(&store);
    }
}

/// `flush_all` comes between the assignment of the CAS id and publishing, so the record gets
/// another id, and another checksum.
#[test]
fn a_flush_of_the_map_in_the_middle_comes_before_the_value() {
    let memory = Kept::new(CAPACITY);
    let clock = Clock::manual(common::at(1000));
    let store = memory.open(&options().clock(clock)).unwrap();
    store.put(KEY, b"old").unwrap();
    let mut writer = store.value_writer(KEY, 1000).unwrap();
    writer.write_all(&[1; 500]).unwrap();
    store.clear().unwrap();
    assert_eq!(store.get(KEY).unwrap(), None);
    writer.write_all(&[2; 500]).unwrap();
    let other = store.clone();
    memory.at_next_fence(move || other.clear().unwrap());
    writer.finish().unwrap();
    assert_eq!(store.get(KEY).unwrap(), Some([[1; 500], [2; 500]].concat()));
    assert_sound(&store);
}

#[test]
fn a_limit_holds_for_values_that_come_in_pieces() {
    let medium = common::exclusive(CAPACITY);
    let options = options().max_bytes(100_000);
    let store = common::create_medium(medium, Identity::default(), &options).unwrap();
    let too_large = store.value_writer(KEY, 200_000);
    assert!(matches!(too_large.map(drop), Err(Error::Full { .. })));
    let mut writer = store.value_writer(KEY, 60_000).unwrap();
    writer.write_all(&[1; 60_000]).unwrap();
    store.put(b"other", &[1; 60_000]).unwrap();
    assert!(matches!(writer.finish(), Err(Error::Full { .. })));
    assert_eq!(store.get(KEY).unwrap(), None);
    assert_sound(&store);
}

#[test]
fn a_reader_reads_from_anywhere() {
    let store = store();
    let value = value_of(KEY, 1, 1000);
    store.set(KEY).meta(common::meta(7, 0)).put(&value).unwrap();
    let mut reader = store.value_reader(KEY).unwrap().unwrap();
    assert_eq!((reader.len(), reader.flags()), (1000, 7));
    for from in 0..40 {
        for len in [0, 1, 5, 8, 13, 64] {
            let mut out = vec![0; len];
            assert_eq!(reader.seek(SeekFrom::Start(from)).unwrap(), from);
            reader.read_exact(&mut out).unwrap();
            assert_eq!(out, value[from as usize..][..len]);
        }
    }
    assert_eq!(reader.seek(SeekFrom::End(-3)).unwrap(), 997);
    assert_eq!(reader.read(&mut [0; 10]).unwrap(), 3);
    assert_eq!(reader.seek(SeekFrom::Current(-1)).unwrap(), 999);
    assert_eq!(reader.seek(SeekFrom::Current(10)).unwrap(), 1009);
    assert_eq!(reader.read(&mut [0; 10]).unwrap(), 0);
    let error = reader.seek(SeekFrom::End(-1001)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::InvalidInput);
    assert_eq!(reader.stream_position().unwrap(), 1009, "it has not moved");
    assert!(store.value_reader(b"other").unwrap().is_none());
}

#[test]
fn a_reader_reads_the_version_that_it_began_with() {
    let store = store();
    let value = value_of(KEY, 1, 10_000);
    store.put(KEY, &value).unwrap();
    let both = store.reader().unwrap();
    let readers = [store.value_reader(KEY).unwrap(), both.stream(KEY).unwrap()];
    for mut reader in readers.map(Option::unwrap) {
        let mut found = Vec::new();
        for _ in 0..100 {
            store.put(KEY, &[0xee; 10_000]).unwrap();
            reader.by_ref().take(100).read_to_end(&mut found).unwrap();
        }
        assert!(found == value);
        assert!(matches!(store.db().clone().close(), Err(Error::GuardHeld { .. })));
    }
    drop(both);
    assert_sound(&store);
    assert_eq!(store.stat().epoch.bytes_waiting, 0);
}

#[test]
fn a_damaged_value_is_not_read() {
    let memory = Kept::new(CAPACITY);
    let store = memory.open(&options()).unwrap();
    store.put(KEY, &[0x55; 1000]).unwrap();
    let at = (0..memory.len()).step_by(8).find(|&at| memory.word(at) == 0x5555_5555_5555_5555);
    memory.set_word(at.unwrap(), 1);
    let error = store.value_reader(KEY).map(drop).unwrap_err();
    assert!(error.is_damaged(), "{error}");
    assert_eq!(store.stat().damage_met, 1);
}

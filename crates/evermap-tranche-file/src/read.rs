//! Lookups: many at a time, each reading what it needs.

use std::collections::{HashMap, VecDeque};

use evermap_pm::Result;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::header::damaged;
use super::page::{Elsewhere, Hash, Page, Record};
use super::queue::{ALIGNMENT, Buffer, Direction, Done, Target, Transfer};
use super::{GROUP, TrancheFile};

/// Bytes before key and value in the file for long records: their lengths, 4 bytes each, and a
/// checksum.
pub(super) const LONG_HEADER: usize = 16;

/// The search for one key of a batch.
#[derive(Clone, Copy)]
struct Search {
    /// The position of the key in the batch.
    at: usize,
    hash: Hash,
    /// The number of tranches that have been searched.
    step: u64,
}

/// What a search needs next.
enum Next {
    /// A tranche.
    Tranche(Search),
    /// A record in the other file.
    Long(Search, Elsewhere),
}

/// What a search has found in a tranche.
enum Found<'p> {
    Value(&'p [u8]),
    Elsewhere(Elsewhere),
    /// Nothing, but there is more to search.
    More,
    Nothing,
}

/// The state of a batch of lookups.
#[derive(Default)]
struct Batch {
    ready: VecDeque<Next>,
    /// Searches that wait for a tranche, which is being read.
    waiting: HashMap<u64, Vec<Search>>,
    /// Searches that wait for a long record, by the tokens of their transfers, and the bytes of the
    /// record in the buffer.
    long: HashMap<u64, (Search, usize, Elsewhere)>,
    next_token: u64,
}

impl<const T: usize> TrancheFile<T> {
    /// Returns the value of a key. O(1) expected: reads one tranche, or the two accesses of a long
    /// record.
    pub fn get(&mut self, key: &[u8]) -> Result<Option<Vec<u8>>> {
        let mut found = None;
        self.get_many(&[key], |_, value| found = value.map(<[u8]>::to_vec))?;
        Ok(found)
    }

    /// Looks up keys, as many at a time as the queue has transfers, and calls `each` once for every
    /// key with its position in `keys` and its value, in any order. Keys in the same tranche share
    /// a read.
    ///
    /// # Errors
    /// `Damaged`, `Io`; `each` may have been called for some of the keys.
    pub fn get_many(
        &mut self,
        keys: &[&[u8]],
        mut each: impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        self.ensure_whole()?;
        let result = self.look_up(keys, &mut each);
        // Also after an error: the next batch must not meet the transfers of this one.
        self.queue.drain();
        result
    }

    fn look_up(
        &mut self,
        keys: &[&[u8]],
        each: &mut impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        let mut batch = Batch::default();
        let mut all = keys.iter().enumerate();
        loop {
            while !self.queue.is_full() {
                if let Some(next) = batch.ready.pop_front() {
                    self.start(&mut batch, next, keys, each)?;
                } else if let Some((at, key)) = all.next() {
                    let hash = self.hash(key);
                    match self.changes.get(self.order(hash), key) {
                        Some(value) => each(at, value),
                        None => {
                            let search = Search { at, hash, step: 0 };
                            self.start(&mut batch, Next::Tranche(search), keys, each)?;
                        }
                    }
                } else {
                    break;
                }
            }
            let Some(done) = self.queue.pop().map_err(|error| self.io("reading", error))? else {
                return Ok(());
            };
            self.arrive(&mut batch, done, keys, each)?;
        }
    }

    /// Takes a search as far as it gets without waiting.
    fn start(
        &mut self,
        batch: &mut Batch,
        next: Next,
        keys: &[&[u8]],
        each: &mut impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        let search = match next {
            Next::Tranche(search) => search,
            Next::Long(search, elsewhere) => return self.start_long(batch, search, elsewhere),
        };
        let place = self.place(search.hash, search.step);
        if self.written.as_ref().is_some_and(|written| !written[place as usize]) {
            each(search.at, None);
            return Ok(());
        }
        if let Some(page) = self.cache.get(place) {
            self.counters.cache_hits += 1;
            return answer(page, search, keys, &mut batch.ready, each);
        }
        if let Some(waiting) = batch.waiting.get_mut(&place) {
            waiting.push(search);
            return Ok(());
        }
        batch.waiting.insert(place, vec![search]);
        self.read_tranche(place);
        Ok(())
    }

    /// Starts reading a tranche. Its number is the token of the transfer.
    pub(super) fn read_tranche(&mut self, place: u64) {
        self.counters.tranche_reads += 1;
        let (direction, target) = (Direction::Read, Target::Table);
        let (offset, buffer) = (Self::offset_of(place), self.buffer());
        self.queue.push(Transfer { direction, target, offset, token: place, buffer });
    }

    fn start_long(
        &mut self,
        batch: &mut Batch,
        search: Search,
        elsewhere: Elsewhere,
    ) -> Result<()> {
        let (transfer, start) = self.long_transfer(elsewhere, batch.next_token)?;
        batch.long.insert(batch.next_token, (search, start, elsewhere));
        batch.next_token += 1;
        self.counters.long_reads += 1;
        self.queue.push(transfer);
        Ok(())
    }

    /// Returns the transfer that reads a long record, and where that begins in the buffer.
    fn long_transfer(&self, elsewhere: Elsewhere, token: u64) -> Result<(Transfer, usize)> {
        let Elsewhere { offset, bytes, .. } = elsewhere;
        let end = offset.saturating_add(u64::from(bytes));
        if end > self.header.long_end || (bytes as usize) < LONG_HEADER {
            return Err(damaged(offset, "impossible place of a long record"));
        }
        let start = offset % ALIGNMENT as u64;
        let first = offset - start;
        let len = (end - first).next_multiple_of(ALIGNMENT as u64);
        let buffer = Buffer::new(len as usize);
        let (direction, target) = (Direction::Read, Target::Long);
        Ok((Transfer { direction, target, offset: first, token, buffer }, start as usize))
    }

    /// Reads a long record, and calls `read` with its key and value. No transfers may be pending.
    pub(super) fn read_long<R>(
        &mut self,
        elsewhere: Elsewhere,
        read: impl FnOnce(&[u8], &[u8]) -> R,
    ) -> Result<R> {
        let (transfer, start) = self.long_transfer(elsewhere, 0)?;
        self.counters.long_reads += 1;
        let buffer = self.queue.once(transfer).map_err(|error| self.io("reading", error))?;
        let (key, value) = self.long_record(buffer.bytes(), start, elsewhere)?;
        Ok(read(key, value))
    }

    /// Returns key and value of a long record in a buffer, verified.
    fn long_record<'b>(
        &self,
        bytes: &'b [u8],
        start: usize,
        elsewhere: Elsewhere,
    ) -> Result<(&'b [u8], &'b [u8])> {
        let damaged = |what| damaged(elsewhere.offset, what);
        let record = bytes.get(start..start + elsewhere.bytes as usize);
        let record = record.ok_or_else(|| damaged("a long record ends outside its file"))?;
        let (header, body) = record.split_at(LONG_HEADER);
        let length = |at: usize| {
            header[at..at + 4].iter().rev().fold(0usize, |sum, &byte| sum << 8 | usize::from(byte))
        };
        let (key, value) = (length(0), length(4));
        let checksum = long_checksum(&header[..8], body, self.header.seed);
        if header[8..] != checksum.to_le_bytes() || key + value != body.len() {
            return Err(damaged("the checksum of a long record differs"));
        }
        Ok(body.split_at(key))
    }

    /// Takes what was read, and continues the searches that wait for it.
    fn arrive(
        &mut self,
        batch: &mut Batch,
        (transfer, result): Done,
        keys: &[&[u8]],
        each: &mut impl FnMut(usize, Option<&[u8]>),
    ) -> Result<()> {
        result.map_err(|error| self.io("reading", error))?;
        let token = transfer.token;
        if transfer.target == Target::Long {
            let Some((search, start, elsewhere)) = batch.long.remove(&token) else {
                return Err(damaged(transfer.offset, "a long record that was not requested"));
            };
            let (key, value) = self.long_record(transfer.buffer.bytes(), start, elsewhere)?;
            each(search.at, (key == keys[search.at]).then_some(value));
            return Ok(());
        }
        let page = self.take_tranche(token, transfer.buffer)?;
        for search in batch.waiting.remove(&token).unwrap_or_default() {
            answer(&page, search, keys, &mut batch.ready, each)?;
        }
        self.keep(token, page);
        Ok(())
    }

    /// Verifies a tranche that was read.
    pub(super) fn take_tranche(&self, place: u64, buffer: Buffer) -> Result<Page<T>> {
        Page::check(buffer, place, self.header.seed, Self::offset_of(place))
    }

    /// Puts a tranche in the cache.
    pub(super) fn keep(&mut self, place: u64, page: Page<T>) {
        if let Some(gone) = self.cache.put(place, page) {
            self.spare.push(gone.into_buffer());
        }
    }
}

/// Returns the checksum of a long record.
pub(super) fn long_checksum(lengths: &[u8], body: &[u8], seed: u64) -> u64 {
    xxh3_64_with_seed(body, xxh3_64_with_seed(lengths, seed))
}

/// Continues a search in a tranche.
fn answer<const T: usize>(
    page: &Page<T>,
    search: Search,
    keys: &[&[u8]],
    ready: &mut VecDeque<Next>,
    each: &mut impl FnMut(usize, Option<&[u8]>),
) -> Result<()> {
    match find(page, &search, keys[search.at])? {
        Found::Value(value) => each(search.at, Some(value)),
        Found::Elsewhere(elsewhere) => ready.push_back(Next::Long(search, elsewhere)),
        Found::More => ready.push_back(Next::Tranche(Search { step: search.step + 1, ..search })),
        Found::Nothing => each(search.at, None),
    }
    Ok(())
}

fn find<'p, const T: usize>(page: &'p Page<T>, search: &Search, key: &[u8]) -> Result<Found<'p>> {
    let Some(at) = page.find(search.hash, key)? else {
        let more = page.pass() > 0 && search.step + 1 < GROUP;
        return Ok(if more { Found::More } else { Found::Nothing });
    };
    Ok(match page.record(at)? {
        Record::Here { value, .. } => Found::Value(value),
        Record::Elsewhere(elsewhere) => Found::Elsewhere(elsewhere),
    })
}

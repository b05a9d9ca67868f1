//! Writing: portions of changes, the journal, and the first synchronisation.
//!
//! A portion is applied to copies of the tranches in memory. Then they are written to the journal,
//! a header says so, they are written in place, and another header says that this is done. A crash
//! before the first of these headers leaves the table as it was, one after it is repaired when the
//! table is opened. Until the first synchronisation there is nothing to be protected, and tranches
//! are written in place only.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::path::Path;

use evermap_pm::Result;
use xxhash_rust::xxh3::xxh3_64;

use super::changes::Changes;
use super::header::{Header, damaged};
use super::page::{ELSEWHERE_BYTES, Elsewhere, Hash, Page, STRIP_BYTES, payload_of};
use super::queue::{ALIGNMENT, Buffer, Direction, Target, Transfer};
use super::read::{LONG_HEADER, long_checksum};
use super::{GROUP, TrancheFile, home};

/// The most changes in a portion for each of its tranches, so that applying them does not take
/// longer than writing it.
const CHANGES_MAX: u64 = 64;

/// A change, and the hash of its key.
struct Change<'c> {
    hash: Hash,
    key: &'c [u8],
    value: Option<&'c [u8]>,
}

/// Tranches that are in memory, to be written as a whole or not at all, with what else changes.
pub(super) struct Portion<const T: usize> {
    pages: HashMap<u64, Copy<T>>,
    /// The number of them that were changed.
    changed: usize,
    /// The header when they are written.
    pub(super) header: Header,
    /// Long records, to be appended to their file.
    long: Vec<u8>,
}

/// The copy of a tranche.
struct Copy<const T: usize> {
    page: Page<T>,
    changed: bool,
}

impl<const T: usize> Portion<T> {
    /// Puts in a new tranche, or a new content of one.
    pub(super) fn put(&mut self, place: u64, page: Page<T>) {
        self.pages.insert(place, Copy { page, changed: true });
        self.changed += 1;
    }

    /// Puts in a tranche as it is in the file.
    fn put_unchanged(&mut self, place: u64, page: Page<T>) {
        self.pages.insert(place, Copy { page, changed: false });
    }

    /// Returns a tranche, which is in the portion.
    ///
    /// # Panics
    /// If it is not.
    pub(super) fn page(&self, place: u64) -> &Page<T> {
        &self.pages[&place].page
    }

    /// Returns a tranche to be changed, which is in the portion.
    fn changed(&mut self, place: u64) -> &mut Page<T> {
        let copy = self.pages.get_mut(&place).expect("every tranche of a search was loaded");
        self.changed += usize::from(!copy.changed);
        copy.changed = true;
        &mut copy.page
    }

    /// Counts a record that is added or removed.
    fn count(&mut self, payload: usize, added: bool) {
        let (bytes, header) = (payload as u64 + STRIP_BYTES, &mut self.header);
        if added {
            header.records += 1;
            header.bytes += bytes;
        } else {
            header.records = header.records.saturating_sub(1);
            header.bytes = header.bytes.saturating_sub(bytes);
        }
    }
}

impl<const T: usize> TrancheFile<T> {
    /// Writes all changes.
    pub(super) fn flush(&mut self) -> Result<()> {
        while !self.changes.is_empty() {
            self.step()?;
        }
        Ok(())
    }

    /// Writes one portion: a step of growth if that is due, else changes.
    pub(super) fn step(&mut self) -> Result<()> {
        // Until all is well: the header in memory may not be the one in the file.
        self.failed = true;
        if self.pace.is_due(self.groups(), self.waiting_fill()) {
            self.grow()?;
        } else {
            // So that they can be borrowed while tranches are read.
            let mut changes = std::mem::take(&mut self.changes);
            let result = self.write_portion(&mut changes);
            self.changes = changes;
            if let Some(full) = result? {
                self.note_full(full)?;
            }
        }
        self.failed = false;
        Ok(())
    }

    /// Applies as many changes as fit into a portion, and writes it. Returns the hash of the first
    /// change that has no room in its group.
    fn write_portion(&mut self, changes: &mut Changes<T>) -> Result<Option<Hash>> {
        if changes.next().next().is_none() {
            changes.rewind();
        }
        // A change can reach all tranches of its group.
        let most = (self.portion - GROUP) as usize;
        let (next, places) = self.choose(changes, most);
        let mut portion = self.load(&places)?;
        let (mut applied, mut full) = (0, None);
        for change in &next {
            if portion.changed >= most || portion.pages.len() >= 2 * most {
                break;
            }
            if !self.apply(&mut portion, change)? {
                full = Some(change.hash);
                break;
            }
            applied += 1;
        }
        self.commit(portion)?;
        changes.written(applied);
        Ok(full)
    }

    /// Chooses the changes of a portion, with up to `most` tranches in which the searches for their
    /// keys begin, in the order of the file.
    fn choose<'c>(&self, changes: &'c Changes<T>, most: usize) -> (Vec<Change<'c>>, Vec<u64>) {
        let (mut chosen, mut places, mut long) = (Vec::new(), HashSet::new(), 0);
        for (key, value) in changes.next().take((CHANGES_MAX * self.portion) as usize) {
            let hash = self.hash(key);
            let place = self.place(hash, 0);
            if places.len() == most && !places.contains(&place) {
                break;
            }
            places.insert(place);
            chosen.push(Change { hash, key, value });
            let bytes = key.len() + value.map_or(0, <[u8]>::len);
            long += if bytes > Page::<T>::RECORD_MAX { bytes } else { 0 };
            if long >= self.portion as usize * T {
                break;
            }
        }
        let mut places: Vec<u64> = places.into_iter().collect();
        places.sort_unstable();
        (chosen, places)
    }

    /// Returns an empty portion.
    pub(super) fn portion(&self) -> Portion<T> {
        Portion { pages: HashMap::new(), changed: 0, header: self.header, long: Vec::new() }
    }

    /// Reads tranches, many at a time.
    pub(super) fn load(&mut self, places: &[u64]) -> Result<Portion<T>> {
        let mut portion = self.portion();
        let result = self.load_into(&mut portion, places);
        self.queue.drain();
        result.map(|()| portion)
    }

    fn load_into(&mut self, portion: &mut Portion<T>, places: &[u64]) -> Result<()> {
        let mut places = places.iter();
        loop {
            while !self.queue.is_full()
                && let Some(&place) = places.next()
            {
                let is_new = self.written.as_ref().is_some_and(|all| !all[place as usize]);
                if is_new {
                    portion.put_unchanged(place, Page::empty(self.buffer()));
                } else if let Some(page) = self.cache.take(place) {
                    self.counters.cache_hits += 1;
                    portion.put_unchanged(place, page);
                } else {
                    self.read_tranche(place);
                }
            }
            let done = self.queue.pop().map_err(|error| self.io("reading", error))?;
            let Some((transfer, result)) = done else { return Ok(()) };
            result.map_err(|error| self.io("reading", error))?;
            let page = self.take_tranche(transfer.token, transfer.buffer)?;
            portion.put_unchanged(transfer.token, page);
        }
    }

    /// Makes sure that a tranche is in the portion.
    fn ensure(&mut self, portion: &mut Portion<T>, place: u64) -> Result<()> {
        if portion.pages.contains_key(&place) {
            return Ok(());
        }
        self.load_into(portion, &[place])
    }

    /// Applies a change to a portion. Returns `false` if there is no room for the record; then
    /// nothing has changed.
    fn apply(&mut self, portion: &mut Portion<T>, change: &Change<'_>) -> Result<bool> {
        let old = self.find_in(portion, change)?;
        let Some(value) = change.value else {
            if let Some((step, at)) = old {
                self.take_out(portion, change.hash, step, at)?;
            }
            return Ok(true);
        };
        let direct = change.key.len() + value.len() <= Page::<T>::RECORD_MAX;
        let payload = direct.then(|| payload_of(change.key, value));
        let bytes = payload.as_ref().map_or(ELSEWHERE_BYTES, Vec::len);
        let mut without = None;
        if let Some((step, at)) = old {
            let place = self.place(change.hash, step);
            without = Some((place, portion.page(place).payload_bytes(at)?.len()));
        }
        let Some(step) = self.room(portion, change.hash, bytes, without)? else {
            return Ok(false);
        };
        if step + 2 >= GROUP {
            self.pace.note_crowded(self.waiting_fill());
        }
        let payload = match payload {
            Some(payload) => payload,
            None => self.append_long(portion, change, value).payload(),
        };
        if let Some((old_step, at)) = old {
            if old_step == step && without.is_some_and(|(_, old)| old == bytes) {
                let place = self.place(change.hash, step);
                portion.changed(place).overwrite(at, &payload)?;
                return Ok(true);
            }
            self.take_out(portion, change.hash, old_step, at)?;
        }
        for passed in 0..step {
            let place = self.place(change.hash, passed);
            portion.changed(place).passed(true);
        }
        let place = self.place(change.hash, step);
        portion.changed(place).append(change.hash, &payload);
        portion.count(payload.len(), true);
        Ok(true)
    }

    /// Returns the record of the key of a change: after how many steps, and which of the tranche.
    fn find_in(
        &mut self,
        portion: &mut Portion<T>,
        change: &Change<'_>,
    ) -> Result<Option<(u64, usize)>> {
        for step in 0..GROUP {
            let place = self.place(change.hash, step);
            self.ensure(portion, place)?;
            let page = portion.page(place);
            if let Some(at) = page.find(change.hash, change.key)? {
                return Ok(Some((step, at)));
            }
            if page.pass() == 0 {
                break;
            }
        }
        Ok(None)
    }

    /// Returns after how many steps there is room for a record with a payload of this length, once
    /// the one in the tranche `without` is removed.
    fn room(
        &mut self,
        portion: &mut Portion<T>,
        hash: Hash,
        bytes: usize,
        without: Option<(u64, usize)>,
    ) -> Result<Option<u64>> {
        for step in 0..GROUP {
            let place = self.place(hash, step);
            self.ensure(portion, place)?;
            let without = without.filter(|(old, _)| *old == place).map(|(_, bytes)| bytes);
            if portion.page(place).has_room(bytes, without) {
                return Ok(Some(step));
            }
        }
        Ok(None)
    }

    /// Removes a record from a portion.
    fn take_out(
        &mut self,
        portion: &mut Portion<T>,
        hash: Hash,
        step: u64,
        at: usize,
    ) -> Result<()> {
        let place = self.place(hash, step);
        let bytes = portion.page(place).payload_bytes(at)?.len();
        portion.changed(place).remove(at)?;
        for passed in 0..step {
            let place = self.place(hash, passed);
            portion.changed(place).passed(false);
        }
        portion.count(bytes, false);
        Ok(())
    }

    /// Appends a long record to a portion. Returns where it will be.
    fn append_long(
        &self,
        portion: &mut Portion<T>,
        change: &Change<'_>,
        value: &[u8],
    ) -> Elsewhere {
        let start = portion.long.len();
        let mut lengths = (change.key.len() as u32).to_le_bytes().to_vec();
        lengths.extend_from_slice(&(value.len() as u32).to_le_bytes());
        let body = [change.key, value].concat();
        let checksum = long_checksum(&lengths, &body, self.header.seed);
        portion.long.extend_from_slice(&lengths);
        portion.long.extend_from_slice(&checksum.to_le_bytes());
        portion.long.extend_from_slice(&body);
        Elsewhere {
            offset: self.header.long_end + start as u64,
            bytes: (LONG_HEADER + body.len()) as u32,
            hash: change.hash,
        }
    }

    /// Gives up a portion that was only read.
    pub(super) fn give_back(&mut self, portion: Portion<T>) {
        for (place, copy) in portion.pages {
            self.keep(place, copy.page);
        }
    }

    /// Gives up a portion whose tranches will be written anew.
    pub(super) fn recycle(&mut self, portion: Portion<T>) {
        self.spare.extend(portion.pages.into_values().map(|copy| copy.page.into_buffer()));
    }

    /// Writes a portion, durably and as a whole, except before the first synchronisation.
    pub(super) fn commit(&mut self, mut portion: Portion<T>) -> Result<()> {
        let mut images = Vec::with_capacity(portion.changed);
        for (place, Copy { page, changed }) in std::mem::take(&mut portion.pages) {
            if changed {
                images.push((place, page.seal(place, self.header.seed)));
            } else {
                self.keep(place, page);
            }
        }
        images.sort_unstable_by_key(|(place, _)| *place);
        if !portion.long.is_empty() {
            portion.header.long_end = self.write_long(&portion.long)?;
        }
        if let Some(written) = &mut self.written {
            images.iter().for_each(|(place, _)| written[*place as usize] = true);
            self.header = portion.header;
            return self.write_in_place(images);
        }
        if !images.is_empty() {
            self.write_with_journal(images, portion.header)?;
        }
        Ok(())
    }

    /// Appends long records to their file, durably after the first synchronisation. Returns the
    /// new end of the file: the next ones begin with a page, so that no page is written twice.
    fn write_long(&mut self, records: &[u8]) -> Result<u64> {
        let mut buffer = Buffer::new(records.len().next_multiple_of(ALIGNMENT));
        buffer.bytes_mut()[..records.len()].copy_from_slice(records);
        let end = self.header.long_end + buffer.bytes().len() as u64;
        self.write_once(Target::Long, self.header.long_end, buffer)?;
        if self.written.is_none() {
            self.sync_file(Target::Long)?;
        }
        Ok(end)
    }

    fn write_with_journal(&mut self, images: Vec<(u64, Buffer)>, header: Header) -> Result<()> {
        let sequence = self.header.sequence + 1;
        let places: Vec<u64> = images.iter().map(|(place, _)| *place).collect();
        let list = self.list(sequence, &places);
        let mut pages = vec![(Self::LIST * T as u64, list)];
        for (number, (_, buffer)) in images.into_iter().enumerate() {
            pages.push(((Self::LIST + 1 + number as u64) * T as u64, buffer));
        }
        self.counters.journal_writes += pages.len() as u64;
        let mut buffers = self.write_many(pages)?.into_iter();
        self.spare.extend(buffers.next());
        let images = places.iter().copied().zip(buffers).collect();
        self.sync_file(Target::Table)?;
        let journal = Some(places.len() as u64);
        self.write_header(Header { sequence, journal, ..header })?;
        self.sync_file(Target::Table)?;
        self.write_in_place(images)?;
        self.finish(sequence + 1)
    }

    /// Records that what is in the journal is in its places.
    fn finish(&mut self, sequence: u64) -> Result<()> {
        self.sync_file(Target::Table)?;
        self.write_header(Header { sequence, journal: Some(0), ..self.header })?;
        // Before the journal is written again.
        self.sync_file(Target::Table)
    }

    /// Returns the page that lists what is in the journal: a checksum of what follows, the sequence
    /// number of the header that it belongs to, the number of tranches, and their numbers.
    fn list(&mut self, sequence: u64, places: &[u64]) -> Buffer {
        let mut list = self.buffer();
        list.bytes_mut().fill(0);
        let words = [sequence, places.len() as u64].into_iter().chain(places.iter().copied());
        for (bytes, word) in list.bytes_mut()[8..].chunks_exact_mut(8).zip(words) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
        let checksum = xxh3_64(&list.bytes()[8..]);
        list.bytes_mut()[..8].copy_from_slice(&checksum.to_le_bytes());
        list
    }

    fn write_in_place(&mut self, images: Vec<(u64, Buffer)>) -> Result<()> {
        self.counters.tranche_writes += images.len() as u64;
        let places: Vec<u64> = images.iter().map(|(place, _)| *place).collect();
        let pages = images.into_iter();
        let pages = pages.map(|(place, buffer)| (Self::offset_of(place), buffer)).collect();
        let buffers = self.write_many(pages)?;
        for (place, buffer) in places.into_iter().zip(buffers) {
            self.keep(place, Page::written(buffer));
        }
        Ok(())
    }

    /// Writes pages, many at a time, and returns their buffers in the same order.
    fn write_many(&mut self, pages: Vec<(u64, Buffer)>) -> Result<Vec<Buffer>> {
        let mut buffers: Vec<Option<Buffer>> = pages.iter().map(|_| None).collect();
        let result = self.write_all(pages, &mut buffers);
        self.queue.drain();
        result?;
        Ok(buffers.into_iter().flatten().collect())
    }

    fn write_all(
        &mut self,
        pages: Vec<(u64, Buffer)>,
        buffers: &mut [Option<Buffer>],
    ) -> Result<()> {
        let mut pages = pages.into_iter().enumerate();
        loop {
            while !self.queue.is_full()
                && let Some((number, (offset, buffer))) = pages.next()
            {
                let (direction, target, token) = (Direction::Write, Target::Table, number as u64);
                self.queue.push(Transfer { direction, target, offset, token, buffer });
            }
            let done = self.queue.pop().map_err(|error| self.io("writing", error))?;
            let Some((transfer, result)) = done else { return Ok(()) };
            result.map_err(|error| self.io("writing", error))?;
            if let Some(buffer) = buffers.get_mut(transfer.token as usize) {
                *buffer = Some(transfer.buffer);
            }
        }
    }

    /// Synchronises the table for the first time: writes the tranches that nothing was written to,
    /// and from then on every portion is written to the journal.
    pub(super) fn complete(&mut self) -> Result<()> {
        self.failed = true;
        let written = self.written.clone().unwrap_or_default();
        let mut empty = (0..).zip(&written).filter(|(_, written)| !**written);
        loop {
            let mut portion = self.portion();
            for (place, _) in empty.by_ref().take(Self::JOURNAL as usize) {
                portion.put(place, Page::empty(self.buffer()));
            }
            if portion.changed == 0 {
                break;
            }
            self.commit(portion)?;
        }
        self.sync_file(Target::Long)?;
        self.sync_names()?;
        self.written = None;
        self.finish(self.header.sequence + 1)?;
        self.failed = false;
        Ok(())
    }

    /// Makes the names of the files durable.
    fn sync_names(&self) -> Result<()> {
        let parent = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(parent.unwrap_or(Path::new(".")))
            .and_then(|folder| folder.sync_all())
            .map_err(|error| self.io("synchronising the directory of", error))
    }

    /// Completes a portion that a crash has interrupted, when the table is opened.
    pub(super) fn finish_portion(&mut self) -> Result<()> {
        let Some(count) = self.header.journal.filter(|&count| count > 0) else { return Ok(()) };
        let offset = Self::LIST * T as u64;
        let list = self.read_once(offset)?;
        let places = self
            .listed(list.bytes(), count)
            .ok_or_else(|| damaged(offset, "the journal does not have what the header says"))?;
        for (number, place) in (1..).zip(places) {
            let buffer = self.read_once(offset + number * T as u64)?;
            let page = self.take_tranche(place, buffer)?;
            let image = page.seal(place, self.header.seed);
            self.write_in_place(vec![(place, image)])?;
        }
        self.finish(self.header.sequence + 1)
    }

    fn read_once(&mut self, offset: u64) -> Result<Buffer> {
        let (direction, target, buffer) = (Direction::Read, Target::Table, self.buffer());
        let transfer = Transfer { direction, target, offset, token: 0, buffer };
        self.queue.once(transfer).map_err(|error| self.io("reading", error))
    }

    /// Returns the tranches that a list of the journal names, if it is the one of the header.
    fn listed(&self, list: &[u8], count: u64) -> Option<Vec<u64>> {
        let words: Vec<u64> = list
            .chunks_exact(8)
            .map(|bytes| u64::from_le_bytes(bytes.try_into().expect("8 bytes")))
            .collect();
        let valid = words[0] == xxh3_64(&list[8..]) && words[1..3] == [self.header.sequence, count];
        let places = words.get(3..3 + usize::try_from(count).ok()?)?;
        let known = |&place: &u64| place < self.header.groups * GROUP;
        (valid && places.iter().all(known)).then(|| places.to_vec())
    }
}

/// Returns after how many steps a search arrives at the tranche of a group with this number.
pub(super) fn steps_to(hash: Hash, tranche: u64) -> u64 {
    (tranche + GROUP - home(hash)) % GROUP
}

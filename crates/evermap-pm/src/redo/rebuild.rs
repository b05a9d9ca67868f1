//! Rebuilding a region from image and log.

use std::panic::resume_unwind;
use std::sync::mpsc::{SyncSender, sync_channel};

use super::batch::{Batch, Changes};
use super::control::{Control, ControlFile};
use super::image::{Image, Pages, is_zero};
use super::log::none;
use super::record::PAGE;
use super::scan::LogReader;
use super::segment;
use super::storage::Storage;
use crate::{Error, ErrorKind, Result};

/// Pages that are read at once.
const PAGES_AT_ONCE: u64 = 256;
/// Payloads of records that are applied together, bytes. A page that several of them change is
/// written once.
const BATCH: usize = 32 << 20;
/// Bytes between two reports of the progress.
const REPORT: u64 = 16 << 20;

/// Batches that wait to be applied, besides the one that is being applied and the one that is being
/// read.
const BATCHES_AHEAD: usize = 1;

/// What a region is rebuilt in.
pub trait PageTarget: Send {
    /// Changes the length, bytes. What is added is zero, also if the target was longer before.
    fn set_len(&mut self, bytes: u64) -> Result<()>;

    /// Copies what is at `offset`, a multiple of a page of 4 KiB, to `bytes`. It is inside the
    /// length.
    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()>;

    /// Stores `bytes` at `offset`, a multiple of a page of 4 KiB. They are inside the length.
    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()>;
}

impl PageTarget for Vec<u8> {
    fn set_len(&mut self, bytes: u64) -> Result<()> {
        self.resize(bytes as usize, 0);
        Ok(())
    }

    fn read_at(&mut self, offset: u64, bytes: &mut [u8]) -> Result<()> {
        bytes.copy_from_slice(&self[offset as usize..][..bytes.len()]);
        Ok(())
    }

    fn write_at(&mut self, offset: u64, bytes: &[u8]) -> Result<()> {
        self[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

/// The state that was rebuilt.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rebuilt {
    /// The sequence number of the last record in it: 0 if it is that of the creation.
    pub sequence: u64,
    /// Length of the region, bytes.
    pub region_len: u64,
    /// The identity of the log.
    pub uuid: [u64; 2],
    /// When that record was appended, nanoseconds since 1970.
    pub time: u64,
}

/// Rebuilds the region in `target`, as of the end of the log, or as of `until` (nanoseconds since
/// 1970): with the records whose time is not later.
///
/// Whatever `target` holds is replaced. `progress` is called now and then with the bytes that were
/// read and those that are to be read (an upper limit). The files are not changed, and are read in
/// order; every page and record is verified. One thread reads and verifies records while another
/// one applies them. Memory: 96 MiB of records, or four segments of them if a checkpoint was
/// interrupted.
///
/// # Errors
///
/// `NotAStore` if there is no log, `NewerFormat`, `DamagedFile`, `Config` if the image is later
/// than `until`, `Io`, and those of `target`. The target has no meaning then.
pub fn rebuild(
    storage: &dyn Storage,
    target: &mut dyn PageTarget,
    until: Option<u64>,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<Rebuilt> {
    let control = ControlFile::read(storage)?.ok_or_else(|| none(storage))?;
    let total = control.region_len + log_size(storage, &control)?;
    let progress = Progress { report: progress, done: 0, total, reported: 0 };
    let mut rebuilding = Rebuilding { storage, control, target, until, progress };
    rebuilding.run()
}

/// Returns the bytes of the segments that may have records after the image.
fn log_size(storage: &dyn Storage, control: &Control) -> Result<u64> {
    let mut bytes = 0;
    for number in segment::numbers(storage)?.into_iter().filter(|n| *n >= control.start.segment) {
        bytes += segment::Segment::open(storage, number)?.map_or(0, |segment| segment.size);
    }
    Ok(bytes)
}

struct Progress<'a> {
    report: &'a mut dyn FnMut(u64, u64),
    done: u64,
    total: u64,
    reported: u64,
}

impl Progress<'_> {
    fn add(&mut self, bytes: u64) {
        self.done += bytes;
        if self.done - self.reported >= REPORT {
            self.reported = self.done;
            (self.report)(self.done, self.total);
        }
    }

    fn end(&mut self) {
        (self.report)(self.total, self.total);
    }
}

struct Rebuilding<'a> {
    storage: &'a dyn Storage,
    control: Control,
    target: &'a mut dyn PageTarget,
    until: Option<u64>,
    progress: Progress<'a>,
}

impl Rebuilding<'_> {
    fn run(&mut self) -> Result<Rebuilt> {
        let Control { uuid, applied, applying, start, region_len, time, .. } = self.control;
        let mut reader = LogReader::new(self.storage, uuid, start, applied + 1)?;
        let mut state = Rebuilt { sequence: applied, region_len, uuid, time };
        // The image may have some of these changes already, so all of them are needed.
        let pending = Batch::read(&mut reader, applying, usize::MAX)?;
        if !pending.is_empty() {
            let Batch { sequence, region_len, time, .. } = pending;
            state = Rebuilt { sequence, region_len, uuid, time };
        }
        if self.is_after(state.time) {
            let what = format!(
                "the image is of {} ns since 1970, which is later than asked for; take an earlier \
                 copy of the directory",
                state.time
            );
            return Err(ErrorKind::Config(what).into());
        }
        self.copy_image(&pending, state.region_len)?;
        self.progress.add(pending.log_bytes);
        drop(pending);
        self.redo(&mut reader, &mut state)?;
        self.progress.end();
        Ok(state)
    }

    fn is_after(&self, time: u64) -> bool {
        self.until.is_some_and(|until| time > until)
    }

    /// Copies the image, with the changes of a checkpoint that was interrupted.
    fn copy_image(&mut self, pending: &Batch, region_len: u64) -> Result<()> {
        let image = Image::open(self.storage)?;
        image.check_len(self.control.region_len)?;
        self.target.set_len(0)?;
        self.target.set_len(region_len)?;
        let mut changes = pending.pages().peekable();
        let (mut first, all) = (0, region_len / PAGE as u64);
        let mut read = Pages::default();
        while first < all {
            let count = PAGES_AT_ONCE.min(all - first);
            image.read(first, count as usize, &mut read)?;
            for (index, number) in read.numbers().enumerate() {
                let of_page = changes.next_if(|(page, _)| *page == number);
                let of_page: Option<Changes<'_>> = of_page.map(|(_, changes)| changes);
                image.redo(&mut read, index, of_page)?;
            }
            self.copy_pages(&read)?;
            self.progress.add(count * PAGE as u64);
            first += count;
        }
        Ok(())
    }

    /// Copies the pages that are not zero.
    fn copy_pages(&mut self, read: &Pages) -> Result<()> {
        let zero: Vec<_> = read.bytes.chunks_exact(PAGE).map(is_zero).collect();
        let mut at = 0;
        for run in zero.chunk_by(|one, other| one == other) {
            let bytes = run.len() * PAGE;
            if !run[0] {
                let offset = read.first * PAGE as u64 + at as u64;
                self.target.write_at(offset, &read.bytes[at..at + bytes])?;
            }
            at += bytes;
        }
        Ok(())
    }

    /// Applies all further records.
    fn redo(&mut self, reader: &mut LogReader<'_>, state: &mut Rebuilt) -> Result<()> {
        let (control, until) = (self.control, self.until);
        let (target, progress) = (&mut *self.target, &mut self.progress);
        let mut redo = Redo { target, state, pages: Vec::new() };
        let is_whole = std::thread::scope(|scope| {
            let (batches, receiver) = sync_channel(BATCHES_AHEAD);
            let redo = &mut redo;
            let apply = move || receiver.iter().try_for_each(|batch| redo.apply(batch));
            let applying = std::thread::Builder::new()
                .name("evermap-redo".into())
                .spawn_scoped(scope, apply)
                .map_err(|source| {
                    Error::io("starting a thread", "evermap-redo".as_ref(), source)
                })?;
            let read = read_batches(reader, until, progress, &batches);
            drop(batches);
            let applied = applying.join().unwrap_or_else(|panic| resume_unwind(panic));
            applied.and(read)
        })?;
        match is_whole && redo.state.sequence < control.durable {
            true => Err(reader.lost("it was durable before")),
            false => Ok(()),
        }
    }
}

/// Passes records on in batches, up to the end or the last one that is not too late. Returns
/// `false` if there are some that are.
fn read_batches(
    reader: &mut LogReader<'_>,
    until: Option<u64>,
    progress: &mut Progress<'_>,
    batches: &SyncSender<Batch>,
) -> Result<bool> {
    let mut batch = Batch::default();
    let mut pass_on = |batch: &mut Batch| {
        progress.add(batch.log_bytes);
        // Nobody receives it any more if the target has failed, whose error is returned.
        batch.is_empty() || batches.send(std::mem::take(batch)).is_ok()
    };
    let is_whole = loop {
        while let Some(record) = reader.next()? {
            let header = record.header;
            if until.is_some_and(|until| header.time > until) {
                pass_on(&mut batch);
                return Ok(false);
            }
            // What a shorter region does not have is zero afterwards.
            let is_full = batch.payload_bytes() >= BATCH || header.region_len < batch.region_len;
            if is_full && !pass_on(&mut batch) {
                return Ok(false);
            }
            if !batch.push(&record) {
                return Err(reader.impossible(&header));
            }
        }
        if reader.is_end()? {
            break true;
        }
    };
    pass_on(&mut batch);
    Ok(is_whole)
}

/// What records are applied to.
struct Redo<'a> {
    target: &'a mut dyn PageTarget,
    state: &'a mut Rebuilt,
    /// The pages that are being changed.
    pages: Vec<u8>,
}

impl Redo<'_> {
    /// Applies the records of a batch.
    fn apply(&mut self, mut batch: Batch) -> Result<()> {
        if batch.region_len != self.state.region_len {
            self.target.set_len(batch.region_len)?;
        }
        batch.sort();
        let mut run: Vec<(u64, Changes<'_>)> = Vec::new();
        for (page, changes) in batch.pages() {
            let follows = run.last().is_none_or(|(last, _)| last + 1 == page);
            if !follows || run.len() as u64 >= PAGES_AT_ONCE {
                self.apply_run(&run)?;
                run.clear();
            }
            run.push((page, changes));
        }
        self.apply_run(&run)?;
        self.state.sequence = batch.sequence;
        (self.state.region_len, self.state.time) = (batch.region_len, batch.time);
        Ok(())
    }

    /// Applies the changes of consecutive pages.
    fn apply_run(&mut self, run: &[(u64, Changes<'_>)]) -> Result<()> {
        let Some((first, _)) = run.first() else { return Ok(()) };
        let offset = first * PAGE as u64;
        self.pages.resize(run.len() * PAGE, 0);
        self.target.read_at(offset, &mut self.pages)?;
        for ((_, changes), page) in run.iter().zip(self.pages.chunks_exact_mut(PAGE)) {
            changes.apply(page);
        }
        self.target.write_at(offset, &self.pages)
    }
}

/// How often a [`Reader`] begins again.
const ATTEMPTS: u32 = 16;

/// A reader of a log that another process may be writing. It neither blocks the writer nor is
/// blocked by it, and changes nothing.
pub struct Reader {
    storage: Box<dyn Storage>,
}

impl Reader {
    /// Creates a reader of the log in `storage`.
    ///
    /// # Errors
    ///
    /// `NotAStore` if there is no log, `NewerFormat`, `DamagedFile`, `Io`.
    pub fn open(storage: Box<dyn Storage>) -> Result<Self> {
        match ControlFile::read(&*storage)? {
            Some(_) => Ok(Reader { storage }),
            None => Err(none(&*storage)),
        }
    }

    /// Rebuilds the region as of the newest durable record in `target`: see [`rebuild`].
    ///
    /// If a checkpoint of the writer comes in between, it begins again. The last record is made
    /// durable before this returns, in case that the writer is just waiting for that.
    ///
    /// # Errors
    ///
    /// As [`rebuild`]; `Config` if the writer makes checkpoints faster than the image can be read.
    pub fn load(
        &self,
        target: &mut dyn PageTarget,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Rebuilt> {
        let control = ControlFile::open(&*self.storage)?.ok_or_else(|| none(&*self.storage))?;
        for _ in 0..ATTEMPTS {
            let before = control.read_again()?;
            let rebuilt = rebuild(&*self.storage, target, None, progress);
            if control.read_again()? != before {
                continue;
            }
            let rebuilt = rebuilt?;
            self.sync_log(&before)?;
            return Ok(rebuilt);
        }
        Err(too_slow())
    }

    /// Makes durable what was read of the log: only the last record may not be.
    fn sync_log(&self, control: &Control) -> Result<()> {
        for number in segment::numbers(&*self.storage)? {
            if number >= control.start.segment
                && let Some(segment) = segment::Segment::open(&*self.storage, number)?
            {
                segment.file.sync()?;
            }
        }
        Ok(())
    }
}

#[cold]
fn too_slow() -> Error {
    let what = "the writer makes checkpoints faster than the image can be read; let it make them \
                less often";
    ErrorKind::Config(what.into()).into()
}

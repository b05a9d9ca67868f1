//! The log of one region: creating, opening, appending.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use super::control::{self, Control, ControlFile};
use super::end::{End, LogPosition};
use super::image::Image;
use super::mistakes::{Mistake, planted};
use super::record::{HEADER, Header, PAGE, Position, RecordBuilder};
use super::segment::{self, Pool, Segment, name, sync_names};
use super::storage::Storage;
use crate::sync::{Mutex, MutexGuard, Rank};
use crate::{Error, ErrorKind, Result};

/// Bytes that are written by one call.
const PIECE: usize = 1 << 20;

/// The settings of a [`RedoLog`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RedoOptions {
    /// Size of a segment, bytes: a multiple of 4096. A record that is larger makes its segment
    /// longer. Default: 64 MiB.
    pub segment_bytes: u64,
    /// Bytes of the log after which a checkpoint is due. Default: 256 MiB.
    pub checkpoint_bytes: u64,
    /// Whether segments that no checkpoint needs are kept under their numbers, so that a copy of
    /// the directory from an earlier time, with the segments since, has every state since then.
    /// The caller removes those that are not wanted any more. Default: they are used again.
    pub keep_log: bool,
}

impl Default for RedoOptions {
    fn default() -> Self {
        RedoOptions { segment_bytes: 64 << 20, checkpoint_bytes: 256 << 20, keep_log: false }
    }
}

impl RedoOptions {
    fn check(&self) -> Result<()> {
        match self.segment_bytes > 0 && is_whole(self.segment_bytes) {
            true => Ok(()),
            false => {
                let what =
                    format!("segments of {} bytes: use a multiple of 4096", self.segment_bytes);
                Err(ErrorKind::Config(what).into())
            }
        }
    }
}

/// A redo log that is open for appending. See the [module](super).
///
/// Threads share it. The caller makes sure that only one process has it open.
pub struct RedoLog {
    pub(super) storage: Arc<dyn Storage>,
    pub(super) uuid: [u64; 2],
    pub(super) options: RedoOptions,
    tail: Mutex<Tail>,
    pub(super) base: Mutex<Base>,
    /// Held while segments are created, renamed or removed.
    segments: Mutex<()>,
    pool: Mutex<Pool>,
    /// The newest sequence number that is durable.
    pub(super) durable: AtomicU64,
    /// Length of the region after it, bytes.
    region_len: AtomicU64,
    /// Bytes of the log that the image does not have.
    pub(super) since_checkpoint: AtomicU64,
}

/// Where the next record goes.
struct Tail {
    segment: Segment,
    offset: u64,
    /// The last sequence number and its time.
    sequence: u64,
    time: u64,
    buffer: Vec<u8>,
    failure: Option<Failure>,
}

/// What a checkpoint changes.
pub(super) struct Base {
    pub(super) control: ControlFile,
    pub(super) image: Image,
    /// The lowest number of a segment that was not freed.
    pub(super) oldest: u64,
    pub(super) failure: Option<Failure>,
}

/// An error that does not go away: the kernel reports a failed write-back once, and drops the data.
pub(super) struct Failure {
    path: PathBuf,
    text: String,
    errno: Option<i32>,
}

impl Failure {
    /// Remembers the error of a call on the file `path`.
    pub(super) fn of(error: &Error, path: &Path) -> Self {
        let errno = match error.kind() {
            ErrorKind::Io { source, .. } => source.raw_os_error(),
            _ => None,
        };
        Failure { path: path.to_owned(), text: error.to_string(), errno }
    }

    /// Returns the error for calls after the one that has failed.
    #[cold]
    pub(super) fn again(&self, action: &'static str) -> Error {
        let source = match self.errno {
            Some(errno) => std::io::Error::from_raw_os_error(errno),
            None => std::io::Error::other(self.text.clone()),
        };
        Error::io(action, &self.path, source)
    }
}

impl RedoLog {
    /// Returns whether the directory has a redo log: whether a creation was ever completed in it.
    ///
    /// # Errors
    ///
    /// `Io`.
    pub fn exists(storage: &dyn Storage) -> Result<bool> {
        Ok(storage.open(control::NAME)?.is_some())
    }

    /// Creates the log of a region of `region_len` bytes (a multiple of 4096), durably, with a
    /// first image of it. The state of the image has the sequence number 0.
    ///
    /// `copy` copies the bytes of the region from an offset on into a buffer; it is called for
    /// consecutive pieces. They must be of one instant, or the first record must have all lines
    /// that were stored to since the first call.
    ///
    /// What an interrupted creation has left is removed first. Writes the bytes of the region that
    /// are not zero and one segment.
    ///
    /// # Errors
    ///
    /// `Config` if there is a log already, or a size is not a multiple of 4096; `NoSpace`; `Io`.
    pub fn create(
        storage: Arc<dyn Storage>,
        uuid: [u64; 2],
        region_len: u64,
        options: RedoOptions,
        copy: impl FnMut(u64, &mut [u8]),
    ) -> Result<Self> {
        options.check()?;
        check_region_len(region_len, 0)?;
        if Self::exists(&*storage)? {
            let path = storage.path_of(control::NAME);
            let what = format!("{}: there is a redo log already", path.display());
            return Err(ErrorKind::Config(what).into());
        }
        for number in segment::numbers(&*storage)? {
            storage.remove(&name(number))?;
        }
        let image = Image::create(&*storage, region_len, copy)?;
        let first = Segment::create(&*storage, 1, options.segment_bytes)?;
        let start = Position { segment: 1, offset: 0 };
        let time = now();
        let control = Control { counter: 1, uuid, region_len, start, time, ..Control::default() };
        let control = ControlFile::create(&*storage, control)?;
        let base = Base { control, image, oldest: 1, failure: None };
        Ok(Self::of(storage, options, base, first, 0))
    }

    /// Opens the log, reads it to its end, and verifies it. The rest of a record that a crash has
    /// torn is ignored from then on.
    ///
    /// Takes the time of reading the log since the last checkpoint. The image is not read.
    ///
    /// # Errors
    ///
    /// `NotAStore` if there is no log, `NewerFormat`, `DamagedFile` if a record or a file is
    /// damaged or lost, `NoSpace`, `Io`.
    pub fn open(storage: Arc<dyn Storage>, options: RedoOptions) -> Result<Self> {
        Self::open_after(storage, options, None)
    }

    /// Opens the log like [`open`](RedoLog::open), but reads it only from the end of a record on
    /// that is known to be durable, if one is: as [`position`](RedoLog::position) told an earlier
    /// process in the same boot of the machine. Damage before is found by the next checkpoint.
    ///
    /// # Errors
    ///
    /// The same as `open`.
    pub fn open_after(
        storage: Arc<dyn Storage>,
        options: RedoOptions,
        known: Option<LogPosition>,
    ) -> Result<Self> {
        options.check()?;
        let control = ControlFile::open(&*storage)?.ok_or_else(|| none(&*storage))?;
        let known = known.filter(|known| known.sequence > control.now.applied);
        let end = End::find(&*storage, &control.now, known, options.segment_bytes)?;
        let image = Image::open(&*storage)?;
        image.check_len(control.now.region_len)?;
        // What can be read now may not be durable: a killed process may have written it without
        // waiting.
        control.confirm()?;
        end.confirm(&*storage)?;
        for name in [control::NEW, segment::NEW] {
            storage.remove(name)?;
        }
        let segment = Segment::open(&*storage, end.position.segment)?
            .ok_or_else(|| segment::missing(&*storage, end.position.segment))?;
        let oldest = segment::numbers(&*storage)?.first().copied().unwrap_or(segment.number);
        let oldest = if options.keep_log { control.now.start.segment } else { oldest };
        let start = control.now.start.segment;
        let base = Base { control, image, oldest, failure: None };
        let log = Self::of(storage, options, base, segment, end.position.offset);
        log.continue_at(&end)?;
        let mut base = lock(&log.base);
        log.free_segments(&mut base, start)?;
        drop(base);
        Ok(log)
    }

    fn of(
        storage: Arc<dyn Storage>,
        options: RedoOptions,
        base: Base,
        segment: Segment,
        offset: u64,
    ) -> Self {
        let Control { uuid, applied, region_len, time, .. } = base.control.now;
        let pool = Pool::new(segment.number + 1);
        let (buffer, failure) = (Vec::new(), None);
        let tail = Tail { segment, offset, sequence: applied, time, buffer, failure };
        RedoLog {
            storage,
            uuid,
            options,
            tail: Mutex::ranked(Rank::Log, tail),
            base: Mutex::ranked(Rank::Checkpoint, base),
            segments: Mutex::ranked(Rank::Segments, ()),
            pool: Mutex::ranked(Rank::Leaf, pool),
            durable: AtomicU64::new(applied),
            region_len: AtomicU64::new(region_len),
            since_checkpoint: AtomicU64::new(0),
        }
    }

    /// Continues after the last record, and takes the segments that are ready.
    fn continue_at(&self, end: &End) -> Result<()> {
        let mut tail = lock(&self.tail);
        (tail.sequence, tail.time) = (end.sequence, end.time);
        self.durable.store(end.sequence, Ordering::Release);
        self.region_len.store(end.region_len, Ordering::Release);
        self.since_checkpoint.store(end.bytes, Ordering::Relaxed);
        let _segments = lock(&self.segments);
        for number in segment::numbers(&*self.storage)? {
            let next = lock(&self.pool).next();
            if number < next {
                continue;
            }
            // Some renamings may have survived a crash without others before them.
            match Segment::open(&*self.storage, number)?.filter(|_| number == next) {
                Some(segment) => lock(&self.pool).push(segment),
                None => self.storage.remove(&name(number))?,
            }
        }
        sync_names(&*self.storage)
    }

    /// Returns the sequence number of the newest durable record: 0 before the first.
    pub fn last_sequence(&self) -> u64 {
        self.durable.load(Ordering::Acquire)
    }

    /// Returns where the log ends, for [`open_after`](RedoLog::open_after).
    pub fn position(&self) -> LogPosition {
        let tail = lock(&self.tail);
        LogPosition {
            sequence: tail.sequence,
            segment: tail.segment.number,
            offset: tail.offset,
            time: tail.time,
            region_len: self.region_len(),
        }
    }

    /// Returns the length of the region after the newest durable record, bytes.
    pub fn region_len(&self) -> u64 {
        self.region_len.load(Ordering::Acquire)
    }

    /// Returns the identity of the log.
    pub fn uuid(&self) -> [u64; 2] {
        self.uuid
    }

    /// Appends a record, and waits until it is durable. `region_len` is the length of the region
    /// after it; it never shrinks. Returns its sequence number.
    ///
    /// One caller at a time: others wait. Takes one write and one sync (`fdatasync`), and the
    /// creation of a segment if one is full and none is [reserved](RedoLog::reserve).
    ///
    /// # Errors
    ///
    /// * `Config` if a page lies beyond the region, or the region shrinks. Nothing was written.
    /// * `NoSpace` if there is no space for another segment. Nothing was written, and it may
    ///   succeed later.
    /// * `Io`, or `NoSpace` of a file system that cannot reserve space, if writing or syncing
    ///   fails. Whether the record is in the log is known only after the log is opened again; until
    ///   then every call fails.
    pub fn append(&self, record: &RecordBuilder, region_len: u64) -> Result<u64> {
        let mut tail = lock(&self.tail);
        if let Some(failure) = &tail.failure {
            return Err(failure.again("appending (it failed before; open the log again)"));
        }
        check_region_len(region_len, self.region_len())?;
        if record.end() > region_len / PAGE as u64 {
            let what = format!("page {} is beyond the region", record.end() - 1);
            return Err(ErrorKind::Config(what).into());
        }
        if let Err(error) = self.make_room(&mut tail, record.log_bytes()) {
            if matches!(error.kind(), ErrorKind::Io { .. }) {
                tail.fail(&error);
            }
            return Err(error);
        }
        tail.write(self.uuid, record, region_len).inspect_err(|error| tail.fail(error))?;
        self.region_len.store(region_len, Ordering::Release);
        self.durable.store(tail.sequence, Ordering::Release);
        self.since_checkpoint.fetch_add(record.log_bytes(), Ordering::Relaxed);
        Ok(tail.sequence)
    }

    /// Makes sure that at least one whole segment is ready after the one that is being written, so
    /// that the next appends need no space.
    ///
    /// Takes no time if there is one, otherwise that of writing a segment. Appends go on meanwhile.
    ///
    /// # Errors
    ///
    /// `NoSpace` if there is no space for a segment; `Io`.
    pub fn reserve(&self) -> Result<()> {
        let _segments = lock(&self.segments);
        let ready = lock(&self.pool).len();
        if ready == 0 { self.add_segment() } else { Ok(()) }
    }

    /// Returns whether the log has grown so much since the last checkpoint that another is due.
    pub fn checkpoint_due(&self) -> bool {
        self.since_checkpoint.load(Ordering::Relaxed) >= self.options.checkpoint_bytes
    }

    /// Makes sure that the next `bytes` bytes fit into the segment of the tail.
    fn make_room(&self, tail: &mut Tail, bytes: u64) -> Result<()> {
        if tail.segment.size.saturating_sub(tail.offset) >= bytes {
            return Ok(());
        }
        let mut segment = self.take_segment()?;
        if let Err(error) = segment.extend(bytes) {
            lock(&self.pool).put_back(segment);
            return Err(error);
        }
        (tail.segment, tail.offset) = (segment, 0);
        Ok(())
    }

    fn take_segment(&self) -> Result<Segment> {
        let ready = lock(&self.pool).pop();
        if let Some(segment) = ready {
            return Ok(segment);
        }
        let _segments = lock(&self.segments);
        loop {
            let ready = lock(&self.pool).pop();
            if let Some(segment) = ready {
                return Ok(segment);
            }
            self.add_segment()?;
        }
    }

    /// Creates the next segment. The caller holds the lock of the segments.
    fn add_segment(&self) -> Result<()> {
        let number = lock(&self.pool).next();
        let segment = Segment::create(&*self.storage, number, self.options.segment_bytes)?;
        lock(&self.pool).push(segment);
        Ok(())
    }

    /// Frees the segments with numbers below `start`: makes some of them ready for new records, and
    /// removes the others.
    pub(super) fn free_segments(&self, base: &mut Base, start: u64) -> Result<()> {
        if self.options.keep_log {
            base.oldest = start;
            return Ok(());
        }
        let _segments = lock(&self.segments);
        let (first, mut renamed) = (lock(&self.pool).next(), 0);
        while base.oldest < start {
            let is_wanted = lock(&self.pool).len() as u64 + renamed < self.ready_segments();
            let old = Segment::open(&*self.storage, base.oldest)?;
            match old.filter(|old| is_wanted && old.size == self.options.segment_bytes) {
                Some(old) => {
                    self.storage.rename(&name(old.number), &name(first + renamed))?;
                    renamed += 1;
                }
                None => self.storage.remove(&name(base.oldest))?,
            }
            base.oldest += 1;
        }
        // Before records are written to them: those would be lost with the names.
        sync_names(&*self.storage)?;
        for number in first..first + renamed {
            let segment = Segment::open(&*self.storage, number)?
                .ok_or_else(|| segment::missing(&*self.storage, number))?;
            lock(&self.pool).push(segment);
        }
        Ok(())
    }

    /// Returns how many segments are kept ready: those of the time between two checkpoints.
    fn ready_segments(&self) -> u64 {
        self.options.checkpoint_bytes / self.options.segment_bytes + 1
    }
}

impl Tail {
    /// Makes later appends fail too.
    fn fail(&mut self, error: &Error) {
        self.failure = Some(Failure::of(error, self.segment.file.path()));
    }

    /// Writes and syncs the next record.
    fn write(&mut self, uuid: [u64; 2], record: &RecordBuilder, region_len: u64) -> Result<()> {
        let header = Header {
            sequence: self.sequence + 1,
            position: Position { segment: self.segment.number, offset: self.offset },
            region_len,
            payload: record.payload().len() as u64,
            pages: record.pages(),
            // Later than the last, so that every time means one state.
            time: now().max(self.time + 1),
        };
        let encoded = header.encode(uuid, record.payload());
        let (first, rest) = record.payload().split_at(record.payload().len().min(PIECE - HEADER));
        self.write_piece(0, &encoded, first)?;
        for (index, piece) in rest.chunks(PIECE).enumerate() {
            self.write_piece(((index + 1) * PIECE) as u64, &[], piece)?;
        }
        match planted(Mistake::SyncRetried) {
            true => self.segment.file.sync().or_else(|_| self.segment.file.sync())?,
            false => self.segment.file.sync()?,
        }
        self.offset += record.log_bytes();
        (self.sequence, self.time) = (header.sequence, header.time);
        Ok(())
    }

    /// Writes whole blocks of 4096 bytes: a part of one would make the kernel read it first.
    fn write_piece(&mut self, at: u64, head: &[u8], bytes: &[u8]) -> Result<()> {
        self.buffer.clear();
        self.buffer.extend_from_slice(head);
        self.buffer.extend_from_slice(bytes);
        self.buffer.resize(self.buffer.len().next_multiple_of(PAGE), 0);
        self.segment.file.write_at(self.offset + at, &self.buffer)
    }
}

/// Returns the error for a directory without a log.
#[cold]
pub(super) fn none(storage: &dyn Storage) -> Error {
    let path = storage.path_of(control::NAME);
    ErrorKind::NotAStore { path, why: "there is no redo log in this directory".into() }.into()
}

/// Locks. No thread panics while it holds one of these locks, but for those of tests.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn is_whole(bytes: u64) -> bool {
    bytes.is_multiple_of(PAGE as u64)
}

fn check_region_len(region_len: u64, least: u64) -> Result<()> {
    match is_whole(region_len) && region_len >= least {
        true => Ok(()),
        false => {
            let what = format!(
                "a region of {region_len} bytes: it must be a multiple of 4096, at least {least}"
            );
            Err(ErrorKind::Config(what).into())
        }
    }
}

/// Returns the nanoseconds since 1970.
fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as u64)
}

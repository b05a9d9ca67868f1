//! Copies of a region that is in use, and what makes one of them a region of its own.
//!
//! ```text
//! 0    "EVCOPY\0\1"
//! 8    the region's uuid, two words
//! 24   the opening of the region in which the copy was made
//! 32   the instant of the copy
//! 40   the instant of the copy that this one adds to, or 0 if it is whole
//! 48   length of the region, bytes
//! 56   when it was made, nanoseconds since 1970
//! 64   CRC32C of all before
//! then runs of pages: number of the first page, number of pages, the pages, CRC32C of all of it;
//! and after the last one a run without pages, whose first word is the number of runs before.
//! ```
//!
//! Numbers are 64 bits, little-endian. Pages that are not in a whole copy are zero; those that are
//! not in one that adds to another are as they were there.

use std::io::{self, Read, Write};
use std::os::unix::fs::FileExt;
use std::time::{SystemTime, UNIX_EPOCH};

use super::superblock::{CLEAN, CLOSED, SECOND_COPY, Superblock};
use super::{Header, Identity, Region, random};
use crate::medium::{Mapped, MappedOptions, Medium};
use crate::{Error, ErrorKind, Result};

const MAGIC: u64 = u64::from_le_bytes(*b"EVCOPY\0\x01");

const PAGE: u64 = 4096;

/// Maximum number of pages in a run.
const RUN: u64 = 64;

const WORDS: usize = 9;

/// Which state of which region a copy has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyId {
    /// The uuid of the region.
    pub uuid: [u64; 2],
    /// The opening of the region in which the copy was made.
    pub opening: u64,
    /// The instant, by the counter of that opening.
    pub instant: u64,
}

/// The beginning of a copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopyHeader {
    /// The state that a region has to which the copy was restored.
    pub id: CopyId,
    /// The instant of the copy that it adds to, or `None` if it is whole.
    pub base: Option<u64>,
    /// Length of the region, bytes.
    pub region_bytes: u64,
    /// When it was made.
    pub time: SystemTime,
}

/// What is known of a region that is not open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// Its uuid.
    pub uuid: [u64; 2],
    /// How often it was opened.
    pub openings: u64,
    /// Whether its bytes are those that were stored last: it was closed, or only a process has died
    /// since.
    pub is_whole: bool,
}

/// What a copy has written or read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Copied {
    /// The beginning of the copy.
    pub header: CopyHeader,
    /// The number of bytes in its pages.
    pub page_bytes: u64,
}

impl CopyHeader {
    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        let since = self.time.duration_since(UNIX_EPOCH).unwrap_or_default();
        let CopyId { uuid, opening, instant } = self.id;
        let base = self.base.unwrap_or(0);
        let nanos = since.as_nanos() as u64;
        let words = [MAGIC, uuid[0], uuid[1], opening, instant, base, self.region_bytes, nanos];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        let check = u64::from(crc32c::crc32c(&bytes));
        bytes.extend(check.to_le_bytes());
        out.write_all(&bytes)
    }

    /// Reads the beginning of a copy.
    ///
    /// # Errors
    ///
    /// `InvalidData` if it is none, or damaged; otherwise what reading returned.
    pub fn read(from: &mut dyn Read) -> io::Result<Self> {
        let mut bytes = [0; WORDS * 8];
        from.read_exact(&mut bytes)?;
        let word = |at: usize| u64::from_le_bytes(bytes[at * 8..][..8].try_into().expect("8"));
        if word(0) != MAGIC {
            return Err(invalid("this is no copy of a store"));
        }
        if word(8) != u64::from(crc32c::crc32c(&bytes[..(WORDS - 1) * 8])) {
            return Err(invalid("the beginning of the copy is damaged"));
        }
        let id = CopyId { uuid: [word(1), word(2)], opening: word(3), instant: word(4) };
        let time = UNIX_EPOCH + std::time::Duration::from_nanos(word(7));
        let base = (word(5) != 0).then(|| word(5));
        Ok(CopyHeader { id, base, region_bytes: word(6), time })
    }
}

impl Region<Mapped> {
    /// Writes a copy of the region at an instant during the call, while other threads change it. If
    /// it can, it writes only what has changed since the copy `since`: if that was made in this
    /// opening. For that, changes must be [tracked](Mapped::begin_tracking) from the first copy on.
    ///
    /// Reads every page that it writes, and whether it is zero of all others. Until it returns, a
    /// page that is changed for the first time costs its thread about a microsecond and 4 KiB more.
    ///
    /// # Errors
    ///
    /// Those of [`Mapped::snapshot`]; `Io` if writing fails.
    pub fn write_copy(&self, since: Option<CopyId>, out: &mut dyn Write) -> Result<Copied> {
        let view = self.view()?;
        let (uuid, opening, instant) = (self.uuid, self.generation, view.instant());
        let known = since.filter(|since| (since.uuid, since.opening) == (uuid, opening));
        let base = known.map(|since| since.instant).filter(|&base| 0 < base && base < instant);
        let header = CopyHeader {
            id: CopyId { uuid, opening, instant },
            base,
            region_bytes: view.len(),
            time: SystemTime::now(),
        };
        let is_wanted = |page| match base {
            Some(base) => self.medium.is_changed_since(page, base),
            None => !is_zero_page(&view, page),
        };
        let written = header.write(out).and_then(|()| {
            let mut copied = Copied { header, page_bytes: 0 };
            let mut runs = 0;
            for (first, count) in Runs::of(view.len() / PAGE, is_wanted) {
                let bytes = write_run(&view, first, count, out)?;
                copied.page_bytes += bytes;
                runs += 1;
            }
            out.write_all(&end_of(runs))?;
            out.flush()?;
            Ok(copied)
        });
        written.map_err(|error| Error::io("writing a copy", "stream".as_ref(), error))
    }
}

impl Region<Mapped> {
    /// Returns a medium with the contents of one instant, which are no others than the file's if
    /// that is only read: then nobody changes it.
    fn view(&self) -> Result<Mapped> {
        match self.medium.path().filter(|_| self.medium.is_read_only()) {
            Some(_) if self.medium.instant() > 0 => {
                let why = "a snapshot cannot be copied; copy the store that it is one of";
                Err(ErrorKind::Config(why.into()).into())
            }
            Some(path) => {
                Mapped::open(path, &MappedOptions { read_only: true, ..MappedOptions::default() })
            }
            None => self.medium.snapshot(),
        }
    }
}

/// The runs of pages that are wanted, each with its first page and their number.
struct Runs<F> {
    pages: u64,
    at: u64,
    is_wanted: F,
}

impl<F: Fn(u64) -> bool> Runs<F> {
    fn of(pages: u64, is_wanted: F) -> Self {
        Runs { pages, at: 0, is_wanted }
    }
}

impl<F: Fn(u64) -> bool> Iterator for Runs<F> {
    type Item = (u64, u64);

    fn next(&mut self) -> Option<(u64, u64)> {
        let first = (self.at..self.pages).find(|&page| (self.is_wanted)(page))?;
        let longest = self.pages.min(first + RUN);
        let end = (first + 1..longest).find(|&page| !(self.is_wanted)(page)).unwrap_or(longest);
        self.at = end;
        Some((first, end - first))
    }
}

fn is_zero_page(view: &Mapped, page: u64) -> bool {
    let words = view.slice::<crate::PmU64>(page * PAGE, PAGE / 8).expect("inside the view");
    words.iter().all(|word| view.load_relaxed(word) == 0)
}

/// Writes pages, and returns the number of their bytes.
fn write_run(view: &Mapped, first: u64, count: u64, out: &mut dyn Write) -> io::Result<u64> {
    let mut bytes = vec![0; (16 + count * PAGE + 8) as usize];
    bytes[..8].copy_from_slice(&first.to_le_bytes());
    bytes[8..16].copy_from_slice(&count.to_le_bytes());
    let words = view.slice(first * PAGE, count * PAGE / 8).expect("inside the view");
    let end = bytes.len() - 8;
    view.read_bytes(words, &mut bytes[16..end]);
    let check = u64::from(crc32c::crc32c(&bytes[..end]));
    bytes[end..].copy_from_slice(&check.to_le_bytes());
    out.write_all(&bytes)?;
    Ok(count * PAGE)
}

/// Returns what follows the last of `runs` runs.
fn end_of(runs: u64) -> [u8; 24] {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&runs.to_le_bytes());
    let check = u64::from(crc32c::crc32c(&bytes[..16]));
    bytes[16..].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// Writes what a copy contains after its beginning, which was read, to a file.
///
/// # Errors
///
/// `InvalidData` if the copy is damaged or ends early; otherwise what reading or writing returned.
pub fn restore_copy(
    header: CopyHeader,
    from: &mut dyn Read,
    to: &std::fs::File,
) -> io::Result<Copied> {
    to.set_len(header.region_bytes)?;
    read_copy(header, from, &mut |pages, offset| to.write_all_at(pages, offset))
}

/// Passes the pages of a copy, whose beginning was read, to `sink`, with their offset.
///
/// # Errors
///
/// `InvalidData` if the copy is damaged or ends early; otherwise what reading or `sink` returned.
pub fn read_copy(
    header: CopyHeader,
    from: &mut dyn Read,
    sink: &mut dyn FnMut(&[u8], u64) -> io::Result<()>,
) -> io::Result<Copied> {
    let (mut copied, mut runs) = (Copied { header, page_bytes: 0 }, 0);
    loop {
        let mut bytes = vec![0; 16];
        read_all(from, &mut bytes)?;
        let word = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"));
        let (first, count) = (word(0), word(8));
        if count > RUN || first.saturating_add(count) > header.region_bytes / PAGE && count > 0 {
            return Err(invalid("a part of the copy is damaged: it has impossible pages"));
        }
        bytes.resize((16 + count * PAGE) as usize, 0);
        read_all(from, &mut bytes[16..])?;
        let mut check = [0; 8];
        read_all(from, &mut check)?;
        if u64::from_le_bytes(check) != u64::from(crc32c::crc32c(&bytes)) {
            return Err(invalid("a part of the copy is damaged: its checksum is wrong"));
        }
        if count == 0 {
            return match first == runs {
                true => Ok(copied),
                false => Err(invalid("the copy is damaged: parts of it are missing")),
            };
        }
        sink(&bytes[16..], first * PAGE)?;
        copied.page_bytes += count * PAGE;
        runs += 1;
    }
}

fn read_all(from: &mut dyn Read, bytes: &mut [u8]) -> io::Result<()> {
    from.read_exact(bytes).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => invalid("the copy is cut off"),
        _ => error,
    })
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

impl<M: Medium> Region<M> {
    /// Returns what is known of the region in `medium`, which is the file with this identity,
    /// without opening it. O(1).
    ///
    /// # Errors
    ///
    /// `NotAStore`, `NewerFormat`, `Damaged`.
    pub fn peek(medium: &M, identity: Identity) -> Result<Peeked> {
        let at = Self::find_superblock(medium)?;
        let copy = medium.at::<Superblock>(at).expect("just read");
        let header: &Header = medium.at(super::HEADER_WORDS).expect("below the table");
        let load = |cell| medium.load(cell);
        let before = Identity::from_words(header.identity.each_ref().map(load));
        let is_closed = [CLEAN, CLOSED].contains(&load(&header.state));
        Ok(Peeked {
            uuid: copy.uuid.each_ref().map(load),
            openings: load(&header.generation[0]),
            is_whole: is_closed || identity.doubt(&before).is_none(),
        })
    }

    /// Makes the region in `medium` that of the file with this identity, and durable. It has
    /// contents of one instant, and nobody else has it open. If `is_new`, it gets a uuid of its
    /// own, and no crash before its next opening makes it suspect.
    ///
    /// # Errors
    ///
    /// `NotAStore`, `NewerFormat`, `Damaged`.
    pub fn adopt(medium: &M, mut identity: Identity, is_new: bool) -> Result<()> {
        let valid = Self::find_superblock(medium)?;
        let header: &Header = medium.at(super::HEADER_WORDS).expect("below the table");
        if is_new {
            // It may say that it is durable only when it is.
            medium.sync()?;
            identity.boot = Identity::DURABLE;
        }
        for (cell, value) in header.identity.iter().zip(identity.words()) {
            medium.store(cell, value);
        }
        if is_new {
            let uuid = [random::number(), random::number()];
            for at in [SECOND_COPY, 0] {
                if !Self::superblock_verifies(medium, at) {
                    continue;
                }
                let copy = medium.at::<Superblock>(at).expect("verified");
                copy.uuid.iter().zip(uuid).for_each(|(cell, word)| medium.store(cell, word));
                medium.store(&copy.check, Self::checksum(medium, at));
            }
            medium.store(&header.fit, Self::fit(medium, valid));
        }
        medium.sync()
    }
}

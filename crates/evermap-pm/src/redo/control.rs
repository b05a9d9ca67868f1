//! The file `control`: which state the image has, and where the log continues.
//!
//! Two slots of 4096 bytes, written in turn, so that one is always valid. All numbers are little
//! endian.
//!
//! ```text
//! byte   0  magic, "EVCTRL01"
//! byte   8  check: CRC32C of bytes 12..112
//! byte  12  format version (4 bytes)
//! byte  16  counter: the slot with the larger one is in effect
//! byte  24  uuid of the log (16 bytes)
//! byte  40  length of the region in the state `applied`, bytes
//! byte  48  applied: the sequence number whose state the image has
//! byte  56  applying: the sequence number that a checkpoint in progress goes up to, or `applied`
//! byte  64  durable: a sequence number that the log certainly contains
//! byte  72  segment in which the log continues after `applied`: the first one that is needed
//! byte  80  offset in that segment
//! byte  88  time of `applied`, nanoseconds since 1970
//! byte  96  zero (16 bytes)
//! ```

use std::path::Path;

use super::record::{Position, get, put};
use super::storage::{File, Storage};
use crate::{Error, ErrorKind, Result};

/// The name of the file.
pub(super) const NAME: &str = "control";
/// The name of a file that is to become it.
pub(super) const NEW: &str = "control.new";
const SLOT: usize = 4096;
const BYTES: usize = 112;
const MAGIC: &[u8; 8] = b"EVCTRL01";
const VERSION: u32 = 1;

/// The contents of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Control {
    pub(super) counter: u64,
    pub(super) uuid: [u64; 2],
    pub(super) region_len: u64,
    pub(super) applied: u64,
    pub(super) applying: u64,
    pub(super) durable: u64,
    /// Where the record after `applied` is, or in the next segment.
    pub(super) start: Position,
    /// Time of `applied`, nanoseconds since 1970.
    pub(super) time: u64,
}

/// An open control file.
pub(super) struct ControlFile {
    file: Box<dyn File>,
    /// What is in effect.
    pub(super) now: Control,
    /// The slot that it is in.
    slot: usize,
}

impl ControlFile {
    /// Creates the file durably, in one step, with the first control.
    pub(super) fn create(storage: &dyn Storage, first: Control) -> Result<Self> {
        let file = storage.create(NEW)?;
        file.allocate(2 * SLOT as u64)?;
        file.write_at(0, &encode(&first))?;
        file.sync()?;
        storage.rename(NEW, NAME)?;
        storage.sync()?;
        Ok(ControlFile { file, now: first, slot: 0 })
    }

    /// Opens the file. `None` if there is none.
    ///
    /// # Errors
    ///
    /// `DamagedFile` if no slot is valid, `NewerFormat` if a newer version has written it.
    pub(super) fn open(storage: &dyn Storage) -> Result<Option<Self>> {
        let Some(file) = storage.open(NAME)? else { return Ok(None) };
        let (now, slot) = newest(&*file)?;
        Ok(Some(ControlFile { file, now, slot }))
    }

    /// Reads the file. `None` if there is none.
    pub(super) fn read(storage: &dyn Storage) -> Result<Option<Control>> {
        Ok(Self::open(storage)?.map(|open| open.now))
    }

    /// Returns the path of the file, for messages.
    pub(super) fn path(&self) -> &Path {
        self.file.path()
    }

    /// Reads the slots again.
    pub(super) fn read_again(&self) -> Result<Control> {
        newest(&*self.file).map(|(control, _)| control)
    }

    /// Writes what is in effect once more, and waits until it is durable. A process that was killed
    /// may have written it without waiting.
    pub(super) fn confirm(&self) -> Result<()> {
        self.file.write_at((self.slot * SLOT) as u64, &encode(&self.now))?;
        self.file.sync()
    }

    /// Brings `next` into effect, durably, by writing it over the older slot. The counter is
    /// increased.
    pub(super) fn replace(&mut self, next: Control) -> Result<()> {
        let next = Control { counter: self.now.counter + 1, ..next };
        let slot = 1 - self.slot;
        self.file.write_at((slot * SLOT) as u64, &encode(&next))?;
        (self.now, self.slot) = (next, slot);
        self.file.sync()
    }
}

/// Returns the slot that is in effect, and its number.
fn newest(file: &dyn File) -> Result<(Control, usize)> {
    let mut bytes = vec![0; 2 * SLOT];
    file.read_at(0, &mut bytes)?;
    let mut valid = None;
    for slot in 0..2 {
        let Some(control) = decode(&bytes[slot * SLOT..][..BYTES], file)? else { continue };
        if valid.is_none_or(|(other, _): (Control, _)| control.counter > other.counter) {
            valid = Some((control, slot));
        }
    }
    valid.ok_or_else(|| {
        let what = "neither of its two slots is valid";
        Error::damaged_file(file.path(), 0, what, "restore the directory from a copy")
    })
}

fn encode(control: &Control) -> [u8; SLOT] {
    let mut bytes = [0; SLOT];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[12..16].copy_from_slice(&VERSION.to_le_bytes());
    let numbers = [
        control.counter,
        control.uuid[0],
        control.uuid[1],
        control.region_len,
        control.applied,
        control.applying,
        control.durable,
        control.start.segment,
        control.start.offset,
        control.time,
    ];
    for (index, number) in numbers.into_iter().enumerate() {
        put(&mut bytes, 16 + index * 8, number);
    }
    let check = crc32c::crc32c(&bytes[12..BYTES]);
    bytes[8..12].copy_from_slice(&check.to_le_bytes());
    bytes
}

/// Returns the control in a slot, or `None` if it is not valid.
fn decode(bytes: &[u8], file: &dyn File) -> Result<Option<Control>> {
    let check = crc32c::crc32c(&bytes[12..BYTES]);
    if bytes[..8] != *MAGIC || bytes[8..12] != check.to_le_bytes() {
        return Ok(None);
    }
    let version = u32::from_le_bytes(bytes[12..16].try_into().expect("four bytes"));
    if version > VERSION {
        let path = file.path().to_owned();
        return Err(ErrorKind::NewerFormat { path, found: version, known: VERSION }.into());
    }
    let number = |index: usize| get(bytes, 16 + index * 8);
    Ok(Some(Control {
        counter: number(0),
        uuid: [number(1), number(2)],
        region_len: number(3),
        applied: number(4),
        applying: number(5),
        durable: number(6),
        start: Position { segment: number(7), offset: number(8) },
        time: number(9),
    }))
}

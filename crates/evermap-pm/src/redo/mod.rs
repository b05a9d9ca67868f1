//! A redo log of a region: the way to survive power loss on ordinary storage.
//!
//! The bytes of a region at one instant are always a valid store, because recovery takes what a
//! kill leaves at any instruction. So a log needs to know nothing of what they mean. At each commit
//! the lines of 64 bytes that were stored to since the last one are appended as *one* record, and
//! synced. After power loss the region is rebuilt: from the *image*, which is a copy of the region
//! as of a checkpoint, and the records since then, in order.
//!
//! ```text
//!                     appended and synced, one record a commit
//!                                    |
//!   0000000000000007.redo            v    0000000000000008.redo   0000000000000009.redo
//!   +-------+--------+-----------+-------+                       +
//!   | .. 41 | 42     | 43        | 44    | 45 | 46 | (old bytes)  | ready for later records
//!   +-------+--------+-----------+-------+                       +
//!           ^                                 ^
//!           control: applied = 41,            durable
//!                    log goes on here
//!
//!   image    the region after record 41       sums    a CRC32C of each page of the image
//! ```
//!
//! A checkpoint ([`RedoLog::checkpoint`]) brings the image to a later state and frees the segments
//! before it. It runs beside appends, and needs no help from the region: it reads the log.
//!
//! # Why redo repairs a torn image
//!
//! A checkpoint writes over the pages of the image, so a crash can leave any mixture of old and new
//! sectors in them. Say it takes the image from record A to record B.
//!
//! * Records contain whole lines, not differences. So applying the records after A in order gives
//!   the same lines whatever was in their place: old, new, or torn. All other lines of the image
//!   have the state A, which is also their state B, because no record in between has them; the
//!   checkpoint writes them with the bytes that they have. So *torn image + records A+1 to B =
//!   state B*, and applying the records twice changes nothing.
//! * For that, the records after A must be there as long as the control says A. Segments are freed
//!   only when a control that says B is durable, which is written only when the image is durable.
//! * The image never has what the log could lose: a checkpoint takes only durable records.
//!
//! Damage is found even in a torn image. The new sum of a page is durable before the page is
//! written. If the page was not written, its sum is that of the page as it is or as it will be; if
//! it was, that of the page after the records are applied. A page that has neither is damaged.
//! The sum of a page does not depend on the checkpoint, so a write that the device has lost,
//! or put elsewhere, shows when the page is next read: by a checkpoint that changes it, or when the
//! region is rebuilt.
//!
//! # The end of the log
//!
//! Each record is durable before the next is written. So a record that does not verify is the last
//! one, which a crash has torn, and is ignored; unless a later record verifies, which only damage
//! explains: then opening and rebuilding fail, and say where. What a device has lost of the very
//! last record after it had reported it as durable cannot be told from a torn one.
//!
//! A process that is killed may leave a record, or a control, that can be read but is not durable.
//! [`RedoLog::open`] writes both once more before anything relies on them.
//!
//! # Costs
//!
//! * A record has 80 bytes, 24 for each page and 64 for each line that is not zero, rounded up to a
//!   multiple of 4096 bytes.
//! * A commit takes one write and one sync. Segments are preallocated, written with zeros, and used
//!   again, so that the sync has no metadata to write. A record never spans segments: a segment
//!   is made longer for one that is larger.
//! * A checkpoint takes four syncs for each four segments of log, and one for each 8 MiB of changed
//!   pages; it reads the log once, and reads and writes each changed page once.
//! * On disk: the image (with holes for pages of zeros), 4 bytes a page for the sums, and the log:
//!   about twice the bytes between two checkpoints.
//!
//! # Errors that stay
//!
//! The kernel reports a failed write-back once, and a later sync succeeds without the data. So
//! after a failed write or sync of the log every further append fails, and after one of the image
//! or the control every further checkpoint, until the log is opened again.

mod batch;
mod checkpoint;
mod control;
mod directory;
mod end;
mod image;
mod log;
mod mistakes;
mod rebuild;
mod record;
mod scan;
mod segment;
mod storage;

pub use directory::Directory;
pub use end::LogPosition;
pub use log::{RedoLog, RedoOptions};
pub use rebuild::{PageTarget, Reader, Rebuilt, rebuild};
pub use record::RecordBuilder;
pub use storage::{File, Storage};

#[cfg(test)]
mod tests;

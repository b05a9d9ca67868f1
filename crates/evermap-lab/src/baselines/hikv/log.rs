//! The log of HiKV-wal: a change is written to it and made durable before it is made.
//!
//! ```text
//! byte  0  number     ascending in each log, so that older records are recognised
//! byte  8  check      hash of key and value under the number
//! byte 16  lengths    key length (low half) | value length or REMOVED (high half)
//! byte 24  key, then value, padded with zeros to 8 bytes
//! ```
//!
//! Each thread has a log, or shares one with few, and writes to it in a circle: a record is not
//! needed any more once its change is durable, and the log is locked until then.

use evermap_index::key::BytesRef;
use evermap_pm::epoch::thread_ordinal;
use evermap_pm::sync::{Mutex, MutexGuard};
use evermap_pm::{Error, ErrorKind, Medium, PmU64, Pool, Result};

/// The number of logs.
const LOGS: usize = 16;
/// The size of a log in bytes, enough for the longest record.
const LOG_BYTES: u64 = 2 << 20;
/// The number of bytes before the key.
const HEADER: usize = 24;
/// Stored instead of the length of a value if the key is removed.
const REMOVED: u64 = u32::MAX as u64;

/// Where one log continues.
pub(super) struct Tail {
    start: u64,
    used: u64,
    number: u64,
}

/// The logs of a pool.
pub(super) struct Log(Box<[Mutex<Tail>]>);

impl Log {
    /// Creates empty logs.
    ///
    /// # Errors
    ///
    /// `NoSpace`.
    pub(super) fn create<M: Medium>(pool: &Pool<M>) -> Result<Self> {
        let tail = |_| {
            let start = pool.allocate_fixed(LOG_BYTES)?;
            Ok(Mutex::new(Tail { start, used: 0, number: 0 }))
        };
        Ok(Log((0..LOGS).map(tail).collect::<Result<_>>()?))
    }

    /// Records durably, with one persist, that `key` is bound to `value`, or removed. The record is
    /// not overwritten while the result is held.
    ///
    /// # Errors
    ///
    /// `NoSpace` for a record longer than a log, `Poisoned`.
    pub(super) fn append<M: Medium>(
        &self,
        pool: &Pool<M>,
        key: &[u8],
        value: Option<&[u8]>,
    ) -> Result<MutexGuard<'_, Tail>> {
        let mut tail = self.0[thread_ordinal() % LOGS].lock().map_err(|_| ErrorKind::Poisoned)?;
        let body = [key, value.unwrap_or_default()].concat();
        let bytes = (HEADER + body.len()).next_multiple_of(8) as u64;
        if bytes > LOG_BYTES {
            return Err(Error::no_space("a log record longer than the log", bytes - LOG_BYTES));
        }
        if tail.used + bytes > LOG_BYTES {
            tail.used = 0;
        }
        let m = pool.medium();
        let cells = m.slice::<PmU64>(tail.start + tail.used, bytes / 8).expect("inside the log");
        let second = value.map_or(REMOVED, |value| value.len() as u64);
        m.store(&cells[0], tail.number);
        m.store(&cells[1], BytesRef::new(&body, tail.number).hash);
        m.store(&cells[2], key.len() as u64 | second << 32);
        m.write_bytes(&cells[HEADER / 8..], &body);
        m.persist(cells);
        tail.used += bytes;
        tail.number += 1;
        Ok(tail)
    }
}

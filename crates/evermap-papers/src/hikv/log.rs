//! The log of HiKV-wal: a change is written to it and made durable before it is made.
//!
//! ```text
//! byte  0  number     ascending in each log, so that older records are recognised
//! byte  8  check      hash of lengths, key and value under the number
//! byte 16  lengths    key length (low half) | value length or REMOVED (high half)
//! byte 24  key, then value, padded with zeros to 8 bytes
//! ```
//!
//! Each log has the keys of some partitions, and is written in a circle. It is locked until the
//! change is durable. So only its newest record may need to be carried out again, and that record
//! is the newest change of its key: carrying it out once more changes nothing.
//!
//! A [head](LogHead) says where the newest record is. It becomes durable by the same fence, before
//! or after the record: so after a crash the newest one is that, or the one behind it.

use evermap_index::fresh::Fresh;
use evermap_index::key::BytesRef;
use evermap_index::record::KEY_MAX;
use evermap_pm::sync::{Mutex, MutexGuard, Rank};
use evermap_pm::{Error, ErrorKind, Medium, PmU64, Pool, Result};

use super::Config;
use super::layout::LogHead;

/// The number of bytes before the key.
const HEADER: u64 = 24;
/// Stored instead of the length of a value if the key is removed.
const REMOVED: u64 = u32::MAX as u64;

/// Where one log continues.
struct Tail {
    head: u64,
    start: u64,
    bytes: u64,
    /// Where the next record begins, in bytes from the start.
    at: u64,
    /// The number of the next record.
    number: u64,
}

/// The logs of a store.
pub(super) struct Log {
    heads: u64,
    tails: Box<[Mutex<Tail>]>,
}

/// A record: a key, and its value or that it is removed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Record {
    number: u64,
    /// The number of bytes that it takes.
    bytes: u64,
    pub(super) key: Vec<u8>,
    pub(super) value: Option<Vec<u8>>,
}

/// A log that is locked for one change.
pub(super) struct LockedLog<'l>(MutexGuard<'l, Tail>);

/// Returns the number of bytes that a record takes.
fn record_bytes(key: usize, value: usize) -> u64 {
    HEADER + (key as u64 + value as u64).next_multiple_of(8)
}

fn check_of(lengths: u64, body: &[u8], number: u64) -> u64 {
    BytesRef::new(&[&lengths.to_le_bytes(), body].concat(), number).hash
}

impl Log {
    /// Writes empty logs, and flushes them. Returns the offset of their heads.
    ///
    /// # Errors
    ///
    /// `NoSpace`.
    pub(super) fn write_empty<M: Medium>(
        pool: &Pool<M>,
        config: &Config,
        fresh: &mut Fresh<'_, M>,
    ) -> Result<u64> {
        let m = pool.medium();
        let heads = fresh.allocate_fixed(config.logs * size_of::<LogHead>() as u64)?;
        for head in m.slice::<LogHead>(heads, config.logs).expect("just allocated") {
            let start = fresh.allocate_fixed(config.log_bytes)?;
            // What was there before must not look like a record.
            let first = m.at::<[PmU64; 3]>(start).expect("just allocated");
            first.iter().for_each(|cell| m.store(cell, 0));
            m.flush(first);
            m.store(&head.start, start);
            m.store(&head.bytes, config.log_bytes);
            m.store(&head.number, 0);
            m.store(&head.at, 0);
            m.flush(head);
        }
        Ok(heads)
    }

    /// Opens the logs whose heads are at `heads`. Returns them, and the newest record of each that
    /// has one.
    ///
    /// # Errors
    ///
    /// `Damaged`.
    pub(super) fn open<M: Medium>(m: &M, heads: u64, count: u64) -> Result<(Self, Vec<Record>)> {
        let wrong = || Error::damaged(heads, "impossible logs");
        let all = m.slice::<LogHead>(heads, count).filter(|_| count <= 1 << 16);
        let (mut tails, mut newest) = (Vec::new(), Vec::new());
        for head in all.ok_or_else(wrong)? {
            let [start, bytes, number, at] =
                [&head.start, &head.bytes, &head.number, &head.at].map(|cell| m.load(cell));
            if !m.contains(start, bytes, 8) || bytes < HEADER || number > u64::MAX / 2 {
                return Err(wrong());
            }
            let named = read(m, start, bytes, at).filter(|record| record.number == number);
            let behind = at.saturating_add(named.as_ref().map_or(0, |record| record.bytes));
            // A record that does not fit behind the last one begins at the start.
            let next = [behind, 0].into_iter().find_map(|at| {
                let next = read(m, start, bytes, at)?;
                // Older ones have smaller numbers.
                (next.number > number).then_some((at, next))
            });
            let last = next.or(named.map(|record| (at, record)));
            // A record with this number may be there, but not completely.
            let number = last.as_ref().map_or(number, |(_, record)| record.number) + 1;
            let at = last.as_ref().map_or(at, |(at, record)| at + record.bytes).min(bytes);
            let offset = m.offset_of(head);
            let tail = Tail { head: offset, start, bytes, at: at & !7, number };
            tails.push(Mutex::ranked(Rank::Batch, tail));
            newest.extend(last.map(|(_, record)| record));
        }
        Ok((Log { heads, tails: tails.into() }, newest))
    }

    /// Locks the log of a partition, for a change whose record has a key and a value of at most
    /// these lengths.
    ///
    /// # Errors
    ///
    /// `NoSpace` if that is longer than a log, `Poisoned`.
    pub(super) fn lock(
        &self,
        partition: usize,
        (key, value): (usize, usize),
    ) -> Result<LockedLog<'_>> {
        let tail = &self.tails[partition % self.tails.len()];
        let tail = tail.lock().map_err(|_| ErrorKind::Poisoned)?;
        match record_bytes(key, value).checked_sub(tail.bytes) {
            Some(missing) if missing > 0 => {
                Err(Error::no_space("a log record longer than the log", missing))
            }
            _ => Ok(LockedLog(tail)),
        }
    }

    /// Calls `each` with the offset of each block.
    pub(super) fn blocks(&self, each: &mut dyn FnMut(u64)) -> Result<()> {
        each(self.heads);
        for tail in &self.tails {
            each(tail.lock().map_err(|_| ErrorKind::Poisoned)?.start);
        }
        Ok(())
    }
}

impl LockedLog<'_> {
    /// Records durably, with one persist, that `key` is bound to `value`, or removed. It is not
    /// longer than what the log was locked for.
    pub(super) fn append<M: Medium>(&mut self, m: &M, key: &[u8], value: Option<&[u8]>) {
        let tail = &mut *self.0;
        let body = [key, value.unwrap_or_default()].concat();
        let bytes = record_bytes(key.len(), value.map_or(0, <[u8]>::len));
        if tail.at + bytes > tail.bytes {
            tail.at = 0;
        }
        let cells = m.slice::<PmU64>(tail.start + tail.at, bytes / 8).expect("inside the log");
        let lengths = key.len() as u64 | value.map_or(REMOVED, |value| value.len() as u64) << 32;
        m.store(&cells[0], tail.number);
        m.store(&cells[1], check_of(lengths, &body, tail.number));
        m.store(&cells[2], lengths);
        m.write_bytes(&cells[3..], &body);
        m.flush(cells);
        let head = m.at::<LogHead>(tail.head).expect("it was opened");
        m.store(&head.number, tail.number);
        m.store(&head.at, tail.at);
        m.flush(head);
        m.fence();
        tail.at += bytes;
        tail.number += 1;
    }
}

/// Returns the record at a place of a log, if a complete one is there.
fn read<M: Medium>(m: &M, start: u64, bytes: u64, at: u64) -> Option<Record> {
    let left = bytes.checked_sub(at)?.checked_sub(HEADER)?;
    let header = m.at::<[PmU64; 3]>(start + at)?;
    let [number, check, lengths] = header.each_ref().map(|cell| m.load(cell));
    let (key, second) = (lengths & u64::from(u32::MAX), lengths >> 32);
    let value = if second == REMOVED { 0 } else { second };
    if key > KEY_MAX as u64 || key + value > left {
        return None;
    }
    let cells = m.slice::<PmU64>(start + at + HEADER, (key + value).div_ceil(8))?;
    let mut body = vec![0; (key + value) as usize];
    m.read_bytes(cells, &mut body);
    if check_of(lengths, &body, number) != check {
        return None;
    }
    let value = (second != REMOVED).then(|| body[key as usize..].to_vec());
    body.truncate(key as usize);
    let bytes = record_bytes(key as usize, value.as_ref().map_or(0, Vec::len));
    Some(Record { number, bytes, key: body, value })
}

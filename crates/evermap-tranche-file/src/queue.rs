//! Reads and writes of two files, many at a time.
//!
//! A buffer belongs to the queue from [`push`](Queue::push) until [`pop`](Queue::pop) returns it,
//! so nothing else can touch it while the kernel reads or writes it.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

#[cfg(target_os = "linux")]
use super::ring::Ring;

/// What transfers with `O_DIRECT` are aligned to, in memory and in files.
pub(super) const ALIGNMENT: usize = 4096;

/// Bytes in memory that are aligned for `O_DIRECT`.
pub(super) struct Buffer {
    /// With room for the alignment. Never grows, so the bytes stay where they are.
    bytes: Vec<u8>,
    start: usize,
    len: usize,
}

impl Buffer {
    /// Allocates zeros.
    pub(super) fn new(len: usize) -> Self {
        let bytes = vec![0u8; len + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        // A pointer to bytes can always be aligned.
        Buffer { bytes, start, len }
    }

    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[self.start..self.start + self.len]
    }

    pub(super) fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + self.len]
    }
}

/// One of the two files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Target {
    /// The file with the tranches.
    Table,
    /// The file with the long records.
    Long,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Read,
    Write,
}

/// A read or write of a whole buffer.
pub(super) struct Transfer {
    pub(super) direction: Direction,
    pub(super) target: Target,
    pub(super) offset: u64,
    /// What the caller recognises it by.
    pub(super) token: u64,
    pub(super) buffer: Buffer,
}

impl Transfer {
    /// Does the transfer and waits for it.
    fn run(&mut self, file: &File) -> io::Result<()> {
        match self.direction {
            Direction::Read => file.read_exact_at(self.buffer.bytes_mut(), self.offset),
            Direction::Write => file.write_all_at(self.buffer.bytes(), self.offset),
        }
    }
}

/// A transfer that is complete, or has failed.
pub(super) type Done = (Transfer, io::Result<()>);

/// The files, and the transfers that are under way.
pub(super) struct Queue {
    /// `None` if transfers are done one after the other. Before the files, so that it is dropped
    /// first: what it has not begun yet names their descriptors.
    #[cfg(target_os = "linux")]
    ring: Option<Ring>,
    table: File,
    long: File,
    depth: usize,
    /// Transfers that are complete.
    done: VecDeque<Done>,
    #[cfg(test)]
    pub(super) events: Option<Vec<Event>>,
}

/// What was written, in order, for tests that crash in between.
#[cfg(test)]
#[derive(Clone)]
pub(super) enum Event {
    Write(Target, u64, Vec<u8>),
    Length(Target, u64),
    Sync(Target),
}

impl Queue {
    /// Creates a queue of up to `depth` transfers, through `io_uring` if that is wanted and the
    /// kernel permits it.
    pub(super) fn new(table: File, long: File, depth: usize, io_uring: bool) -> Self {
        #[cfg(not(target_os = "linux"))]
        let _ = io_uring;
        Queue {
            table,
            long,
            depth,
            #[cfg(target_os = "linux")]
            ring: if io_uring { Ring::new(depth).ok() } else { None },
            done: VecDeque::new(),
            #[cfg(test)]
            events: None,
        }
    }

    /// Returns whether several transfers are really under way at once.
    pub(super) fn overlaps(&self) -> bool {
        #[cfg(target_os = "linux")]
        return self.ring.is_some();
        #[cfg(not(target_os = "linux"))]
        return false;
    }

    fn file(&self, target: Target) -> &File {
        match target {
            Target::Table => &self.table,
            Target::Long => &self.long,
        }
    }

    /// Returns the number of transfers that were pushed and not yet popped.
    pub(super) fn pending(&self) -> usize {
        let pending = self.done.len();
        #[cfg(target_os = "linux")]
        let pending = pending + self.ring.as_ref().map_or(0, Ring::in_flight);
        pending
    }

    /// Returns whether a transfer must be popped before another one is pushed.
    pub(super) fn is_full(&self) -> bool {
        self.pending() >= self.depth
    }

    /// Starts a transfer.
    ///
    /// # Panics
    /// If the queue is full.
    pub(super) fn push(&mut self, mut transfer: Transfer) {
        assert!(!self.is_full(), "a transfer must be popped before");
        #[cfg(test)]
        if let (Some(events), Direction::Write) = (&mut self.events, transfer.direction) {
            let bytes = transfer.buffer.bytes().to_vec();
            events.push(Event::Write(transfer.target, transfer.offset, bytes));
        }
        #[cfg(target_os = "linux")]
        if let Some(ring) = &mut self.ring {
            let file = match transfer.target {
                Target::Table => &self.table,
                Target::Long => &self.long,
            };
            ring.push(file, transfer);
            return;
        }
        let result = transfer.run(self.file(transfer.target));
        self.done.push_back((transfer, result));
    }

    /// Waits for a transfer. Returns `None` if none is pending.
    ///
    /// # Errors
    /// If the kernel refuses to say which transfers are complete.
    pub(super) fn pop(&mut self) -> io::Result<Option<Done>> {
        #[cfg(target_os = "linux")]
        if let Some(ring) = &mut self.ring {
            let Some((mut transfer, complete)) = ring.pop()? else { return Ok(None) };
            // Transfers in part are rare, and errors have better names from the plain calls.
            let result = if complete { Ok(()) } else { transfer.run(self.file(transfer.target)) };
            return Ok(Some((transfer, result)));
        }
        Ok(self.done.pop_front())
    }

    /// Does one transfer and waits for it. There must be no others.
    pub(super) fn once(&mut self, transfer: Transfer) -> io::Result<Buffer> {
        self.push(transfer);
        match self.pop()? {
            Some((transfer, result)) => result.map(|()| transfer.buffer),
            None => Err(io::Error::other("a transfer is lost")),
        }
    }

    /// Waits for all transfers, whatever their results.
    pub(super) fn drain(&mut self) {
        while let Ok(Some(_)) = self.pop() {}
    }

    /// Makes everything durable that was written to a file.
    pub(super) fn sync(&mut self, target: Target) -> io::Result<()> {
        self.file(target).sync_data()?;
        #[cfg(test)]
        self.events.iter_mut().for_each(|events| events.push(Event::Sync(target)));
        Ok(())
    }

    /// Sets the length of a file.
    pub(super) fn set_len(&mut self, target: Target, len: u64) -> io::Result<()> {
        self.file(target).set_len(len)?;
        #[cfg(test)]
        self.events.iter_mut().for_each(|events| events.push(Event::Length(target, len)));
        Ok(())
    }

    /// Returns the length of a file.
    pub(super) fn len(&self, target: Target) -> io::Result<u64> {
        Ok(self.file(target).metadata()?.len())
    }
}

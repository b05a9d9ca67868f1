//! Transfers through `io_uring`.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use io_uring::{IoUring, opcode, types};

use super::queue::{Direction, Transfer};

/// A ring, and the transfers that were given to the kernel.
pub(super) struct Ring {
    ring: IoUring,
    /// Transfers by their numbers in the ring. A buffer stays here, where nothing uses it, until
    /// the kernel has reported its transfer.
    slots: Vec<Option<Transfer>>,
    free: Vec<usize>,
}

impl Ring {
    /// Creates a ring for up to `depth` transfers.
    ///
    /// # Errors
    /// If the kernel has no `io_uring`, or does not permit it.
    pub(super) fn new(depth: usize) -> io::Result<Self> {
        let ring = IoUring::new(depth.next_power_of_two() as u32)?;
        let slots = (0..depth).map(|_| None).collect();
        Ok(Ring { ring, slots, free: (0..depth).collect() })
    }

    pub(super) fn in_flight(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Prepares a transfer, which begins with the next [`pop`](Ring::pop).
    ///
    /// # Panics
    /// If there are as many as the ring is for.
    pub(super) fn push(&mut self, file: &File, mut transfer: Transfer) {
        let slot = self.free.pop().expect("no more transfers than the ring is for");
        let fd = types::Fd(file.as_raw_fd());
        let bytes = transfer.buffer.bytes_mut();
        let (start, len) = (bytes.as_mut_ptr(), bytes.len() as u32);
        let entry = match transfer.direction {
            Direction::Read => opcode::Read::new(fd, start, len).offset(transfer.offset).build(),
            Direction::Write => opcode::Write::new(fd, start, len).offset(transfer.offset).build(),
        };
        self.slots[slot] = Some(transfer);
        let entry = entry.user_data(slot as u64);
        // SAFETY: the buffer lives until the kernel has reported the transfer: it stays in its
        // slot until `pop` finds the report, and `drop` waits for the others or leaks them. Nothing
        // else refers to its bytes meanwhile, and moving the `Transfer` does not move them, because
        // they are on the heap. The descriptor is that of a file of the same `Queue`, which drops
        // its files after the ring.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("the ring has room for as many transfers as there are slots");
    }

    /// Waits for a transfer. Returns whether all of its bytes were transferred. Returns `None` if
    /// there is none.
    ///
    /// # Errors
    /// If the kernel refuses to wait.
    pub(super) fn pop(&mut self) -> io::Result<Option<(Transfer, bool)>> {
        if self.in_flight() == 0 {
            return Ok(None);
        }
        loop {
            // What was pushed begins now, even if another transfer is already complete.
            if !self.ring.submission().is_empty() {
                retry(|| self.ring.submit())?;
            }
            if let Some(entry) = self.ring.completion().next() {
                let slot = entry.user_data() as usize;
                let transfer = self.slots.get_mut(slot).and_then(Option::take);
                let transfer = transfer.ok_or_else(|| io::Error::other("an unknown transfer"))?;
                self.free.push(slot);
                let complete = usize::try_from(entry.result()) == Ok(transfer.buffer.bytes().len());
                return Ok(Some((transfer, complete)));
            }
            retry(|| self.ring.submit_and_wait(1))?;
        }
    }
}

/// Repeats a call that a signal has interrupted.
fn retry<R>(mut call: impl FnMut() -> io::Result<R>) -> io::Result<R> {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            other => return other,
        }
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        while let Ok(Some(_)) = self.pop() {}
        if self.in_flight() > 0 {
            // The kernel may still use these buffers.
            std::mem::forget(std::mem::take(&mut self.slots));
        }
    }
}

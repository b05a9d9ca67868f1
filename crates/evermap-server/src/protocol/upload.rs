//! A value that has not arrived completely.

use std::sync::Arc;

use super::{Budget, Reservation};

/// The bytes of one value, collected as they arrive.
///
/// All protocols use it, so that a value that arrives slowly costs the same memory in each: at
/// most twice the bytes that have arrived, never more than the announced length, and accounted for
/// in the [`Budget`].
pub(super) struct Upload {
    len: usize,
    /// The part that has arrived.
    data: Vec<u8>,
    /// Accounts for the memory of `data`.
    reservation: Reservation,
}

/// What happened to the bytes that were given to an upload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UploadProgress {
    /// It took all of them and needs more.
    Partial,
    /// It took this number of bytes and is complete.
    Complete(usize),
    /// It took none, because the budget does not allow the memory for them.
    NoMemory,
}

impl Upload {
    /// Creates an upload of `len` bytes, of which none has arrived.
    pub(super) fn new(len: usize, budget: &Arc<Budget>) -> Self {
        Upload { len, data: Vec::new(), reservation: Reservation::new(budget) }
    }

    /// Returns the number of bytes that have not arrived.
    pub(super) fn missing(&self) -> usize {
        self.len - self.data.len()
    }

    /// Returns the bytes that have arrived.
    pub(super) fn data(&self) -> &[u8] {
        &self.data
    }

    /// Returns the number of bytes of memory that the upload holds.
    pub(super) fn held_bytes(&self) -> usize {
        self.data.capacity()
    }

    /// Takes the missing bytes, or as many as there are, from the front of `arrived`.
    pub(super) fn take(&mut self, arrived: &[u8]) -> UploadProgress {
        let missing = self.missing();
        let taken = missing.min(arrived.len());
        let needed = self.data.len() + taken;
        if needed > self.data.capacity() {
            // The capacity doubles as bytes arrive, but never exceeds the announced length.
            let capacity = needed.max(2 * self.data.capacity()).min(self.len);
            if !self.reservation.try_grow_to(capacity) {
                return UploadProgress::NoMemory;
            }
            self.data.reserve_exact(capacity - self.data.len());
        }
        self.data.extend_from_slice(&arrived[..taken]);
        if taken == missing { UploadProgress::Complete(taken) } else { UploadProgress::Partial }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_grows_with_what_has_arrived_and_stays_within_the_budget() {
        let budget = Budget::new(100);
        let mut upload = Upload::new(90, &budget);
        assert_eq!(upload.take(&[1; 20]), UploadProgress::Partial);
        assert_eq!((upload.missing(), budget.reserved()), (70, 20));
        assert_eq!(upload.take(&[2; 10]), UploadProgress::Partial);
        assert_eq!(upload.held_bytes(), 40);
        assert_eq!(upload.take(&[3; 100]), UploadProgress::Complete(60));
        assert_eq!(budget.reserved(), 90);
        assert_eq!(upload.data(), [&[1; 20][..], &[2; 10], &[3; 60]].concat());

        let mut other = Upload::new(1000, &budget);
        assert_eq!(other.take(&[0; 11]), UploadProgress::NoMemory);
        assert_eq!((other.missing(), other.held_bytes()), (1000, 0));
        drop(upload);
        assert_eq!(other.take(&[0; 11]), UploadProgress::Partial);
    }

    #[test]
    fn an_empty_upload_is_complete_at_once() {
        let budget = Budget::new(0);
        assert_eq!(Upload::new(0, &budget).take(b"x"), UploadProgress::Complete(0));
    }
}

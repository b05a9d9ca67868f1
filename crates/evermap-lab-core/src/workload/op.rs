//! One operation of a mix, and which thread wrote a version.

/// What an operation of a mix does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Looks up a key.
    Read,
    /// Binds a present key to something new.
    Update,
    /// Binds a new key.
    Insert,
    /// Looks up a key and then binds it to something new.
    ReadModifyWrite,
    /// Reads this many pairs in the order of keys, starting at a key.
    Scan(u16),
}

/// One operation of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Op {
    /// What it does.
    pub kind: Kind,
    /// One more than the place of the last operation of the same thread that wrote to the key; 0 if
    /// there is none.
    pub own: u32,
}

/// Which thread wrote a version in a mix, and with which operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Writer {
    /// The number of the thread.
    pub thread: usize,
    /// The number of threads.
    pub threads: usize,
    /// The place of the first operation among the thread's.
    pub first: usize,
    /// The highest version that any thread writes, relative to the version of all keys.
    pub most: u64,
}

impl Writer {
    /// Returns the version that the operation at `place - 1` writes, relative to the version of all
    /// keys; 0 for 0.
    #[inline(always)]
    pub fn version(&self, place: u64) -> u64 {
        if place == 0 { 0 } else { (place - 1) * self.threads as u64 + self.thread as u64 + 1 }
    }

    /// Returns `true` if a read may find the version that is `beyond` that of all keys, if the
    /// thread itself last wrote with the operation at `own - 1`.
    #[inline(always)]
    pub fn may_find(&self, beyond: u64, own: u32) -> bool {
        if beyond == self.version(u64::from(own)) {
            return true;
        }
        // Not the version before this thread wrote, nor an earlier one of this thread.
        let writer = (beyond.wrapping_sub(1) % self.threads as u64) as usize;
        beyond != 0 && writer != self.thread && beyond <= self.most
    }
}

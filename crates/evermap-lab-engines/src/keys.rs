//! Keys, and their hash.

use std::hash::{BuildHasher, Hasher};

use evermap_index::key::{Bytes, BytesRef, Key};

/// The key of an entry.
pub(crate) type OwnedKey = Box<[u8]>;

/// The hash of the store, for all engines.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Hash;

/// The hasher of [`Hash`].
#[derive(Debug, Default)]
pub(crate) struct KeyHasher(u64);

impl BuildHasher for Hash {
    type Hasher = KeyHasher;

    fn build_hasher(&self) -> KeyHasher {
        KeyHasher(0)
    }
}

impl Hasher for KeyHasher {
    fn write(&mut self, bytes: &[u8]) {
        self.0 = hash_of(bytes);
    }

    /// The length comes before the bytes, whose hash depends on it already.
    fn write_usize(&mut self, _length: usize) {}

    fn finish(&self) -> u64 {
        self.0
    }
}

/// Returns the hash of a key. The seed would have to be secret in a server for strangers.
fn hash_of(bytes: &[u8]) -> u64 {
    Bytes::hash(BytesRef::new(bytes, 0), 0)
}

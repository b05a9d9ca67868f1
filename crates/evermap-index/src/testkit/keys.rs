//! Keys for tests: keys of every kind by number, kinds whose hash a test chooses, and adversarial
//! sets.

use evermap_pm::Medium;

use crate::Key;
use crate::key::{Bytes, BytesRef, Quotient};
use crate::testkit::ordered::encoded::Encoding;
use evermap_pm::sim::rng::Rng;

/// A kind of key that the kit can create by number.
pub trait Numbered: Key {
    /// The owner that a key borrows from.
    type Owned: Send + Sync;

    /// Creates the key with this number. Different numbers give different keys.
    fn owned(number: u64, seed: u64) -> Self::Owned;

    /// Returns the key as it is passed to operations.
    fn lend(owned: &Self::Owned) -> Self::Ref<'_>;

    /// Returns the bytes of the key that a record holds. Empty if words are not records.
    fn record_key<'a>(_key: Self::Ref<'a>) -> &'a [u8] {
        &[]
    }

    /// Returns the byte string that stands for the key in an ordered index.
    fn spell(key: Self::Ref<'_>) -> Vec<u8>;

    /// Returns a number for the key with this spelling: for different keys, if possible, different
    /// ones.
    fn spelled(spelling: &[u8]) -> u64;

    /// Returns the sets of keys that the kit uses.
    fn universes() -> Vec<Universe>;
}

/// A set of keys to test with.
#[derive(Clone, Debug)]
pub struct Universe {
    /// The name in reports.
    pub name: &'static str,
    /// The numbers of the keys, which are all different.
    pub keys: Vec<u64>,
    /// `true` if the hashes are so bad that an index may return `NoSpace` beyond
    /// [`Subject::always_holds`](super::Subject::always_holds) keys.
    pub hostile: bool,
}

impl Universe {
    fn new(name: &'static str, hostile: bool, keys: impl IntoIterator<Item = u64>) -> Self {
        let mut keys: Vec<u64> = keys.into_iter().collect();
        keys.sort_unstable();
        keys.dedup();
        Universe { name, keys, hostile }
    }
}

impl Universe {
    /// Returns the universe with at most about `most` keys, evenly chosen.
    pub(crate) fn thinned(mut self, most: usize) -> Self {
        let every = self.keys.len().div_ceil(most).max(1);
        self.keys = self.keys.into_iter().step_by(every).collect();
        self
    }
}

impl Numbered for u64 {
    type Owned = u64;

    fn owned(number: u64, _seed: u64) -> u64 {
        number
    }

    fn lend(owned: &u64) -> u64 {
        *owned
    }

    fn spell(key: u64) -> Vec<u8> {
        Encoding::Numbers.encode(key)
    }

    fn spelled(spelling: &[u8]) -> u64 {
        Encoding::Numbers.number(spelling)
    }

    fn universes() -> Vec<Universe> {
        well_hashed()
    }
}

/// An 8-byte key that is its own hash, so that a test chooses directory entry, bucket and
/// fingerprint.
pub type Plain = Placed<0>;

/// An 8-byte key whose hash ignores the last two bytes: 65,536 keys share each hash, and so their
/// bucket.
pub type Crowded = Placed<16>;

/// An 8-byte key whose hash is its upper half, twice: 2^32 keys share each hash.
pub type Coarse = Placed<32>;

/// An 8-byte key whose hash a test chooses, except for the last `SHARED` bits: see [`Plain`],
/// [`Crowded`] and [`Coarse`].
#[derive(Clone, Copy, Debug)]
pub enum Placed<const SHARED: u8> {}

impl<const SHARED: u8> Key for Placed<SHARED> {
    type Ref<'a> = u64;
    const FORMAT: u16 = 0xfff0 + SHARED as u16 / 16;
    const WORDS_ARE_RECORDS: bool = false;

    fn hash(key: u64, _seed: u64) -> u64 {
        let chosen = key >> SHARED << SHARED;
        if SHARED == 32 { chosen | key >> 32 } else { chosen }
    }

    fn slot_key(key: u64, _hash: u64) -> u64 {
        key
    }

    fn slot_hash(slot_key: u64, seed: u64) -> u64 {
        Self::hash(slot_key, seed)
    }

    fn matches<M: Medium>(_medium: &M, _word: u64, _key: u64) -> bool {
        true
    }

    fn prefetch<M: Medium>(_medium: &M, _word: u64, _bytes: u64) {}
}

/// The hash is the key.
impl Quotient for Plain {
    fn image(key: u64, _seed: u64) -> u64 {
        key
    }

    fn slot_key_of(image: u64, _seed: u64) -> u64 {
        image
    }
}

impl<const SHARED: u8> Numbered for Placed<SHARED> {
    type Owned = u64;

    fn owned(number: u64, _seed: u64) -> u64 {
        number
    }

    fn lend(owned: &u64) -> u64 {
        *owned
    }

    fn spell(key: u64) -> Vec<u8> {
        Encoding::Words.encode(key)
    }

    fn spelled(spelling: &[u8]) -> u64 {
        Encoding::Words.number(spelling)
    }

    fn universes() -> Vec<Universe> {
        if SHARED == 0 { chosen_hashes() } else { equal_hashes() }
    }
}

/// The bytes of a key, and its hash.
#[derive(Clone, Debug)]
pub struct OwnedBytes(Vec<u8>, u64);

/// Numbers from here on give byte strings whose hash is as coarse as that of [`Coarse`].
const COARSE_FROM: u64 = 1 << 63;

impl Numbered for Bytes {
    type Owned = OwnedBytes;

    /// Number 0 is the empty key. The others have 1 to 8 bytes of number and up to 250 bytes of
    /// padding.
    fn owned(number: u64, seed: u64) -> OwnedBytes {
        let mut bytes = number.to_le_bytes().to_vec();
        bytes.truncate(8 - number.leading_zeros() as usize / 8);
        // A tenth of the keys is padded. The padding ends in the length of the number and a byte
        // that no number ends in, so that keys stay different.
        if number % 10 == 7 {
            let end = bytes.len() as u8;
            bytes.resize(bytes.len() + (number % 250) as usize, b'.');
            bytes.extend([end, 0]);
        }
        let hash = if number >= COARSE_FROM {
            Coarse::hash(number, seed)
        } else {
            BytesRef::new(&bytes, seed).hash
        };
        OwnedBytes(bytes, hash)
    }

    fn lend(owned: &OwnedBytes) -> BytesRef<'_> {
        BytesRef { bytes: &owned.0, hash: owned.1 }
    }

    fn record_key<'a>(key: Self::Ref<'a>) -> &'a [u8] {
        key.bytes
    }

    fn spell(key: BytesRef<'_>) -> Vec<u8> {
        key.bytes.to_vec()
    }

    fn spelled(spelling: &[u8]) -> u64 {
        BytesRef::new(spelling, 0).hash
    }

    fn universes() -> Vec<Universe> {
        let mut all = well_hashed();
        all.iter_mut().for_each(|universe| universe.keys.retain(|&key| key < COARSE_FROM));
        all.extend(equal_hashes());
        all
    }
}

/// The universes for kinds with their own hash function.
fn well_hashed() -> Vec<Universe> {
    let structured = (0..64u64).flat_map(|i| {
        [i * 64, i << 44, 0x7f00_0000_0000 + i * 4096, i.reverse_bits() >> 1, i << 32 | i]
    });
    vec![
        Universe::new("a dozen", false, 0..12),
        Universe::new("extremes", false, extremes()),
        Universe::new("structured", false, structured),
        Universe::new("counting", false, 0..3000),
    ]
}

/// The universes for [`Plain`].
fn chosen_hashes() -> Vec<Universe> {
    let mut random = Rng::new(0x5eed);
    let mut draw = |count, keep: u64, base: u64| -> Vec<u64> {
        (0..count).map(|_| base | random.draw() & keep).collect()
    };
    let base = 0x9a3c_55f0_1e87_b2d4;
    let (top, middle, bottom) = (0xffff_f000_0000_0000, 0x0000_0fff_fff0_0000, 0xf_ffff);
    vec![
        Universe::new("uniform hashes", false, draw(3000, u64::MAX, 0)),
        Universe::new("extreme hashes", true, extremes()),
        Universe::new("equal prefixes", true, draw(300, middle | bottom, base & top)),
        Universe::new("equal suffixes", true, draw(300, top, base & !top)),
        Universe::new("only the middle differs", true, draw(300, middle, base & !middle)),
        Universe::new("only the suffix differs", true, (0..300).map(|i| base & !0xfff | i)),
    ]
}

/// The universes for [`Coarse`], and for byte strings: every number is at least [`COARSE_FROM`].
fn equal_hashes() -> Vec<Universe> {
    let mut random = Rng::new(0xc0a5e);
    let same = |high: u64, count: u64| (0..count).map(move |i| high << 32 | i);
    let groups: Vec<u64> = (0..40).map(|_| random.draw() >> 32 | 1 << 31).collect();
    vec![
        Universe::new("one hash", true, same(0x9a3c_55f0, 100)),
        Universe::new("all-ones hash", true, same(u64::MAX >> 32, 100)),
        Universe::new("few hashes", true, groups.into_iter().flat_map(|high| same(high, 12))),
    ]
}

/// Returns zero, all ones, single bits and their neighbours.
fn extremes() -> impl Iterator<Item = u64> {
    let bits = (0..64).map(|bit| 1u64 << bit);
    bits.flat_map(|bit| [bit, !bit, bit - 1]).chain([0, u64::MAX, 0x5555_5555_5555_5555])
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    fn distinct<K: Numbered<Owned: Clone + std::fmt::Debug>>() {
        for universe in K::universes() {
            let keys: HashSet<String> =
                universe.keys.iter().map(|&key| format!("{:?}", K::owned(key, 3))).collect();
            assert_eq!(keys.len(), universe.keys.len(), "{}", universe.name);
            assert!(universe.keys.len() >= 12, "{}", universe.name);
        }
    }

    #[test]
    fn different_numbers_are_different_keys() {
        distinct::<u64>();
        distinct::<Plain>();
        distinct::<Coarse>();
        distinct::<Bytes>();
    }

    #[test]
    fn chosen_hashes_are_as_documented() {
        assert_eq!(Plain::hash(77, 5), 77);
        assert_eq!(Coarse::hash(0x1234_5678_0000_0009, 5), 0x1234_5678_1234_5678);
        assert_eq!(Coarse::slot_hash(0x1234_5678_0000_0009, 5), 0x1234_5678_1234_5678);
        let one = Bytes::owned(COARSE_FROM | 1, 5);
        let other = Bytes::owned(COARSE_FROM | 2, 5);
        assert_eq!(one.1, other.1);
        assert_ne!(one.0, other.0);
        assert!(Bytes::owned(0, 5).0.is_empty());
    }
}

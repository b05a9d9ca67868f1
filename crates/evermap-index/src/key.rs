//! Representations of keys, and their hashes.
//!
//! A slot holds 16 bytes: a *slot key* and a *word*. For `u64` keys the slot key is the key. For
//! variable-length keys it is the 64-bit hash, and the word names a [record] that holds the key
//! itself, so that splits and misses never read records.
//!
//! The hash functions are part of the persistent format; the tests pin golden values.

use evermap_pm::Medium;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use crate::record;

/// A kind of key.
pub trait Key: 'static {
    /// A key as it is passed to operations.
    type Ref<'a>: Copy;

    /// Identifies this kind of key and its hash function in the persistent format.
    const FORMAT: u16;

    /// `true` if words name records in the heap. Then these records are part of what is reachable
    /// from the index.
    const WORDS_ARE_RECORDS: bool;

    /// The parts of Dash that lookups of such keys leave out. Empty except in measurements of what
    /// each part contributes.
    const WITHOUT: Without = Without::NOTHING;

    /// Returns the hash that places the key. Uniform in all 64 bits.
    fn hash(key: Self::Ref<'_>, seed: u64) -> u64;

    /// Returns the slot key.
    fn slot_key(key: Self::Ref<'_>, hash: u64) -> u64;

    /// Returns the hash, computed from the slot key.
    fn slot_hash(slot_key: u64, seed: u64) -> u64;

    /// Returns `true` if the pair with this word, whose slot key is equal, is the pair of `key`.
    fn matches<M: Medium>(medium: &M, word: u64, key: Self::Ref<'_>) -> bool;

    /// Prefetches what [`matches`](Key::matches) will read, and the first `bytes` bytes of the
    /// block that the word names.
    fn prefetch<M: Medium>(medium: &M, word: u64, bytes: u64);
}

/// Parts of an index that lookups leave out, to measure what each contributes. Mutations still
/// maintain them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Without {
    /// Every record of a bucket is compared, whatever its fingerprint is.
    pub fingerprints: bool,
    /// The whole stash is searched for every key that is not in its buckets, whatever the overflow
    /// metadata says.
    pub overflow_metadata: bool,
}

impl Without {
    /// Nothing is left out.
    pub const NOTHING: Without = Without { fingerprints: false, overflow_metadata: false };
}

impl Key for u64 {
    type Ref<'a> = u64;
    const FORMAT: u16 = 1;
    const WORDS_ARE_RECORDS: bool = false;

    #[inline(always)]
    fn hash(key: u64, seed: u64) -> u64 {
        mix(key, seed)
    }

    #[inline(always)]
    fn slot_key(key: u64, _hash: u64) -> u64 {
        key
    }

    #[inline(always)]
    fn slot_hash(slot_key: u64, seed: u64) -> u64 {
        mix(slot_key, seed)
    }

    #[inline(always)]
    fn matches<M: Medium>(_medium: &M, _word: u64, _key: u64) -> bool {
        true
    }

    #[inline(always)]
    fn prefetch<M: Medium>(_medium: &M, _word: u64, _bytes: u64) {}
}

/// Variable-length keys of up to [`record::KEY_MAX`] bytes. The word is the offset of a [record].
#[derive(Clone, Copy, Debug)]
pub enum Bytes {}

/// A byte-string key and its hash, computed once.
#[derive(Clone, Copy, Debug)]
pub struct BytesRef<'a> {
    /// The key.
    pub bytes: &'a [u8],
    /// The hash of the key under the pool's seed.
    pub hash: u64,
}

/// The bytes of a [`BytesRef::any`], which is recognised by their address. A caller's key could
/// have this address only if the compiler merged equal constants, so the text is one that no caller
/// uses as a key. Even then keys would be distinguished by their hashes.
static ANY: &[u8] = b"evermap-index: whichever key has this hash";

impl<'a> BytesRef<'a> {
    /// Hashes `bytes` under `seed`, which must be the pool's.
    #[inline]
    pub fn new(bytes: &'a [u8], seed: u64) -> Self {
        BytesRef { bytes, hash: xxh3_64_with_seed(bytes, seed) }
    }

    /// Creates a reference that matches any key with this hash, for a caller that knows only the
    /// hash. For lookups only: if several keys have the hash, which is not to be expected, any one
    /// of them is found.
    pub fn any(hash: u64) -> BytesRef<'static> {
        BytesRef { bytes: ANY, hash }
    }

    fn is_any(self) -> bool {
        std::ptr::eq(self.bytes, ANY)
    }
}

impl Key for Bytes {
    type Ref<'a> = BytesRef<'a>;
    const FORMAT: u16 = 2;
    const WORDS_ARE_RECORDS: bool = true;

    #[inline(always)]
    fn hash(key: BytesRef<'_>, _seed: u64) -> u64 {
        key.hash
    }

    #[inline(always)]
    fn slot_key(_key: BytesRef<'_>, hash: u64) -> u64 {
        hash
    }

    #[inline(always)]
    fn slot_hash(slot_key: u64, _seed: u64) -> u64 {
        slot_key
    }

    #[inline(always)]
    fn matches<M: Medium>(medium: &M, word: u64, key: BytesRef<'_>) -> bool {
        // The second condition is evaluated only if two keys have the same 64-bit hash, or if the
        // caller knows only the hash.
        record::key_equals(medium, word, key.bytes) || key.is_any()
    }

    #[inline(always)]
    fn prefetch<M: Medium>(medium: &M, word: u64, bytes: u64) {
        medium.prefetch_bytes(word & record::OFFSET_MASK, bytes);
    }
}

/// A kind of key that can be computed from its *image*, 64 bits that place it, so that an index
/// need not store the bits that a position implies (quotienting).
///
/// The image of a variable-length key is its hash: several keys may have the same image, and are
/// distinguished by their records.
pub trait Quotient: Key {
    /// Returns the image of the key. Uniform in all 64 bits; two keys have the same image only if
    /// words are records.
    fn image(key: Self::Ref<'_>, seed: u64) -> u64;

    /// Returns the slot key (see [`Key::slot_key`]) of the keys with this image.
    fn slot_key_of(image: u64, seed: u64) -> u64;
}

impl Quotient for u64 {
    #[inline(always)]
    fn image(key: u64, seed: u64) -> u64 {
        mix_invertibly(key, seed)
    }

    #[inline(always)]
    fn slot_key_of(image: u64, seed: u64) -> u64 {
        unmix(image, seed)
    }
}

impl Quotient for Bytes {
    #[inline(always)]
    fn image(key: BytesRef<'_>, _seed: u64) -> u64 {
        key.hash
    }

    #[inline(always)]
    fn slot_key_of(image: u64, _seed: u64) -> u64 {
        image
    }
}

/// Odd factors whose products distribute structured keys well, as the tests require.
const FACTORS: [u64; 2] = [0x9e37_79b9_7f4a_7c15, 0xe703_7ed1_a0b4_28db];
/// The inverses of the factors, modulo 2^64.
const INVERSES: [u64; 2] = [0xf1de_83e1_9937_733d, 0x2e1b_9953_f3b3_9353];
const _: () = assert!(FACTORS[0].wrapping_mul(INVERSES[0]) == 1);
const _: () = assert!(FACTORS[1].wrapping_mul(INVERSES[1]) == 1);

/// Mixes a `u64` key into its image: a multiplication, a reversal of bytes, a multiplication.
///
/// The top byte of the first product depends on all bits, and the reversal moves it to the bottom;
/// the top of the second product then depends on all bits again. A bijection of three instructions.
#[inline(always)]
fn mix_invertibly(key: u64, seed: u64) -> u64 {
    (key ^ seed).wrapping_mul(FACTORS[0]).swap_bytes().wrapping_mul(FACTORS[1])
}

/// The inverse of [`mix_invertibly`].
#[inline(always)]
fn unmix(image: u64, seed: u64) -> u64 {
    image.wrapping_mul(INVERSES[1]).swap_bytes().wrapping_mul(INVERSES[0]) ^ seed
}

/// Mixes a `u64` key into a hash: a folded 64x64 multiplication, twice, keyed by the seed.
///
/// With the first fold alone, structured keys (with few high bits set) collide in the low byte. The
/// second fold prevents that, and costs a nanosecond.
#[inline(always)]
fn mix(key: u64, seed: u64) -> u64 {
    let first = fold(key ^ seed ^ 0x9e37_79b9_7f4a_7c15, 0xa076_1d64_78bd_642f);
    first ^ first.rotate_left(32).wrapping_mul(0xe703_7ed1_a0b4_28db)
}

#[inline(always)]
fn fold(a: u64, b: u64) -> u64 {
    let product = u128::from(a) * u128::from(b);
    product as u64 ^ (product >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The hashes are part of the persistent format: these values must never change.
    #[test]
    fn golden() {
        assert_eq!(xxh3_64_with_seed(b"", 0), 0x2d06_8005_38d3_94c2);
        assert_eq!(BytesRef::new(b"evermap", 42).hash, xxh3_64_with_seed(b"evermap", 42));
    }

    #[test]
    fn no_key_of_a_caller_stands_for_any() {
        assert!(BytesRef::any(7).is_any());
        for key in [&[][..], b"key", &ANY.to_vec()[..]] {
            assert!(!BytesRef::new(key, 7).is_any());
        }
    }

    type Family = (&'static str, fn(u64) -> u64);

    const FAMILIES: [Family; 6] = [
        ("counting", |i| i),
        ("stride 64", |i| i * 64),
        ("high bits", |i| i << 44),
        ("aligned addresses", |i| 0x7f00_0000_0000 + i * 4096),
        ("bit reversed", |i| i.reverse_bits()),
        ("two halves", |i| (i << 32) | i),
    ];

    /// Structured keys must be distributed over directory bits (top), bucket bits (8..14) and
    /// fingerprints (0..8).
    #[test]
    fn structured_keys_spread() {
        for (name, family) in FAMILIES {
            for (part, shift) in [("top", 56), ("bucket", 8), ("fingerprint", 0)] {
                let mut counts = [0u32; 256];
                for i in 0..1 << 16 {
                    counts[(mix(family(i), 7) >> shift) as u8 as usize] += 1;
                }
                // 65,536 draws into 256 boxes: mean 256, standard deviation 16. A deviation of
                // seven of these shows a broken hash.
                let (low, high) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                assert!(*low > 256 - 112 && *high < 256 + 112, "{name} {part}: {low}..{high}");
            }
        }
    }

    /// Images are part of the persistent format too.
    #[test]
    fn golden_images() {
        let images = [0, 1, u64::MAX].map(|key| mix_invertibly(key, 42));
        assert_eq!(images, [0xafb0_e8bc_1290_7c97, 0x2a87_8dcf_b1e6_c0c1, 0xc974_f35e_ad65_1664]);
    }

    #[test]
    fn images_can_be_inverted() {
        for seed in [0, 7, u64::MAX] {
            for (_, family) in FAMILIES {
                for key in (0..1 << 12).map(family).chain([u64::MAX, 1 << 63]) {
                    assert_eq!(unmix(mix_invertibly(key, seed), seed), key);
                }
            }
        }
    }

    /// Structured keys must be distributed over each part of the image, and over two parts
    /// together: directory bits (top), line bits (0..8), and the bits that choose another line
    /// (8..16).
    #[test]
    fn images_spread() {
        type Part = (&'static str, fn(u64) -> u64);
        let parts: [Part; 5] = [
            ("top", |image| image >> 56),
            ("line", |image| image & 0xff),
            ("step", |image| image >> 8 & 0xff),
            ("top and line", |image| image >> 60 << 4 | image & 0xf),
            ("line and step", |image| image >> 4 & 0xff),
        ];
        for seed in [0, 7, 0x5eed_5eed_5eed_5eed] {
            for (name, family) in FAMILIES {
                for (part, part_of) in parts {
                    let mut counts = [0u32; 256];
                    for i in 0..1 << 16 {
                        counts[part_of(mix_invertibly(family(i), seed)) as usize] += 1;
                    }
                    let (low, high) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
                    assert!(*low > 256 - 112 && *high < 256 + 112, "{name} {part}: {low}..{high}");
                }
            }
        }
    }
}

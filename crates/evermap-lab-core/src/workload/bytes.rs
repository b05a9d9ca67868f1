//! Keys and values as byte strings.
//!
//! Both follow from the 64-bit key of the workload. A byte key starts with it. A value starts with
//! the [`word`] that the key would be bound to in a table of words, followed by words that follow
//! from that one, so that a value which is torn, cut off, or another key's is detected.

use std::fmt;
use std::str::FromStr;

use super::keys::{GOLDEN, random, splitmix, word};
use super::zipf::Zipf;
use crate::LabError;

/// The least number of bytes of a key or a value.
const LEAD: u32 = 8;
/// The length of the longest value, in bytes.
const LENGTH_MAX: u32 = 1 << 20;
/// The number of lengths that a distribution is reduced to.
const QUANTILES: usize = 256;

/// The lengths of keys or values, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lengths {
    /// All equal.
    Fixed(u32),
    /// Uniform between these two.
    Uniform(u32, u32),
    /// Between these two, the shortest most often: by Zipf's law with the skew of YCSB.
    Zipfian(u32, u32),
}

impl Lengths {
    /// Returns the least and the greatest length.
    pub fn bounds(self) -> (u32, u32) {
        match self {
            Lengths::Fixed(bytes) => (bytes, bytes),
            Lengths::Uniform(least, most) | Lengths::Zipfian(least, most) => (least, most),
        }
    }

    fn check(self) -> Result<Self, LabError> {
        let (least, most) = self.bounds();
        if least < LEAD || most > LENGTH_MAX || least > most {
            return Err(LabError::Config(format!(
                "lengths of {self} bytes are impossible: they must be between {LEAD} and \
                 {LENGTH_MAX}, the shortest first"
            )));
        }
        Ok(self)
    }

    /// Returns the lengths at evenly spaced points of the distribution.
    fn quantiles(self) -> [u32; QUANTILES] {
        let (least, most) = self.bounds();
        let zipf = Zipf::new(Zipf::YCSB);
        std::array::from_fn(|at| match self {
            Lengths::Fixed(bytes) => bytes,
            Lengths::Uniform(..) => {
                let span = u64::from(most - least) * at as u64 / (QUANTILES as u64 - 1);
                least + span as u32
            }
            Lengths::Zipfian(..) => {
                let point = (at as u64 * 2 + 1) << (u64::BITS - 1 - QUANTILES.ilog2());
                least + zipf.rank(u64::from(most - least) + 1, point) as u32
            }
        })
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Lengths::Fixed(bytes) => write!(f, "{bytes}"),
            Lengths::Uniform(least, most) => write!(f, "{least}-{most}"),
            Lengths::Zipfian(least, most) => write!(f, "zipfian:{least}-{most}"),
        }
    }
}

impl FromStr for Lengths {
    type Err = LabError;

    fn from_str(text: &str) -> Result<Self, LabError> {
        let unknown = || {
            LabError::Config(format!(
                "lengths `{text}` are not understood; write 16, 8-64, or zipfian:8-1024"
            ))
        };
        let number = |text: &str| text.parse::<u32>().map_err(|_| unknown());
        let between = |text: &str| {
            let (least, most) = text.split_once('-').ok_or_else(unknown)?;
            Ok::<_, LabError>((number(least)?, number(most)?))
        };
        let lengths = if let Some(bounds) = text.strip_prefix("zipfian:") {
            let (least, most) = between(bounds)?;
            Lengths::Zipfian(least, most)
        } else if text.contains('-') {
            let (least, most) = between(text)?;
            Lengths::Uniform(least, most)
        } else {
            Lengths::Fixed(number(text)?)
        };
        lengths.check()
    }
}

/// The lengths of keys and values that are byte strings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyValueLengths {
    /// Lengths of keys.
    pub keys: Lengths,
    /// Lengths of values.
    pub values: Lengths,
}

impl KeyValueLengths {
    /// The lengths of words.
    pub const WORDS: KeyValueLengths =
        KeyValueLengths { keys: Lengths::Fixed(8), values: Lengths::Fixed(8) };

    /// Returns the greatest length of a key and its value together, in bytes.
    pub fn most_bytes(self) -> u64 {
        u64::from(self.keys.bounds().1) + u64::from(self.values.bounds().1)
    }
}

impl Default for KeyValueLengths {
    /// Returns the lengths of the literature on persistent memory: keys of 16 bytes, values of 8.
    fn default() -> Self {
        KeyValueLengths { keys: Lengths::Fixed(16), values: Lengths::Fixed(8) }
    }
}

/// Writes and reads byte keys and values of given lengths.
#[derive(Clone, Debug)]
pub struct Speller {
    keys: [u32; QUANTILES],
    values: [u32; QUANTILES],
}

impl Speller {
    /// Creates a speller for keys and values of these lengths.
    pub fn new(lengths: KeyValueLengths) -> Self {
        Speller { keys: lengths.keys.quantiles(), values: lengths.values.quantiles() }
    }

    /// Appends the byte key of `key`. Byte keys sort as their keys do.
    #[inline]
    pub fn append_key(&self, key: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(&key.to_be_bytes());
        let bytes = self.keys[quantile(key, 1)] as usize - LEAD as usize;
        append_words(splitmix(key), bytes, out);
    }

    /// Returns the key that `bytes` stand for, or `None` if they are no byte key.
    pub fn key_of(&self, bytes: &[u8]) -> Option<u64> {
        let key = u64::from_be_bytes(bytes.get(..8)?.try_into().ok()?);
        let rest = &bytes[8..];
        let long = self.keys[quantile(key, 1)] as usize - LEAD as usize;
        (rest.len() == long && are_words(splitmix(key), rest)).then_some(key)
    }

    /// Appends the value of `key` in `version`.
    #[inline]
    pub fn append_value(&self, key: u64, version: u64, out: &mut Vec<u8>) {
        append_words(word(key, version), self.values[quantile(key, 2)] as usize, out);
    }

    /// Returns the word that a value of `key` stands for, or `None` if it is no value of that key.
    #[inline]
    pub fn word_of(&self, key: u64, value: &[u8]) -> Option<u64> {
        let first = u64::from_le_bytes(value.get(..8)?.try_into().ok()?);
        let long = self.values[quantile(key, 2)] as usize;
        (value.len() == long && are_words(first, value)).then_some(first)
    }

    /// As [`word_of`](Self::word_of), but reads only the first and the last eight bytes.
    #[inline]
    pub fn word_at_ends(&self, key: u64, value: &[u8]) -> Option<u64> {
        let first = u64::from_le_bytes(*value.first_chunk()?);
        let last = u64::from_le_bytes(*value.last_chunk()?);
        let long = self.values[quantile(key, 2)] as usize;
        (value.len() == long && last == last_bytes(first, long)).then_some(first)
    }
}

/// Returns the quantile of the length of a key. `of` distinguishes the lengths of keys and values.
#[inline]
fn quantile(key: u64, of: u64) -> usize {
    (key.wrapping_mul(GOLDEN + 2 * of) >> 56) as usize
}

/// Appends `first`, `first + GOLDEN`, ... little-endian, `bytes` in all.
#[inline]
fn append_words(first: u64, bytes: usize, out: &mut Vec<u8>) {
    let start = out.len();
    out.resize(start + bytes, 0);
    let mut word = first;
    let mut chunks = out[start..].chunks_exact_mut(8);
    for chunk in &mut chunks {
        chunk.copy_from_slice(&word.to_le_bytes());
        word = word.wrapping_add(GOLDEN);
    }
    let rest = chunks.into_remainder();
    rest.copy_from_slice(&word.to_le_bytes()[..rest.len()]);
}

/// Returns `true` if `bytes` are what [`append_words`] writes.
#[inline]
fn are_words(first: u64, bytes: &[u8]) -> bool {
    let mut word = first;
    let chunks = bytes.chunks_exact(8);
    let rest = chunks.remainder();
    let mut wrong = 0;
    for chunk in chunks {
        wrong |= u64::from_le_bytes(chunk.try_into().expect("8 bytes")) ^ word;
        word = word.wrapping_add(GOLDEN);
    }
    wrong == 0 && *rest == word.to_le_bytes()[..rest.len()]
}

/// Returns the last eight of the `bytes` bytes that [`append_words`] writes. They may be the end of
/// one word and the beginning of the next.
#[inline]
fn last_bytes(first: u64, bytes: usize) -> u64 {
    let start = bytes - 8;
    let low = first.wrapping_add(GOLDEN.wrapping_mul(start as u64 / 8));
    let both = u128::from(low) | u128::from(low.wrapping_add(GOLDEN)) << 64;
    (both >> (8 * (start % 8))) as u64
}

/// Byte keys, stored one after the other.
#[derive(Default)]
pub struct Spelled {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Spelled {
    /// Creates an empty list.
    pub const fn new() -> Self {
        Spelled { bytes: Vec::new(), ends: Vec::new() }
    }

    /// Replaces the contents with the byte keys of `keys`.
    pub fn fill(&mut self, speller: &Speller, keys: &[u64]) {
        self.clear();
        for &key in keys {
            speller.append_key(key, &mut self.bytes);
            self.ends.push(self.bytes.len());
        }
    }

    /// Removes all keys.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Returns all of them.
    pub fn all(&self) -> SpelledPart<'_> {
        SpelledPart { all: self, first: 0 }
    }
}

/// Byte keys starting at one of them.
#[derive(Clone, Copy)]
pub struct SpelledPart<'a> {
    all: &'a Spelled,
    first: usize,
}

impl<'a> SpelledPart<'a> {
    /// Returns the part without the first `count` keys.
    pub fn after(self, count: usize) -> Self {
        SpelledPart { first: self.first + count, ..self }
    }

    /// Returns the byte key at `place`.
    ///
    /// # Panics
    ///
    /// If there is none.
    #[inline(always)]
    pub fn at(self, place: usize) -> &'a [u8] {
        let place = self.first + place;
        let start = if place == 0 { 0 } else { self.all.ends[place - 1] };
        &self.all.bytes[start..self.all.ends[place]]
    }
}

/// Returns the mean length of a key and its value together.
pub fn mean_bytes(lengths: KeyValueLengths) -> f64 {
    let mean = |lengths: Lengths| {
        lengths.quantiles().iter().map(|&bytes| f64::from(bytes)).sum::<f64>() / QUANTILES as f64
    };
    mean(lengths.keys) + mean(lengths.values)
}

/// Returns the number at `place` of the sequence `of`.
pub fn draw(seed: u64, of: u64, place: u64) -> u64 {
    random(seed ^ splitmix(of), place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lengths(keys: &str, values: &str) -> KeyValueLengths {
        KeyValueLengths { keys: keys.parse().unwrap(), values: values.parse().unwrap() }
    }

    #[test]
    fn lengths_are_written_and_read() {
        for text in ["8", "16", "8-64", "zipfian:8-1024"] {
            assert_eq!(text.parse::<Lengths>().unwrap().to_string(), text);
        }
        for text in ["", "x", "8-", "-8", "zipfian:8", "uniform:1-2"] {
            let error = text.parse::<Lengths>().unwrap_err().to_string();
            assert!(error.contains("not understood; write 16"), "{error}");
        }
        for text in ["7", "0-16", "64-8", "9999999"] {
            let error = text.parse::<Lengths>().unwrap_err().to_string();
            assert!(error.contains("impossible: they must be between 8 and"), "{error}");
        }
    }

    #[test]
    fn keys_and_values_go_both_ways() {
        for both in [lengths("8", "8"), lengths("16", "100"), lengths("8-40", "zipfian:8-900")] {
            let speller = Speller::new(both);
            for i in 0..2000 {
                let (key, version) = (random(1, i), i % 7);
                let (mut name, mut value) = (Vec::new(), Vec::new());
                speller.append_key(key, &mut name);
                speller.append_value(key, version, &mut value);
                assert_eq!(speller.key_of(&name), Some(key));
                assert_eq!(speller.word_of(key, &value), Some(word(key, version)));
                let (least, most) = both.values.bounds();
                assert!((least as usize..=most as usize).contains(&value.len()));
                assert_eq!(speller.word_at_ends(key, &value), Some(word(key, version)));
                // A value that is cut off, torn or another key's is not accepted.
                let shorter = &value[..value.len() - 1];
                assert_eq!(speller.word_of(key, shorter), None);
                assert_eq!(speller.word_at_ends(key, shorter), None);
                if value.len() > 8 {
                    *value.last_mut().unwrap() ^= 1;
                    assert_eq!(speller.word_of(key, &value), None);
                    assert_eq!(speller.word_at_ends(key, &value), None);
                }
                name.push(0);
                assert_eq!(speller.key_of(&name), None);
            }
        }
    }

    #[test]
    fn byte_keys_sort_as_their_keys() {
        let speller = Speller::new(lengths("8-64", "8"));
        let mut keys: Vec<_> = (0..500).map(|i| random(9, i)).collect();
        let spell = |&key: &u64| {
            let mut name = Vec::new();
            speller.append_key(key, &mut name);
            name
        };
        let mut names: Vec<_> = keys.iter().map(spell).collect();
        keys.sort();
        names.sort();
        assert_eq!(names, keys.iter().map(spell).collect::<Vec<_>>());
    }

    #[test]
    fn lengths_follow_their_distribution() {
        let count = |values: &str, below: u32| {
            let speller = Speller::new(lengths("8", values));
            let long = |i| speller.values[quantile(random(5, i), 2)];
            (0..10_000).filter(|&i| long(i) < below).count()
        };
        assert!((4500..5500).contains(&count("8-107", 58)));
        // By Zipf's law of 100 ranks half of the weight is on the first eight.
        assert!((4300..5700).contains(&count("zipfian:8-107", 16)));
        assert_eq!(mean_bytes(lengths("16", "8")), 24.0);
        assert!((mean_bytes(lengths("16", "8-107")) - (16.0 + 57.5)).abs() < 1.0);
    }

    #[test]
    fn spelled_keys_are_found_by_place() {
        let speller = Speller::new(lengths("8-40", "8"));
        let keys: Vec<_> = (0..100).map(|i| random(2, i)).collect();
        let mut spelled = Spelled::default();
        spelled.fill(&speller, &keys);
        for (place, &key) in keys.iter().enumerate() {
            assert_eq!(speller.key_of(spelled.all().at(place)), Some(key));
            assert_eq!(spelled.all().after(place).at(0), spelled.all().at(place));
        }
    }
}

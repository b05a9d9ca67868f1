//! The first two pages of the file of a table: what decides where everything is.

use std::path::Path;

use evermap_pm::{Error, ErrorKind, Result};
use xxhash_rust::xxh3::xxh3_64;

use super::queue::Buffer;

const MAGIC: u64 = u64::from_le_bytes(*b"EVTRFILE");
/// The newest version of the format that this program reads.
const VERSION: u32 = 1;
/// The number of words of a header, the last of which is the checksum.
const WORDS: usize = 11;

/// Everything that is not in the tranches.
///
/// There are two copies, in page 0 and in page 1. A new header replaces the older one, and the one
/// with the higher sequence number counts, so a torn write leaves the one before. Words of 8 bytes,
/// little-endian:
///
/// ```text
/// word  0  magic
/// word  1  version, bytes in a tranche (high half)
/// word  2  sequence   rises with each header
/// word  3  base       groups that the table began with
/// word  4  groups
/// word  5  seed       of the hashes and checksums
/// word  6  records
/// word  7  bytes      that these records take in tranches
/// word  8  long_end   end of what counts in the file of long records
/// word  9  state      0: never synchronised; 1 + n: synchronised, and n pages of the journal are
///                     to be copied to their places
/// word 10  checksum   XXH3 of the other words
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) sequence: u64,
    pub(super) base: u64,
    pub(super) groups: u64,
    pub(super) seed: u64,
    pub(super) records: u64,
    pub(super) bytes: u64,
    pub(super) long_end: u64,
    /// `None` until the table is synchronised for the first time.
    pub(super) journal: Option<u64>,
}

/// The greatest number of groups.
const GROUPS_MAX: u64 = 1 << 40;

impl Header {
    /// Returns the page for the header, of `T` bytes, and the number of its copy.
    pub(super) fn encode<const T: usize>(&self, mut page: Buffer) -> (Buffer, u64) {
        let words = [
            MAGIC,
            u64::from(VERSION) | (T as u64) << 32,
            self.sequence,
            self.base,
            self.groups,
            self.seed,
            self.records,
            self.bytes,
            self.long_end,
            self.journal.map_or(0, |pages| pages + 1),
        ];
        let mut bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend_from_slice(&xxh3_64(&bytes).to_le_bytes());
        page.bytes_mut().fill(0);
        page.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
        (page, self.sequence % 2)
    }

    /// Chooses the header that counts. `first` and `second` are what the file begins with, and
    /// what is in the second page.
    ///
    /// # Errors
    /// `NotAStore` for other files, and for tables with other tranches; `NewerFormat`; `Damaged`.
    pub(super) fn choose<const T: usize>(
        first: &[u8],
        second: &[u8],
        path: &Path,
    ) -> Result<Header> {
        let (first, second) = (words_of(first), words_of(second));
        let ours = [first, second].into_iter().flatten().filter(|words| words[0] == MAGIC);
        let ours: Vec<_> = ours.collect();
        let Some(newest) = ours.iter().map(|words| words[1] as u32).max() else {
            return Err(not_a_store(path, "it does not begin as a table of tranches does"));
        };
        if newest > VERSION {
            let path = path.to_owned();
            return Err(ErrorKind::NewerFormat { path, found: newest, known: VERSION }.into());
        }
        let valid = ours.iter().filter(|words| words[WORDS - 1] == checksum(words));
        let Some(words) = valid.max_by_key(|words| words[2]) else {
            return Err(damaged(0, "the checksums of both headers differ"));
        };
        if words[1] >> 32 != T as u64 {
            let why = format!("its tranches have {} bytes, and not {T}", words[1] >> 32);
            return Err(not_a_store(path, &why));
        }
        let header = Header {
            sequence: words[2],
            base: words[3],
            groups: words[4],
            seed: words[5],
            records: words[6],
            bytes: words[7],
            long_end: words[8],
            journal: words[9].checked_sub(1),
        };
        let possible = header.base > 0 && header.base <= header.groups;
        if !possible || header.groups > GROUPS_MAX {
            return Err(damaged(0, "impossible numbers of groups"));
        }
        Ok(header)
    }
}

pub(super) fn not_a_store(path: &Path, why: &str) -> Error {
    ErrorKind::NotAStore { path: path.to_owned(), why: why.to_owned() }.into()
}

/// Returns an error for what is impossible at `offset` of one of the files.
#[cold]
pub(super) fn damaged(offset: u64, what: impl Into<String>) -> Error {
    let advice = "`TrancheFile::verify` describes all that is damaged";
    ErrorKind::Damaged { offset, what: what.into(), advice }.into()
}

fn words_of(page: &[u8]) -> Option<[u64; WORDS]> {
    let mut words = [0; WORDS];
    for (word, bytes) in words.iter_mut().zip(page.get(..WORDS * 8)?.chunks_exact(8)) {
        *word = u64::from_le_bytes(bytes.try_into().ok()?);
    }
    Some(words)
}

fn checksum(words: &[u64; WORDS]) -> u64 {
    let bytes: Vec<u8> = words[..WORDS - 1].iter().flat_map(|word| word.to_le_bytes()).collect();
    xxh3_64(&bytes)
}

/// How many groups there are, and which of them a key is in: linear hashing.
///
/// `base * 2^level` groups were there when the current round of growth began, and as many of them
/// as there are groups behind these have been split.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Groups {
    pub(super) base: u64,
    pub(super) count: u64,
}

impl Groups {
    /// Returns the number of groups when the current round began.
    pub(super) fn before(self) -> u64 {
        self.base << (self.count / self.base).ilog2()
    }

    /// Returns the group of keys with this hash.
    pub(super) fn of(self, hash: u64) -> u64 {
        let before = self.before();
        let group = hash % (2 * before);
        if group < self.count { group } else { group - before }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header() -> Header {
        Header {
            sequence: 4,
            base: 3,
            groups: 7,
            seed: 1,
            records: 2,
            bytes: 40,
            long_end: 8192,
            journal: Some(3),
        }
    }

    fn page(header: &Header) -> Vec<u8> {
        header.encode::<4096>(Buffer::new(4096)).0.bytes().to_vec()
    }

    fn choose(first: &[u8], second: &[u8]) -> Result<Header> {
        Header::choose::<4096>(first, second, Path::new("file"))
    }

    #[test]
    fn the_later_header_counts_if_it_is_whole() {
        let (old, new) = (header(), Header { sequence: 5, records: 9, ..header() });
        assert_eq!(choose(&page(&old), &page(&new)).unwrap(), new);
        assert_eq!(choose(&page(&new), &page(&old)).unwrap(), new);
        let mut torn = page(&new);
        torn[50] ^= 1;
        assert_eq!(choose(&page(&old), &torn).unwrap(), old);
        assert_eq!(choose(&page(&old), &[]).unwrap(), old);
        assert_eq!(new.encode::<4096>(Buffer::new(4096)).1, 1);
        let building = Header { journal: None, ..header() };
        assert_eq!(choose(&page(&building), &[0; 4096]).unwrap(), building);
    }

    #[test]
    fn other_files_are_refused_with_a_reason() {
        let message = |first: &[u8], second: &[u8]| choose(first, second).unwrap_err().to_string();
        for nothing in [&[][..], &[0; 4096], b"some text"] {
            assert!(message(nothing, nothing).contains("does not begin as a table"));
        }
        let mut torn = page(&header());
        torn[30] ^= 1;
        assert!(message(&torn, &torn).contains("checksums of both headers differ"));
        let mut newer = page(&header());
        newer[8] = 2;
        assert!(message(&newer, &page(&header())).contains("format 2 is newer than the 1"));
        let other = Header::choose::<8192>(&page(&header()), &[], Path::new("file")).unwrap_err();
        assert!(other.to_string().contains("tranches have 4096 bytes, and not 8192"), "{other}");
        for (base, groups) in [(0, 7), (8, 7), (1, 1 << 41)] {
            let impossible = page(&Header { base, groups, ..header() });
            assert!(message(&impossible, &[]).contains("impossible numbers of groups"));
        }
    }

    /// A key is in one of the groups, and a split moves keys from one group to the new one only.
    #[test]
    fn groups_are_split_one_after_the_other() {
        for base in [1, 3, 8, 100] {
            for count in base..5 * base {
                let (now, next) = (Groups { base, count }, Groups { base, count: count + 1 });
                let mut moved = 0;
                for hash in (0..2000u64).map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 20) {
                    let (old, new) = (now.of(hash), next.of(hash));
                    assert!(old < count);
                    if old != new {
                        assert_eq!((old, new), (count - now.before(), count));
                        moved += 1;
                    }
                }
                assert!(moved > 0, "{base} {count}");
            }
        }
    }
}

//! Words that carry a check of their own, so that damage is noticed.
//!
//! A record is covered by its checksum. A few single words are not: a control word, the limit of
//! the CAS ids, the flush mark, the root of a batch's intent, the words of a map. They carry a
//! check, so that a word that was overwritten, zeroed or moved is noticed instead of believed.

/// Which word it is. A word of one kind does not verify as another.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WordKind {
    /// The control word of a record.
    Control = 1,
    /// All CAS ids that were ever given out are smaller.
    CasLimit = 2,
    /// Records with a CAS id below this one are flushed.
    FlushMark = 3,
    /// When a pending flush falls due.
    FlushDue = 4,
    /// The number of records.
    Records = 5,
    /// Their bytes; until they are counted after an unclean shutdown, an upper limit.
    Bytes = 6,
    /// The offset of the intent of a batch: see [`intent`](crate::batch::intent).
    Intent = 7,
    /// The offset of the descriptor of the catalogue: see [`catalog`](crate::map::catalog).
    Catalogue = 8,
    /// The offset of the descriptor that has this word: see [`header`](crate::map::header).
    Descriptor = 9,
    /// The offset of the keys of a map that were saved in order: see [`saved`](crate::ordered).
    Saved = 10,
    /// The offset of the block of a persistent ordered index: see [`persistent`](crate::ordered).
    Order = 11,
    /// As `Descriptor`, of a map that has a seed of its own.
    SeededDescriptor = 12,
}

impl WordKind {
    /// Returns the number of bits of the value; the others are for the check.
    #[inline]
    const fn width(self) -> u32 {
        match self {
            WordKind::Control | WordKind::FlushDue => 40,
            WordKind::Records
            | WordKind::Bytes
            | WordKind::Intent
            | WordKind::Catalogue
            | WordKind::Descriptor
            | WordKind::SeededDescriptor
            | WordKind::Saved
            | WordKind::Order => 48,
            WordKind::CasLimit | WordKind::FlushMark => 56,
        }
    }

    /// Returns the largest value + 1.
    #[inline]
    pub(crate) const fn limit(self) -> u64 {
        1 << self.width()
    }
}

/// Returns `value` with its check above it. Never 0, so that a zeroed word does not verify.
#[inline]
pub(crate) fn encode_checked(kind: WordKind, value: u64) -> u64 {
    debug_assert!(value < kind.limit());
    value | check(kind, value) << kind.width()
}

/// Returns the value of a checked word, or `None` if it was damaged.
#[inline]
pub(crate) fn decode_checked(kind: WordKind, word: u64) -> Option<u64> {
    let value = word & (kind.limit() - 1);
    (check(kind, value) == word >> kind.width()).then_some(value)
}

/// Returns a number from 1 on that fits above the value and depends on all its bits.
#[inline]
fn check(kind: WordKind, value: u64) -> u64 {
    let mixed = (value ^ (kind as u64) << 56).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let product = u128::from(mixed) * 0xd6e8_feb8_6659_fd93;
    let folded = (product as u64) ^ (product >> 64) as u64;
    folded % ((1 << (64 - kind.width())) - 1) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const KINDS: [WordKind; 12] = [
        WordKind::Control,
        WordKind::CasLimit,
        WordKind::FlushMark,
        WordKind::FlushDue,
        WordKind::Records,
        WordKind::Bytes,
        WordKind::Intent,
        WordKind::Catalogue,
        WordKind::Descriptor,
        WordKind::Saved,
        WordKind::Order,
        WordKind::SeededDescriptor,
    ];

    /// The check is part of the format: these values must never change.
    #[test]
    fn golden() {
        assert_eq!(encode_checked(WordKind::Control, 0), 0xc66d_2b00_0000_0000);
        assert_eq!(encode_checked(WordKind::CasLimit, 1 << 20), 0x2b00_0000_0010_0000);
    }

    #[test]
    fn checked_words_verify_and_damaged_ones_mostly_do_not() {
        for kind in KINDS {
            for value in (0..2000).chain((0..kind.width()).map(|bit| 1 << bit)) {
                let word = encode_checked(kind, value);
                assert_eq!(decode_checked(kind, word), Some(value));
                assert_eq!(decode_checked(kind, 0), None);
                assert_eq!(decode_checked(kind, u64::MAX), None);
            }
            let flips = (0..64 * 500u64)
                .filter(|i| {
                    decode_checked(kind, encode_checked(kind, i / 64) ^ 1 << (i % 64)).is_some()
                })
                .count();
            assert!(flips < 500, "{flips} of 32,000 flipped bits went unnoticed in {kind:?}");
        }
        let moved = (0..1000)
            .filter(|&value| {
                decode_checked(WordKind::FlushMark, encode_checked(WordKind::FlushDue, value))
                    .is_some()
            })
            .count();
        assert!(moved < 50, "{moved} of 1,000 words verified in another place");
    }
}

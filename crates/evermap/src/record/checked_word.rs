//! Words that tell whether they were damaged.
//!
//! What a whole record hangs on is covered by its checksum. A few lone words are not: a control word, the
//! limit of the CAS ids, the flush mark, the root of a batch's intent, the words of a map. They carry a check of their own, so that a word that was
//! overwritten, zeroed or moved is noticed instead of believed.

/// Which word it is: a word in the place of another does not verify.
#[derive(Clone, Copy, Debug)]
pub(crate) enum WordKind {
    /// The control word of a record.
    Control = 1,
    /// No CAS id at or above this one was ever given out.
    CasLimit = 2,
    /// Records with a CAS id below this one are flushed.
    FlushMark = 3,
    /// When a pending flush falls due.
    FlushDue = 4,
    /// The number of records.
    Records = 5,
    /// Their bytes; until they are counted after an unclean stop, the most that they can be.
    Bytes = 6,
    /// Where the intent of a batch is: see [`intent`](crate::batch::intent).
    Intent = 7,
    /// Where the descriptor of the catalogue is: see [`maps`](crate::map::catalog).
    Catalogue = 8,
    /// Where the descriptor of a map is that has this word: see [`map`](crate::map::header).
    Descriptor = 9,
    /// Where the keys of a map are that were saved in order: see [`saved`](crate::ordered).
    Saved = 10,
}

impl WordKind {
    /// Bits of the value; the rest is for the check.
    #[inline]
    const fn width(self) -> u32 {
        match self {
            WordKind::Control | WordKind::FlushDue => 40,
            WordKind::Records
            | WordKind::Bytes
            | WordKind::Intent
            | WordKind::Catalogue
            | WordKind::Descriptor
            | WordKind::Saved => 48,
            WordKind::CasLimit | WordKind::FlushMark => 56,
        }
    }

    /// Largest value + 1.
    #[inline]
    pub(crate) const fn limit(self) -> u64 {
        1 << self.width()
    }
}

/// `value` with its check on top. Never 0, so that a zeroed word does not verify.
#[inline]
pub(crate) fn encode_checked(place: WordKind, value: u64) -> u64 {
    debug_assert!(value < place.limit());
    value | check(place, value) << place.width()
}

/// The value of a sealed word; nothing if it was damaged.
#[inline]
pub(crate) fn decode_checked(place: WordKind, word: u64) -> Option<u64> {
    let value = word & (place.limit() - 1);
    (check(place, value) == word >> place.width()).then_some(value)
}

/// A number from 1 up that fits above the value and depends on all its bits.
#[inline]
fn check(place: WordKind, value: u64) -> u64 {
    let mixed = (value ^ (place as u64) << 56).wrapping_add(0x9e37_79b9_7f4a_7c15);
    let product = u128::from(mixed) * 0xd6e8_feb8_6659_fd93;
    let folded = (product as u64) ^ (product >> 64) as u64;
    folded % ((1 << (64 - place.width())) - 1) + 1
}

#[cfg(test)]
mod tests {
    use super::*;

    const PLACES: [WordKind; 10] = [
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
    ];

    /// The check is part of the format: these values must never change.
    #[test]
    fn golden() {
        assert_eq!(encode_checked(WordKind::Control, 0), 0xc66d_2b00_0000_0000);
        assert_eq!(encode_checked(WordKind::CasLimit, 1 << 20), 0x2b00_0000_0010_0000);
    }

    #[test]
    fn sealed_words_verify_and_damaged_ones_mostly_do_not() {
        for place in PLACES {
            for value in (0..2000).chain((0..place.width()).map(|bit| 1 << bit)) {
                let word = encode_checked(place, value);
                assert_eq!(decode_checked(place, word), Some(value));
                assert_eq!(decode_checked(place, 0), None);
                assert_eq!(decode_checked(place, u64::MAX), None);
            }
            let flips = (0..64 * 500u64)
                .filter(|i| {
                    decode_checked(place, encode_checked(place, i / 64) ^ 1 << (i % 64)).is_some()
                })
                .count();
            assert!(flips < 500, "{flips} of 32,000 flipped bits went unnoticed in {place:?}");
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

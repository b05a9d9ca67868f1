//! What the control word of a live record says.
//!
//! ```text
//! bits  0..32   the expiry, in seconds since 1970; 0: never
//! bit      32   the record is unbound; the low bits are those of a tombstone then
//! bits 33..36   the marks
//! bit      36   the word may not be durable yet
//! bits 37..40   reserved; 0
//! bits 40..64   the check
//! ```
//!
//! The word is the only one of a published record that is changed in place. While it is stored but
//! not flushed, its bit 36 is set, and who reads it flushes it before showing anything of it
//! (link-and-persist: David et al., "Log-Free Concurrent Data Structures", section 3). Otherwise a
//! process that dies in between would leave a word that later ones show, until a power loss takes
//! it back.
//!
//! A record without marks has the word that it had before there were marks, so a file that was
//! written then means the same now. A program from then reports a marked record as damaged.

use crate::item::Marks;
use crate::record::checked_word::{WordKind, decode_checked, encode_checked};
use crate::{Expiry, Meta, Result};

const MARKS_SHIFT: u32 = 33;
const UNFLUSHED: u64 = 1 << 36;

/// Returns `true` if this control word of a live record may not be durable.
#[inline]
pub(crate) fn is_unflushed(word: u64) -> bool {
    word & UNFLUSHED != 0
}

/// The expiry and the marks of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Control {
    /// When the record expires, in seconds since 1970; 0: never.
    pub(crate) expires_at: u32,
    pub(crate) marks: Marks,
}

impl Control {
    /// Returns what is stored of `meta` beside the value and the flags.
    ///
    /// # Errors
    /// [`Error::ExpiryTooLate`](crate::Error::ExpiryTooLate).
    pub(crate) fn of(meta: &Meta) -> Result<Self> {
        Ok(Control { expires_at: meta.expiry.encode()?, marks: meta.marks() })
    }

    /// Returns the control word.
    #[inline]
    pub(crate) fn encode(self) -> u64 {
        encode_checked(WordKind::Control, self.value())
    }

    /// Returns the control word while it is not known to be durable.
    pub(crate) fn encode_unflushed(self) -> u64 {
        encode_checked(WordKind::Control, UNFLUSHED | self.value())
    }

    #[inline]
    fn value(self) -> u64 {
        u64::from(self.expires_at) | u64::from(self.marks.bits()) << MARKS_SHIFT
    }

    /// Returns what a control word says, or `None` if it is a tombstone or damaged.
    #[inline]
    pub(crate) fn decode(word: u64) -> Option<Self> {
        let value = decode_checked(WordKind::Control, word)?;
        let marks = Marks::from_bits_truncate((value >> MARKS_SHIFT) as u8);
        let marked = value & !(u64::from(u32::MAX) | UNFLUSHED);
        // Neither unbound nor with a bit that has no meaning yet.
        (marked == u64::from(marks.bits()) << MARKS_SHIFT)
            .then_some(Control { expires_at: value as u32, marks })
    }

    /// Returns when the record expires.
    #[inline]
    pub(crate) fn expiry(self) -> Expiry {
        Expiry::decode(self.expires_at)
    }

    /// Returns what is stored beside the value of a record with these flags.
    #[inline]
    pub(crate) fn meta(self, flags: u32) -> Meta {
        Meta::new().with_flags(flags).with_expiry(self.expiry()).with_marks(self.marks)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::{control_of, tombstone_of};

    #[test]
    fn every_expiry_and_mark_is_read_as_it_was_written() {
        for expires_at in [0, 1, 77, u32::MAX] {
            for bits in 0..8 {
                let control = Control { expires_at, marks: Marks::from_bits_truncate(bits) };
                assert_eq!(Control::decode(control.encode()), Some(control));
                assert_eq!(Control::decode(control.encode_unflushed()), Some(control));
                assert!(is_unflushed(control.encode_unflushed()));
                assert!(!is_unflushed(control.encode()));
            }
            // The word of a record without marks is part of the format.
            let unmarked = Control { expires_at, marks: Marks::NONE };
            assert_eq!(unmarked.encode(), control_of(expires_at));
        }
    }

    #[test]
    fn tombstones_and_reserved_bits_are_not_read() {
        for generation in [0, 1, u64::from(u32::MAX)] {
            assert_eq!(Control::decode(tombstone_of(generation)), None);
            assert!(!is_unflushed(tombstone_of(generation)));
        }
        for bit in 37..40 {
            assert_eq!(Control::decode(encode_checked(WordKind::Control, 1 << bit)), None);
        }
    }
}

//! The layout of request packets: the header, the opcodes, and the lengths that each takes.
//!
//! A request is a header of 24 bytes, then the extras (the parameters of the command), the key and
//! the value. All numbers are big-endian.

use crate::cache::Side;
use crate::protocol::ops::Verb;

/// The first byte of every request.
pub(in crate::protocol) const REQUEST: u8 = 0x80;
/// The first byte of every reply.
pub(super) const REPLY: u8 = 0x81;
/// The length of a header, in bytes.
pub(super) const HEADER_LEN: usize = 24;

/// The header of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub(super) tag: Tag,
    pub(super) key_len: usize,
    pub(super) extras_len: usize,
    /// The length of extras, key and value together.
    pub(super) body_len: usize,
    /// The CAS id that the item must have, or 0.
    pub(super) cas: u64,
}

/// The fields of a request that its replies repeat.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tag {
    pub(super) opcode: u8,
    pub(super) opaque: [u8; 4],
}

impl Header {
    /// Reads the header at the start of `input`, whose first byte is [`REQUEST`]. Returns `None` if
    /// it has not arrived completely.
    ///
    /// The data type and the bucket are ignored, because there is only one of each.
    pub(super) fn read(input: &[u8]) -> Option<Header> {
        let [_, opcode, k0, k1, extras_len, _, _, _, rest @ ..] =
            input.first_chunk::<HEADER_LEN>()?;
        let [b0, b1, b2, b3, o0, o1, o2, o3, cas @ ..] = *rest;
        Some(Header {
            tag: Tag { opcode: *opcode, opaque: [o0, o1, o2, o3] },
            key_len: u16::from_be_bytes([*k0, *k1]).into(),
            extras_len: (*extras_len).into(),
            body_len: u32::from_be_bytes([b0, b1, b2, b3]) as usize,
            cas: u64::from_be_bytes(cas),
        })
    }

    /// Returns the number of bytes from the start of the packet to its value.
    pub(super) fn head_len(&self) -> usize {
        HEADER_LEN + self.extras_len + self.key_len
    }

    /// Returns the length of the value, or `None` if extras and key exceed the body.
    pub(super) fn value_len(&self) -> Option<usize> {
        self.body_len.checked_sub(self.extras_len + self.key_len)
    }
}

/// A command. Several opcodes can stand for one, which differ in when they are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Command {
    Get {
        with_key: bool,
    },
    GetAndTouch {
        with_key: bool,
    },
    Touch,
    Store(Verb),
    Delete,
    Arithmetic {
        up: bool,
    },
    Flush,
    Noop,
    Version,
    Stat,
    Verbosity,
    Quit,
    /// Lists the mechanisms of authentication.
    SaslList,
    /// Begins an authentication.
    SaslStart,
    /// Continues it.
    SaslStep,
}

impl Command {
    /// Returns the command that an opcode stands for, and whether it is quiet: errors are answered,
    /// a success is not, except by the values that a lookup found.
    pub(super) fn of(opcode: u8) -> Option<(Command, bool)> {
        use Command::*;
        let loud = |command| Some((command, false));
        let quiet = |command| Some((command, true));
        match opcode {
            0x00 => loud(Get { with_key: false }),
            0x01 => loud(Store(Verb::Set)),
            0x02 => loud(Store(Verb::Add)),
            0x03 => loud(Store(Verb::Replace)),
            0x04 => loud(Delete),
            0x05 => loud(Arithmetic { up: true }),
            0x06 => loud(Arithmetic { up: false }),
            0x07 => loud(Quit),
            0x08 => loud(Flush),
            0x09 => quiet(Get { with_key: false }),
            0x0a => loud(Noop),
            0x0b => loud(Version),
            0x0c => loud(Get { with_key: true }),
            0x0d => quiet(Get { with_key: true }),
            0x0e => loud(Store(Verb::Concat(Side::Append))),
            0x0f => loud(Store(Verb::Concat(Side::Prepend))),
            0x10 => loud(Stat),
            0x11 => quiet(Store(Verb::Set)),
            0x12 => quiet(Store(Verb::Add)),
            0x13 => quiet(Store(Verb::Replace)),
            0x14 => quiet(Delete),
            0x15 => quiet(Arithmetic { up: true }),
            0x16 => quiet(Arithmetic { up: false }),
            0x17 => quiet(Quit),
            0x18 => quiet(Flush),
            0x19 => quiet(Store(Verb::Concat(Side::Append))),
            0x1a => quiet(Store(Verb::Concat(Side::Prepend))),
            0x1b => loud(Verbosity),
            0x1c => loud(Touch),
            0x1d => loud(GetAndTouch { with_key: false }),
            0x1e => quiet(GetAndTouch { with_key: false }),
            0x20 => loud(SaslList),
            0x21 => loud(SaslStart),
            0x22 => loud(SaslStep),
            0x23 => loud(GetAndTouch { with_key: true }),
            0x24 => quiet(GetAndTouch { with_key: true }),
            _ => None,
        }
    }

    /// Returns `true` for the commands of an authentication.
    pub(super) fn is_sasl(self) -> bool {
        matches!(self, Command::SaslList | Command::SaslStart | Command::SaslStep)
    }

    /// Returns `true` if a client may send this command before it has authenticated.
    pub(super) fn is_open_to_all(self) -> bool {
        self == Command::Version || self.is_sasl()
    }

    /// Returns `true` if a value belongs to the command, though it may be empty.
    pub(super) fn has_value(self) -> bool {
        matches!(self, Command::Store(_) | Command::SaslStart | Command::SaslStep)
    }

    /// Returns `true` if the command takes extras, a key and a value of these lengths. Whether the
    /// key is too long for an item is checked before.
    pub(super) fn takes(self, extras: usize, key: usize, value: usize) -> bool {
        let (has_key, has_value) = (key > 0, value > 0);
        match self {
            Command::Get { .. } | Command::Delete => extras == 0 && has_key && !has_value,
            Command::GetAndTouch { .. } | Command::Touch => extras == 4 && has_key && !has_value,
            Command::Store(Verb::Concat(_)) => extras == 0 && has_key,
            Command::Store(_) => extras == 8 && has_key,
            Command::Arithmetic { .. } => extras == 20 && has_key && !has_value,
            Command::Flush => (extras == 0 || extras == 4) && !has_key && !has_value,
            Command::Verbosity => extras == 4 && !has_key && !has_value,
            Command::Stat => extras == 0 && !has_value,
            Command::Noop | Command::Version | Command::Quit | Command::SaslList => {
                extras == 0 && !has_key && !has_value
            }
            Command::SaslStart | Command::SaslStep => extras == 0 && has_key,
        }
    }
}

/// Reads the big-endian number at `at` in extras whose length was checked.
pub(super) fn extra_u32(extras: &[u8], at: usize) -> u32 {
    let bytes = extras.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u32::from_be_bytes(*bytes))
}

/// As [`extra_u32`], for a number of 64 bits.
pub(super) fn extra_u64(extras: &[u8], at: usize) -> u64 {
    let bytes = extras.get(at..).and_then(|rest| rest.first_chunk());
    bytes.map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_of_a_header() {
        let mut bytes = vec![0x80, 0x05, 1, 2, 20, 9, 8, 7, 0, 0, 4, 5, b'o', b'p', b'a', b'q'];
        bytes.extend(0x0102_0304_0506_0708_u64.to_be_bytes());
        assert_eq!(Header::read(&bytes[..23]), None);
        bytes.push(b'x');
        let header = Header::read(&bytes).unwrap();
        assert_eq!(header.tag, Tag { opcode: 5, opaque: *b"opaq" });
        assert_eq!((header.key_len, header.extras_len, header.body_len), (258, 20, 1029));
        assert_eq!(header.cas, 0x0102_0304_0506_0708);
        assert_eq!((header.head_len(), header.value_len()), (24 + 20 + 258, Some(1029 - 278)));
        assert_eq!(Header { body_len: 277, ..header }.value_len(), None);
    }
}

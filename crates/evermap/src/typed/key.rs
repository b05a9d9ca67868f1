//! How typed keys become bytes that compare as the keys do.

/// A type whose values can be keys of a [`TypedMap`](crate::TypedMap).
///
/// The encoding of a key compares byte by byte as the key does, and no encoding is a prefix of
/// another one of the same type. So tuples are encoded one element after the other, and a
/// [range](crate::TypedMap::range) of keys is a range of encodings.
///
/// | type | encoding |
/// |---|---|
/// | `u8` to `u128` | big-endian |
/// | `i8` to `i128` | big-endian, with the sign bit inverted |
/// | `usize`, `isize` | as `u64` and `i64` |
/// | `bool` | a byte: 0 or 1 |
/// | `char` | as `u32` |
/// | `str`, `String`, `[u8]`, `Vec<u8>` | the bytes, each 0 followed by 0xff; then two bytes 0 |
/// | `[u8; N]` | the bytes |
/// | `Option<T>` | a byte 0; or a byte 1 and the value |
/// | tuples of one to four | the elements, one after the other |
///
/// The encoding is part of the format: it never changes.
///
/// An implementation for another type usually encodes a tuple of its fields:
///
/// ```
/// use evermap::{DecodeKey, EncodeKey};
///
/// #[derive(Debug, PartialEq)]
/// struct Order { customer: u32, number: u64 }
///
/// impl EncodeKey for Order {
///     fn encode_key(&self, out: &mut Vec<u8>) {
///         (self.customer, self.number).encode_key(out);
///     }
/// }
///
/// impl DecodeKey for Order {
///     fn decode_key(input: &mut &[u8]) -> Option<Self> {
///         let (customer, number) = DecodeKey::decode_key(input)?;
///         Some(Order { customer, number })
///     }
/// }
///
/// let mut bytes = Vec::new();
/// Order { customer: 1, number: 2 }.encode_key(&mut bytes);
/// assert_eq!(bytes, [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2]);
/// assert_eq!(Order::decode_key(&mut &bytes[..]), Some(Order { customer: 1, number: 2 }));
/// ```
pub trait EncodeKey {
    /// Appends the encoding to `out`. O(length of the encoding).
    fn encode_key(&self, out: &mut Vec<u8>);
}

/// A key that can be read back: see [`EncodeKey`].
///
/// A type and what it [borrows](std::borrow::Borrow) as, for instance `String` and `str`, have the
/// same encoding.
pub trait DecodeKey: EncodeKey + Sized {
    /// Takes a key from the front of `input`, and leaves what follows it.
    ///
    /// Returns `None` if `input` does not begin with an encoding of this type.
    fn decode_key(input: &mut &[u8]) -> Option<Self>;
}

/// What stands for a zero byte inside a string of bytes, and what ends one.
const ESCAPED_ZERO: [u8; 2] = [0, 0xff];
const END: [u8; 2] = [0, 0];

macro_rules! integers {
    ($($unsigned:ty, $signed:ty;)*) => { $(
        impl EncodeKey for $unsigned {
            fn encode_key(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_be_bytes());
            }
        }

        impl DecodeKey for $unsigned {
            fn decode_key(input: &mut &[u8]) -> Option<Self> {
                <[u8; size_of::<$unsigned>()]>::decode_key(input).map(<$unsigned>::from_be_bytes)
            }
        }

        impl EncodeKey for $signed {
            fn encode_key(&self, out: &mut Vec<u8>) {
                (*self ^ <$signed>::MIN).cast_unsigned().encode_key(out);
            }
        }

        impl DecodeKey for $signed {
            fn decode_key(input: &mut &[u8]) -> Option<Self> {
                let bits = <$unsigned>::decode_key(input)?.cast_signed();
                Some(bits ^ <$signed>::MIN)
            }
        }
    )* };
}

integers! {
    u8, i8;
    u16, i16;
    u32, i32;
    u64, i64;
    u128, i128;
}

/// Encodes a type as another one that holds all of its values, and perhaps more.
macro_rules! encoded_as {
    ($($type:ty as $other:ty;)*) => { $(
        impl EncodeKey for $type {
            fn encode_key(&self, out: &mut Vec<u8>) {
                (*self as $other).encode_key(out);
            }
        }

        impl DecodeKey for $type {
            fn decode_key(input: &mut &[u8]) -> Option<Self> {
                <$other>::decode_key(input)?.try_into().ok()
            }
        }
    )* };
}

encoded_as! {
    usize as u64;
    isize as i64;
    char as u32;
}

impl EncodeKey for bool {
    fn encode_key(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl DecodeKey for bool {
    fn decode_key(input: &mut &[u8]) -> Option<Self> {
        match u8::decode_key(input)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl EncodeKey for [u8] {
    fn encode_key(&self, out: &mut Vec<u8>) {
        for (nth, part) in self.split(|&byte| byte == 0).enumerate() {
            if nth > 0 {
                out.extend_from_slice(&ESCAPED_ZERO);
            }
            out.extend_from_slice(part);
        }
        out.extend_from_slice(&END);
    }
}

impl EncodeKey for Vec<u8> {
    fn encode_key(&self, out: &mut Vec<u8>) {
        self[..].encode_key(out);
    }
}

impl DecodeKey for Vec<u8> {
    fn decode_key(input: &mut &[u8]) -> Option<Self> {
        let mut bytes = Vec::new();
        loop {
            let zero = input.iter().position(|&byte| byte == 0)?;
            bytes.extend_from_slice(&input[..zero]);
            let mark = input.get(zero..zero + 2)?;
            *input = &input[zero + 2..];
            match mark {
                mark if mark == END => return Some(bytes),
                mark if mark == ESCAPED_ZERO => bytes.push(0),
                _ => return None,
            }
        }
    }
}

impl EncodeKey for str {
    fn encode_key(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode_key(out);
    }
}

impl EncodeKey for String {
    fn encode_key(&self, out: &mut Vec<u8>) {
        self.as_bytes().encode_key(out);
    }
}

impl DecodeKey for String {
    fn decode_key(input: &mut &[u8]) -> Option<Self> {
        String::from_utf8(Vec::decode_key(input)?).ok()
    }
}

impl<const N: usize> EncodeKey for [u8; N] {
    fn encode_key(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(self);
    }
}

impl<const N: usize> DecodeKey for [u8; N] {
    fn decode_key(input: &mut &[u8]) -> Option<Self> {
        let (bytes, rest) = input.split_first_chunk()?;
        *input = rest;
        Some(*bytes)
    }
}

impl<T: EncodeKey> EncodeKey for Option<T> {
    fn encode_key(&self, out: &mut Vec<u8>) {
        out.push(u8::from(self.is_some()));
        if let Some(value) = self {
            value.encode_key(out);
        }
    }
}

impl<T: DecodeKey> DecodeKey for Option<T> {
    fn decode_key(input: &mut &[u8]) -> Option<Self> {
        match bool::decode_key(input)? {
            false => Some(None),
            true => T::decode_key(input).map(Some),
        }
    }
}

impl<T: EncodeKey + ?Sized> EncodeKey for &T {
    fn encode_key(&self, out: &mut Vec<u8>) {
        (**self).encode_key(out);
    }
}

macro_rules! tuples {
    ($(($($element:ident $at:tt),+);)*) => { $(
        impl<$($element: EncodeKey),+> EncodeKey for ($($element,)+) {
            fn encode_key(&self, out: &mut Vec<u8>) {
                $(self.$at.encode_key(out);)+
            }
        }

        impl<$($element: DecodeKey),+> DecodeKey for ($($element,)+) {
            fn decode_key(input: &mut &[u8]) -> Option<Self> {
                Some(($($element::decode_key(input)?,)+))
            }
        }
    )* };
}

tuples! {
    (A 0);
    (A 0, B 1);
    (A 0, B 1, C 2);
    (A 0, B 1, C 2, D 3);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Debug;

    fn encoded(key: &(impl EncodeKey + ?Sized)) -> Vec<u8> {
        let mut out = Vec::new();
        key.encode_key(&mut out);
        out
    }

    /// Asserts that every key comes back, and that encodings compare as the keys do.
    fn assert_faithful<T: DecodeKey + Ord + Debug>(keys: &[T]) {
        for key in keys {
            let bytes = [encoded(key), b"rest".to_vec()].concat();
            let mut input = &bytes[..];
            assert_eq!(T::decode_key(&mut input).as_ref(), Some(key));
            assert_eq!(input, b"rest");
            for end in 0..bytes.len() - 4 {
                assert!(T::decode_key(&mut &bytes[..end]).is_none(), "{key:?} cut off at {end}");
            }
            for other in keys {
                let order = encoded(key).cmp(&encoded(other));
                assert_eq!(order, key.cmp(other), "{key:?} {other:?}");
            }
        }
    }

    /// Strings of up to four bytes, with the bytes that have a meaning in the encoding.
    fn strings() -> Vec<Vec<u8>> {
        let mut all = vec![Vec::new()];
        for len in 1..=4 {
            let shorter: Vec<_> = all.iter().filter(|key| key.len() == len - 1).cloned().collect();
            for byte in [0, 1, 0x61, 0xff] {
                all.extend(shorter.iter().map(|key| [&key[..], &[byte]].concat()));
            }
        }
        all
    }

    #[test]
    fn integers_keep_their_order() {
        assert_faithful(&[0, 1, 0x7f, 0x80, u8::MAX]);
        assert_faithful(&[0, 255, 256, 0x8000, u16::MAX]);
        assert_faithful(&[0, 65_535, 65_536, u32::MAX]);
        assert_faithful(&[0, 1 << 32, u64::MAX - 1, u64::MAX]);
        assert_faithful(&[0, 1 << 64, u128::MAX]);
        assert_faithful(&[i8::MIN, -1, 0, 1, i8::MAX]);
        assert_faithful(&[i16::MIN, -256, -255, -1, 0, 256, i16::MAX]);
        assert_faithful(&[i32::MIN, -65_536, -1, 0, 65_536, i32::MAX]);
        assert_faithful(&[i64::MIN, -1 << 32, -1, 0, 1 << 32, i64::MAX]);
        assert_faithful(&[i128::MIN, -1, 0, i128::MAX]);
        assert_faithful(&[usize::MIN, 7, usize::MAX]);
        assert_faithful(&[isize::MIN, -7, isize::MAX]);
    }

    #[test]
    fn other_types_keep_their_order() {
        assert_faithful(&[false, true]);
        assert_faithful(&['\0', 'a', 'é', '\u{d7ff}', '\u{e000}', char::MAX]);
        assert_faithful(&[[0, 1], [1, 0], [255, 255]]);
        assert_faithful(&[None, Some(0), Some(u32::MAX)]);
        assert_faithful(&["", "\0", "\0a", "a", "a\0", "a\0b", "ab", "é"].map(String::from));
        assert_faithful(&strings());
    }

    #[test]
    fn tuples_keep_the_order_of_their_elements() {
        let few: Vec<_> = strings().into_iter().filter(|key| key.len() < 3).collect();
        let pairs = few.iter().flat_map(|key| [(key.clone(), -1), (key.clone(), 1)]);
        assert_faithful(&pairs.collect::<Vec<_>>());
        let pairs = few.iter().flat_map(|a| few.iter().map(|b| (a.clone(), b.clone())));
        assert_faithful(&pairs.collect::<Vec<_>>());
        assert_faithful(&[(1u8, Some(2u16), 'a'), (1, None, 'b'), (0, Some(9), 'c')]);
        assert_faithful(&[(1u8, 2u8, 3u8, 4u8), (1, 2, 3, 5), (0, 9, 9, 9)]);
        assert_faithful(&[(7u8,), (8,)]);
    }

    #[test]
    fn bytes_that_no_key_has_are_not_decoded() {
        assert_eq!(bool::decode_key(&mut &[2][..]), None);
        assert_eq!(char::decode_key(&mut &[0, 0, 0xd8, 0][..]), None);
        assert_eq!(Vec::<u8>::decode_key(&mut &[b'a', 0, 1, 0, 0][..]), None);
        assert_eq!(String::decode_key(&mut &[0xff, 0, 0][..]), None);
        assert_eq!(Option::<u8>::decode_key(&mut &[2, 0][..]), None);
    }

    /// The encoding is part of the format: these values must never change.
    #[test]
    fn golden() {
        assert_eq!(encoded(&0x0102_0304u32), [1, 2, 3, 4]);
        assert_eq!(encoded(&-2i16), [0x7f, 0xfe]);
        assert_eq!(encoded("a\0b"), [b'a', 0, 0xff, b'b', 0, 0]);
        assert_eq!(encoded(&(true, Some('a'), [9, 8])), [1, 1, 0, 0, 0, b'a', 9, 8]);
        assert_eq!(encoded(&&b"x"[..]), encoded(&b"x".to_vec()));
    }
}

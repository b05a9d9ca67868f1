//! Keys for the examples that measure.

/// Returns the key of 16 bytes with this number. Keys are spread over the key space, so that
/// consecutive numbers are not neighbours in an index.
pub(crate) fn key(number: u64) -> [u8; 16] {
    let mixed = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut key = [0; 16];
    key[..8].copy_from_slice(&mixed.to_be_bytes());
    key[8..].copy_from_slice(&number.to_be_bytes());
    key
}

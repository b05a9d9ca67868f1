//! Values in which every part identifies the key and the version.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// The number of keys that all clients read and write. Each of them always has a value.
pub(crate) const SHARED: usize = 256;
/// The number of shared keys, the last ones, that have large values.
pub(crate) const LARGE: usize = 16;

/// Numbers the values, so that all are different.
#[derive(Default)]
pub(crate) struct Values(AtomicU64);

impl Values {
    /// Creates a new value for `key` of at least `len` bytes.
    pub(crate) fn make(&self, key: &str, len: usize) -> Vec<u8> {
        let name = format!("{key}#{};", self.0.fetch_add(1, Relaxed));
        let mut value = name.repeat(len / name.len() + 1).into_bytes();
        // The end is usually in the middle of a name.
        value.truncate(len.max(name.len()));
        value
    }
}

/// Checks that `value` is complete and was created for `key`.
///
/// # Errors
/// A description of the first difference.
pub(crate) fn check(key: &str, value: &[u8]) -> Result<(), String> {
    let shown = value[..value.len().min(100)].escape_ascii();
    let end = value.iter().position(|&byte| byte == b';').map_or(0, |at| at + 1);
    let name = &value[..end];
    let number = name.strip_prefix(key.as_bytes()).and_then(|rest| rest.strip_prefix(b"#"));
    let number = number.and_then(|rest| rest.strip_suffix(b";"));
    if !number.is_some_and(|number| number.iter().all(u8::is_ascii_digit)) {
        return Err(format!("for {key}: {shown}"));
    }
    match value.chunks(end).position(|part| !name.starts_with(part)) {
        None => Ok(()),
        Some(part) => {
            let at = part * end;
            let wrong = value[at..].iter().take(end).copied().collect::<Vec<_>>();
            let wrong = wrong.escape_ascii();
            Err(format!("for {key} at offset {at}: {wrong} in a value that begins with {shown}"))
        }
    }
}

/// Returns the name of a shared key.
pub(crate) fn shared(number: usize) -> String {
    format!("shared-{number}")
}

/// Pseudorandom numbers (Marsaglia's xorshift), the same in each run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: usize) -> Self {
        Random((seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Returns a number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    /// Returns `true` with a probability of 1 in `times`.
    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

#[test]
fn a_wrong_byte_is_detected() {
    let values = Values::default();
    let value = values.make("key", 1000);
    assert_eq!(check("key", &value), Ok(()));
    for at in 0..value.len() {
        let mut wrong = value.clone();
        wrong[at] ^= 1;
        assert!(check("key", &wrong).is_err(), "{at}");
    }
    assert!(check("other", &value).is_err());
    assert!(check("ke", &value).is_err());
    assert!(check("key", b"").is_err());
}

//! Values that tell what they belong to, in every part of them.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Keys that all clients read and write, each of which always has a value.
pub(crate) const SHARED: usize = 256;
/// The last of these have large values.
pub(crate) const LARGE: usize = 16;

/// Numbers the values, so that no two are the same.
#[derive(Default)]
pub(crate) struct Values(AtomicU64);

impl Values {
    /// A new value for `key` of at least `len` bytes.
    pub(crate) fn make(&self, key: &str, len: usize) -> Vec<u8> {
        let name = format!("{key}#{};", self.0.fetch_add(1, Relaxed));
        let mut value = name.repeat(len / name.len() + 1).into_bytes();
        // Mostly the end is somewhere in a name.
        value.truncate(len.max(name.len()));
        value
    }
}

/// Says what is wrong with `value` unless it is one that was made for `key`, whole.
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
            let foreign = value[at..].iter().take(end).copied().collect::<Vec<_>>();
            let foreign = foreign.escape_ascii();
            Err(format!("for {key}, at {at}: {foreign} in a value that begins with {shown}"))
        }
    }
}

/// The name of a shared key.
pub(crate) fn shared(number: usize) -> String {
    format!("shared-{number}")
}

/// Numbers that look random (Marsaglia's xorshift), the same in each run.
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: usize) -> Self {
        Random((seed as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A number below `end`.
    pub(crate) fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as usize % end
    }

    /// Whether something happens that happens once in `times`.
    pub(crate) fn one_in(&mut self, times: usize) -> bool {
        self.below(times) == 0
    }
}

#[test]
fn a_foreign_byte_is_seen() {
    let values = Values::default();
    let value = values.make("key", 1000);
    assert_eq!(check("key", &value), Ok(()));
    for at in 0..value.len() {
        let mut foreign = value.clone();
        foreign[at] ^= 1;
        assert!(check("key", &foreign).is_err(), "{at}");
    }
    assert!(check("other", &value).is_err());
    assert!(check("ke", &value).is_err());
    assert!(check("key", b"").is_err());
}

//! Random numbers from the system.

/// Returns a random number from the system.
pub(crate) fn number() -> u64 {
    let mut bytes = [0; 8];
    // SAFETY: the buffer is ours and has the given length.
    let got = unsafe { libc::getrandom(bytes.as_mut_ptr().cast(), bytes.len(), 0) };
    if got == 8 {
        return u64::from_le_bytes(bytes);
    }
    // This sandbox has no entropy source: the time and the process id still differ from store to
    // store.
    let now =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
    (now.as_nanos() as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(std::process::id())
}

//! An error message for the failure of a mapped file.
//!
//! If another program truncates a mapped file, or the disk cannot be read, the thread that touches
//! the page gets SIGBUS. No error can be returned from there, so the process has to end, but it can
//! print which file failed and what to do. As after any other death of the process, the next open
//! recovers.

use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::os::unix::ffi::OsStrExt;
use std::sync::OnceLock;

use super::address::describe_address;

/// The action for SIGBUS that was installed before.
static BEFORE: OnceLock<Before> = OnceLock::new();

struct Before(libc::sigaction);

// SAFETY: plain values, among them the address of a function.
unsafe impl Send for Before {}
// SAFETY: as above; nothing in it changes.
unsafe impl Sync for Before {}

/// Makes the process print a message before it dies of SIGBUS because a mapped file failed. The
/// message names the store and the offset, and says what to do. A mapped file fails if another
/// program truncated it, if its disk or memory cannot be read, or if the file system has no room
/// for a page that the file shares with a copy.
///
/// A program has to call this explicitly, because signal handlers belong to the whole process. The
/// previously installed handler runs afterwards; for other addresses it runs without a message. If
/// there was none, the process ends by the signal as it would otherwise. Programs that install
/// their own handler later can use [`describe_address`] in it. Further calls do nothing.
///
/// # Errors
///
/// Any error of the system call, in which case nothing has changed.
pub fn explain_bus_errors() -> std::io::Result<()> {
    let mut before = MaybeUninit::uninit();
    // SAFETY: only queries, and `before` has room for the result.
    if unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) } != 0 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the system has filled it in.
    let before = Before(unsafe { before.assume_init() });
    // Set before the handler is installed, because the handler uses it. Only the first caller
    // installs the handler: otherwise it could become its own predecessor.
    if BEFORE.set(before).is_err() {
        return Ok(());
    }
    // SAFETY: zero is a value of every field.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    // On the alternate stack, which every thread of Rust has: the thread's own stack may be the
    // memory that failed.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action is valid for the call, and the handler is async-signal-safe.
    match unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

extern "C" fn handle(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes a valid `info`, whose address is set for this signal.
    let address = unsafe { (*info).si_addr() } as usize;
    if let Some((path, offset)) = describe_address(address) {
        let mut digits = [0; 16];
        for part in [
            b"evermap: ".as_slice(),
            path.as_os_str().as_bytes(),
            b": cannot be read or written at offset 0x",
            hexadecimal(offset, &mut digits),
            b": another program truncated it, its file system is full, or its disk or memory \
              failed. Start again to recover what is left; `evermap check --deep` reports what was \
              lost\n",
        ] {
            write_error(part);
        }
    }
    pass_on(signal, info, context);
}

/// Does what would have been done without this handler.
fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let before = BEFORE.get().map(|before| &before.0);
    match before.map_or(libc::SIG_DFL, |before| before.sa_sigaction) {
        // On return the same access fails again, now with the system's own action. Ignoring an
        // access that cannot succeed would repeat it forever; the system does not do that either.
        libc::SIG_DFL | libc::SIG_IGN => {
            // SAFETY: restoring the default action is allowed in a handler.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        handler if before.is_some_and(|before| before.sa_flags & libc::SA_SIGINFO != 0) => {
            type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);
            // SAFETY: installing it with this flag declared that it is such a function.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: installing it without the flag declared that it is such a function.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}

/// Writes to standard error, ignoring failures.
fn write_error(bytes: &[u8]) {
    // SAFETY: the bytes are valid for the call, which a handler may make.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}

/// Formats a number without allocating.
fn hexadecimal(mut number: u64, digits: &mut [u8; 16]) -> &[u8] {
    let mut at = digits.len();
    loop {
        at -= 1;
        digits[at] = b"0123456789abcdef"[(number % 16) as usize];
        number /= 16;
        if number == 0 {
            return &digits[at..];
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hexadecimal_numbers() {
        for number in [0, 1, 15, 16, 0xabc_def0, u64::MAX] {
            let mut digits = [0; 16];
            let text = hexadecimal(number, &mut digits);
            assert_eq!(std::str::from_utf8(text).unwrap(), format!("{number:x}"));
        }
    }
}

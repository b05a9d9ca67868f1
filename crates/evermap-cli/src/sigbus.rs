//! What to say when a mapped file fails under us.
//!
//! Whoever cuts a mapped file off, or a disk that cannot be read, raises SIGBUS in the thread that touches
//! the page. Nothing can be answered from there, so the process has to end; but it can say which file it
//! was, and what to do. As after any other death of the process, the next opening recovers.

use std::ffi::{c_int, c_void};
use std::os::unix::ffi::OsStrExt;

use evermap_pm::medium::describe_address;

/// What the process answers: 128 and the signal's number, as a shell reports it.
const EXIT_CODE: c_int = 128 + libc::SIGBUS;

/// Installs the handler. If the system refuses, SIGBUS kills the process without a word.
pub(crate) fn explain() {
    // SAFETY: zero is a value of every field.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handle as *const () as usize;
    // On the alternate stack, which every thread of Rust has: the own stack may be what failed.
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: the action is valid for the call, and the handler keeps to what a signal handler may do.
    unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
}

extern "C" fn handle(_: c_int, info: *mut libc::siginfo_t, _: *mut c_void) {
    // SAFETY: the system passes a valid `info`, whose address is set for this signal.
    let address = unsafe { (*info).si_addr() } as usize;
    match describe_address(address) {
        Some((path, offset)) => {
            let mut digits = [0; 16];
            for part in [
                b"evermap: ".as_slice(),
                path.as_os_str().as_bytes(),
                b": cannot be read or written at offset 0x",
                hexadecimal(offset, &mut digits),
                b": it was cut off by another program, or the disk or memory under it failed. \
                  Start again to recover what is left; `evermap check --deep` tells what was lost\n",
            ] {
                write_error(part);
            }
            // SAFETY: ends the process without running anything else of it.
            unsafe { libc::_exit(EXIT_CODE) }
        }
        // None of our files. On return the same access fails again, and now as it would without us.
        // SAFETY: restoring the default action is allowed in a handler.
        None => unsafe {
            libc::signal(libc::SIGBUS, libc::SIG_DFL);
        },
    }
}

/// Writes to standard error, as far as it takes it.
fn write_error(bytes: &[u8]) {
    // SAFETY: the bytes are valid for the call, which a handler may make.
    let _ = unsafe { libc::write(libc::STDERR_FILENO, bytes.as_ptr().cast(), bytes.len()) };
}

/// Writes a number without allocating.
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

//! Sockets that a service manager passes to the process.
//!
//! `LISTEN_FDS` is the number of sockets, whose descriptors begin at 3, `LISTEN_PID` the process
//! that they are for, and `LISTEN_FDNAMES` has their names with colons between them.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use evermap_server::Listener;

use super::endpoints::Encryption;
use crate::failure::Failure;

/// The first descriptor that is passed.
const FIRST: RawFd = 3;
/// The maximum number of sockets, to find out that the number is nonsense.
const COUNT_MAX: RawFd = 1024;

/// Takes the sockets, if there are any. A socket whose name begins with `notls` does not use TLS.
///
/// Must be called at most once, before the process opens files.
pub(super) fn take(has_certificate: bool) -> Result<Vec<Listener>, Failure> {
    let number = |name: &str| std::env::var(name).ok()?.parse::<u32>().ok();
    // Variables that are meant for another process, such as the parent of this one, mean nothing.
    if number("LISTEN_PID") != Some(std::process::id()) {
        return Ok(Vec::new());
    }
    let count = number("LISTEN_FDS").and_then(|count| RawFd::try_from(count).ok()).unwrap_or(0);
    if count > COUNT_MAX {
        return Err(Failure::Other(format!("LISTEN_FDS={count}: at most {COUNT_MAX} sockets")));
    }
    let names = std::env::var("LISTEN_FDNAMES").unwrap_or_default();
    let mut names = names.split(':');
    (FIRST..FIRST + count)
        .map(|descriptor| {
            let name = names.next().unwrap_or_default();
            let encryption = match name.starts_with("notls") {
                true => Encryption::Never,
                false => Encryption::IfConfigured,
            };
            let listener = listener(descriptor).map_err(|error| {
                let source = std::io::Error::new(error.kind(), error);
                Failure::Io { what: format!("descriptor {descriptor} (\"{name}\")"), source }
            })?;
            Ok(listener.with_security(encryption.security(has_certificate)))
        })
        .collect()
}

fn listener(descriptor: RawFd) -> std::io::Result<Listener> {
    // SAFETY: `fcntl` with `F_GETFD` accesses no memory, and returns -1 for a number that is not an
    // open descriptor.
    if unsafe { libc::fcntl(descriptor, libc::F_GETFD) } == -1 {
        return Err(std::io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open. The variables say that it was passed to this process, and
    // the caller ensures that nothing else in it uses or owns the descriptor.
    let socket = unsafe { OwnedFd::from_raw_fd(descriptor) };
    Listener::inherited(socket)
}

//! The file of a server that was not told one.

use std::ffi::OsStr;
use std::net::{IpAddr, SocketAddr};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use evermap_server::ListenAddress;

use crate::failure::Failure;

/// Returns what distinguishes the file of a server with this first address from those of other
/// servers of the same user, which cannot have the address at the same time. `plain_port` is the
/// port of the server whose file needs no distinction.
pub(super) fn name_of(address: &ListenAddress, plain_port: Option<u16>) -> String {
    match address {
        ListenAddress::Tcp(address) => name_of_port(*address, plain_port),
        ListenAddress::Unix(path) => name_of_socket(path),
    }
}

fn name_of_port(address: SocketAddr, plain_port: Option<u16>) -> String {
    let port = address.port();
    // Only one server can have a port at the loopback address or at all addresses.
    let is_usual = match address.ip() {
        IpAddr::V4(ip) => ip.is_unspecified() || ip == std::net::Ipv4Addr::LOCALHOST,
        IpAddr::V6(_) => false,
    };
    match address {
        _ if is_usual && plain_port == Some(port) => String::new(),
        _ if is_usual => format!("-{port}"),
        SocketAddr::V6(six) if six.scope_id() != 0 => {
            format!("-{}%{}-{port}", six.ip(), six.scope_id()).replace(':', ".")
        }
        _ => format!("-{}-{port}", address.ip()).replace(':', "."),
    }
}

/// Replaces what a name cannot contain. If another path could have the same name then, a hash
/// follows.
fn name_of_socket(path: &Path) -> String {
    let bytes = path.as_os_str().as_bytes();
    let is_ambiguous = |byte: &u8| matches!(byte, b'-' | b':' | b'~') || !byte.is_ascii();
    let name = path.display().to_string().replace(['/', ':'], "-");
    match bytes.iter().any(is_ambiguous) {
        true => format!("{name}~{:016x}", hash(path.as_os_str())),
        false => name,
    }
}

/// FNV-1a, which is the same in all versions of this program.
fn hash(text: &OsStr) -> u64 {
    text.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// Returns a file in memory, if possible, which is fast and survives a restart of the server.
/// `name` distinguishes servers of the same user.
///
/// # Errors
/// If the file belongs to another user.
pub(super) fn default_path(uid: u32, name: &str) -> Result<PathBuf, Failure> {
    let shared = Path::new("/dev/shm");
    if !is_large_tmpfs(shared) {
        return Ok(format!("evermap{name}.map").into());
    }
    let path = shared.join(format!("evermap-{uid}{name}.map"));
    // Any user can create files there, and another one may have created this file.
    match rustix::fs::lstat(&path) {
        Ok(file) if file.st_uid != uid => Err(Failure::Other(format!(
            "{}: the file belongs to another user; choose another one with --path (memcached: -e)",
            path.display()
        ))),
        _ => Ok(path),
    }
}

/// Returns `true` if the files of the directory count as memory of the process, and the system
/// cannot take it back. Huge pages are limited otherwise.
pub(super) fn is_in_memory(directory: &Path) -> bool {
    rustix::fs::statfs(directory).is_ok_and(|system| system.f_type as u32 == TMPFS)
}

const TMPFS: u32 = 0x0102_1994;

/// Returns `true` if the directory is a tmpfs with more than the few MiB that containers get.
pub(super) fn is_large_tmpfs(directory: &Path) -> bool {
    const SIZE_MIN: u64 = 1 << 30;
    rustix::fs::statfs(directory).is_ok_and(|system| {
        // A tmpfs with 0 blocks has no limit.
        let bytes = system.f_blocks.saturating_mul(system.f_bsize as u64);
        system.f_type as u32 == TMPFS && (bytes == 0 || bytes >= SIZE_MIN)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(address: &str) -> ListenAddress {
        ListenAddress::Tcp(address.parse().unwrap())
    }

    fn unix(path: &str) -> ListenAddress {
        ListenAddress::Unix(path.into())
    }

    #[test]
    fn a_plain_server_has_the_plain_name() {
        for host in ["127.0.0.1", "0.0.0.0"] {
            assert_eq!(name_of(&tcp(&format!("{host}:11211")), Some(11211)), "");
            assert_eq!(name_of(&tcp(&format!("{host}:11211")), None), "-11211");
            assert_eq!(name_of(&tcp(&format!("{host}:5")), Some(11211)), "-5");
        }
        assert_eq!(name_of(&unix("/run/cache"), None), "-run-cache");
    }

    /// Servers of one user must not take each other's file.
    #[test]
    fn servers_that_can_run_at_the_same_time_have_different_names() {
        let addresses = [
            tcp("127.0.0.1:11211"),
            tcp("127.0.0.1:11212"),
            tcp("127.0.0.2:11211"),
            tcp("10.0.0.1:11211"),
            tcp("10.0.0.1:11212"),
            tcp("[::1]:11211"),
            tcp("[::]:11211"),
            tcp("[fe80::1%2]:11211"),
            tcp("[fe80::1%3]:11211"),
            unix("/run/a/b"),
            unix("/run/a-b"),
            unix("/run/a:b"),
            unix("/run/a~b"),
            unix("/run/\u{e4}"),
            unix("/run/\u{e5}"),
        ];
        for plain_port in [None, Some(11211)] {
            let names: std::collections::BTreeSet<_> =
                addresses.iter().map(|address| name_of(address, plain_port)).collect();
            assert_eq!(names.len(), addresses.len(), "{names:?}");
            assert!(!names.iter().any(|name| name.contains(['/', ':'])), "{names:?}");
        }
    }
}

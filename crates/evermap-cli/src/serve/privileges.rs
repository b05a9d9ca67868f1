//! What a server does as root before it becomes another user.

use std::ffi::{CStr, CString};
use std::io;

use rustix::mm::{MlockAllFlags, mlockall};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

use crate::failure::Failure;

/// A user of the system.
pub(super) struct User {
    name: CString,
    pub(super) uid: libc::uid_t,
    pub(super) gid: libc::gid_t,
}

impl User {
    /// Looks a user up by name.
    pub(super) fn find(name: &str) -> Result<User, Failure> {
        let missing = || Failure::Other(format!("there is no user \"{name}\""));
        let name = CString::new(name).map_err(|_| missing())?;
        let mut buffer = vec![0; 16 << 10];
        let mut entry = std::mem::MaybeUninit::<libc::passwd>::uninit();
        let mut found = std::ptr::null_mut();
        // SAFETY: `name` is a C string, `entry` has space for an entry, and `buffer` for as many
        // bytes as its length says. `found` is null or points to `entry` afterwards.
        let code = unsafe {
            libc::getpwnam_r(
                name.as_ptr(),
                entry.as_mut_ptr(),
                buffer.as_mut_ptr(),
                buffer.len(),
                &raw mut found,
            )
        };
        if found.is_null() {
            return Err(match code {
                0 => missing(),
                code => Failure::Io {
                    what: "cannot look up the user".into(),
                    source: io::Error::from_raw_os_error(code),
                },
            });
        }
        // SAFETY: the function found an entry, so it has filled `entry`.
        let entry = unsafe { entry.assume_init() };
        // SAFETY: the name is a C string in `buffer`, which is alive.
        let name = unsafe { CStr::from_ptr(entry.pw_name) }.to_owned();
        Ok(User { name, uid: entry.pw_uid, gid: entry.pw_gid })
    }

    /// Becomes this user, with its groups and without a way back.
    pub(super) fn assume(&self) -> Result<(), Failure> {
        let check = |what: &str, code: libc::c_int| match code {
            0 => Ok(()),
            _ => Err(Failure::Io {
                what: format!("cannot become the user {}: {what}", self.name.to_string_lossy()),
                source: io::Error::last_os_error(),
            }),
        };
        // The order matters: a process that is not root any more cannot change its groups.
        // SAFETY: the name is a C string.
        check("initgroups", unsafe { libc::initgroups(self.name.as_ptr(), self.gid) })?;
        // SAFETY: the function accesses no memory of this program.
        check("setgid", unsafe { libc::setgid(self.gid) })?;
        // SAFETY: as above.
        check("setuid", unsafe { libc::setuid(self.uid) })?;
        // SAFETY: as above.
        if self.uid != 0 && unsafe { libc::setuid(0) } == 0 {
            return Err(Failure::other("the process could become root again"));
        }
        Ok(())
    }
}

/// Allows the process to lock all its memory, if it may allow that.
pub(super) fn allow_locked_memory() {
    let unlimited = Rlimit { current: None, maximum: None };
    // Without privileges the limit stays, and locking reports that.
    let _ = setrlimit(Resource::Memlock, unlimited);
}

/// Keeps the memory of the process from being swapped out: all that is in use, and what will be, as
/// soon as it is.
pub(super) fn lock_memory() -> io::Result<()> {
    // Without the last flag the system would fill the whole range that is reserved for the file.
    let flags = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    Ok(mlockall(flags)?)
}

/// Allows the process to write its memory to a file when it crashes.
pub(super) fn allow_core_dumps() -> io::Result<()> {
    let maximum = getrlimit(Resource::Core).maximum;
    Ok(setrlimit(Resource::Core, Rlimit { current: maximum, maximum })?)
}

/// What a server needs file descriptors for.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorNeeds {
    pub(super) threads: usize,
    /// The number of listeners, and of connections for metrics.
    pub(super) fixed: usize,
}

impl DescriptorNeeds {
    /// An event queue and its waker.
    const PER_THREAD: usize = 2;
    /// Of the process: standard streams, the store, signals, the threads that accept and watch, and
    /// the files that are read now and then, which can be fewer.
    const OWN: usize = 96;
    const OWN_LEAST: usize = 24;

    /// Returns the number for this many connections.
    pub(super) fn all(self, connections: usize) -> usize {
        (Self::OWN - Self::OWN_LEAST).saturating_add(self.least()).saturating_add(connections)
    }

    /// Returns the number without which the server cannot work at all.
    pub(super) fn least(self) -> usize {
        Self::OWN_LEAST + Self::PER_THREAD * self.threads + self.fixed
    }

    /// Returns how many connections there can be, at most `asked`, or `None` for none.
    pub(super) fn connections(self, asked: usize, available: u64) -> Option<usize> {
        let available = usize::try_from(available).unwrap_or(usize::MAX);
        if available >= self.all(asked) {
            return Some(asked);
        }
        let possible = available.checked_sub(self.least()).filter(|&possible| possible > 0)?;
        Some(asked.min(possible))
    }
}

/// Raises the limit of open file descriptors to `needed`, as far as the system allows. Returns the
/// limit.
pub(super) fn raise_descriptor_limit(needed: u64) -> u64 {
    let limit = getrlimit(Resource::Nofile);
    let is_enough = |current: Option<u64>| current.is_none_or(|current| current >= needed);
    if !is_enough(limit.current) {
        // Only root may raise the maximum.
        let raised =
            Rlimit { current: Some(needed), maximum: limit.maximum.map(|max| max.max(needed)) };
        if setrlimit(Resource::Nofile, raised).is_err() {
            let current = limit.maximum.map_or(needed, |maximum| maximum.min(needed));
            // If this fails, the limit stays.
            let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), ..limit });
        }
    }
    getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_that_descriptors_are_left_for() {
        let needs = DescriptorNeeds { threads: 4, fixed: 2 };
        assert_eq!(needs.least(), 34);
        assert_eq!(needs.connections(1024, u64::MAX), Some(1024));
        assert_eq!(needs.connections(1024, 1024 + 106), Some(1024));
        assert_eq!(needs.connections(1024, 1024), Some(990));
        assert_eq!(needs.connections(10, 64), Some(10));
        assert_eq!(needs.connections(1024, 64), Some(30));
        assert_eq!(needs.connections(1024, 35), Some(1));
        for too_few in [0, 20, 34] {
            assert_eq!(needs.connections(1024, too_few), None);
        }
        assert_eq!(needs.connections(usize::MAX, 1 << 20), Some((1 << 20) - 34));
    }
}

//! The identity of a file.

use crate::random;

/// Identifies a file and the boot of the machine during which it was written, to tell whether its
/// pages can be from different times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The boot of the machine: the boot id of the kernel, or one of
    /// [`unknown_boot`](Identity::unknown_boot) and [`MEMORY`](Identity::MEMORY).
    pub boot: [u64; 2],
    /// The device that holds the file, or the id of its file system if device numbers change from
    /// mount to mount.
    pub device: u64,
    /// Inode of the file.
    pub inode: u64,
    /// When the file was created, in nanoseconds since 1970, or 0 if unknown.
    pub birth: u64,
}

impl Identity {
    /// Replaces the boot id for a file that cannot outlive the kernel and cannot be mistaken for
    /// another one: as long as it is the same file, the machine has not been restarted. So the boot
    /// id that a container shows does not matter.
    pub const MEMORY: [u64; 2] = [u64::from_le_bytes(*b"inmemory"), 0];
    const UNKNOWN: u64 = u64::from_le_bytes(*b"no boot ");

    /// Replaces a boot id that is not known. Different every time, so that it never equals another
    /// one.
    pub fn unknown_boot() -> [u64; 2] {
        [Self::UNKNOWN, random::number()]
    }

    pub(crate) fn words(&self) -> [u64; 5] {
        [self.boot[0], self.boot[1], self.device, self.inode, self.birth]
    }

    pub(crate) fn from_words([first, second, device, inode, birth]: [u64; 5]) -> Self {
        Identity { boot: [first, second], device, inode, birth }
    }

    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        let file = |identity: &Self| (identity.device, identity.inode, identity.birth);
        file(self) == file(other)
    }

    /// Returns the reason why data that was written under the identity `before`, and was not
    /// closed, cannot be trusted under this one. Returns `None` if the kernel has kept every page
    /// as it was last stored.
    pub(crate) fn doubt(&self, before: &Self) -> Option<&'static str> {
        if (self.inode, self.birth) != (before.inode, before.birth) {
            return Some(
                "the store was not closed, and this is not the file that was open then, but a copy \
                 of it or a restored one",
            );
        }
        if self.device != before.device {
            return Some(
                "the store was not closed, and its file system is on another device now: a copy of \
                 the old one, or the same under another number",
            );
        }
        if self.boot == before.boot || self.boot == Self::MEMORY {
            return None;
        }
        if [self.boot[0], before.boot[0]].contains(&Self::UNKNOWN) {
            return Some(
                "the store was not closed, and it is not known whether the machine has crashed \
                 since then: /proc/sys/kernel/random/boot_id cannot be read or trusted here, or \
                 could not be then",
            );
        }
        Some(
            "the store was not closed, and since then the machine was restarted, or the container, \
             if it has its own boot id",
        )
    }
}

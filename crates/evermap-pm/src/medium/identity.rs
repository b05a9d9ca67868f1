//! The identity of a file.

use crate::random;

/// Identifies a file and the boot of the machine during which it was written, to tell whether its
/// pages can be from different times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Identity {
    /// The boot of the machine: the boot id of the kernel, or one of
    /// [`unknown_boot`](Identity::unknown_boot), [`MEMORY`](Identity::MEMORY),
    /// [`DURABLE`](Identity::DURABLE) and [`persistent`](Identity::persistent).
    pub boot: [u64; 2],
    /// The device that holds the file, or the id of its file system if device numbers change from
    /// mount to mount. 0 on persistent memory, where every boot may number devices anew.
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
    /// Replaces a boot id for a file that has not been opened since everything in it was made
    /// durable, such as a restored one: it can be trusted after every crash.
    pub const DURABLE: [u64; 2] = [u64::from_le_bytes(*b"durable "), 0];
    const UNKNOWN: u64 = u64::from_le_bytes(*b"no boot ");
    const PERSISTENT: u64 = u64::from_le_bytes(*b"pers mem");

    /// Replaces a boot id that is not known. Different every time, so that it never equals another
    /// one.
    pub fn unknown_boot() -> [u64; 2] {
        [Self::UNKNOWN, random::number()]
    }

    /// Replaces a boot id for a file on persistent memory whose stores are durable after a fence.
    /// It can be trusted after a crash of the machine, unless the modules counted a shutdown
    /// meanwhile in which they could not keep what had been written to them: `unsafe_shutdowns` is
    /// that count.
    pub fn persistent(unsafe_shutdowns: u64) -> [u64; 2] {
        [Self::PERSISTENT, unsafe_shutdowns]
    }

    /// Returns whether stores under this identity are durable after a fence.
    pub(crate) fn is_persistent(&self) -> bool {
        self.boot[0] == Self::PERSISTENT
    }

    pub(crate) fn words(&self) -> [u64; 5] {
        [self.boot[0], self.boot[1], self.device, self.inode, self.birth]
    }

    pub(crate) fn from_words([first, second, device, inode, birth]: [u64; 5]) -> Self {
        Identity { boot: [first, second], device, inode, birth }
    }

    pub(crate) fn is_same_file(&self, other: &Self) -> bool {
        let persistent = self.is_persistent() || other.is_persistent();
        (self.inode, self.birth) == (other.inode, other.birth)
            && (persistent || self.device == other.device)
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
        if before.boot == Self::DURABLE {
            return None;
        }
        if before.is_persistent() {
            return match self.is_persistent() && self.boot != before.boot {
                true => Some(
                    "the store was not closed, and since then the persistent memory has counted a \
                     shutdown in which it lost what had been written to it",
                ),
                false => None,
            };
        }
        if self.is_persistent() {
            return Some(
                "the store was not closed, and its last process did not write its stores back to \
                 the persistent memory: open it with the durability of that process, and close it",
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

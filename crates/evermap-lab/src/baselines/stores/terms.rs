//! What every store is opened with.

use std::path::{Path, PathBuf};

use crate::machine;
use crate::subject::{File, Place, Setup, Survives, unique_path};

/// The size of a store's cache, in bytes.
pub(super) const CACHE_BYTES: u64 = 1 << 30;

/// The parameters of a store.
pub(super) struct Terms {
    /// The directory, which exists.
    pub(super) folder: Folder,
    /// What changes must survive.
    pub(super) survives: Survives,
    /// A generous upper bound of the data, in bytes.
    pub(super) room: u64,
}

/// The directory of a store. It is removed at the end, unless it was requested by name.
pub(super) struct Folder {
    pub(super) path: PathBuf,
    stays: bool,
}

impl Folder {
    pub(super) fn new(setup: &Setup) -> std::io::Result<Self> {
        let (path, stays) = match &setup.file {
            File::Nameless => (unique_path(&setup.location), false),
            File::New(path) | File::Existing(path) => (path.clone(), true),
        };
        if !matches!(setup.file, File::Existing(_)) {
            std::fs::create_dir(&path)?;
        }
        Ok(Folder { path, stays })
    }

    /// Returns the number of bytes on disk.
    pub(super) fn bytes(&self) -> std::io::Result<u64> {
        machine::bytes_on_disk(&self.path)
    }

    /// Returns where the store is. A store in memory does not survive power loss, however often it
    /// is synced.
    pub(super) fn place(&self, survives: Survives) -> Place {
        let in_memory = machine::is_in_memory(&self.path);
        Place {
            medium: "files".into(),
            flush_kind: (survives == Survives::Power).then(|| "fsync".into()),
            location: self.path.parent().map(Path::to_owned),
            survives: if in_memory { survives.min(Survives::Process) } else { survives },
        }
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if !self.stays {
            // A directory that cannot be removed is not an error.
            let _ = std::fs::remove_dir_all(&self.path);
        }
    }
}

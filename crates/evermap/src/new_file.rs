//! Files that get their names when all of them is written.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// A file in the folder that it is to be in, with another name. Dropping it removes it, unless it
/// was [published](NewFile::publish); if the process is killed, it stays under that other name.
pub(crate) struct NewFile {
    file: File,
    temporary: PathBuf,
    path: PathBuf,
}

impl NewFile {
    /// Creates an empty file that is to be called `path`, where there must be none. `purpose` is
    /// part of its name until then.
    pub(crate) fn create(path: &Path, purpose: &str) -> io::Result<Self> {
        if path.symlink_metadata().is_ok() {
            let why = "there is a file of this name; remove it first, or choose another name";
            return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
        }
        let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
        let mut temporary = OsString::from(name);
        temporary.push(format!(".{purpose}-{}", std::process::id()));
        let temporary = path.with_file_name(temporary);
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(&temporary)?;
        Ok(NewFile { file, temporary, path: path.to_owned() })
    }

    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Returns where the file is now.
    pub(crate) fn temporary(&self) -> &Path {
        &self.temporary
    }

    /// Gives the file its name, unless there is one of that name, and makes both durable.
    pub(crate) fn publish(self) -> io::Result<()> {
        self.file.sync_all()?;
        // Unlike renaming, this fails if there is a file of that name.
        std::fs::hard_link(&self.temporary, &self.path)?;
        std::fs::remove_file(&self.temporary)?;
        let folder = self.path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }
}

impl Drop for NewFile {
    fn drop(&mut self) {
        // Published, it has this name no more.
        let _ = std::fs::remove_file(&self.temporary);
    }
}

//! The file that says which process is the server.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// The file, which is opened while the process may do so, and written when it is the server.
pub(super) struct PidFile {
    path: PathBuf,
    file: File,
    /// Whether the file says that this process is the server.
    written: bool,
}

impl PidFile {
    /// Opens or creates the file, and leaves what it says unchanged: it may be that of a server
    /// that is running, so that this one will not start. A link is not followed.
    pub(super) fn open(path: &Path) -> Result<PidFile, Failure> {
        let mut options = File::options();
        options.read(true).write(true).create(true).mode(0o644).custom_flags(libc::O_NOFOLLOW);
        let file = options.open(path).map_err(|source| failure(path, source))?;
        Ok(PidFile { path: path.to_owned(), file, written: false })
    }

    /// Writes the number of this process.
    pub(super) fn write(&mut self) -> Result<(), Failure> {
        let own = format!("{}\n", std::process::id());
        self.file
            .set_len(0)
            .and_then(|()| self.file.write_all_at(own.as_bytes(), 0))
            .map_err(|source| failure(&self.path, source))?;
        self.written = true;
        Ok(())
    }
}

impl Drop for PidFile {
    /// Removes the file if it says nothing about another process.
    fn drop(&mut self) {
        let is_other = |text: String| {
            let own = self.written && text == format!("{}\n", std::process::id());
            !own && !text.is_empty()
        };
        // A process that became another user may not be allowed to remove the file, but it can
        // empty it.
        if !fs::read_to_string(&self.path).is_ok_and(is_other)
            && fs::remove_file(&self.path).is_err()
            && self.written
        {
            let _ = self.file.set_len(0);
        }
    }
}

fn failure(path: &Path, source: io::Error) -> Failure {
    Failure::Io { what: format!("{}", path.display()), source }
}

/// Writes a file so that a reader sees all of it or nothing. A link at its path is replaced and not
/// followed.
pub(super) fn write_whole(path: &Path, text: &str) -> io::Result<()> {
    let mut name = path.as_os_str().to_owned();
    name.push(format!(".{}", std::process::id()));
    let new = Path::new(&name);
    let written = File::create_new(new)
        .and_then(|mut file| file.write_all(text.as_bytes()))
        .and_then(|()| fs::rename(new, path));
    if written.is_err() {
        // It may not exist.
        let _ = fs::remove_file(new);
    }
    written
}

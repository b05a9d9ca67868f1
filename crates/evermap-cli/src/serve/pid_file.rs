//! The file that says which process is the server.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

/// A file with the number of this process. It is removed when dropped, if it still has that number.
pub(super) struct PidFile(PathBuf);

impl PidFile {
    /// Writes the file, and replaces one that is there.
    pub(super) fn write(path: &Path) -> Result<PidFile, Failure> {
        write_whole(path, &format!("{}\n", std::process::id()))
            .map_err(|source| Failure::Io { what: format!("{}", path.display()), source })?;
        Ok(PidFile(path.to_owned()))
    }
}

impl Drop for PidFile {
    fn drop(&mut self) {
        let own = format!("{}\n", std::process::id());
        if fs::read_to_string(&self.0).is_ok_and(|text| text == own) {
            // A process that became another user may not be allowed to do this.
            let _ = fs::remove_file(&self.0);
        }
    }
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

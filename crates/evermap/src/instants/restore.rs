//! Making a store of copies.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use evermap_pm::medium::{Mapped, MappedOptions};
use evermap_pm::region::Region;
use evermap_pm::region::copy::{Copied, CopyHeader, restore_copy};

use super::Backup;
use crate::Result;

/// Makes a store at `path` of a [backup](crate::Evermap::backup) and of those that add to it, in
/// their order. There must be no file at `path`. Returns what the last one contained.
///
/// The store is a new one: nothing of the one that was copied is mistaken for it. It is durable,
/// and opens like a store whose process was killed.
///
/// # Errors
/// [`Error::Storage`](crate::Error::Storage) with `Io`: a backup is damaged, cut off or does not
/// belong to the one before, there is a file at `path`, or writing fails. There is nothing at
/// `path` then.
pub fn restore(copies: &mut [&mut dyn Read], path: impl AsRef<Path>) -> Result<Backup> {
    let path = path.as_ref();
    let mut restored = None;
    make_store(path, &mut |file| {
        let failed = |error| evermap_pm::Error::io("restoring", path, error);
        restored = Some(fill(copies, file).map_err(failed)?);
        Ok(())
    })?;
    Ok(Backup(restored.expect("filled")))
}

/// Makes a store at `path`, durably, of what `fill` writes to a file, or nothing.
pub(crate) fn make_store(
    path: &Path,
    fill: &mut dyn FnMut(&File) -> evermap_pm::Result<()>,
) -> Result<()> {
    let failed = |error| evermap_pm::Error::io("restoring", path, error);
    let (file, temporary) = create_beside(path).map_err(failed)?;
    let made = fill(&file).map_err(crate::Error::from).and_then(|()| {
        adopt(&temporary, true)?;
        Ok(publish(&temporary, path).map_err(failed)?)
    });
    if made.is_err() {
        let _ = std::fs::remove_file(&temporary);
    }
    made
}

/// Creates a file in the folder of `path`, with another name.
fn create_beside(path: &Path) -> io::Result<(File, PathBuf)> {
    if path.symlink_metadata().is_ok() {
        let why = "there is a file of this name; remove it first, or choose another name";
        return Err(io::Error::new(io::ErrorKind::AlreadyExists, why));
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?;
    let mut temporary = OsString::from(name);
    temporary.push(format!(".restore-{}", std::process::id()));
    let temporary = path.with_file_name(temporary);
    let mut options = OpenOptions::new();
    let file = options.read(true).write(true).create_new(true).mode(0o600).open(&temporary)?;
    Ok((file, temporary))
}

/// Writes what copies contain to a file.
pub(super) fn fill(copies: &mut [&mut dyn Read], file: &File) -> io::Result<Copied> {
    let mut last: Option<Copied> = None;
    for copy in copies {
        let header = CopyHeader::read(*copy)?;
        ensure_follows(&header, last.as_ref())?;
        last = Some(restore_copy(header, *copy, file)?);
    }
    last.ok_or_else(|| invalid("there is no backup to restore"))
}

/// Checks that a copy adds to the one before, or is the first one and whole.
fn ensure_follows(header: &CopyHeader, last: Option<&Copied>) -> io::Result<()> {
    match (header.base, last) {
        (None, None) => Ok(()),
        (None, Some(_)) => Err(invalid("only the first backup may be a whole one")),
        (Some(_), None) => {
            Err(invalid("this backup adds to another one, which must be given before it"))
        }
        (Some(base), Some(last)) => {
            let before = &last.header.id;
            let is_next = (before.uuid, before.opening, before.instant)
                == (header.id.uuid, header.id.opening, base);
            match is_next {
                true => Ok(()),
                false => Err(invalid("a backup does not add to the one that is given before it")),
            }
        }
    }
}

fn invalid(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why)
}

/// Makes the file at `path`, which has the contents of one instant, a store of its own.
pub(super) fn adopt(path: &Path, is_new: bool) -> Result<()> {
    let medium = Mapped::open(path, &MappedOptions::default())?;
    Ok(Region::adopt(&medium, medium.identity(), is_new)?)
}

/// Gives a file its name, unless there is one of that name, and makes both durable.
fn publish(temporary: &Path, path: &Path) -> io::Result<()> {
    std::fs::File::open(temporary)?.sync_all()?;
    // Unlike renaming, this fails if there is a file of that name.
    std::fs::hard_link(temporary, path)?;
    std::fs::remove_file(temporary)?;
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
}

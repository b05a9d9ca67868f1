//! Making a store of copies.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use evermap_pm::medium::{Mapped, MappedOptions};
use evermap_pm::region::Region;
use evermap_pm::region::copy::{Copied, CopyHeader, restore_copy};

use super::Backup;
use crate::Result;
use crate::new_file::NewFile;

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
    let new = NewFile::create(path, "restore").map_err(failed)?;
    fill(new.file())?;
    adopt(new.temporary(), true)?;
    Ok(new.publish().map_err(failed)?)
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

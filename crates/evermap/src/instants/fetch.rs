//! Reading a store that another process has open.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use evermap_pm::medium::{Mapped, MappedOptions, memory_file};
use evermap_pm::region::copy::{CopyHeader, read_copy};

use super::restore::{adopt, fill};
use super::{Backup, BackupId};
use crate::db::Origin;
use crate::file::open_view;
use crate::holder::{REQUEST, folder_of, short_path, socket_of};
use crate::{Durability, Evermap, Options, Result};

/// How long the holder may take to answer.
const PATIENCE: Duration = Duration::from_secs(300);

/// Writes a [backup](Evermap::backup) of the store at `path`, which another process has open, to
/// `out`: that process makes it, if it [offers copies](Options::offers_copies). If `since` is given
/// and that is possible, the backup has only what was changed since.
///
/// # Errors
/// `Io`, of kind `NotFound` or `ConnectionRefused` if no process offers copies; of kind
/// `InvalidData` if the copy ends early, as it does if the process does.
pub fn fetch_backup(
    path: &Path,
    since: Option<BackupId>,
    out: &mut dyn Write,
) -> io::Result<Backup> {
    let mut from = Tee { from: fetch(path, since)?, to: out };
    let header = CopyHeader::read(&mut from)?;
    let copied = read_copy(header, &mut from, &mut |_, _| Ok(()))?;
    out.flush()?;
    Ok(Backup(copied))
}

/// Writes everything that is read to another place too.
struct Tee<'a, R> {
    from: R,
    to: &'a mut dyn Write,
}

impl<R: Read> Read for Tee<'_, R> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let count = self.from.read(bytes)?;
        self.to.write_all(&bytes[..count])?;
        Ok(count)
    }
}

/// Asks the process that has the store at `path` open for a copy, and returns where it comes from.
fn fetch(path: &Path, since: Option<BackupId>) -> io::Result<BufReader<UnixStream>> {
    let mut stream = connect(&socket_of(path))?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let since =
        since.map_or([0; 4], |BackupId(id)| [id.uuid[0], id.uuid[1], id.opening, id.instant]);
    let words = [REQUEST, since[0], since[1], since[2], since[3]];
    let request: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    stream.write_all(&request)?;
    Ok(BufReader::with_capacity(1 << 18, stream))
}

/// Connects to a socket, whose path may be longer than an address can be.
fn connect(path: &Path) -> io::Result<UnixStream> {
    let folder = folder_of(path)?;
    UnixStream::connect(short_path(&folder, path))
}

/// Opens the newest instant of the store at `path`, which another process has open and offers
/// copies of: a copy in the memory of this process. Returns `None` if nobody offers one.
pub(crate) fn open_beside(path: &Path, options: &Options) -> Result<Option<Evermap>> {
    let Ok(mut stream) = fetch(path, None) else { return Ok(None) };
    let failed = |error| evermap_pm::Error::io("copying a store that is in use", path, error);
    let (file, name) = memory_file()?;
    let copied = fill(&mut [&mut stream], &file).map_err(failed)?;
    adopt(&name, false)?;
    let reading = MappedOptions { read_only: true, ..MappedOptions::default() };
    let medium = Mapped::open(&name, &reading)?;
    let origin = Origin {
        path: Some(path.to_owned()),
        file_system: medium.filesystem().to_owned(),
        durability: Durability::Process,
        instant: None,
    };
    let db = open_view(medium, options, origin, Backup(copied).time())?;
    // Its path leads through the descriptor.
    let _ = db.file.kept.set(file);
    Ok(Some(db))
}

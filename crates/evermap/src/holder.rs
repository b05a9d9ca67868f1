//! The process that has a store open, and gives copies of it to others.
//!
//! It listens on a socket beside the file, `<file>.sock`, which only its owner may use. A request
//! has five words: a magic one, and the copy that the requester has, or zeros. The answer is a
//! [copy](evermap_pm::region::copy).

use std::fs::File;
use std::io::{self, BufWriter, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use evermap_pm::region::copy::CopyId;

/// First word of a request.
pub(crate) const REQUEST: u64 = u64::from_le_bytes(*b"EVCOPY?\x01");

/// How long a requester may take to send its request, or to take a part of the answer.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns the path of a file that belongs to the one at `path`, beside it.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// Returns the path of the socket of the store at `path`.
pub(crate) fn socket_of(path: &Path) -> PathBuf {
    with_suffix(path, ".sock")
}

/// Opens the folder that `path` is in.
pub(crate) fn folder_of(path: &Path) -> io::Result<File> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    File::open(folder.unwrap_or(Path::new(".")))
}

/// Returns a path of the file at `path` that is short enough for the address of a socket, while
/// `folder` is open.
pub(crate) fn short_path(folder: &File, path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default();
    Path::new("/proc/self/fd").join(folder.as_raw_fd().to_string()).join(name)
}

/// A socket that gives copies of a store. Dropping it removes the socket.
pub(crate) struct Holder {
    listener: UnixListener,
    path: PathBuf,
}

impl Holder {
    /// Listens beside the store at `path`, whose lock this process has.
    pub(crate) fn listen(path: &Path) -> io::Result<Self> {
        let path = socket_of(path);
        let folder = folder_of(&path)?;
        // One of a process that was killed: nobody else has the store open.
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(short_path(&folder, &path))?;
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600))?;
        Ok(Holder { listener, path })
    }

    /// Returns the path of the socket, by which the thread that serves is [woken](wake).
    pub(crate) fn socket(&self) -> &Path {
        &self.path
    }

    /// Gives copies, one at a time, until it is [woken](wake) when `is_over`. `copy` writes what
    /// was changed since another backup, or everything.
    pub(crate) fn serve(&self, copy: &CopyTo<'_>, is_over: &dyn Fn() -> bool) {
        while let Ok((stream, _)) = self.listener.accept() {
            if is_over() {
                return;
            }
            // The requester sees that the answer is cut off.
            let _ = answer(stream, copy);
        }
    }
}

/// Writes a copy.
pub(crate) type CopyTo<'a> = dyn Fn(Option<CopyId>, &mut dyn Write) -> io::Result<()> + 'a;

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Wakes a thread that serves at the socket at `path`.
pub(crate) fn wake(path: &Path) {
    if let Ok(folder) = folder_of(path) {
        let _ = UnixStream::connect(short_path(&folder, path));
    }
}

fn answer(mut stream: UnixStream, copy: &CopyTo<'_>) -> io::Result<()> {
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    let mut request = [0; 40];
    stream.read_exact(&mut request)?;
    let word = |at: usize| u64::from_le_bytes(request[at * 8..][..8].try_into().expect("8 bytes"));
    if word(0) != REQUEST {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let id = CopyId { uuid: [word(1), word(2)], opening: word(3), instant: word(4) };
    let since = (id.instant != 0).then_some(id);
    let mut out = BufWriter::with_capacity(1 << 18, stream);
    copy(since, &mut out)?;
    out.flush()
}

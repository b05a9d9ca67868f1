//! What a server that is running looks at once a second.

use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use evermap_server::Server;

const INTERVAL: Duration = Duration::from_secs(1);

/// The name in `stats` under which a server tells whether its file is where it was opened.
const IN_PLACE: &str = "evermap_file_in_place";

/// Watches until `stop` is closed.
pub(crate) fn watch(server: &Server, mut file: Option<ServedFile>, stop: &Receiver<()>) {
    if file.is_some() {
        server.set_stat(IN_PLACE, 1);
    }
    let mut memory = SpareMemory::default();
    while stop.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if let Some(file) = &mut file {
            file.look(server);
        }
        memory.look(server.freed_bytes());
    }
}

/// The file that a server keeps its items in.
pub(crate) struct ServedFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
    in_place: bool,
}

impl ServedFile {
    /// The file at `path`, which has just been opened.
    pub(crate) fn opened(path: &Path) -> Option<Self> {
        let identity = identity(path).ok()?;
        Some(ServedFile { path: path.to_owned(), identity, in_place: true })
    }

    /// Says so if the file is not at its path any more. It goes on being served: what it holds can
    /// still be read, and the file may come back. But nobody will find there what clients store.
    fn look(&mut self, server: &Server) {
        let lost = match identity(&self.path) {
            Ok(identity) if identity == self.identity => None,
            Ok(_) => Some("was replaced by another file"),
            Err(error) if error.kind() == ErrorKind::NotFound => Some("was removed or renamed"),
            // It cannot be told.
            Err(_) => return,
        };
        if self.in_place
            && let Some(lost) = lost
        {
            // Nobody may be reading; `stats` tells it too.
            let _ = writeln!(
                io::stderr(),
                "evermap: {}: {lost} while it is served. Clients are still served from the file that was \
                 opened, but the next start will not find what they store: put that file back if it was \
                 renamed, or read out what is needed before this server (process {}) ends",
                self.path.display(),
                std::process::id()
            );
        }
        if self.in_place != lost.is_none() {
            self.in_place = lost.is_none();
            server.set_stat(IN_PLACE, u8::from(self.in_place));
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Memory that the server has freed and the allocator has kept.
///
/// Clients that upload large values or do not read their replies can make it hundreds of megabytes,
/// which would stay with the process until it ends.
#[derive(Default)]
struct SpareMemory {
    /// What the server had freed when the allocator was last asked, bytes.
    freed: u64,
    asked: Option<Instant>,
}

impl SpareMemory {
    /// Gives it back to the system if it may be much, and not too often: while large values keep
    /// coming, they use it again.
    fn look(&mut self, freed: u64) {
        const MUCH: u64 = 16 << 20;
        const PAUSE: Duration = Duration::from_secs(10);
        let rested = self.asked.is_none_or(|asked| asked.elapsed() >= PAUSE);
        if rested && freed - self.freed >= MUCH {
            self.freed = freed;
            self.asked = Some(Instant::now());
            give_back();
        }
    }
}

/// Other allocators than that of the GNU library give memory back by themselves.
fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: touches no memory but what the allocator holds free.
    unsafe {
        libc::malloc_trim(0);
    }
}

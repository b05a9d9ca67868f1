//! What a running server checks once a second.

use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use evermap_server::Server;

use crate::rejoin::History;

const INTERVAL: Duration = Duration::from_secs(1);

/// The name of the statistic that is 1 while the file is at its path.
const IN_PLACE: &str = "evermap_file_in_place";

/// Monitors the file and the memory of a server, and keeps its counters, until the sender of `stop`
/// is dropped.
pub(crate) fn monitor(
    server: &Server,
    mut file: Option<ServedFile>,
    history: &mut History,
    stop: &Receiver<()>,
) {
    if file.is_some() {
        server.set_stat(IN_PLACE, 1);
    }
    let mut trimmer = MemoryTrimmer::default();
    while stop.recv_timeout(INTERVAL) == Err(RecvTimeoutError::Timeout) {
        if let Some(file) = &mut file {
            file.check(server);
        }
        history.continue_with(server);
        trimmer.check(server.freed_bytes());
    }
}

/// The file of the store that a server serves.
pub(crate) struct ServedFile {
    path: PathBuf,
    /// Device and inode.
    identity: (u64, u64),
    in_place: bool,
}

impl ServedFile {
    /// Remembers the identity of the file at `path`, which was just opened. Returns `None` if it
    /// cannot be determined.
    pub(crate) fn opened(path: &Path) -> Option<Self> {
        let identity = identity(path).ok()?;
        Some(ServedFile { path: path.to_owned(), identity, in_place: true })
    }

    /// Reports if the file is no longer at its path.
    ///
    /// The server continues to serve it, because its content can still be read and the file may
    /// come back. But the next start will not find the items that clients store meanwhile.
    fn check(&mut self, server: &Server) {
        let event = match identity(&self.path) {
            Ok(identity) if identity == self.identity => None,
            Ok(_) => Some("replaced by another file"),
            Err(error) if error.kind() == ErrorKind::NotFound => Some("removed or renamed"),
            // The state of the file is unknown.
            Err(_) => return,
        };
        if self.in_place
            && let Some(event) = event
        {
            // If standard error is closed, the statistic still reports it.
            let _ = writeln!(
                io::stderr(),
                "evermap: {}: the file was {event} while it was being served. The server continues \
                 with the file that it opened, but the next start will not find the items in it: \
                 move the file back if it was renamed, or copy the items to another server before \
                 this one (process {}) ends",
                self.path.display(),
                std::process::id()
            );
        }
        if self.in_place != event.is_none() {
            self.in_place = event.is_none();
            server.set_stat(IN_PLACE, u8::from(self.in_place));
        }
    }
}

fn identity(path: &Path) -> io::Result<(u64, u64)> {
    let file = std::fs::metadata(path)?;
    Ok((file.dev(), file.ino()))
}

/// Returns memory to the system that the server has freed and the allocator has kept.
///
/// Clients that upload large values or do not read their replies can make this hundreds of
/// megabytes, which would belong to the process until it ends.
#[derive(Default)]
struct MemoryTrimmer {
    /// The total number of bytes that the server had freed at the last trim.
    freed: u64,
    trimmed_at: Option<Instant>,
}

impl MemoryTrimmer {
    /// Trims the memory if the server has freed much since the last time, but not too often: while
    /// large values keep arriving, the server uses the memory again.
    fn check(&mut self, freed: u64) {
        const THRESHOLD: u64 = 16 << 20;
        const PAUSE: Duration = Duration::from_secs(10);
        let may_trim = self.trimmed_at.is_none_or(|at| at.elapsed() >= PAUSE);
        if may_trim && freed - self.freed >= THRESHOLD {
            self.freed = freed;
            self.trimmed_at = Some(Instant::now());
            trim_allocator();
        }
    }
}

/// Makes glibc's allocator return free memory to the system. Other allocators do so by themselves.
fn trim_allocator() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` accesses only memory that the allocator holds as free.
    unsafe {
        libc::malloc_trim(0);
    }
}

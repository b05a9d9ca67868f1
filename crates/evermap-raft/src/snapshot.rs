//! Snapshots as files: what is sent to a node that is too far behind for the log.
//!
//! ```text
//! magic           8 bytes
//! block ...       length, 4 bytes; checksum of number and content, 4 bytes; content
//! end             length 0; checksum; the number of records, 8 bytes
//! ```
//!
//! The first block is the meta data that openraft has of the snapshot; the others have records, as
//! the lengths of key and value, 4 bytes each, and both. All numbers are little-endian.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::{SystemTime, UNIX_EPOCH};

use openraft::{RaftTypeConfig, SnapshotMeta};
use tokio::io::{AsyncRead, AsyncSeek, AsyncWrite, ReadBuf};
use tokio::sync::watch;

use crate::shared::Installs;
use crate::{Error, Result, codec};

const MAGIC: &[u8; 8] = b"EVRAFTS1";
/// The length from which on a block is written, bytes.
const BLOCK: usize = 64 << 10;
/// How the names of complete snapshots end; whatever else is in the folder was left by a kill.
const COMPLETE: &str = "snapshot";

pub(crate) type Meta<C> = SnapshotMeta<<C as RaftTypeConfig>::NodeId, <C as RaftTypeConfig>::Node>;

/// A snapshot that is being received or sent.
#[derive(Debug)]
pub struct SnapshotFile {
    file: tokio::fs::File,
    path: PathBuf,
    /// Whether the file is removed with this.
    is_temporary: bool,
    /// Who counts those that are not installed yet, if this is one.
    counted_by: Option<watch::Sender<Installs>>,
}

impl SnapshotFile {
    /// Creates a file for a snapshot that is received.
    pub(crate) fn create(path: PathBuf, installs: &watch::Sender<Installs>) -> Result<Self> {
        let file = File::options().read(true).write(true).create_new(true).open(&path)?;
        let file = tokio::fs::File::from_std(file);
        installs.send_modify(|installs| installs.files += 1);
        Ok(SnapshotFile { file, path, is_temporary: true, counted_by: Some(installs.clone()) })
    }

    pub(crate) fn open(path: PathBuf) -> Result<Self> {
        let file = tokio::fs::File::from_std(File::open(&path)?);
        Ok(SnapshotFile { file, path, is_temporary: false, counted_by: None })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a file that is removed with this.
    pub(crate) fn open_temporary(path: PathBuf) -> Result<Self> {
        let mut file = SnapshotFile::open(path)?;
        file.is_temporary = true;
        Ok(file)
    }

    /// Returns the path of an unfinished file with this content, durable, that is the caller's:
    /// this one if it was received, or a copy.
    pub(crate) fn into_part(mut self, folder: &Folder) -> Result<PathBuf> {
        if !self.is_temporary {
            let copy = folder.unfinished();
            std::fs::copy(&self.path, &copy)?;
            File::open(&copy)?.sync_all()?;
            return Ok(copy);
        }
        File::open(&self.path)?.sync_all()?;
        self.is_temporary = false;
        Ok(self.path.clone())
    }
}

impl Drop for SnapshotFile {
    fn drop(&mut self) {
        if self.is_temporary {
            // The next opening removes what is left.
            let _ = std::fs::remove_file(&self.path);
        }
        if let Some(installs) = &self.counted_by {
            installs.send_modify(|installs| installs.files -= 1);
        }
    }
}

/// The folder of a node's snapshots.
#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    /// Makes names unique.
    next: AtomicU64,
}

impl Folder {
    pub(crate) fn open(path: PathBuf) -> Result<Self> {
        std::fs::create_dir_all(&path)?;
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        // Names go on after those of earlier openings, and differ from those of other nodes.
        let next = AtomicU64::new(time.as_nanos() as u64);
        Ok(Folder { path, next })
    }

    /// Returns a name that no other snapshot has.
    pub(crate) fn unique(&self) -> String {
        format!("{:x}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the path of a file that a kill may leave.
    pub(crate) fn unfinished(&self) -> PathBuf {
        self.path.join(self.unique()).with_extension("part")
    }

    /// Gives a file that is complete and durable the name of one, and returns that.
    pub(crate) fn complete(&self, part: &Path) -> Result<PathBuf> {
        let path = self.path.join(self.unique()).with_extension(COMPLETE);
        std::fs::rename(part, &path)?;
        File::open(&self.path)?.sync_all()?;
        Ok(path)
    }

    /// Returns the newest snapshot of those that `is_valid`, and removes all other files.
    pub(crate) fn newest<C: RaftTypeConfig>(
        &self,
        is_valid: impl Fn(&Meta<C>) -> bool,
    ) -> Result<Option<(Meta<C>, PathBuf)>> {
        let mut newest: Option<(Meta<C>, PathBuf)> = None;
        for entry in std::fs::read_dir(&self.path)? {
            let path = entry?.path();
            let meta = match path.extension() == Some(OsStr::new(COMPLETE)) {
                // One that cannot be read is not needed: another can be made.
                true => SnapshotReader::open::<C>(&path).ok().map(|(meta, _)| meta),
                false => None,
            };
            let other = match meta.filter(|meta| is_valid(meta)) {
                Some(meta)
                    if newest.as_ref().is_none_or(|(n, _)| n.last_log_id < meta.last_log_id) =>
                {
                    newest.replace((meta, path)).map(|(_, path)| path)
                }
                _ => Some(path),
            };
            other.map(std::fs::remove_file).transpose()?;
        }
        Ok(newest)
    }
}

/// Writes a snapshot.
pub(crate) struct SnapshotWriter {
    out: BufWriter<File>,
    block: Vec<u8>,
    blocks: u32,
    records: u64,
}

impl SnapshotWriter {
    pub(crate) fn create<C: RaftTypeConfig>(path: &Path, meta: &Meta<C>) -> Result<Self> {
        let mut out = BufWriter::new(File::create_new(path)?);
        out.write_all(MAGIC)?;
        let block = codec::encode(meta)?;
        let mut writer = SnapshotWriter { out, block, blocks: 0, records: 0 };
        writer.end_block()?;
        Ok(writer)
    }

    pub(crate) fn record(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        for len in [key.len(), value.len()] {
            let len = u32::try_from(len).expect("records are shorter");
            self.block.extend_from_slice(&len.to_le_bytes());
        }
        self.block.extend_from_slice(key);
        self.block.extend_from_slice(value);
        self.records += 1;
        if self.block.len() >= BLOCK { self.end_block() } else { Ok(()) }
    }

    fn end_block(&mut self) -> Result<()> {
        let len = u32::try_from(self.block.len()).expect("a block has one long record at most");
        self.out.write_all(&len.to_le_bytes())?;
        self.out.write_all(&checksum(self.blocks, &self.block).to_le_bytes())?;
        self.out.write_all(&self.block)?;
        self.block.clear();
        self.blocks += 1;
        Ok(())
    }

    /// Completes the file, and makes it durable.
    pub(crate) fn finish(mut self) -> Result<()> {
        if !self.block.is_empty() {
            self.end_block()?;
        }
        let records = self.records.to_le_bytes();
        self.out.write_all(&0_u32.to_le_bytes())?;
        self.out.write_all(&checksum(self.blocks, &records).to_le_bytes())?;
        self.out.write_all(&records)?;
        let file = self.out.into_inner().map_err(io::IntoInnerError::into_error)?;
        Ok(file.sync_all()?)
    }
}

/// Reads a snapshot, and verifies it.
pub(crate) struct SnapshotReader {
    from: BufReader<File>,
    blocks: u32,
    records: u64,
}

impl SnapshotReader {
    pub(crate) fn open<C: RaftTypeConfig>(path: &Path) -> Result<(Meta<C>, Self)> {
        let mut from = BufReader::new(File::open(path)?);
        if read_array(&mut from)? != *MAGIC {
            return Err(Error::Damaged("this is no snapshot, or of another format".into()));
        }
        let mut reader = SnapshotReader { from, blocks: 0, records: 0 };
        let meta = reader.block()?.ok_or_else(|| damaged("no meta data"))?;
        Ok((codec::decode(&meta)?, reader))
    }

    /// Returns the content of the next block, or `None` at the verified end.
    fn block(&mut self) -> Result<Option<Vec<u8>>> {
        let len = u32::from_le_bytes(read_array(&mut self.from)?);
        let sum = u32::from_le_bytes(read_array(&mut self.from)?);
        let is_end = len == 0;
        let len = if is_end { 8 } else { u64::from(len) };
        // Not reserved: the length may be damaged.
        let mut content = Vec::new();
        (&mut self.from).take(len).read_to_end(&mut content)?;
        if content.len() as u64 != len || checksum(self.blocks, &content) != sum {
            return Err(damaged("a checksum does not agree"));
        }
        if is_end {
            let is_whole = content == self.records.to_le_bytes();
            return if is_whole { Ok(None) } else { Err(damaged("records are missing")) };
        }
        self.blocks += 1;
        Ok(Some(content))
    }

    /// Shows all records. If there is an error, some of them were shown.
    pub(crate) fn records(
        mut self,
        mut show: impl FnMut(&[u8], &[u8]) -> Result<()>,
    ) -> Result<()> {
        while let Some(block) = self.block()? {
            let mut rest = &block[..];
            while !rest.is_empty() {
                let (key, value);
                (key, value, rest) = split(rest).ok_or_else(|| damaged("a record is too long"))?;
                show(key, value)?;
                self.records += 1;
            }
        }
        Ok(())
    }
}

/// Splits the first record off: key, value, and the rest.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (key_len, rest) = bytes.split_first_chunk()?;
    let (value_len, rest) = rest.split_first_chunk()?;
    let (key, rest) = rest.split_at_checked(u32::from_le_bytes(*key_len) as usize)?;
    let (value, rest) = rest.split_at_checked(u32::from_le_bytes(*value_len) as usize)?;
    Some((key, value, rest))
}

/// The number is in it so that blocks which are missing or exchanged are noticed.
fn checksum(number: u32, content: &[u8]) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), content)
}

fn read_array<const N: usize>(from: &mut impl Read) -> Result<[u8; N]> {
    let mut bytes = [0; N];
    from.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn damaged(what: &str) -> Error {
    Error::Damaged(format!("the snapshot is damaged: {what}"))
}

impl AsyncRead for SnapshotFile {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.file).poll_read(context, buffer)
    }
}

impl AsyncWrite for SnapshotFile {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.file).poll_write(context, buffer)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.file).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.file).poll_shutdown(context)
    }
}

impl AsyncSeek for SnapshotFile {
    fn start_seek(mut self: Pin<&mut Self>, position: io::SeekFrom) -> io::Result<()> {
        Pin::new(&mut self.file).start_seek(position)
    }

    fn poll_complete(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<u64>> {
        Pin::new(&mut self.file).poll_complete(context)
    }
}

//! A file system in memory that records what the kernel asks of it.
//!
//! It speaks the protocol of `/dev/fuse` itself, as `linux/fuse.h` has it, so that it needs no
//! library; the layouts of requests and replies are those of version 7.31. It has only what a
//! store needs: files and folders, no links, no attributes.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, channel};

use crate::result::Result;

/// The number of the root folder.
pub(crate) const ROOT: u64 = 1;
/// Bytes that one request writes at most.
const MAX_WRITE: u32 = 128 << 10;
const HEADER: usize = 40;

const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EEXIST: i32 = 17;
const ENOSYS: i32 = 38;
const ENOTEMPTY: i32 = 39;
const EOPNOTSUPP: i32 = 95;

const S_IFDIR: u32 = 0o040_000;
const S_IFREG: u32 = 0o100_000;

/// What has happened to the file system, in the order in which it was answered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// An entry of a folder names a new file, or a new folder.
    Create {
        folder: u64,
        name: String,
        node: u64,
        is_folder: bool,
    },
    /// An entry is moved, in place of another one if there is one.
    Rename {
        from: (u64, String),
        to: (u64, String),
    },
    Remove {
        folder: u64,
        name: String,
    },
    Write {
        node: u64,
        offset: u64,
        bytes: Vec<u8>,
    },
    SetLen {
        node: u64,
        len: u64,
    },
    /// What was written to the file, and its length, is durable; or the entries of the folder are.
    Sync {
        node: u64,
    },
}

/// A file system of this kind that is mounted.
pub(crate) struct Recorder {
    folder: tempfile::TempDir,
    events: Receiver<Event>,
}

impl Recorder {
    /// Mounts an empty file system. The caller must be root.
    pub(crate) fn mount() -> Result<Self> {
        let device = File::options().read(true).write(true).open("/dev/fuse")?;
        let folder = tempfile::tempdir()?;
        // The device is the standard input of the command that mounts it.
        let mounted = Command::new("mount")
            .args(["-i", "-t", "fuse", "-o"])
            .arg("fd=0,rootmode=40000,user_id=0,group_id=0")
            .arg("evermap-power")
            .arg(folder.path())
            .stdin(Stdio::from(device.try_clone()?))
            .status()?;
        if !mounted.success() {
            return Err(format!("mounting a file system of our own has failed: {mounted}").into());
        }
        let (sender, events) = channel();
        std::thread::spawn(move || {
            let mut nodes = Nodes::new(move |event| sender.send(event).is_ok());
            // Until it is unmounted.
            while nodes.answer(&device).is_ok() {}
        });
        Ok(Recorder { folder, events })
    }

    pub(crate) fn path(&self) -> &Path {
        self.folder.path()
    }

    /// Unmounts it, and returns what has happened.
    pub(crate) fn finish(self) -> Result<Vec<Event>> {
        let unmounted = Command::new("umount").arg(self.folder.path()).status()?;
        match unmounted.success() {
            true => Ok(self.events.iter().collect()),
            false => Err(format!("unmounting has failed: {unmounted}").into()),
        }
    }
}

impl Drop for Recorder {
    /// Unmounts it, if it is still mounted: a folder with a file system cannot be removed.
    fn drop(&mut self) {
        let unmount = Command::new("umount").args(["-l", "-q"]).arg(self.folder.path()).status();
        if let Err(error) = unmount {
            eprintln!("unmounting {}: {error}", self.folder.path().display());
        }
    }
}

/// A file, or a folder.
enum Node {
    File(Vec<u8>),
    Folder(BTreeMap<String, u64>),
}

/// The numbers of requests, as in `enum fuse_opcode`.
mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const MKDIR: u32 = 9;
    pub(super) const UNLINK: u32 = 10;
    pub(super) const RMDIR: u32 = 11;
    pub(super) const RENAME: u32 = 12;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const OPENDIR: u32 = 27;
    pub(super) const READDIR: u32 = 28;
    pub(super) const RELEASEDIR: u32 = 29;
    pub(super) const FSYNCDIR: u32 = 30;
    pub(super) const CREATE: u32 = 35;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const FALLOCATE: u32 = 43;
    pub(super) const RENAME2: u32 = 45;
}

/// The reply to a request, or an error number.
type Reply = std::result::Result<Vec<u8>, i32>;

struct Nodes<F> {
    nodes: Vec<Node>,
    record: F,
    buffer: Vec<u8>,
}

/// The fields of a request after its header.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn word(&self, at: usize) -> u64 {
        u64::from_le_bytes(self.0[at..at + 8].try_into().expect("8 bytes"))
    }

    fn half(&self, at: usize) -> u32 {
        u32::from_le_bytes(self.0[at..at + 4].try_into().expect("4 bytes"))
    }

    /// Returns the strings from there on, each of which ends with a zero.
    fn strings(&self, at: usize) -> Vec<String> {
        let strings = self.0[at..].split(|&byte| byte == 0);
        strings.map(|bytes| String::from_utf8_lossy(bytes).into_owned()).collect()
    }
}

/// Appends numbers to a reply.
#[derive(Default)]
struct Out(Vec<u8>);

impl Out {
    fn words(mut self, words: &[u64]) -> Self {
        words.iter().for_each(|word| self.0.extend(word.to_le_bytes()));
        self
    }

    fn halves(mut self, halves: &[u32]) -> Self {
        halves.iter().for_each(|half| self.0.extend(half.to_le_bytes()));
        self
    }
}

impl<F: FnMut(Event) -> bool> Nodes<F> {
    fn new(record: F) -> Self {
        let nodes = vec![Node::File(Vec::new()), Node::Folder(BTreeMap::new())];
        Nodes { nodes, record, buffer: vec![0; MAX_WRITE as usize + (64 << 10)] }
    }

    /// Reads one request and answers it.
    fn answer(&mut self, mut device: &File) -> std::io::Result<()> {
        let mut buffer = std::mem::take(&mut self.buffer);
        let count = device.read(&mut buffer)?;
        let header = Fields(&buffer[..HEADER]);
        let (opcode, unique, node) = (header.half(4), header.word(8), header.word(16));
        let is_answered =
            ![opcode::FORGET, opcode::BATCH_FORGET, opcode::INTERRUPT].contains(&opcode);
        if is_answered {
            let reply = self.reply(opcode, node, &Fields(&buffer[HEADER..count]));
            let (error, body) = match reply {
                Ok(body) => (0, body),
                Err(error) => (-error, Vec::new()),
            };
            let len = 16 + body.len() as u32;
            let mut out = Out::default().halves(&[len, error as u32]).words(&[unique]).0;
            out.extend(body);
            // Fails if the request was interrupted: then nobody waits for the reply.
            let _ = device.write(&out);
        }
        self.buffer = buffer;
        Ok(())
    }

    fn reply(&mut self, opcode: u32, node: u64, fields: &Fields<'_>) -> Reply {
        match opcode {
            opcode::INIT => Ok(init(fields)),
            opcode::LOOKUP => {
                let found = self.entry(node, &fields.strings(0)[0])?;
                Ok(self.entry_out(found))
            }
            opcode::GETATTR => Ok(self.attributes_out(node)),
            opcode::SETATTR => self.set_attributes(node, fields),
            opcode::MKDIR => {
                let made = self.create(node, &fields.strings(8)[0], true)?;
                Ok(self.entry_out(made))
            }
            opcode::CREATE => {
                let made = self.create(node, &fields.strings(16)[0], false)?;
                Ok([self.entry_out(made), opened()].concat())
            }
            opcode::UNLINK | opcode::RMDIR => self.remove(node, &fields.strings(0)[0]),
            opcode::RENAME => self.rename(node, fields.word(0), &fields.strings(8)),
            // The flags of a plain renaming are zero.
            opcode::RENAME2 if fields.half(8) == 0 => {
                self.rename(node, fields.word(0), &fields.strings(16))
            }
            opcode::OPEN | opcode::OPENDIR => Ok(opened()),
            opcode::READ => {
                let (offset, size) = (fields.word(8) as usize, fields.half(16) as usize);
                let bytes = self.file(node)?;
                let begin = offset.min(bytes.len());
                Ok(bytes[begin..(begin + size).min(bytes.len())].to_vec())
            }
            opcode::WRITE => self.write(node, fields),
            // Reserving space; others are refused.
            opcode::FALLOCATE if fields.half(24) != 0 => Err(EOPNOTSUPP),
            opcode::FALLOCATE => {
                let end = fields.word(8) + fields.word(16);
                let len = end.max(self.file(node)?.len() as u64);
                self.set_len(node, len)
            }
            opcode::READDIR => self.list(node, fields),
            opcode::FSYNC | opcode::FSYNCDIR => self.note(Event::Sync { node }),
            opcode::FLUSH | opcode::RELEASE | opcode::RELEASEDIR => Ok(Vec::new()),
            opcode::STATFS => {
                let blocks = Out::default().words(&[1 << 20, 1 << 20, 1 << 20, 1 << 20, 1 << 20]);
                Ok(blocks.halves(&[4096, 255, 4096, 0]).halves(&[0; 6]).0)
            }
            _ => Err(ENOSYS),
        }
    }

    fn note(&mut self, event: Event) -> Reply {
        if (self.record)(event) { Ok(Vec::new()) } else { Err(EIO) }
    }

    fn file(&mut self, node: u64) -> std::result::Result<&mut Vec<u8>, i32> {
        match self.nodes.get_mut(node as usize) {
            Some(Node::File(bytes)) => Ok(bytes),
            _ => Err(EIO),
        }
    }

    fn folder(&mut self, node: u64) -> std::result::Result<&mut BTreeMap<String, u64>, i32> {
        match self.nodes.get_mut(node as usize) {
            Some(Node::Folder(entries)) => Ok(entries),
            _ => Err(EIO),
        }
    }

    fn entry(&mut self, folder: u64, name: &str) -> std::result::Result<u64, i32> {
        self.folder(folder)?.get(name).copied().ok_or(ENOENT)
    }

    fn create(
        &mut self,
        folder: u64,
        name: &str,
        is_folder: bool,
    ) -> std::result::Result<u64, i32> {
        if self.entry(folder, name).is_ok() {
            return Err(EEXIST);
        }
        let node = self.nodes.len() as u64;
        self.nodes.push(match is_folder {
            true => Node::Folder(BTreeMap::new()),
            false => Node::File(Vec::new()),
        });
        self.folder(folder)?.insert(name.to_owned(), node);
        self.note(Event::Create { folder, name: name.to_owned(), node, is_folder })?;
        Ok(node)
    }

    fn remove(&mut self, folder: u64, name: &str) -> Reply {
        let node = self.entry(folder, name)?;
        if self.folder(node).is_ok_and(|entries| !entries.is_empty()) {
            return Err(ENOTEMPTY);
        }
        self.folder(folder)?.remove(name);
        self.note(Event::Remove { folder, name: name.to_owned() })
    }

    fn rename(&mut self, folder: u64, other: u64, names: &[String]) -> Reply {
        let [from, to, ..] = names else { return Err(EIO) };
        let node = self.entry(folder, from)?;
        self.folder(folder)?.remove(from);
        self.folder(other)?.insert(to.clone(), node);
        let (from, to) = ((folder, from.clone()), (other, to.clone()));
        self.note(Event::Rename { from, to })
    }

    fn set_attributes(&mut self, node: u64, fields: &Fields<'_>) -> Reply {
        const SIZE: u32 = 1 << 3;
        if fields.half(0) & SIZE != 0 {
            self.set_len(node, fields.word(16))?;
        }
        Ok(self.attributes_out(node))
    }

    fn set_len(&mut self, node: u64, len: u64) -> Reply {
        self.file(node)?.resize(len as usize, 0);
        self.note(Event::SetLen { node, len })
    }

    fn write(&mut self, node: u64, fields: &Fields<'_>) -> Reply {
        let (offset, size) = (fields.word(8), fields.half(16));
        let bytes = &fields.0[40..40 + size as usize];
        let file = self.file(node)?;
        put(file, offset, bytes);
        self.note(Event::Write { node, offset, bytes: bytes.to_vec() })?;
        Ok(Out::default().halves(&[size, 0]).0)
    }

    fn list(&mut self, node: u64, fields: &Fields<'_>) -> Reply {
        let (offset, size) = (fields.word(8), fields.half(16) as usize);
        let mut out = Out::default();
        for (at, (name, &node)) in (1..).zip(self.folder(node)?.iter()) {
            let len = (24 + name.len()).next_multiple_of(8);
            if at <= offset {
                continue;
            }
            if out.0.len() + len > size {
                break;
            }
            let end = out.0.len() + len;
            // No type: the kernel asks for it.
            out = out.words(&[node, at]).halves(&[name.len() as u32, 0]);
            out.0.extend(name.bytes());
            out.0.resize(end, 0);
        }
        Ok(out.0)
    }

    /// Returns the attributes of a node, as `struct fuse_attr` has them.
    fn attributes(&self, node: u64) -> Vec<u8> {
        let (mode, len) = match &self.nodes[node as usize] {
            Node::File(bytes) => (S_IFREG | 0o600, bytes.len() as u64),
            Node::Folder(_) => (S_IFDIR | 0o700, 0),
        };
        // Number, length, blocks, and three times.
        let words = Out::default().words(&[node, len, len.div_ceil(512), 0, 0, 0]);
        // Fractions of the times, mode, links, owner, group, device, block size, flags.
        words.halves(&[0, 0, 0, mode, 1, 0, 0, 0, 4096, 0]).0
    }

    fn attributes_out(&self, node: u64) -> Vec<u8> {
        let valid = Out::default().words(&[1]).halves(&[0, 0]).0;
        [valid, self.attributes(node)].concat()
    }

    fn entry_out(&self, node: u64) -> Vec<u8> {
        let entry = Out::default().words(&[node, 0, 1, 1]).halves(&[0, 0]).0;
        [entry, self.attributes(node)].concat()
    }
}

/// Replies to the first request: which version, and how much is written at once.
fn init(fields: &Fields<'_>) -> Vec<u8> {
    const BIG_WRITES: u32 = 1 << 5;
    let out = Out::default().halves(&[7, 31, fields.half(8), BIG_WRITES]);
    // Requests in the background, the limit of one write, the precision of times, and nothing more.
    out.halves(&[12 | 8 << 16, MAX_WRITE, 1]).halves(&[0; 9]).0
}

/// Replies that a file is open, and that its pages may stay in memory.
fn opened() -> Vec<u8> {
    const KEEP_CACHE: u32 = 1 << 1;
    Out::default().words(&[0]).halves(&[KEEP_CACHE, 0]).0
}

/// Writes to a file, which becomes longer if it has to.
pub(crate) fn put(file: &mut Vec<u8>, offset: u64, bytes: &[u8]) {
    let (begin, end) = (offset as usize, offset as usize + bytes.len());
    if file.len() < end {
        file.resize(end, 0);
    }
    file[begin..end].copy_from_slice(bytes);
}

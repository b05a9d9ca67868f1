//! A simulated file system: it records what is done to it, and what a crash may leave of that is
//! derived from the recording afterwards.
//!
//! What was not synced is lost or kept for each sector of 512 bytes on its own, and so is each new
//! name, until the directory is synced. A failed sync keeps some of it and drops the rest, although
//! that can still be read.

use std::collections::BTreeMap;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use super::super::{File, Storage};
use crate::sim::rng::Rng;
use crate::{Error, Result};

const SECTOR: u64 = 512;

/// What a storage device contains.
#[derive(Clone, Default)]
pub(super) struct Disk {
    names: BTreeMap<String, usize>,
    files: Vec<Arc<Vec<u8>>>,
}

impl Disk {
    fn file(&mut self, file: usize) -> &mut Vec<u8> {
        Arc::make_mut(&mut self.files[file])
    }

    fn apply_name(&mut self, change: &Name) {
        match change {
            Name::Create(name, file) => {
                self.names.insert(name.clone(), *file);
            }
            Name::Rename(from, to) => {
                // Its creation may be lost.
                if let Some(file) = self.names.remove(from) {
                    self.names.insert(to.clone(), file);
                }
            }
            Name::Remove(name) => {
                self.names.remove(name);
            }
        }
    }

    fn apply_data(&mut self, file: usize, change: &Data, part: Range<usize>) {
        match change {
            Data::Write(offset, bytes) => {
                let start = *offset as usize + part.start;
                let contents = self.file(file);
                contents.resize(contents.len().max(start + part.len()), 0);
                contents[start..start + part.len()].copy_from_slice(&bytes[part]);
            }
            Data::SetLen(bytes) => self.file(file).resize(*bytes as usize, 0),
        }
    }
}

/// A change of a name.
#[derive(Clone)]
pub(super) enum Name {
    Create(String, usize),
    Rename(String, String),
    Remove(String),
}

/// A change of the contents of a file.
#[derive(Clone)]
pub(super) enum Data {
    Write(u64, Arc<Vec<u8>>),
    SetLen(u64),
}

impl Data {
    /// Returns the parts that are durable or lost each on its own.
    fn parts(&self) -> Vec<Range<usize>> {
        let Data::Write(offset, bytes) = self else { return std::iter::once(0..0).collect() };
        let (mut parts, mut at) = (Vec::new(), 0);
        while at < bytes.len() {
            let rest = SECTOR - (offset + at as u64) % SECTOR;
            let end = bytes.len().min(at + rest as usize);
            parts.push(at..end);
            at = end;
        }
        parts
    }
}

/// What the program under test tells about its progress.
#[derive(Clone)]
pub(super) enum Note {
    /// It begins to make this the state with this sequence number.
    Begin(u64, Arc<Vec<u8>>),
    /// The state with this sequence number is durable, and there is no later one.
    Durable(u64),
}

#[derive(Clone)]
pub(super) enum Event {
    Name(Name),
    Data(usize, Data),
    Sync(usize, bool),
    SyncNames(bool),
    Note(Note),
}

/// What goes wrong at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// The device fails. A write is done in part.
    Eio,
    /// There is no space. Syncs succeed.
    Enospc,
    /// The process is killed before the call, which and all later ones fail.
    Kill,
}

#[derive(Default)]
struct State {
    disk: Disk,
    trace: Vec<Event>,
    /// Number of calls that change something.
    calls: u64,
    fault: Option<(u64, Fault)>,
    is_dead: bool,
    is_faulty: bool,
    /// Called before the next sync of a segment.
    hook: Option<Box<dyn FnOnce() + Send>>,
}

/// The file system, as a running process sees it.
#[derive(Clone, Default)]
pub(super) struct SimFs(Arc<Mutex<State>>);

impl SimFs {
    pub(super) fn new(disk: Disk) -> Self {
        SimFs(Arc::new(Mutex::new(State { disk, ..State::default() })))
    }

    fn with<T>(&self, call: impl FnOnce(&mut State) -> T) -> T {
        call(&mut self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner))
    }

    /// Makes the call fail that comes after `calls` others.
    pub(super) fn fail(&self, calls: u64, fault: Fault) {
        self.with(|state| state.fault = Some((state.calls + calls, fault)));
    }

    /// Returns whether a call has failed since the last revival.
    pub(super) fn is_faulty(&self) -> bool {
        self.with(|state| state.is_faulty)
    }

    /// Returns whether the process was killed.
    pub(super) fn is_dead(&self) -> bool {
        self.with(|state| state.is_dead)
    }

    /// Starts another process.
    pub(super) fn revive(&self) {
        self.with(|state| (state.is_faulty, state.is_dead) = (false, false));
    }

    pub(super) fn calls(&self) -> u64 {
        self.with(|state| state.calls)
    }

    pub(super) fn note(&self, note: Note) {
        self.with(|state| state.trace.push(Event::Note(note)));
    }

    pub(super) fn before_sync(&self, hook: impl FnOnce() + Send + 'static) {
        self.with(|state| state.hook = Some(Box::new(hook)));
    }

    pub(super) fn without_hook(&self) {
        drop(self.with(|state| state.hook.take()));
    }

    pub(super) fn trace(&self) -> Vec<Event> {
        self.with(|state| state.trace.clone())
    }
}

impl State {
    /// Counts a call. Returns what goes wrong with it.
    fn call(&mut self) -> Option<Fault> {
        self.calls += 1;
        let fault = self.fault.filter(|(call, _)| self.calls > *call).map(|(_, fault)| fault);
        if fault.is_some() {
            (self.fault, self.is_faulty) = (None, true);
        }
        self.is_dead |= fault == Some(Fault::Kill);
        if self.is_dead { Some(Fault::Kill) } else { fault }
    }

    fn change(&mut self, file: usize, data: Data) {
        let part = if let Data::Write(_, bytes) = &data { 0..bytes.len() } else { 0..0 };
        self.disk.apply_data(file, &data, part);
        self.trace.push(Event::Data(file, data));
    }

    fn rename(&mut self, name: Name) {
        self.disk.apply_name(&name);
        self.trace.push(Event::Name(name));
    }
}

fn error(fault: Fault, path: &Path) -> Error {
    match fault {
        Fault::Enospc => Error::no_space(path.display().to_string(), 1),
        Fault::Eio | Fault::Kill => {
            Error::io("simulated", path, std::io::Error::from_raw_os_error(libc::EIO))
        }
    }
}

impl Storage for SimFs {
    fn path_of(&self, name: &str) -> PathBuf {
        PathBuf::from(name)
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn File>>> {
        let number = self.with(|state| state.disk.names.get(name).copied());
        let open = |number| SimFile { fs: self.clone(), number, path: name.into() };
        Ok(number.map(|number| Box::new(open(number)) as Box<dyn File>))
    }

    fn create(&self, name: &str) -> Result<Box<dyn File>> {
        let number = self.with(|state| {
            if let Some(fault) = state.call() {
                return Err(error(fault, Path::new(name)));
            }
            if let Some(number) = state.disk.names.get(name).copied() {
                state.change(number, Data::SetLen(0));
                return Ok(number);
            }
            let number = state.disk.files.len();
            state.disk.files.push(Arc::default());
            state.rename(Name::Create(name.into(), number));
            Ok(number)
        })?;
        Ok(Box::new(SimFile { fs: self.clone(), number, path: name.into() }))
    }

    fn rename(&self, from: &str, to: &str) -> Result<()> {
        self.with(|state| match state.call() {
            Some(fault) => Err(error(fault, Path::new(from))),
            None => {
                assert!(state.disk.names.contains_key(from), "{from} is to be renamed");
                state.rename(Name::Rename(from.into(), to.into()));
                Ok(())
            }
        })
    }

    fn remove(&self, name: &str) -> Result<()> {
        self.with(|state| match state.call() {
            Some(Fault::Enospc) | None => {
                if state.disk.names.contains_key(name) {
                    state.rename(Name::Remove(name.into()));
                }
                Ok(())
            }
            Some(fault) => Err(error(fault, Path::new(name))),
        })
    }

    fn list(&self) -> Result<Vec<String>> {
        Ok(self.with(|state| state.disk.names.keys().cloned().collect()))
    }

    fn sync(&self) -> Result<()> {
        self.with(|state| match state.call() {
            Some(Fault::Kill) => Err(error(Fault::Kill, Path::new("."))),
            fault => {
                let is_ok = fault != Some(Fault::Eio);
                state.trace.push(Event::SyncNames(is_ok));
                if is_ok { Ok(()) } else { Err(error(Fault::Eio, Path::new("."))) }
            }
        })
    }
}

struct SimFile {
    fs: SimFs,
    number: usize,
    path: PathBuf,
}

impl SimFile {
    fn change(&self, data: Data) -> Result<()> {
        self.fs.with(|state| match (state.call(), data) {
            (None, data) => {
                state.change(self.number, data);
                Ok(())
            }
            (Some(fault), data) => {
                if let (Fault::Eio | Fault::Enospc, Data::Write(offset, bytes)) = (fault, data) {
                    // Whole sectors.
                    let middle = offset + bytes.len() as u64 / 2;
                    let half = (middle - middle % SECTOR).saturating_sub(offset) as usize;
                    let half = Arc::new(bytes[..half].to_vec());
                    state.change(self.number, Data::Write(offset, half));
                }
                Err(error(fault, &self.path))
            }
        })
    }
}

impl File for SimFile {
    fn path(&self) -> &Path {
        &self.path
    }

    fn size(&self) -> Result<u64> {
        Ok(self.fs.with(|state| state.disk.files[self.number].len() as u64))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let contents = self.fs.with(|state| state.disk.files[self.number].clone());
        let rest = contents.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buffer.len());
        buffer[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> Result<()> {
        self.change(Data::Write(offset, Arc::new(bytes.to_vec())))
    }

    fn punch(&self, offset: u64, bytes: u64) -> Result<()> {
        self.write_at(offset, &vec![0; bytes as usize])
    }

    fn set_len(&self, bytes: u64) -> Result<()> {
        self.change(Data::SetLen(bytes))
    }

    fn allocate(&self, bytes: u64) -> Result<()> {
        let old = self.size()?;
        let Some(new) = bytes.checked_sub(old) else { return Ok(()) };
        self.write_at(old, &vec![0; new as usize]).inspect_err(|_| {
            self.fs.with(|state| {
                if !state.is_dead {
                    state.change(self.number, Data::SetLen(old));
                }
            });
        })
    }

    fn sync(&self) -> Result<()> {
        // A new segment is synced under a lock that the hook needs.
        if self.path.extension().is_some_and(|extension| extension == "redo")
            && let Some(hook) = self.fs.with(|state| state.hook.take())
        {
            hook();
        }
        self.fs.with(|state| match state.call() {
            Some(Fault::Kill) => Err(error(Fault::Kill, &self.path)),
            fault => {
                let is_ok = fault != Some(Fault::Eio);
                state.trace.push(Event::Sync(self.number, is_ok));
                if is_ok { Ok(()) } else { Err(error(Fault::Eio, &self.path)) }
            }
        })
    }
}

/// What a device does with a write that it reports as durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Misdeed {
    /// All of it is lost: the old contents stay.
    Lost,
    /// One sector is.
    Stale,
    /// It goes elsewhere in the file: this many blocks of 4096 bytes further, or to the start.
    Misdirected(u64),
}

/// Goes through a recording, and knows what is durable.
pub(super) struct Walk {
    pub(super) durable: Disk,
    names: Vec<Name>,
    data: Vec<(usize, Data)>,
    /// What the device does with the write that is this event.
    pub(super) misdeed: Option<(usize, Misdeed)>,
    /// The write, and the misdeed, if it was written and is not durable yet.
    pending_misdeed: Option<(usize, Arc<Vec<u8>>)>,
}

impl Walk {
    pub(super) fn new(disk: Disk) -> Self {
        let (names, data) = (Vec::new(), Vec::new());
        Walk { durable: disk, names, data, misdeed: None, pending_misdeed: None }
    }

    /// Takes the event with this number.
    pub(super) fn step(&mut self, number: usize, event: &Event, rng: &mut Rng) {
        match event {
            Event::Name(name) => {
                if let Name::Create(_, file) = name {
                    let files = self.durable.files.len().max(file + 1);
                    self.durable.files.resize(files, Arc::default());
                }
                self.names.push(name.clone());
            }
            Event::Data(file, data) => {
                if let (Some((event, _)), Data::Write(_, bytes)) = (self.misdeed, data)
                    && event == number
                {
                    self.pending_misdeed = Some((*file, bytes.clone()));
                }
                self.data.push((*file, data.clone()));
            }
            Event::Sync(file, is_ok) => {
                let synced: Vec<_> = self.data.extract_if(.., |(of, _)| of == file).collect();
                match is_ok {
                    true => self.make_durable(&synced, rng),
                    false => apply_some(&mut self.durable, &synced, rng),
                }
            }
            Event::SyncNames(is_ok) => {
                let names = std::mem::take(&mut self.names);
                match is_ok {
                    true => names.iter().for_each(|name| self.durable.apply_name(name)),
                    // A file system that does not stop then tries them again.
                    false => {
                        apply_some_names(&mut self.durable, &names, rng);
                        self.names = names;
                    }
                }
            }
            Event::Note(_) => {}
        }
    }

    /// Returns whether the misdeed has happened.
    pub(super) fn is_misdeed_done(&self) -> bool {
        self.misdeed.is_none()
    }

    fn make_durable(&mut self, synced: &[(usize, Data)], rng: &mut Rng) {
        for (file, data) in synced {
            if let (Some((of, wrong)), Data::Write(offset, bytes)) = (&self.pending_misdeed, data)
                && of == file
                && Arc::ptr_eq(wrong, bytes)
            {
                let (_, misdeed) = self.misdeed.take().expect("it is pending");
                self.pending_misdeed = None;
                self.do_wrong(*file, *offset, bytes.clone(), misdeed, rng);
                continue;
            }
            let all = if let Data::Write(_, bytes) = data { 0..bytes.len() } else { 0..0 };
            self.durable.apply_data(*file, data, all);
        }
    }

    fn do_wrong(
        &mut self,
        file: usize,
        offset: u64,
        bytes: Arc<Vec<u8>>,
        misdeed: Misdeed,
        rng: &mut Rng,
    ) {
        // The length is metadata, which is written elsewhere.
        let end = offset as usize + bytes.len();
        let contents = self.durable.file(file);
        contents.resize(contents.len().max(end), 0);
        let size = contents.len() as u64;
        match misdeed {
            Misdeed::Lost => {}
            Misdeed::Stale => {
                let data = Data::Write(offset, bytes);
                let parts = data.parts();
                let lost = rng.below(parts.len() as u64) as usize;
                for (_, part) in parts.into_iter().enumerate().filter(|(at, _)| *at != lost) {
                    self.durable.apply_data(file, &data, part);
                }
            }
            Misdeed::Misdirected(blocks) => {
                let target = offset + blocks * 4096;
                let target =
                    if target + bytes.len() as u64 > size { offset % 4096 } else { target };
                let all = 0..bytes.len();
                self.durable.apply_data(file, &Data::Write(target, bytes), all);
            }
        }
    }

    /// Returns what a crash leaves now.
    pub(super) fn crash(&self, rng: &mut Rng) -> Disk {
        let mut disk = self.durable.clone();
        apply_some_names(&mut disk, &self.names, rng);
        apply_some(&mut disk, &self.data, rng);
        disk
    }
}

/// Applies none, all, the first, or any of the parts.
fn apply_some(disk: &mut Disk, data: &[(usize, Data)], rng: &mut Rng) {
    let parts = data
        .iter()
        .flat_map(|(file, data)| data.parts().into_iter().map(move |part| (*file, data, part)));
    let parts: Vec<_> = parts.collect();
    let choice = Choice::new(parts.len(), rng);
    for (at, (file, data, part)) in parts.into_iter().enumerate() {
        if choice.takes(at, rng) {
            disk.apply_data(file, data, part);
        }
    }
}

fn apply_some_names(disk: &mut Disk, names: &[Name], rng: &mut Rng) {
    let choice = Choice::new(names.len(), rng);
    for (at, name) in names.iter().enumerate() {
        if choice.takes(at, rng) {
            disk.apply_name(name);
        }
    }
}

enum Choice {
    First(usize),
    But(usize),
    OneIn(u64),
}

impl Choice {
    fn new(of: usize, rng: &mut Rng) -> Self {
        match rng.below(6) {
            0 => Choice::First(0),
            1 => Choice::First(of),
            2 => Choice::First(rng.below(of as u64 + 1) as usize),
            3 => Choice::But(rng.below(of as u64 + 1) as usize),
            4 => Choice::OneIn(2),
            _ => Choice::OneIn(4),
        }
    }

    fn takes(&self, at: usize, rng: &mut Rng) -> bool {
        match self {
            Choice::First(count) => at < *count,
            Choice::But(lost) => at != *lost,
            Choice::OneIn(n) => rng.one_in(*n),
        }
    }
}

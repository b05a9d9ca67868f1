//! Everything that a kernel may leave of a store on its disk.
//!
//! A store is changed on a file system that [records](crate::fuse) all writes and syncs. An image
//! is what a crash after some of these events may leave: what was synced is there; of each later
//! write everything, nothing, or any sectors of 512 bytes; of each later change of a length or of
//! a name, everything or nothing. So writes between two syncs reach the disk in any order. Every
//! image is opened, and must have all that was acknowledged before the crash.
//!
//! Only the log is recorded: a store refuses a file system of this kind for its working copy. Of
//! that, an image has nothing, or an older one in which pages are missing.

use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;
use std::process::{Command, Stdio};

use evermap::MapOptions;

use crate::changes::{Change, SECONDS, THREADS};
use crate::check::{Counts, check};
use crate::fuse::{Event, ROOT, Recorder, put};
use crate::result::Result;
use crate::work::Place;

/// Images of one recording, at most.
const IMAGES: u64 = 1000;
/// Images of a disk that has lost what it was to sync: some of them must be found to be wrong.
const LIES: u64 = 20;
/// The unit in which a disk writes.
const SECTOR: usize = 512;
/// The names of the working copy, of the folder of the log, and of what the process says.
const COPY: &str = "store";
const FOLDER: &str = "store.log";
const SAID: &str = "said";
/// Changes of each thread until the store is first closed.
const FIRST: u64 = 150;
/// More changes than are made until a process is killed.
const FOREVER: u64 = 1 << 30;

/// Records stores and opens the given number of images of them.
pub(crate) fn run(images: u64, seed: u64) -> Result<()> {
    let mut random = Random(seed);
    let mut left = images;
    while left > 0 {
        let here = left.min(IMAGES);
        Recording::make()?.judge(here, &mut random)?;
        left -= here;
    }
    println!("{images} images opened");
    Ok(())
}

/// Small numbers that look random.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ self.0 >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ mixed >> 31) % bound
    }
}

/// What has happened to a store and to its log.
struct Recording {
    events: Vec<Event>,
    /// The working copy as it was when it was first closed.
    copy: Vec<u8>,
}

impl Recording {
    /// Runs processes that change a store: one after another is killed or closes it, and the last
    /// one has to rebuild it.
    fn make() -> Result<Self> {
        let disk = Recorder::mount()?;
        let memory = tempfile::tempdir()?;
        let (copy, folder) = (memory.path().join(COPY), disk.path().join(FOLDER));
        let said = File::create(disk.path().join(SAID))?;
        let run = |changes: u64, die: &str| {
            work(&copy, &folder, &said, changes, die).map_err(|error| {
                let said = std::fs::read_to_string(disk.path().join(SAID)).unwrap_or_default();
                format!("{error}: {}", said.lines().last().unwrap_or_default())
            })
        };
        run(FIRST, "")?;
        let early = std::fs::read(&copy)?;
        run(FOREVER, "commit:60")?;
        run(60, "")?;
        run(FOREVER, "commit:90")?;
        std::fs::remove_file(&copy)?;
        run(60, "")?;
        drop(said);
        Ok(Recording { events: disk.finish()?, copy: early })
    }

    /// Opens images of crashes anywhere.
    fn judge(&self, images: u64, random: &mut Random) -> Result<()> {
        for image in 0..images {
            let crash = random.below(self.events.len() as u64 + 1) as usize;
            let seed = random.0;
            let disk = self.crash(crash, false, random);
            let opened = disk.open(&self.copy, random);
            opened.map_err(|error| {
                format!(
                    "image {image}, event {crash}, state {seed}: {error}; files in {}",
                    disk.keep()
                )
            })?;
        }
        let mut noticed = 0;
        for _ in 0..LIES {
            let crash = self.events.len() / 2 + random.below(self.events.len() as u64 / 2) as usize;
            noticed += u64::from(self.crash(crash, true, random).open(&self.copy, random).is_err());
        }
        let syncs = self.events.iter().filter(|event| matches!(event, Event::Sync { .. })).count();
        println!(
            "{images} images of {} events, {syncs} of them syncs; of {LIES} that lost what was \
             synced, {noticed} were noticed",
            self.events.len()
        );
        match noticed {
            0 => Err("nothing is noticed of what a disk has lost".into()),
            _ => Ok(()),
        }
    }

    /// Returns the index of the last sync of each node before a crash.
    fn syncs(&self, crash: usize) -> BTreeMap<u64, usize> {
        let mut syncs = BTreeMap::new();
        for (at, event) in self.events[..crash].iter().enumerate() {
            if let Event::Sync { node } = event {
                syncs.insert(*node, at);
            }
        }
        syncs
    }

    /// Makes what a crash after `crash` events may leave, if the disk keeps what was synced, or if
    /// it `lies`.
    fn crash(&self, crash: usize, lies: bool, random: &mut Random) -> Disk {
        let syncs = if lies { BTreeMap::new() } else { self.syncs(crash) };
        let losses = Losses::any(random);
        let mut disk = Disk::new();
        for (at, event) in self.events[..crash].iter().enumerate() {
            let node = match event {
                Event::Create { folder, .. } | Event::Remove { folder, .. } => *folder,
                Event::Rename { to: (folder, _), .. } => *folder,
                Event::Write { node, .. } | Event::SetLen { node, .. } | Event::Sync { node } => {
                    *node
                }
            };
            let is_durable = syncs.get(&node).is_some_and(|&sync| at < sync);
            // What the process has said is not on the disk: it was seen.
            disk.take(event, is_durable || Some(node) == disk.said, &losses, random);
        }
        disk
    }
}

/// Runs a process that changes a store.
fn work(copy: &Path, folder: &Path, said: &File, changes: u64, die: &str) -> Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("work").args([copy, folder]).env("CHANGES", changes.to_string());
    if !die.is_empty() {
        command.env("DIE", die);
    }
    let status = command.stdout(Stdio::from(said.try_clone()?)).status()?;
    match status.success() == die.is_empty() {
        true => Ok(()),
        false => Err(format!("a process that changes a store ended with {status}").into()),
    }
}

/// Of a hundred writes that were not synced, how many are lost, and how many torn; how many changes
/// of names and lengths are lost.
struct Losses {
    lost: u64,
    torn: u64,
    names: u64,
}

impl Losses {
    fn any(random: &mut Random) -> Self {
        const SHARES: [u64; 4] = [0, 20, 50, 100];
        let mut share = || SHARES[random.below(4) as usize];
        Losses { lost: share(), torn: share(), names: share() }
    }
}

/// What is on a disk.
struct Disk {
    files: BTreeMap<u64, Vec<u8>>,
    folders: BTreeMap<u64, BTreeMap<String, u64>>,
    /// The node of what the process has said.
    said: Option<u64>,
    place: tempfile::TempDir,
}

impl Disk {
    fn new() -> Self {
        let memory = Path::new("/dev/shm");
        let place = match memory.is_dir() {
            true => tempfile::tempdir_in(memory),
            false => tempfile::tempdir(),
        };
        Disk {
            files: BTreeMap::new(),
            folders: [(ROOT, BTreeMap::new())].into(),
            said: None,
            place: place.expect("a folder for files"),
        }
    }

    /// Takes what may be left of an event.
    fn take(&mut self, event: &Event, is_durable: bool, losses: &Losses, random: &mut Random) {
        let mut happens = |share: u64| random.below(100) < share;
        match event {
            Event::Create { name, node, folder, .. } if name == SAID => {
                self.said = Some(*node);
                self.folders.entry(*folder).or_default().insert(name.clone(), *node);
            }
            Event::Write { node, offset, bytes } => {
                let file = self.files.entry(*node).or_default();
                if is_durable || !(happens(losses.lost) || happens(losses.torn)) {
                    put(file, *offset, bytes);
                } else if happens(losses.torn) {
                    tear(file, *offset, bytes, random);
                }
            }
            _ if !is_durable && happens(losses.names) => {}
            Event::SetLen { node, len } => {
                self.files.entry(*node).or_default().resize(*len as usize, 0);
            }
            Event::Create { folder, name, node, is_folder } => {
                if *is_folder {
                    self.folders.entry(*node).or_default();
                }
                self.folders.entry(*folder).or_default().insert(name.clone(), *node);
            }
            Event::Remove { folder, name } => {
                self.folders.entry(*folder).or_default().remove(name);
            }
            Event::Rename { from, to } => {
                // If the name that it had was lost, so is this one.
                if let Some(node) = self.folders.entry(from.0).or_default().remove(&from.1) {
                    self.folders.entry(to.0).or_default().insert(to.1.clone(), node);
                }
            }
            Event::Sync { .. } => {}
        }
    }

    /// Opens the store, and checks that it has all that was acknowledged.
    fn open(&self, copy: &[u8], random: &mut Random) -> Result<()> {
        self.write(ROOT, self.place.path())?;
        let place = Place::new(self.place.path().join(COPY), self.place.path().join(FOLDER));
        let acknowledged = self.acknowledged();
        // An old one it is only if more was acknowledged since it was closed.
        if random.below(2) == 0 && acknowledged.iter().any(|&count| count > FIRST) {
            std::fs::write(&place.copy, without_pages(copy, random))?;
        }
        let db = place.open()?;
        let mut counts = check(&db, acknowledged)?;
        if random.below(8) > 0 {
            return Ok(());
        }
        // It goes on, and what follows is not lost either.
        drop(db.map(SECONDS, MapOptions::new())?);
        for (thread, count) in counts.iter_mut().enumerate() {
            for _ in 0..10 {
                Change::new(thread, *count).make(&db)?;
                *count += 1;
            }
        }
        drop(db);
        std::fs::remove_file(&place.copy)?;
        check(&place.open()?, counts)?;
        Ok(())
    }

    /// Writes a folder to a place in the file system.
    fn write(&self, folder: u64, to: &Path) -> Result<()> {
        for (name, node) in &self.folders[&folder] {
            if self.folders.contains_key(node) {
                std::fs::create_dir(to.join(name))?;
                self.write(*node, &to.join(name))?;
            } else if Some(*node) != self.said {
                let bytes = self.files.get(node).map_or(&[][..], |bytes| bytes);
                std::fs::write(to.join(name), bytes)?;
            }
        }
        Ok(())
    }

    /// Returns how many changes of each thread were acknowledged.
    fn acknowledged(&self) -> Counts {
        let said = self.said.and_then(|node| self.files.get(&node));
        let said = String::from_utf8_lossy(said.map_or(&[][..], |bytes| bytes));
        let mut counts = [0; THREADS];
        for line in said.split_inclusive('\n').filter(|line| line.ends_with('\n')) {
            let words: Vec<&str> = line.split_whitespace().collect();
            if let ["ACK", thread, count] = words[..]
                && let (Ok(thread), Ok(count)) = (thread.parse::<usize>(), count.parse::<u64>())
            {
                counts[thread] = counts[thread].max(count);
            }
        }
        counts
    }

    /// Keeps the files for a look at them, and returns where they are.
    fn keep(mut self) -> String {
        self.place.disable_cleanup(true);
        self.place.path().display().to_string()
    }
}

/// Returns a copy in which some pages are zero.
fn without_pages(copy: &[u8], random: &mut Random) -> Vec<u8> {
    let mut copy = copy.to_vec();
    let share = random.below(3);
    for page in copy.chunks_mut(4096) {
        if random.below(4) < share {
            page.fill(0);
        }
    }
    copy
}

/// Writes some sectors of a write. The file is as long as the last of them needs.
fn tear(file: &mut Vec<u8>, offset: u64, bytes: &[u8], random: &mut Random) {
    let mut at = 0;
    while at < bytes.len() {
        let len = (SECTOR - (offset as usize + at) % SECTOR).min(bytes.len() - at);
        if random.below(2) == 0 {
            put(file, offset + at as u64, &bytes[at..at + len]);
        }
        at += len;
    }
}

//! Which files are trusted after a kill, and which can be opened on a full file system.

use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use crate::common::{creating, in_memory, mount, unmount, with_mount, word};
use evermap_pm::medium::{Mapped, MappedOptions, Medium};
use evermap_pm::region::{OnSuspect, Opened, Region, RegionConfig};
use evermap_pm::{ErrorKind, Pool, Result};

const MIB: u64 = 1 << 20;

fn config() -> RegionConfig {
    RegionConfig { extent_size: 64 << 10, capacity: 64 * MIB, seed: None }
}

fn open(path: &Path) -> Result<Opened> {
    let medium = Mapped::open(path, &creating())?;
    let identity = medium.identity();
    Ok(Region::open(medium, identity, OnSuspect::Refuse)?.1)
}

fn create(path: &Path) -> Mapped {
    let medium = Mapped::open(path, &creating()).unwrap();
    let identity = medium.identity();
    // Not closed, as after a kill.
    drop(Region::create(medium, &config(), identity).unwrap());
    Mapped::open(path, &creating()).unwrap()
}

/// A restarted container finds its files on an overlay that is mounted again.
#[test]
fn a_kill_is_not_mistaken_for_a_copy_on_a_remounted_overlay() {
    with_mount("tmpfs", "", |directory| {
        let at = |name: &str| directory.join(name);
        ["lower", "upper", "work", "seen", "other"]
            .iter()
            .for_each(|name| std::fs::create_dir(at(name)).unwrap());
        // A file that exists from the beginning, as in an image, and is copied up when it is first
        // opened.
        drop(create(&at("lower").join("old")));
        let (old, new) = (at("seen").join("old"), at("seen").join("new"));
        let path = |name: &str| at(name).display().to_string();
        let options = format!(
            "lowerdir={},upperdir={},workdir={}",
            path("lower"),
            path("upper"),
            path("work")
        );
        if !mount("overlay", &at("seen"), 0, &options) {
            let why = std::io::Error::last_os_error();
            println!("skipped: an overlay cannot be mounted here ({why})");
            return;
        }
        drop(create(&new));
        assert_eq!(Mapped::open(&new, &creating()).unwrap().filesystem(), "overlayfs");
        // A file that was open in the lower layer when it was copied up is a copy.
        let refused = open(&old).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Suspect { .. }), "{refused}");
        let medium = Mapped::open(&old, &creating()).unwrap();
        let identity = medium.identity();
        drop(Region::open(medium, identity, OnSuspect::Salvage).unwrap());
        let device = || std::fs::metadata(&new).unwrap().dev();
        let before = device();
        unmount(&at("seen"));
        // Takes the device number that the overlay had.
        assert!(mount("tmpfs", &at("other"), 0, ""));
        assert!(mount("overlay", &at("seen"), 0, &options));
        assert_ne!(device(), before, "otherwise the test shows nothing");
        for path in [&new, &old] {
            let opened = open(path).unwrap();
            assert!(!opened.clean && !opened.suspect);
        }
        // A copy on the overlay is detected too.
        std::fs::copy(&new, at("seen").join("copy")).unwrap();
        let refused = open(&at("seen").join("copy")).unwrap_err();
        assert!(matches!(refused.kind(), ErrorKind::Suspect { .. }), "{refused}");
        unmount(&at("seen"));
        unmount(&at("other"));
    });
}

/// Makes a copy with holes in place of zeros, like `cp --sparse=always`.
fn copy_sparse(from: &Path, to: &Path) {
    let bytes = std::fs::read(from).unwrap();
    let file = OpenOptions::new().create(true).truncate(true).write(true).open(to).unwrap();
    file.set_len(bytes.len() as u64).unwrap();
    for (page, at) in bytes.chunks(4096).zip((0..).step_by(4096)) {
        if page.iter().any(|byte| *byte != 0) {
            file.write_all_at(page, at).unwrap();
        }
    }
}

fn occupied(path: &Path) -> u64 {
    std::fs::metadata(path).unwrap().blocks() * 512
}

/// Fills the file system except for `spare` bytes. Returns the file that fills it.
fn fill(directory: &Path, spare: u64) -> std::fs::File {
    let stat = rustix::fs::statvfs(directory).unwrap();
    let file = std::fs::File::create(directory.join("filler")).unwrap();
    let bytes = stat.f_bavail * stat.f_frsize - spare;
    rustix::fs::fallocate(&file, rustix::fs::FallocateFlags::empty(), 0, bytes).unwrap();
    file
}

/// Creates a store that was closed, with blocks that are mostly zero, and some that are free.
fn closed_pool(path: &Path) -> Vec<u64> {
    let medium = Mapped::open(path, &creating()).unwrap();
    let identity = medium.identity();
    let pool = Pool::create(medium, &config(), identity).unwrap();
    let blocks: Vec<_> = (0..200).map(|_| pool.allocate(16 << 10).unwrap()).collect();
    for &block in &blocks {
        pool.medium().store(word(pool.medium(), block), 0);
    }
    let (kept, freed) = blocks.split_at(20);
    freed.iter().for_each(|&block| pool.free_unpublished(block));
    pool.close().unwrap();
    kept.to_vec()
}

#[test]
fn holes_of_a_file_are_filled_or_the_file_is_refused() {
    with_mount("tmpfs", "size=32m", |directory| {
        let (path, copy) = (directory.join("store"), directory.join("copy"));
        let kept = closed_pool(&path);
        let discarded = std::fs::metadata(&path).unwrap().len() - occupied(&path);
        assert!(discarded > 0, "the heap discards free space");
        // The heap's own holes are not filled, neither after a clean shutdown nor after a kill.
        let before = occupied(&path);
        for _ in 0..2 {
            open(&path).unwrap();
            assert_eq!(occupied(&path), before);
        }

        copy_sparse(&path, &copy);
        let sparse = occupied(&copy);
        assert!(sparse < before);
        // Not closed by `open`, so that the copy is only opened if that is requested.
        let salvage = || -> Result<(Region<Mapped>, Opened)> {
            let medium = Mapped::open(&copy, &creating())?;
            let identity = medium.identity();
            Region::open(medium, identity, OnSuspect::Salvage)
        };
        let filler = fill(directory, 0);
        let refused = salvage().map(drop).unwrap_err();
        assert!(
            matches!(refused.kind(), ErrorKind::NoSpace { what, needed }
                if what.contains("holes") && what.contains("copy on tmpfs") && *needed > 0),
            "{refused}"
        );
        filler.set_len(0).unwrap();
        let (region, _) = salvage().unwrap();
        assert!(occupied(&copy) > sparse);
        // From here on a full file system does not affect blocks in use.
        let filler = fill(directory, 0);
        for &block in &kept {
            region.medium().store(word(region.medium(), block + 8192), 1);
        }
        drop(region);
        filler.set_len(0).unwrap();

        // A program that punches holes into a file does not change its identity.
        let medium = Mapped::open(&path, &creating()).unwrap();
        let identity = medium.identity();
        Pool::open(medium, identity, OnSuspect::Refuse).unwrap().0.close().unwrap();
        let before = occupied(&path);
        let file = OpenOptions::new().write(true).open(&path).unwrap();
        use rustix::fs::FallocateFlags as Flags;
        rustix::fs::fallocate(
            &file,
            Flags::PUNCH_HOLE | Flags::KEEP_SIZE,
            kept[0].next_multiple_of(64 << 10),
            64 << 10,
        )
        .unwrap();
        assert_eq!(occupied(&path), before - (64 << 10));
        open(&path).unwrap();
        assert!(occupied(&path) >= before);
        let all = MappedOptions { allocate_holes: true, ..creating() };
        drop(Mapped::open(&path, &all).unwrap());
        assert!(occupied(&path) >= std::fs::metadata(&path).unwrap().len());
    });
}

/// No other process can open the file between the decision to discard it and its truncation.
#[test]
fn a_file_stays_locked_until_it_is_truncated() {
    let directory = in_memory();
    let path = directory.path().join("store");
    let medium = create(&path);
    let held = medium.keep_lock().unwrap().unwrap();
    drop(medium);
    let no_wait = MappedOptions { lock_wait: std::time::Duration::ZERO, ..creating() };
    let refused = Mapped::open(&path, &no_wait).map(drop).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::OpenHere { .. }), "{refused}");
    let medium = held.truncate_and_map(&no_wait).unwrap();
    assert!(Region::is_blank(&medium));
    assert_eq!(medium.len(), 0);
    let refused = Mapped::open(&path, &no_wait).map(drop).unwrap_err();
    assert!(matches!(refused.kind(), ErrorKind::OpenHere { .. }), "{refused}");
    drop(medium);
    Mapped::open(&path, &no_wait).unwrap();
}

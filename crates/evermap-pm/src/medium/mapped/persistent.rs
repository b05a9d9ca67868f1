//! The persistent memory under a file, as the kernel describes it: what it keeps on power loss,
//! whether it has ever failed to, and which of its blocks are bad.
//!
//! Whether a file is on DAX at all, and whether its block list is durable before a page is written,
//! is not looked up but proven, by mapping it with `MAP_SYNC`.

use std::fs;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd};
use std::path::{Path, PathBuf};

use rustix::fs::{Dev, fstat, major, minor};

use super::FlushKind;
use crate::{Error, ErrorKind, Result};

/// Where the kernel shows devices.
const SYSFS: &str = "/sys";
/// The unit in which the kernel counts bad blocks, bytes.
const SECTOR: u64 = 512;

/// Checks that this machine has persistent memory of `kind`, before anything is created.
///
/// # Errors
///
/// `Config` with the reason. A weaker kind is never used instead.
pub(super) fn check(kind: FlushKind) -> Result<()> {
    if !kind.needs_dax() {
        return Ok(());
    }
    let buses = Path::new(SYSFS).join("bus/nd/devices");
    let regions = children(&buses).into_iter().filter(|path| name_of(path).starts_with("region"));
    check_any(kind, &buses, &regions.collect::<Vec<_>>())
}

/// Checks that at least one of `regions` will do. It is not known yet which of them the file is on.
fn check_any(kind: FlushKind, buses: &Path, regions: &[PathBuf]) -> Result<()> {
    if cfg!(not(target_arch = "x86_64")) {
        return Err(refusal(kind, "lines are written back on x86-64 only; use `process`"));
    }
    let mut refusals = regions.iter().map(|region| check_domain(kind, region));
    match refusals.clone().any(|checked| checked.is_ok()) {
        true => Ok(()),
        false => refusals.next().unwrap_or_else(|| {
            let what = format!("no persistent memory in {}; use `process`", buses.display());
            Err(refusal(kind, &what))
        }),
    }
}

/// Checks that a region keeps on power loss what `kind` needs.
fn check_domain(kind: FlushKind, region: &Path) -> Result<()> {
    let domain = read(&region.join("persistence_domain")).unwrap_or_else(|| "unknown".into());
    let why = match (kind, domain.as_str()) {
        (FlushKind::Eadr, "cpu_cache") | (FlushKind::Adr, "memory_controller" | "cpu_cache") => {
            return Ok(());
        }
        (FlushKind::Eadr, "memory_controller") => "`cpu_cache` is needed; use `adr`",
        _ => "it is not known to keep anything on power loss; use `process`",
    };
    let what = format!("persistence_domain of {} is `{domain}`: {why}", name_of(region));
    Err(refusal(kind, &what))
}

#[cold]
fn refusal(kind: FlushKind, why: &str) -> Error {
    ErrorKind::Config(format!("flush kind `{kind}`: {why}")).into()
}

/// The persistent memory that a file is on: one region, or several under a volume.
#[derive(Debug)]
pub(super) struct PersistentMemory {
    /// The block devices of the regions in the system's tree of devices.
    disks: Vec<PathBuf>,
    regions: Vec<PathBuf>,
}

impl PersistentMemory {
    /// Finds the persistent memory under an open file, and checks it.
    ///
    /// # Errors
    ///
    /// * `Config` if the file is on something else, or one that does not keep what `kind` needs;
    /// * `Damaged` if blocks of the file are bad.
    pub(super) fn under(file: impl AsFd, path: &Path, kind: FlushKind) -> Result<Self> {
        let status = fstat(&file).map_err(|errno| Error::io("reading its status", path, errno))?;
        let memory = Self::of_device(Path::new(SYSFS), status.st_dev, kind)?;
        memory.check_blocks(|| Extents::of(&file, path))?;
        Ok(memory)
    }

    fn of_device(sysfs: &Path, device: Dev, kind: FlushKind) -> Result<Self> {
        let name = format!("{}:{}", major(device), minor(device));
        let disks = disks_of(&sysfs.join("dev/block").join(&name));
        let mut regions = Vec::new();
        for disk in &disks {
            let region = disk.ancestors().find(|path| path.join("persistence_domain").exists());
            let Some(region) = region else {
                let what = format!("device {name} is not persistent memory; use `process`");
                return Err(refusal(kind, &what));
            };
            check_domain(kind, region)?;
            regions.push(region.to_owned());
        }
        match regions.is_empty() {
            true => Err(refusal(kind, &format!("device {name} is not known; use `process`"))),
            false => Ok(PersistentMemory { disks, regions }),
        }
    }

    /// Returns how often the modules have lost at a shutdown what had been written to them; 0 if
    /// they do not say.
    pub(super) fn unsafe_shutdowns(&self) -> u64 {
        self.regions.iter().flat_map(|region| modules_of(region)).filter_map(count_of).sum()
    }

    /// Checks that no block of the file is bad. `extents` is called if there are bad blocks.
    fn check_blocks(&self, extents: impl Fn() -> Result<Extents>) -> Result<()> {
        for disk in &self.disks {
            let bad = bad_blocks(disk);
            if bad.is_empty() {
                continue;
            }
            // How a volume is spread over its disks is not known here.
            let known = (self.disks.len() == 1 && !is_volume(disk)).then(&extents).transpose()?;
            let hit = match known {
                Some(extents) => bad.iter().find_map(|block| extents.offset_of(block)),
                None => Some(0),
            };
            if let Some(offset) = hit {
                let what = format!(
                    "the persistent memory {} has bad blocks there: reading them would end the \
                     process",
                    name_of(disk)
                );
                return Err(Error::damaged(offset, what).at_opening());
            }
        }
        Ok(())
    }
}

/// Returns the disks below a block device: itself, or those that a volume is made of. Empty if the
/// device is not known.
fn disks_of(device: &Path) -> Vec<PathBuf> {
    let Ok(device) = device.canonicalize() else { return Vec::new() };
    let below = children(&device.join("slaves"));
    match below.is_empty() {
        true => vec![device],
        false => below.iter().flat_map(|device| disks_of(device)).collect(),
    }
}

/// Returns `true` for a disk that a volume was found on.
fn is_volume(disk: &Path) -> bool {
    !children(&disk.join("holders")).is_empty()
}

/// Returns the modules that a region is made of.
fn modules_of(region: &Path) -> Vec<PathBuf> {
    let of = |path: PathBuf| {
        let module = read(&path)?.split(',').next()?.to_owned();
        Some(region.parent()?.join(module))
    };
    let mappings = children(region).into_iter().filter(|path| {
        name_of(path).strip_prefix("mapping").is_some_and(|rest| rest.parse::<u32>().is_ok())
    });
    mappings.filter_map(of).collect()
}

/// Returns how many unsafe shutdowns a module has counted, if it says so: as the firmware's table
/// has it, or as CXL has.
fn count_of(module: PathBuf) -> Option<u64> {
    ["nfit", "cxl"].iter().find_map(|bus| number(&module.join(bus).join("dirty_shutdown")))
}

/// Returns the bad blocks of a disk, or of a partition of one, in bytes from its beginning.
fn bad_blocks(disk: &Path) -> Vec<Range<u64>> {
    let start = number(&disk.join("start")).unwrap_or(0);
    let list = match disk.join("partition").exists() {
        true => disk.parent().map(|whole| whole.join("badblocks")),
        false => Some(disk.join("badblocks")),
    };
    let text = list.and_then(|list| read(&list)).unwrap_or_default();
    let range = |line: &str| {
        let (first, count) = line.split_once(' ')?;
        let first = first.parse::<u64>().ok()?.checked_sub(start)?;
        let end = first.checked_add(count.trim().parse().ok()?)?;
        Some(first.checked_mul(SECTOR)?..end.checked_mul(SECTOR)?)
    };
    text.lines().filter_map(range).collect()
}

/// Where the bytes of a file are on its device.
#[derive(Debug, Default)]
struct Extents {
    /// Offset in the file, and range on the device, bytes.
    list: Vec<(u64, Range<u64>)>,
}

impl Extents {
    /// Asks the file system.
    fn of(file: impl AsFd, path: &Path) -> Result<Self> {
        let (mut list, mut from) = (Vec::new(), 0);
        loop {
            let page = fiemap::page(file.as_fd().as_raw_fd(), from)
                .map_err(|error| Error::io("looking for bad blocks", path, error))?;
            let is_last = page.iter().any(|extent| extent.is_last) || page.is_empty();
            from = page.last().map_or(from, |extent| extent.offset + extent.bytes);
            list.extend(page.iter().map(|extent| {
                (extent.offset, extent.device..extent.device.saturating_add(extent.bytes))
            }));
            if is_last {
                return Ok(Extents { list });
            }
        }
    }

    /// Returns the offset in the file of the first byte that is in `block` of the device.
    fn offset_of(&self, block: &Range<u64>) -> Option<u64> {
        self.list.iter().find_map(|(offset, on)| {
            let first = on.start.max(block.start);
            (first < on.end.min(block.end)).then(|| offset + (first - on.start))
        })
    }
}

/// The system call that tells where a file is on its device.
mod fiemap {
    use std::io;
    use std::os::fd::RawFd;

    /// The number of extents that one call returns.
    const COUNT: usize = 64;
    const FS_IOC_FIEMAP: libc::c_ulong = 0xc020_660b;
    const LAST: u32 = 1;

    /// An extent of a file.
    pub(super) struct Extent {
        pub(super) offset: u64,
        pub(super) device: u64,
        pub(super) bytes: u64,
        pub(super) is_last: bool,
    }

    #[repr(C)]
    #[derive(Clone, Copy)]
    struct RawExtent {
        logical: u64,
        physical: u64,
        length: u64,
        reserved: [u64; 2],
        flags: u32,
        reserved_too: [u32; 3],
    }

    #[repr(C)]
    struct Request {
        start: u64,
        length: u64,
        flags: u32,
        mapped: u32,
        count: u32,
        reserved: u32,
        extents: [RawExtent; COUNT],
    }

    /// Returns the extents from `start` on, as many as fit into one call.
    pub(super) fn page(file: RawFd, start: u64) -> io::Result<Vec<Extent>> {
        let none = RawExtent {
            logical: 0,
            physical: 0,
            length: 0,
            reserved: [0; 2],
            flags: 0,
            reserved_too: [0; 3],
        };
        let mut request = Request {
            start,
            length: u64::MAX - start,
            flags: 0,
            mapped: 0,
            count: COUNT as u32,
            reserved: 0,
            extents: [none; COUNT],
        };
        // SAFETY: the kernel writes `mapped` and at most `count` extents, for which there is room.
        if unsafe { libc::ioctl(file, FS_IOC_FIEMAP, &raw mut request) } != 0 {
            return Err(io::Error::last_os_error());
        }
        let found = request.extents.iter().take(request.mapped as usize);
        let extents = found.map(|extent| Extent {
            offset: extent.logical,
            device: extent.physical,
            bytes: extent.length,
            is_last: extent.flags & LAST != 0,
        });
        Ok(extents.collect())
    }
}

fn children(directory: &Path) -> Vec<PathBuf> {
    let Ok(entries) = fs::read_dir(directory) else { return Vec::new() };
    entries.flatten().map(|entry| entry.path()).collect()
}

fn name_of(path: &Path) -> String {
    path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}

fn read(path: &Path) -> Option<String> {
    fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

fn number(path: &Path) -> Option<u64> {
    read(path)?.parse().ok()
}

#[cfg(all(test, target_arch = "x86_64"))]
mod tests {
    use rustix::fs::makedev;
    use tempfile::TempDir;

    use super::*;

    /// A tree of devices with regions of these domains, each with a disk.
    fn tree(domains: &[&str]) -> TempDir {
        let tree = tempfile::tempdir().unwrap();
        let bus = tree.path().join("devices/ndbus0");
        fs::create_dir_all(tree.path().join("dev/block")).unwrap();
        for (number, domain) in domains.iter().enumerate() {
            let region = bus.join(format!("region{number}"));
            let disk = region.join(format!("pfn{number}.1/block/pmem{number}"));
            fs::create_dir_all(&disk).unwrap();
            fs::write(region.join("persistence_domain"), format!("{domain}\n")).unwrap();
            fs::write(region.join("mapping0"), format!("nmem{number},0,268435456,0\n")).unwrap();
            fs::create_dir_all(bus.join(format!("nmem{number}/nfit"))).unwrap();
            let link = tree.path().join(format!("dev/block/259:{number}"));
            std::os::unix::fs::symlink(&disk, link).unwrap();
        }
        tree
    }

    fn granted(domains: &[&str]) -> (bool, bool) {
        let tree = tree(domains);
        let bus = tree.path().join("devices/ndbus0");
        let regions: Vec<_> = (0..domains.len()).map(|n| bus.join(format!("region{n}"))).collect();
        let check = |kind| check_any(kind, &bus, &regions).is_ok();
        (check(FlushKind::Adr), check(FlushKind::Eadr))
    }

    fn memory(tree: &TempDir, number: u32, kind: FlushKind) -> Result<PersistentMemory> {
        PersistentMemory::of_device(tree.path(), makedev(259, number), kind)
    }

    #[test]
    fn a_kind_is_granted_only_where_the_kernel_vouches_for_it() {
        assert_eq!(granted(&[]), (false, false));
        assert_eq!(granted(&[""]), (false, false));
        assert_eq!(granted(&["unknown"]), (false, false));
        assert_eq!(granted(&["memory_controller"]), (true, false));
        assert_eq!(granted(&["cpu_cache"]), (true, true));
    }

    /// Another region than the one that the file is on does not count.
    #[test]
    fn the_region_of_the_file_decides() {
        let tree = tree(&["memory_controller", "cpu_cache", ""]);
        let granted = |number, kind| memory(&tree, number, kind).is_ok();
        assert_eq!([0, 1, 2].map(|n| granted(n, FlushKind::Adr)), [true, true, false]);
        assert_eq!([0, 1, 2].map(|n| granted(n, FlushKind::Eadr)), [false, true, false]);
        let error = memory(&tree, 0, FlushKind::Eadr).unwrap_err().to_string();
        assert!(error.contains("region0 is `memory_controller`: `cpu_cache` is needed"), "{error}");
        let error = memory(&tree, 9, FlushKind::Adr).unwrap_err().to_string();
        assert!(error.contains("device 259:9 is not known"), "{error}");
    }

    #[test]
    fn a_disk_outside_of_a_region_is_no_persistent_memory() {
        let tree = tree(&["memory_controller"]);
        let disk = tree.path().join("devices/pci0/block/sda");
        fs::create_dir_all(&disk).unwrap();
        std::os::unix::fs::symlink(&disk, tree.path().join("dev/block/8:0")).unwrap();
        let error = PersistentMemory::of_device(tree.path(), makedev(8, 0), FlushKind::Adr);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("device 8:0 is not persistent memory"), "{error}");
    }

    /// A volume is on all of its disks.
    #[test]
    fn every_region_under_a_volume_counts() {
        let tree = tree(&["memory_controller", "cpu_cache"]);
        let volume = tree.path().join("devices/virtual/block/dm-0");
        fs::create_dir_all(volume.join("slaves")).unwrap();
        for number in 0..2 {
            let disk = tree.path().join(format!("dev/block/259:{number}")).canonicalize().unwrap();
            let link = volume.join(format!("slaves/pmem{number}"));
            std::os::unix::fs::symlink(disk, link).unwrap();
        }
        std::os::unix::fs::symlink(&volume, tree.path().join("dev/block/253:0")).unwrap();
        let under = |kind| PersistentMemory::of_device(tree.path(), makedev(253, 0), kind);
        assert_eq!(under(FlushKind::Adr).unwrap().regions.len(), 2);
        assert!(under(FlushKind::Eadr).is_err());
    }

    #[test]
    fn unsafe_shutdowns_of_the_modules_of_a_region_are_counted() {
        let tree = tree(&["memory_controller", "memory_controller"]);
        let count = |number| memory(&tree, number, FlushKind::Adr).unwrap().unsafe_shutdowns();
        assert_eq!(count(0), 0);
        let bus = tree.path().join("devices/ndbus0");
        fs::write(bus.join("nmem0/nfit/dirty_shutdown"), "3\n").unwrap();
        fs::create_dir_all(bus.join("nmem1/cxl")).unwrap();
        fs::write(bus.join("nmem1/cxl/dirty_shutdown"), "5\n").unwrap();
        assert_eq!((count(0), count(1)), (3, 5));
    }

    #[test]
    fn bad_blocks_of_the_file_are_refused_and_others_are_not() {
        let tree = tree(&["memory_controller"]);
        let memory = memory(&tree, 0, FlushKind::Adr).unwrap();
        let extents = || Ok(Extents { list: vec![(8192, 1 << 20..2 << 20)] });
        let check = |list: &str| {
            fs::write(memory.disks[0].join("badblocks"), list).unwrap();
            memory.check_blocks(extents)
        };
        check("").unwrap();
        check("0 8\n4096 1\n").unwrap();
        let error = check("2056 8\n").unwrap_err();
        let is_there = matches!(error.kind(), ErrorKind::Damaged { offset: 12_288, .. });
        assert!(is_there, "{error}");
        fs::write(memory.disks[0].join("partition"), "1\n").unwrap();
        fs::write(memory.disks[0].join("start"), "8\n").unwrap();
        let whole = memory.disks[0].parent().unwrap();
        fs::write(whole.join("badblocks"), "2055 1\n").unwrap();
        memory.check_blocks(extents).unwrap();
        fs::write(whole.join("badblocks"), "2056 1\n").unwrap();
        memory.check_blocks(extents).unwrap_err();
    }

    /// The file system says where a file is.
    #[test]
    fn the_extents_of_a_file_cover_it() {
        use std::io::Write;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[7; 100_000]).unwrap();
        file.sync_all().unwrap();
        match Extents::of(&file, Path::new("file")) {
            Ok(extents) => {
                let covered: u64 = extents.list.iter().map(|(_, on)| on.end - on.start).sum();
                assert!(covered >= 100_000, "{extents:?}");
                assert_eq!(extents.offset_of(&extents.list[0].1), Some(0));
            }
            Err(error) => println!("skipped: temporary files are not on a disk here ({error})"),
        }
    }
}

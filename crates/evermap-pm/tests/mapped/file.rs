//! Mapped files: growing and discarding space, full disks, unsupported files, and kinds of pages.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::common::{
    creating, directory, in_memory, listen, other_part, say, spawn, with_mount, word,
};
use evermap_pm::medium::{
    FlushKind, Mapped, MappedOptions, Medium, Pages, describe_address, line_flush,
};
use evermap_pm::region::{OnSuspect, Region, RegionConfig};
use evermap_pm::{Error, ErrorKind, PmU64};
use rustix::process::{Resource, Rlimit, setrlimit};

const MIB: u64 = 1 << 20;

fn open(path: &Path) -> Mapped {
    Mapped::open(path, &creating()).unwrap()
}

fn refusal(path: impl AsRef<Path>, options: &MappedOptions) -> Error {
    Mapped::open(path, options).map(|_| ()).unwrap_err()
}

#[test]
fn words_outlive_the_mapping() {
    for directory in [directory(), in_memory()] {
        let path = directory.path().join("file");
        let medium = open(&path);
        assert_eq!((medium.len(), medium.capacity()), (0, 256 << 30));
        assert!(medium.at::<PmU64>(0).is_none());
        medium.grow(MIB + 1).unwrap();
        assert_eq!(medium.len(), MIB + 4096);
        assert_eq!(medium.load(word(&medium, MIB)), 0);
        medium.store(word(&medium, MIB), 7);
        medium.persist(word(&medium, MIB));
        medium.sync().unwrap();
        let (base, identity) = (medium.base(), medium.identity());
        medium.grow(64 * MIB).unwrap();
        medium.grow(MIB).unwrap();
        assert_eq!((medium.len(), medium.base()), (64 * MIB, base));
        assert_eq!(base.addr().get() % (2 << 20), 0, "huge pages need this");
        drop(medium);

        let medium = open(&path);
        assert_eq!((medium.len(), medium.load(word(&medium, MIB))), (64 * MIB, 7));
        assert_eq!((medium.identity(), medium.name()), (identity, "process"));
        assert_eq!(medium.path(), Some(path.as_path()));
        assert_ne!(medium.identity().inode, 0);
    }
}

#[test]
fn a_region_in_a_mapped_file_is_trusted_after_its_process_died() {
    let directory = directory();
    let path = directory.path().join("store");
    let medium = open(&path);
    let identity = medium.identity();
    assert!(Region::is_blank(&medium));
    let config = RegionConfig { capacity: 1 << 30, ..RegionConfig::default() };
    let region = Region::create(medium, &config, identity).unwrap();
    let uuid = region.uuid();
    drop(region); // without closing it, as after a death
    let medium = open(&path);
    let identity = medium.identity();
    let (region, opened) = Region::open(medium, identity, OnSuspect::Refuse).unwrap();
    assert_eq!((region.uuid(), opened.clean, opened.suspect), (uuid, false, false));
}

#[test]
fn concurrent_growth_gives_each_thread_its_space() {
    let directory = directory();
    let medium = &open(&directory.path().join("file"));
    std::thread::scope(|threads| {
        for thread in 0..4 {
            threads.spawn(move || {
                for step in (thread..64).step_by(4) {
                    let end = (step + 1) * 64 * 1024;
                    medium.grow(end).unwrap();
                    medium.store(word(medium, end - 8), step);
                }
            });
        }
    });
    assert_eq!(medium.len(), 4 * MIB);
    assert!((0..64).all(|step| medium.load(word(medium, (step + 1) * 64 * 1024 - 8)) == step));
}

#[test]
fn a_truncated_file_is_shorter_and_grows_zeroed() {
    for directory in [directory(), in_memory()] {
        let path = directory.path().join("file");
        let medium = open(&path);
        medium.grow(MIB).unwrap();
        for cell in medium.slice::<PmU64>(0, MIB / 8).unwrap() {
            medium.store(cell, u64::MAX);
        }
        drop(medium);
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(10_000).unwrap();
        let medium = open(&path);
        assert_eq!(medium.len(), 8192);
        medium.grow(MIB).unwrap();
        let count = |wanted| {
            let cells = medium.slice::<PmU64>(0, MIB / 8).unwrap();
            cells.iter().filter(|cell| medium.load(cell) == wanted).count()
        };
        assert_eq!((count(u64::MAX), count(0)), (1024, MIB as usize / 8 - 1024));
    }
}

#[test]
fn capacity_is_a_limit_and_must_hold_the_file() {
    let directory = directory();
    let path = directory.path().join("file");
    let small = MappedOptions { capacity: 100_000, ..creating() };
    let medium = Mapped::open(&path, &small).unwrap();
    assert_eq!(medium.capacity(), 102_400);
    medium.grow(102_400).unwrap();
    let error = medium.grow(102_401).unwrap_err();
    assert!(error.is_no_space() && error.to_string().contains("file"), "{error}");
    drop(medium);
    for capacity in [4096, 0, u64::MAX] {
        let error = refusal(&path, &MappedOptions { capacity, ..MappedOptions::default() });
        assert!(matches!(error.kind(), ErrorKind::Config(_)), "{error}");
    }
}

#[test]
fn unsupported_files_are_refused_with_a_reason() {
    let directory = directory();
    let error = refusal(directory.path(), &creating());
    assert!(matches!(error.kind(), ErrorKind::NotAStore { why, .. } if why.contains("directory")));
    let error = refusal("/dev/null", &MappedOptions::default());
    assert!(matches!(error.kind(), ErrorKind::NotAStore { why, .. } if why.contains("device")));
    let missing = directory.path().join("missing");
    let error = refusal(&missing, &MappedOptions::default());
    assert!(matches!(error.kind(), ErrorKind::Io { action: "opening", .. }), "{error}");
    assert!(!missing.exists());
    let error = refusal(directory.path().join("no/file"), &creating());
    assert!(matches!(error.kind(), ErrorKind::Io { .. }), "{error}");
    // A file of the kernel that its owner may write, and one that could be created beside it.
    for path in ["/proc/self/comm", "/proc/self/not-there"] {
        let error = refusal(path, &creating());
        assert!(
            matches!(error.kind(), ErrorKind::FileSystem { name, .. } if name == "proc"),
            "{error}"
        );
    }
}

#[test]
fn persistent_memory_is_never_assumed() {
    let directory = in_memory();
    let path = directory.path().join("file");
    for flush in [FlushKind::Adr, FlushKind::Eadr] {
        let error = refusal(&path, &MappedOptions { flush, ..creating() });
        assert!(matches!(error.kind(), ErrorKind::Config(_)), "{error}");
        assert!(error.to_string().contains(&format!("`{flush}`")), "{error}");
        assert!(Mapped::anonymous(MIB, Pages::Base, flush).is_err());
    }
}

#[test]
fn flush_kinds_have_names() {
    for kind in [FlushKind::Process, FlushKind::Adr, FlushKind::Eadr, FlushKind::Forced] {
        assert_eq!(kind.to_string().parse::<FlushKind>().unwrap(), kind);
    }
    let error = "Forced".parse::<FlushKind>().unwrap_err();
    assert!(error.to_string().contains("process, adr, eadr or forced"), "{error}");
}

#[test]
fn forced_flushes_work_on_any_memory() {
    let directory = directory();
    let path = directory.path().join("file");
    let options = MappedOptions { flush: FlushKind::Forced, ..creating() };
    for medium in [
        Mapped::open(&path, &options).unwrap(),
        Mapped::anonymous(MIB, Pages::Base, FlushKind::Forced).unwrap(),
    ] {
        medium.grow(MIB).unwrap();
        let cells = medium.slice::<PmU64>(0, 64).unwrap();
        cells.iter().zip(1..).for_each(|(cell, value)| medium.store(cell, value));
        medium.persist(cells);
        assert!(cells.iter().zip(1..).all(|(cell, value)| medium.load(cell) == value));
        println!("{} flushes with {}", medium.name(), line_flush());
    }
}

#[test]
fn anonymous_memory_has_the_same_interface() {
    let medium = Mapped::anonymous(10 * MIB, Pages::Huge, FlushKind::Process).unwrap();
    assert_eq!((medium.name(), medium.filesystem(), medium.path()), ("volatile", "memory", None));
    assert_eq!(medium.identity(), Default::default());
    medium.grow(4 * MIB).unwrap();
    medium.store(word(&medium, 8192), 1);
    medium.discard(8000..13_000);
    assert_eq!(medium.load(word(&medium, 8192)), 0);
    medium.claim(8192..12_288).unwrap();
    medium.sync().unwrap();
    assert!(medium.grow(11 * MIB).unwrap_err().is_no_space());
    assert!(Mapped::anonymous(0, Pages::Base, FlushKind::Process).is_err());
}

/// Returns the number of bytes that a file occupies.
fn occupied(path: &Path) -> u64 {
    std::os::unix::fs::MetadataExt::blocks(&std::fs::metadata(path).unwrap()) * 512
}

#[test]
fn discarded_space_is_freed_and_claimed_space_is_allocated() {
    for directory in [directory(), in_memory()] {
        let path = directory.path().join("file");
        let medium = open(&path);
        medium.grow(8 * MIB).unwrap();
        let full = occupied(&path);
        assert!(full >= 8 * MIB);
        medium.store(word(&medium, MIB), 1);
        medium.store(word(&medium, 3 * MIB), 3);
        medium.discard(MIB - 100..3 * MIB + 100);
        assert!(occupied(&path) <= full - 2 * MIB);
        assert_eq!(medium.load(word(&medium, MIB)), 0);
        assert_eq!(medium.load(word(&medium, 3 * MIB)), 3, "not wholly inside");
        medium.discard(7 * MIB..9 * MIB);
        assert!(occupied(&path) > full - 3 * MIB, "a range beyond the end is ignored");
        medium.claim(MIB..2 * MIB).unwrap();
        medium.claim(7 * MIB..9 * MIB).unwrap();
        assert_eq!(medium.len(), 8 * MIB);
        assert!((full - MIB..full).contains(&occupied(&path)));
        drop(medium);
        drop(Mapped::open(&path, &MappedOptions { allocate_holes: true, ..creating() }).unwrap());
        assert!(occupied(&path) >= full);
    }
}

#[test]
fn a_full_disk_is_an_error_and_changes_nothing() {
    with_mount("tmpfs", "size=72m", |directory| {
        let path = directory.join("file");
        let medium = open(&path);
        medium.grow(MIB).unwrap();
        medium.store(word(&medium, 0), 1);
        let occupied_before = occupied(&path);
        // So much that a part of it fits and has to be returned.
        let error = medium.grow(200 * MIB).unwrap_err();
        assert!(
            matches!(
                error.kind(),
                ErrorKind::NoSpace { what, .. } if what.contains("file on tmpfs")
            ),
            "{error}"
        );
        assert_eq!((medium.len(), medium.load(word(&medium, 0))), (MIB, 1));
        assert_eq!(occupied(&path), occupied_before);
        assert_eq!(std::fs::metadata(&path).unwrap().len(), MIB);
        medium.grow(2 * MIB).unwrap();

        medium.discard(0..MIB);
        let other = std::fs::File::create(directory.join("other")).unwrap();
        rustix::fs::fallocate(&other, rustix::fs::FallocateFlags::empty(), 0, 71 * MIB).unwrap();
        assert!(medium.claim(0..MIB).unwrap_err().is_no_space());
        // Not removed, because children that other tests fork may have it open for a moment.
        other.set_len(0).unwrap();
        medium.claim(0..MIB).unwrap();
    });
}

#[test]
fn huge_pages_of_hugetlbfs_work() {
    with_mount("hugetlbfs", "pagesize=2M", |directory| {
        let free = "/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages";
        let free: u64 =
            std::fs::read_to_string(free).map_or(0, |text| text.trim().parse().unwrap());
        if free < 4 {
            println!("skipped: needs 4 free huge pages, has {free}");
            return;
        }
        let path = directory.join("file");
        let medium = open(&path);
        assert_eq!((medium.len(), medium.filesystem()), (0, "hugetlbfs"));
        assert_eq!(std::fs::metadata(&path).unwrap().len(), 0, "mapping must not lengthen it");
        medium.grow(2 * MIB + 1).unwrap();
        assert_eq!(medium.len(), 4 * MIB);
        medium.store(word(&medium, 4 * MIB - 8), 5);
        medium.store(word(&medium, 0), 6);
        medium.prefault(0..4 * MIB);
        assert_eq!(medium.page_report().bytes_huge, 4 * MIB);
        assert!(medium.grow((free + 1) * 2 * MIB).unwrap_err().is_no_space());
        assert_eq!(medium.len(), 4 * MIB);
        medium.discard(MIB..4 * MIB);
        assert_eq!(medium.load(word(&medium, 0)), 6);
        medium.claim(2 * MIB..4 * MIB).unwrap();
        assert_eq!(medium.load(word(&medium, 4 * MIB - 8)), 0);
        medium.sync().unwrap();
        drop(medium);
        assert_eq!(open(&path).len(), 4 * MIB);
    });
}

/// Lowers a limit of this process, which was spawned for this purpose.
fn limit(resource: Resource, bytes: u64) {
    setrlimit(resource, Rlimit { current: Some(bytes), maximum: Some(bytes) }).unwrap();
}

#[test]
fn the_file_size_limit_is_an_error_not_a_signal() {
    if let Some(path) = other_part() {
        limit(Resource::Fsize, MIB);
        let medium = open(&path);
        medium.grow(MIB).unwrap();
        let error = medium.grow(MIB + 1).unwrap_err();
        assert!(error.is_no_space() && error.to_string().contains("ulimit -f"), "{error}");
        assert_eq!(medium.len(), MIB);
        return;
    }
    let directory = directory();
    let other =
        spawn("file::the_file_size_limit_is_an_error_not_a_signal", &directory.path().join("file"));
    assert_eq!(other.wait(), Some(0));
}

#[test]
fn less_is_reserved_if_address_space_is_short() {
    if let Some(path) = other_part() {
        limit(Resource::As, 10 << 30);
        let medium = open(&path);
        assert_eq!(medium.capacity(), 8 << 30);
        medium.grow(MIB).unwrap();
        medium.store(word(&medium, MIB - 8), 1);
        drop(medium);
        limit(Resource::As, 1 << 30);
        let error = refusal(&path, &MappedOptions::default());
        assert!(error.is_no_space() && error.to_string().contains("ulimit -v"), "{error}");
        return;
    }
    let directory = directory();
    let other =
        spawn("file::less_is_reserved_if_address_space_is_short", &directory.path().join("file"));
    assert_eq!(other.wait(), Some(0));
}

#[test]
fn prefaulted_pages_become_resident() {
    let directory = in_memory();
    let medium = open(&directory.path().join("file"));
    medium.grow(16 * MIB).unwrap();
    medium.prefault(12 * MIB..99 * MIB); // beyond the end of the file
    medium.prefault(9 * MIB..9 * MIB);
    while medium.page_report().bytes_resident < 4 * MIB {
        std::thread::yield_now();
    }
    assert_eq!(medium.page_report().bytes_resident, 4 * MIB);
    let cells = medium.slice::<PmU64>(0, 2 * MIB).unwrap();
    assert!(cells.iter().all(|cell| medium.load(cell) == 0));
}

#[test]
fn a_file_may_be_dropped_while_its_pages_are_being_touched() {
    let directory = in_memory();
    let path = directory.path().join("file");
    for _ in 0..20 {
        let medium = open(&path);
        medium.grow(32 * MIB).unwrap();
        medium.prefault(0..32 * MIB);
        medium.discard(0..32 * MIB);
    }
    // More hints than the queue holds: none may block or fail.
    let medium = open(&path);
    (0..1000).for_each(|_| medium.prefault(0..32 * MIB));
}

/// What is returned to the system stays there, although it was requested before.
#[test]
fn pages_that_are_discarded_are_not_touched_afterwards() {
    let directory = in_memory();
    let path = directory.path().join("file");
    for _ in 0..20 {
        let medium = open(&path);
        medium.grow(33 * MIB).unwrap();
        medium.prefault(0..32 * MIB);
        medium.prefault(32 * MIB..33 * MIB);
        medium.discard(0..32 * MIB);
        while medium.page_report().bytes_resident < MIB {
            std::thread::yield_now();
        }
        assert!(occupied(&path) <= 2 * MIB);
    }
}

#[test]
fn addresses_are_named_while_a_file_is_open() {
    let directory = directory();
    let path = directory.path().join("file");
    let medium = open(&path);
    let base = medium.base().addr().get();
    assert_eq!(describe_address(base + 5), Some((path.as_path(), 5)));
    assert_eq!(describe_address(base + medium.capacity() as usize), None);
    drop(medium);
    assert_eq!(describe_address(base), None);
}

/// The offset that `name_the_fault` expects.
const NEW_LENGTH: u64 = MIB / 2;
static NAMED: AtomicBool = AtomicBool::new(false);

extern "C" fn name_the_fault(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel passes a valid record, which holds an address for this signal.
    let addr = unsafe { (*info).si_addr() }.addr();
    let correct = describe_address(addr)
        .is_some_and(|(path, offset)| path.ends_with("file") && offset == NEW_LENGTH);
    NAMED.store(correct, Ordering::Relaxed);
    // SAFETY: ends the process without running anything else.
    unsafe { libc::_exit(if correct { 42 } else { 1 }) }
}

#[test]
fn a_signal_handler_can_name_the_truncated_file() {
    if let Some(path) = other_part() {
        let medium = open(&path);
        medium.grow(MIB).unwrap();
        // SAFETY: all fields are integers or pointers, for which zero is a value.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = name_the_fault as *const () as usize;
        action.sa_flags = libc::SA_SIGINFO;
        // SAFETY: the handler is async-signal-safe.
        let set = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, std::ptr::null_mut()) };
        assert_eq!(set, 0);
        say("ready", "");
        listen();
        medium.load(word(&medium, NEW_LENGTH));
        return;
    }
    let directory = directory();
    let path = directory.path().join("file");
    let mut other = spawn("file::a_signal_handler_can_name_the_truncated_file", &path);
    other.hear("ready");
    std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(NEW_LENGTH).unwrap();
    assert_eq!(other.wait(), Some(42));
}

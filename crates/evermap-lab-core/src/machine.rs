//! What the system reports about this process and about the whole machine.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

use evermap_pm::PmU64;
use evermap_pm::medium::{Dram, Medium, Pages};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

/// Returns the processors that this process may use, in order, or an empty list if the system does
/// not report them.
pub fn processors() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else {
        return Vec::new();
    };
    (0..CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu)).collect()
}

/// Pins the calling thread to one processor. A failure only costs precision, so it is not an error.
pub fn pin(processor: usize) {
    let mut only = CpuSet::new();
    only.set(processor);
    let _ = sched_setaffinity(None, &only);
}

/// The processor time used by this process and by the whole machine, at one moment.
pub struct CpuClock {
    at: Instant,
    own: Duration,
    /// The time of all processes in steps of a scheduler tick, including time stolen by the
    /// hypervisor. `None` if the system does not report it.
    all: Option<Duration>,
}

/// The processor time used between two moments.
#[derive(Clone, Copy, Debug, Default)]
pub struct CpuUse {
    /// Wall-clock seconds.
    pub seconds: f64,
    /// Processor seconds of this process.
    pub own: f64,
    /// Processor seconds of all other processes, at a resolution of a scheduler tick.
    pub foreign: Option<f64>,
}

impl CpuClock {
    /// Reads the clocks.
    pub fn now() -> Self {
        let own = clock_gettime(ClockId::ProcessCPUTime);
        CpuClock {
            at: Instant::now(),
            own: Duration::new(own.tv_sec as u64, own.tv_nsec as u32),
            all: fs::read_to_string("/proc/stat").ok().and_then(|stat| busy(&stat)),
        }
    }

    /// Returns the time used since `self`.
    pub fn elapsed(&self) -> CpuUse {
        let now = CpuClock::now();
        let own = (now.own - self.own).as_secs_f64();
        let all = now.all.zip(self.all).map(|(now, then)| now.saturating_sub(then).as_secs_f64());
        CpuUse {
            seconds: (now.at - self.at).as_secs_f64(),
            own,
            foreign: all.map(|all| (all - own).max(0.0)),
        }
    }
}

impl CpuUse {
    /// Returns the average number of processors that other processes kept busy.
    pub fn foreign_share(&self) -> Option<f64> {
        Some(self.foreign? / self.seconds)
    }
}

/// Returns the processor time that the calling thread has used.
///
/// Readers of the time of the process see it too from then on: the kernel counts a thread that runs
/// on another processor only up to its last scheduler tick.
pub fn thread_time() -> Duration {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(used.tv_sec as u64, used.tv_nsec as u32)
}

/// Waits until other processes keep no more than `limit` processors busy, for about `patience` at
/// most. Calls `tell` with the number of those that they keep busy, again and again.
pub fn wait_for_quiet(limit: f64, patience: Duration, mut tell: impl FnMut(f64)) {
    /// Long enough for a few scheduler ticks.
    const LOOK: Duration = Duration::from_millis(250);
    let begin = Instant::now();
    while begin.elapsed() < patience {
        let clock = CpuClock::now();
        std::thread::sleep(LOOK);
        match clock.elapsed().foreign_share().filter(|&share| share > limit) {
            Some(share) => tell(share),
            None => return,
        }
    }
}

impl std::ops::AddAssign for CpuUse {
    fn add_assign(&mut self, other: CpuUse) {
        self.seconds += other.seconds;
        self.own += other.own;
        self.foreign = self.foreign.zip(other.foreign).map(|(one, other)| one + other);
    }
}

/// Returns the time that processors were busy, from the text of `/proc/stat`: everything but idle
/// time and waiting for disks. The guest columns are contained in the first two.
fn busy(stat: &str) -> Option<Duration> {
    let mut fields = stat.lines().next()?.strip_prefix("cpu ")?.split_whitespace();
    let mut ticks = [0u64; 8];
    for tick in &mut ticks {
        *tick = fields.next()?.parse().ok()?;
    }
    let [user, nice, system, _idle, _iowait, irq, softirq, steal] = ticks;
    let busy = user + nice + system + irq + softirq + steal;
    Some(Duration::from_secs_f64(busy as f64 / rustix::param::clock_ticks_per_second() as f64))
}

/// The resident memory of this process.
#[derive(Clone, Copy, Debug, Default)]
pub struct Resident {
    /// Bytes.
    pub bytes: u64,
    /// The part of it in huge pages, in bytes.
    pub huge: u64,
}

/// Returns the resident memory, or `None` if the system does not report it. Walks all page tables:
/// about 10 ms for a GiB.
pub fn resident() -> Option<Resident> {
    let rollup = fs::read_to_string("/proc/self/smaps_rollup").ok()?;
    let huge = ["AnonHugePages", "ShmemPmdMapped", "FilePmdMapped"];
    Some(Resident {
        bytes: kibibytes(&rollup, "Rss")?,
        huge: huge.iter().filter_map(|name| kibibytes(&rollup, name)).sum(),
    })
}

/// Returns the memory that has become resident since `before`.
pub fn growth(before: Option<Resident>) -> Option<Resident> {
    let (now, before) = resident().zip(before)?;
    Some(Resident {
        bytes: now.bytes.saturating_sub(before.bytes),
        huge: now.huge.saturating_sub(before.huge),
    })
}

/// Returns the bytes that this process has allocated and not freed, or `None` if its allocator does
/// not report them. Unlike resident memory, they do not include what is free for later.
pub fn allocated() -> Option<u64> {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: `mallinfo2` may be called at any time, and only reads the allocator's counters.
        let info = unsafe { libc::mallinfo2() };
        Some((info.uordblks + info.hblkhd) as u64)
    }
    #[cfg(not(target_env = "gnu"))]
    None
}

/// Returns the bytes of this process that are in no file: what is allocated, and free memory in
/// between.
pub fn anonymous() -> Option<u64> {
    trim();
    kibibytes(&fs::read_to_string("/proc/self/status").ok()?, "RssAnon")
}

/// Returns the bytes on disk of a file, or of all files in a directory.
pub fn bytes_on_disk(path: &Path) -> std::io::Result<u64> {
    let found = fs::metadata(path)?;
    if !found.is_dir() {
        return Ok(found.blocks() * 512);
    }
    let mut bytes = 0;
    for entry in fs::read_dir(path)? {
        // A store may remove files at the same time.
        bytes += bytes_on_disk(&entry?.path()).unwrap_or(0);
    }
    Ok(bytes)
}

/// Returns the page size that most of `memory` has, in bytes: the base page, or the huge page of
/// x86-64 and most other processors.
pub fn page_size(memory: Resident) -> u64 {
    if memory.huge * 2 > memory.bytes { 2 << 20 } else { rustix::param::page_size() as u64 }
}

/// What a reader of results should know about the machine.
#[derive(Clone, Debug)]
pub struct Portrait(Vec<(&'static str, String)>);

impl Portrait {
    /// Collects the facts about this machine, beside the revision of the program.
    pub fn take(revision: &str) -> Self {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let model =
            cpuinfo.lines().find_map(|line| line.strip_prefix("model name")?.split_once(':'));
        let memory = kibibytes(&read("/proc/meminfo"), "MemTotal");
        let release = read("/proc/sys/kernel/osrelease").trim().to_owned();
        let seconds =
            std::time::SystemTime::UNIX_EPOCH.elapsed().map_or(0, |since| since.as_secs());
        let all = [
            ("processor", model.map(|(_, name)| name.trim().to_owned())),
            ("processors", Some(processors().len().to_string())),
            ("memory", memory.map(|bytes| format!("{} MiB", bytes >> 20))),
            ("kernel", Some(format!("Linux {release}")).filter(|_| !release.is_empty())),
            ("architecture", Some(std::env::consts::ARCH.to_owned())),
            ("page size", Some(format!("{} KiB", rustix::param::page_size() >> 10))),
            ("a line is flushed by", Some(evermap_pm::medium::line_flush().to_string())),
            ("load average", read("/proc/loadavg").split(' ').next().map(str::to_owned)),
            ("evermap", Some(env!("CARGO_PKG_VERSION").to_owned())),
            ("revision", Some(revision.to_owned())),
            ("begun (UTC)", Some(date(seconds))),
        ];
        Portrait(all.into_iter().filter_map(|(what, value)| Some((what, value?))).collect())
    }

    /// Returns the value of a fact, or an empty text if it is unknown.
    pub fn value(&self, what: &str) -> &str {
        self.0.iter().find(|fact| fact.0 == what).map_or("", |fact| &fact.1)
    }

    /// Returns the names and values of the facts.
    pub fn lines(&self) -> impl Iterator<Item = (&'static str, String)> {
        self.0.iter().cloned()
    }
}

/// Returns seconds since 1970 as a date and a time of day.
fn date(seconds: u64) -> String {
    let (mut days, clock) = (seconds / 86_400, seconds % 86_400);
    let is_leap = |year: u64| {
        year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400))
    };
    let mut year = 1970;
    while days >= 365 + u64::from(is_leap(year)) {
        days -= 365 + u64::from(is_leap(year));
        year += 1;
    }
    let lengths = [31, 28 + u64::from(is_leap(year)), 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
    let mut month = 0;
    while days >= lengths[month] {
        days -= lengths[month];
        month += 1;
    }
    let (hour, minute) = (clock / 3600, clock / 60 % 60);
    format!("{year}-{:02}-{:02} {hour:02}:{minute:02}", month + 1, days + 1)
}

/// Returns the number of bytes that can still be used without swapping.
pub fn available() -> Option<u64> {
    kibibytes(&fs::read_to_string("/proc/meminfo").ok()?, "MemAvailable")
}

/// Returns the value of `name: 123 kB` in a text of such lines, in bytes.
fn kibibytes(text: &str, name: &str) -> Option<u64> {
    let value = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
    Some(value.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

/// Returns the number of bytes that all programs have written to the disk of `path` since the
/// machine was started, after everything in its file system was written. Returns `None` if it is
/// not on a disk.
pub fn written_bytes(path: &Path) -> Option<u64> {
    /// The unit of the counter.
    const SECTOR: u64 = 512;
    /// The place of the sectors written among the counters.
    const WRITTEN: usize = 6;
    rustix::fs::syncfs(fs::File::open(path).ok()?).ok()?;
    let device = rustix::fs::stat(path).ok()?.st_dev;
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    let counters = fs::read_to_string(format!("/sys/dev/block/{major}:{minor}/stat")).ok()?;
    Some(counters.split_whitespace().nth(WRITTEN)?.parse::<u64>().ok()? * SECTOR)
}

/// Returns `true` if `path` is on a file system in memory.
pub fn is_in_memory(path: &Path) -> bool {
    /// `f_type` of tmpfs and ramfs.
    const IN_MEMORY: [i128; 2] = [0x0102_1994, 0x8584_58f6];
    rustix::fs::statfs(path).is_ok_and(|found| IN_MEMORY.contains(&i128::from(found.f_type)))
}

/// Returns freed memory to the system, so that every table starts from the same state.
pub fn trim() {
    #[cfg(target_env = "gnu")]
    // SAFETY: `malloc_trim` may be called at any time, and only returns free memory.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Uses this much memory and frees it, so that the memory of the next table is present.
///
/// The host of a virtual machine reclaims memory that has been free for seconds, in large pieces
/// only, and the first access afterwards waits for microseconds a page. Otherwise a table that
/// follows one which has freed large pieces would be faster. Uses no more than half of the
/// available memory.
pub fn warm_up(bytes: u64, pages: Pages) {
    let meminfo = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let bytes = bytes.min(kibibytes(&meminfo, "MemAvailable").unwrap_or(0) / 2);
    // If this fails, figures are noisier.
    let Ok(memory) = Dram::reserve(bytes, pages) else { return };
    if memory.grow(bytes).is_ok() {
        let page = rustix::param::page_size() as u64;
        let firsts = (0..bytes / page).filter_map(|number| memory.at::<PmU64>(number * page));
        firsts.for_each(|word| memory.store(word, 1));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_leaves_out_idle_and_guests() {
        let tick = 1.0 / rustix::param::clock_ticks_per_second() as f64;
        let stat = "cpu  10 20 30 4000 5000 6 7 8 10 20\ncpu0 1 1 1 1 1 1 1 1 1 1\n";
        let seconds = busy(stat).unwrap().as_secs_f64();
        assert!((seconds - 81.0 * tick).abs() < 1e-9, "{seconds}");
        assert_eq!(busy("cpu  10 20 30"), None);
        assert_eq!(busy("intr 1"), None);
    }

    #[test]
    fn sizes_in_kibibytes() {
        let text = "Rss:      12 kB\nRssAnon:  7 kB\nOdd:  x kB\n";
        assert_eq!(kibibytes(text, "Rss"), Some(12 * 1024));
        assert_eq!(kibibytes(text, "Odd"), None);
        assert_eq!(kibibytes(text, "Pss"), None);
    }

    #[test]
    fn files_are_counted_by_what_they_take() {
        let path = std::env::temp_dir().join(format!("lab-disk-{}", std::process::id()));
        fs::create_dir_all(path.join("inner")).unwrap();
        assert_eq!(bytes_on_disk(&path).unwrap(), 0);
        fs::write(path.join("one"), [7; 10_000]).unwrap();
        fs::write(path.join("inner/two"), [7; 10_000]).unwrap();
        // Memory that was never written takes no pages.
        fs::File::create(path.join("three")).unwrap().set_len(1 << 30).unwrap();
        let all = bytes_on_disk(&path).unwrap();
        assert!((20_000..100_000).contains(&all), "{all}");
        assert_eq!(bytes_on_disk(&path.join("one")).unwrap() * 2, all);
        fs::remove_dir_all(&path).unwrap();
        assert!(bytes_on_disk(&path).is_err());
    }

    #[test]
    fn allocated_memory_is_anonymous() {
        let before = anonymous().unwrap();
        let memory = vec![1u8; 64 << 20];
        assert!(anonymous().unwrap() >= before + (48 << 20));
        assert_eq!(memory[memory.len() / 2], 1);
        let with = allocated();
        drop(memory);
        let both = with.zip(allocated());
        assert!(both.is_none_or(|(with, without)| with >= without + (48 << 20)), "{both:?}");
    }

    #[test]
    fn dates_follow_the_calendar() {
        assert_eq!(date(0), "1970-01-01 00:00");
        assert_eq!(date(951_782_399), "2000-02-28 23:59");
        assert_eq!(date(951_782_400), "2000-02-29 00:00");
        assert_eq!(date(1_000_000_000), "2001-09-09 01:46");
        assert_eq!(date(4_107_542_400), "2100-03-01 00:00");
    }

    #[test]
    fn the_system_tells_about_this_process() {
        let before = CpuClock::now();
        let mut sum = 0u64;
        while before.elapsed().own < 0.02 {
            sum = sum.wrapping_mul(31).wrapping_add(1);
        }
        let used = before.elapsed();
        assert!(used.own >= 0.02 && sum > 0);
        assert!(resident().unwrap().bytes > 0 && available().unwrap() > 0);
        assert!(!processors().is_empty());
    }
}

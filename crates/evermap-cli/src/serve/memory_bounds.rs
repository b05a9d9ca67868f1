//! How much memory the system lets a server have, and what fits in it.
//!
//! A server that outgrows its control group is killed by the system, and killed again after each
//! start, because its items are still there. So the limits are compared with what the system allows
//! before the first item is stored.

use std::fmt;
use std::path::{Path, PathBuf};

use super::default_path::is_in_memory;

/// What the system allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) bytes: u64,
    pub(super) by: By,
}

/// Who sets a [`Bound`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// A control group, by this file.
    ControlGroup(PathBuf),
    /// The memory of the machine.
    Machine,
    /// The size of the file system with this directory.
    FileSystem(PathBuf),
}

impl By {
    /// Returns the word that `stats` shows.
    pub(super) fn word(&self) -> &'static str {
        match self {
            By::ControlGroup(_) => "cgroup",
            By::Machine => "machine",
            By::FileSystem(_) => "file_system",
        }
    }
}

impl fmt::Display for By {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            By::ControlGroup(file) => {
                write!(f, "that the control group allows ({})", file.display())
            }
            By::Machine => f.write_str("of memory that the machine has"),
            By::FileSystem(directory) => {
                write!(f, "that the file system of {} has", directory.display())
            }
        }
    }
}

/// Returns what bounds the memory of a server with its file in `directory`, or with items in
/// ordinary memory if there is no directory.
pub(super) fn bounds(directory: Option<&Path>) -> Vec<Bound> {
    let mut bounds = Vec::new();
    // The system takes back the memory of other files when it needs it.
    if directory.is_none_or(is_in_memory) {
        bounds.extend(control_group(&|path| std::fs::read_to_string(path).ok()));
        let machine = std::fs::read_to_string("/proc/meminfo").ok();
        let total = machine.as_deref().and_then(total_memory);
        bounds.extend(total.map(|bytes| Bound { bytes, by: By::Machine }));
    }
    bounds.extend(directory.and_then(file_system));
    bounds
}

fn file_system(directory: &Path) -> Option<Bound> {
    let system = rustix::fs::statvfs(directory).ok()?;
    let bytes = system.f_blocks.saturating_mul(system.f_frsize);
    // A tmpfs with 0 blocks has no limit.
    (bytes > 0).then(|| Bound { bytes, by: By::FileSystem(directory.to_owned()) })
}

/// Returns the memory of the machine, from `/proc/meminfo`.
fn total_memory(text: &str) -> Option<u64> {
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kib: u64 = total.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1 << 10)
}

/// Returns the lowest limit of the control groups that this process is in.
fn control_group(read: &dyn Fn(&Path) -> Option<String>) -> Option<Bound> {
    let own = read(Path::new("/proc/self/cgroup"))?;
    let mounts = read(Path::new("/proc/self/mountinfo"))?;
    let files = mounts.lines().filter_map(|line| Mount::parse(line)?.limits(&own)).flatten();
    let limits = files.filter_map(|(file, limit_in)| {
        let bytes = limit_in(&read(&file)?)?;
        Some(Bound { bytes, by: By::ControlGroup(file) })
    });
    limits.min_by_key(|bound| bound.bytes)
}

/// Returns a limit from the text of a file, if there is one.
type LimitIn = fn(&str) -> Option<u64>;

/// A mounted hierarchy of control groups that limit memory.
struct Mount {
    version: Version,
    /// The group that is mounted.
    root: PathBuf,
    /// Where it is mounted.
    point: PathBuf,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Version {
    V1,
    V2,
}

impl Mount {
    /// Parses a line of `/proc/self/mountinfo`. Returns `None` for other file systems.
    fn parse(line: &str) -> Option<Mount> {
        let (mount, system) = line.split_once(" - ")?;
        let mut system = system.split(' ');
        let (kind, options) = (system.next()?, system.nth(1).unwrap_or_default());
        let version = match kind {
            "cgroup2" => Version::V2,
            "cgroup" if options.split(',').any(|option| option == "memory") => Version::V1,
            _ => return None,
        };
        let mut fields = mount.split(' ').skip(3).map(unescaped);
        Some(Mount { version, root: fields.next()?, point: fields.next()? })
    }

    /// Returns the group of this process, from `/proc/self/cgroup`.
    fn group_of(&self, own: &str) -> Option<PathBuf> {
        own.lines().find_map(|line| {
            let mut fields = line.splitn(3, ':');
            let (number, controllers) = (fields.next()?, fields.next()?);
            let found = match self.version {
                Version::V1 => controllers.split(',').any(|controller| controller == "memory"),
                Version::V2 => number == "0" && controllers.is_empty(),
            };
            found.then(|| fields.next().map(PathBuf::from))?
        })
    }

    /// Returns the files that limit this process, and how to read them.
    fn limits(&self, own: &str) -> Option<Vec<(PathBuf, LimitIn)>> {
        let group = self.group_of(own)?;
        // A group outside what is mounted, as in some containers: then what is mounted is the
        // nearest that can be seen.
        let below = group.strip_prefix(&self.root).ok().filter(|path| {
            path.components().all(|part| matches!(part, std::path::Component::Normal(_)))
        });
        let depth = below.map_or(0, |path| path.components().count());
        let directory = below.map_or_else(|| self.point.clone(), |path| self.point.join(path));
        Some(match self.version {
            // Whether the limits of its ancestors apply to a group is a setting. Its own statistics
            // have the limit that results.
            Version::V1 => vec![
                (directory.join("memory.limit_in_bytes"), plain_limit),
                (directory.join("memory.stat"), hierarchical_limit),
            ],
            Version::V2 => directory
                .ancestors()
                .take(depth + 1)
                .flat_map(|directory| {
                    // Above the second, a group is slowed down until it hardly runs.
                    ["memory.max", "memory.high"].map(|name| directory.join(name))
                })
                .map(|file| (file, plain_limit as LimitIn))
                .collect(),
        })
    }
}

/// Parses a limit. A word stands for none, and so do the huge numbers of version 1.
fn plain_limit(text: &str) -> Option<u64> {
    const NONE: u64 = 1 << 62;
    text.trim().parse().ok().filter(|&bytes| bytes < NONE)
}

fn hierarchical_limit(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("hierarchical_memory_limit "))?;
    plain_limit(line)
}

/// Replaces the sequences that stand for spaces and the like, such as `\040`.
fn unescaped(field: &str) -> PathBuf {
    use std::os::unix::ffi::OsStringExt;
    let mut bytes = Vec::new();
    let mut rest = field.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        let digits = (first == b'\\').then(|| after.get(..3)).flatten();
        let code =
            digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        bytes.push(code.unwrap_or(first));
        rest = if code.is_some() { &after[3..] } else { after };
    }
    std::ffi::OsString::from_vec(bytes).into()
}

/// How much memory a server uses at most, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Of the items with their index, or `None` for no limit.
    pub(super) items: Option<u64>,
    /// Of values that have not arrived completely.
    pub(super) uploads: u64,
    /// Of replies that have not been read.
    pub(super) replies: u64,
}

/// What is changed so that a server stays within its bounds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Fitted {
    pub(super) limits: Limits,
    /// The lowest bound.
    pub(super) bound: Option<Bound>,
    /// What there is to say about it.
    pub(super) warning: Option<String>,
}

/// Lowers limits until they fit in what the system allows. `least` are the lowest limits with which
/// a server works.
pub(super) fn fit(asked: Limits, least: Limits, bounds: &[Bound]) -> Fitted {
    let lowest = bounds.iter().min_by_key(|bound| bound.bytes);
    let mut fitted = Fitted { limits: asked, bound: lowest.cloned(), warning: None };
    let file_systems = bounds.iter().filter(|bound| matches!(bound.by, By::FileSystem(_)));
    let file_max = file_systems.map(|bound| bound.bytes).min().unwrap_or(u64::MAX);
    // Beginning with the lowest: then the others seldom change anything.
    let mut bounds: Vec<&Bound> = bounds.iter().collect();
    bounds.sort_by_key(|bound| bound.bytes);
    for bound in bounds {
        let limits = match bound.by {
            By::FileSystem(_) => within_file_system(fitted.limits, bound.bytes),
            By::ControlGroup(_) | By::Machine => {
                within_memory(fitted.limits, least, bound.bytes, file_max)
            }
        };
        // A machine whose memory is all for the items needs no explanation.
        let is_expected = asked.items.is_none() && bound.by == By::Machine;
        if limits.items != fitted.limits.items && fitted.warning.is_none() && !is_expected {
            fitted.warning = Some(warning(asked.items, limits.items, bound));
        }
        fitted.limits = limits;
    }
    fitted
}

/// The file takes no memory beside the items, but grows in steps.
fn within_file_system(limits: Limits, bytes: u64) -> Limits {
    let items = limits.items.map(|items| items.min(bytes - bytes / 16));
    Limits { items, ..limits }
}

/// The process needs memory beside the items: for connections and threads, for what is kept about
/// the file in ordinary memory, and for uploads and replies. Without a limit the items take up to
/// `items_max`.
fn within_memory(limits: Limits, least: Limits, bytes: u64, items_max: u64) -> Limits {
    let Limits { items, uploads, replies } = limits;
    let at_most = items.unwrap_or(items_max);
    let own = own_memory(bytes);
    let sum = [at_most, uploads, replies].into_iter().fold(own, u64::saturating_add);
    if sum <= bytes {
        return limits;
    }
    let part = bytes / 16;
    let uploads = uploads.min(part.max(least.uploads));
    let replies = replies.min(part.max(least.replies));
    let most = [own, uploads, replies].into_iter().fold(bytes, u64::saturating_sub);
    let most = most.max(least.items.unwrap_or(0));
    let items = if at_most <= most { items } else { Some(most) };
    Limits { items, uploads, replies }
}

/// Returns how much of this memory the process needs for itself.
fn own_memory(bytes: u64) -> u64 {
    const LEAST: u64 = 12 << 20;
    (bytes / 8).max(LEAST)
}

fn warning(asked: Option<u64>, items: Option<u64>, bound: &Bound) -> String {
    let (items, bytes, by) = (mebibytes(items.unwrap_or(0)), mebibytes(bound.bytes), &bound.by);
    match asked {
        Some(asked) => {
            let asked = mebibytes(asked);
            format!(
                "warning: the memory limit is lowered from {asked} to {items}, because more does \
                 not fit, with what the process itself needs, in the {bytes} {by}"
            )
        }
        None => format!(
            "warning: the memory is limited to {items}, because more does not fit, with what the \
             process itself needs, in the {bytes} {by}; items beyond it are refused"
        ),
    }
}

fn mebibytes(bytes: u64) -> String {
    format!("{:.1} MiB", bytes as f64 / (1u64 << 20) as f64)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    const MIB: u64 = 1 << 20;
    const GIB: u64 = 1 << 30;

    /// Returns the limit of a process that sees these files.
    fn limit(files: &[(&str, &str)]) -> Option<(u64, String)> {
        let files: BTreeMap<&str, &str> = files.iter().copied().collect();
        let read = |path: &Path| files.get(path.to_str()?).map(|&text| text.to_owned());
        let bound = control_group(&read)?;
        match bound.by {
            By::ControlGroup(file) => Some((bound.bytes, file.to_str()?.to_owned())),
            other => panic!("{other:?}"),
        }
    }

    const V1_MOUNTS: &str = "\
        31 23 0:28 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755\n\
        34 31 0:31 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu\n\
        35 31 0:32 / /sys/fs/cgroup/memory rw shared:9 - cgroup cgroup rw,memory\n\
        41 31 0:38 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n";
    const V2_MOUNTS: &str = "30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n";

    #[test]
    fn the_limit_of_version_1_is_that_of_the_nearest_group_or_what_it_inherits() {
        let own = ("/proc/self/cgroup", "9:name=systemd:/\n4:cpu,memory:/a/b\n0::/\n");
        let mounts = ("/proc/self/mountinfo", V1_MOUNTS);
        let none = "9223372036854771712\n";
        let inherited = |bytes| format!("cache 0\nhierarchical_memory_limit {bytes}\nx 1\n");
        let at = |limit_text: &str, inherited: &str| {
            limit(&[
                own,
                mounts,
                ("/sys/fs/cgroup/memory/a/b/memory.limit_in_bytes", limit_text),
                ("/sys/fs/cgroup/memory/a/b/memory.stat", inherited),
            ])
        };
        let file = |name: &str| format!("/sys/fs/cgroup/memory/a/b/memory.{name}");
        let unlimited = inherited("9223372036854771712");
        assert_eq!(at(none, &unlimited), None);
        let found = Some((104_857_600, file("limit_in_bytes")));
        assert_eq!(at("104857600\n", &unlimited), found);
        let found = Some((52_428_800, file("stat")));
        assert_eq!(at("104857600\n", &inherited("52428800")), found);
        assert_eq!(limit(&[own, mounts]), None);
        assert_eq!(limit(&[own]), None);
        assert_eq!(limit(&[]), None);
    }

    #[test]
    fn the_limit_of_version_2_is_the_lowest_of_all_ancestors() {
        let own = ("/proc/self/cgroup", "0::/a.slice/b.service\n");
        let mounts = ("/proc/self/mountinfo", V2_MOUNTS);
        let (a, b) = ("/sys/fs/cgroup/a.slice", "/sys/fs/cgroup/a.slice/b.service");
        let (max_of_a, max_of_b) = (format!("{a}/memory.max"), format!("{b}/memory.max"));
        let high_of_b = format!("{b}/memory.high");
        let at = |a: &str, b: &str, high: &str| {
            limit(&[own, mounts, (&max_of_a, a), (&max_of_b, b), (&high_of_b, high)])
        };
        assert_eq!(at("max\n", "max\n", "max\n"), None);
        assert_eq!(at("max\n", "4096\n", "max\n"), Some((4096, max_of_b.clone())));
        assert_eq!(at("2048\n", "4096\n", "max\n"), Some((2048, max_of_a.clone())));
        assert_eq!(at("2048\n", "4096\n", "1024\n"), Some((1024, high_of_b.clone())));
        assert_eq!(at("nonsense", "", "-1"), None);
    }

    /// A container sees its own group at the top, by one of three ways.
    #[test]
    fn the_group_of_a_container_is_found() {
        let expected = |file: &str| Some((4096, file.to_owned()));
        // A namespace of its own.
        let max = "/sys/fs/cgroup/memory.max";
        let own = ("/proc/self/cgroup", "0::/\n");
        let mounts = ("/proc/self/mountinfo", V2_MOUNTS);
        assert_eq!(limit(&[own, mounts, (max, "4096")]), expected(max));
        // Its group mounted at the top, and named from outside.
        let own = ("/proc/self/cgroup", "4:memory:/docker/abc\n");
        let mounts = "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n";
        let mounts = ("/proc/self/mountinfo", mounts);
        let max = "/sys/fs/cgroup/memory/memory.limit_in_bytes";
        assert_eq!(limit(&[own, mounts, (max, "4096")]), expected(max));
        // A group beside what is mounted.
        let own = ("/proc/self/cgroup", "0::/../other\n");
        let mounts = "30 23 0:26 / /sys/fs/my\\040cgroup rw - cgroup2 cgroup2 rw\n";
        let mounts = ("/proc/self/mountinfo", mounts);
        let max = "/sys/fs/my cgroup/memory.max";
        assert_eq!(limit(&[own, mounts, (max, "4096")]), expected(max));
    }

    #[test]
    fn the_memory_of_the_machine() {
        assert_eq!(
            total_memory("MemTotal:        8048136 kB\nMemFree: 1 kB\n"),
            Some(8048136 << 10)
        );
        for text in ["", "MemTotal: x kB", "MemTotal: 1 MB", "MemTotal: 18446744073709551615 kB"] {
            assert_eq!(total_memory(text), None, "{text}");
        }
    }

    const LEAST: Limits = Limits { items: Some(2 * MIB), uploads: MIB, replies: 4 * MIB };

    fn asked(items: Option<u64>) -> Limits {
        Limits { items, uploads: 256 * MIB, replies: GIB }
    }

    fn group(bytes: u64) -> Bound {
        Bound { bytes, by: By::ControlGroup("/g/memory.max".into()) }
    }

    #[test]
    fn what_fits_stays_as_it_is() {
        let machine = Bound { bytes: 8 * GIB, by: By::Machine };
        let shared = Bound { bytes: 4 * GIB, by: By::FileSystem("/dev/shm".into()) };
        for (items, bounds) in [
            (Some(64 * MIB), vec![]),
            (None, vec![]),
            (Some(64 * MIB), vec![group(2 * GIB)]),
            (None, vec![machine.clone(), shared.clone()]),
            (Some(3 * GIB), vec![machine.clone(), shared.clone()]),
            (Some(5 * GIB), vec![machine.clone()]),
        ] {
            let fitted = fit(asked(items), LEAST, &bounds);
            assert_eq!((fitted.limits, fitted.warning), (asked(items), None), "{bounds:?}");
        }
    }

    #[test]
    fn limits_are_lowered_until_all_fits() {
        for megabytes in [20, 32, 100, 500, 2_000] {
            let bound = group(megabytes * MIB);
            for items in [None, Some(20 * MIB), Some(200 * MIB), Some(u64::MAX)] {
                let fitted = fit(asked(items), LEAST, std::slice::from_ref(&bound));
                let Limits { items: Some(now), uploads, replies } = fitted.limits else {
                    panic!("{fitted:?}")
                };
                let sum = now + uploads + replies;
                assert!(sum + own_memory(bound.bytes) <= bound.bytes, "{fitted:?}");
                assert_eq!(fitted.warning.is_some(), items != Some(now), "{fitted:?}");
                assert_eq!(fitted.bound, Some(bound.clone()));
            }
        }
        let fitted = fit(asked(Some(200 * MIB)), LEAST, &[group(100 * MIB)]);
        assert_eq!(
            fitted.warning.as_deref(),
            Some(
                "warning: the memory limit is lowered from 200.0 MiB to 75.0 MiB, because more \
                 does not fit, with what the process itself needs, in the 100.0 MiB that the \
                 control group allows (/g/memory.max)"
            )
        );
    }

    #[test]
    fn a_cache_evicts_before_its_file_system_is_full() {
        let shared = Bound { bytes: 64 * MIB, by: By::FileSystem("/dev/shm".into()) };
        let fitted = fit(asked(Some(GIB)), LEAST, std::slice::from_ref(&shared));
        assert_eq!(fitted.limits.items, Some(60 * MIB));
        assert!(fitted.warning.unwrap().ends_with("that the file system of /dev/shm has"));
        // Without a limit it is the file system that refuses.
        assert_eq!(fit(asked(None), LEAST, &[shared]).limits, asked(None));
    }
}

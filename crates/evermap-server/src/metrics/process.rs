//! What the system knows about this process.

use std::fs;

use super::stats::{Stats, number};
use super::text::{Text, Type};

/// Adds the metrics of the process. Those that the system does not report are left out.
pub(super) fn append(stats: &Stats, text: &mut Text) {
    let seconds = |name| number(stats, name).and_then(|value| value.parse::<f64>().ok());
    if let (Some(user), Some(system)) = (seconds("rusage_user"), seconds("rusage_system")) {
        let help = "Processor time of the process, in seconds.";
        text.single("memcached_process_cpu_seconds_total", Type::Counter, help, user + system);
    }
    if let (Some(time), Some(uptime)) = (seconds("time"), seconds("uptime")) {
        let help = "Time of the start of the process, in seconds since 1970.";
        let name = "memcached_process_start_time_seconds";
        text.single(name, Type::Gauge, help, time - uptime);
    }
    let mut gauge = |name, help, value: Option<u64>| {
        if let Some(value) = value {
            text.single(name, Type::Gauge, help, value);
        }
    };
    let (virtual_memory, resident) = memory().unzip();
    gauge(
        "memcached_process_resident_memory_bytes",
        "Resident memory of the process, including the resident part of the store.",
        resident,
    );
    gauge(
        "memcached_process_virtual_memory_bytes",
        "Virtual memory of the process.",
        virtual_memory,
    );
    gauge("memcached_process_open_fds", "Number of open file descriptors.", open_files());
    gauge("memcached_process_max_fds", "Maximum number of open file descriptors.", max_files());
}

/// Returns the virtual and the resident memory, in bytes.
fn memory() -> Option<(u64, u64)> {
    let pages = fs::read_to_string("/proc/self/statm").ok()?;
    let mut pages = pages.split_ascii_whitespace();
    let page_size = rustix::param::page_size() as u64;
    let mut bytes = || Some(pages.next()?.parse::<u64>().ok()?.saturating_mul(page_size));
    Some((bytes()?, bytes()?))
}

fn open_files() -> Option<u64> {
    // The directory that is read is open too.
    Some((fs::read_dir("/proc/self/fd").ok()?.count() as u64).saturating_sub(1))
}

fn max_files() -> Option<u64> {
    let limits = fs::read_to_string("/proc/self/limits").ok()?;
    let limit = limits.lines().find_map(|line| line.strip_prefix("Max open files"))?;
    limit.split_ascii_whitespace().next()?.parse().ok()
}

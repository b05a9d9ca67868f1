//! What happened between two samples, ready to be shown.

use std::time::Duration;

use super::sample::Sample;

/// The state of a server and its changes per second.
#[derive(Clone, Debug, Default)]
pub(super) struct Summary {
    pub(super) version: String,
    pub(super) uptime: Duration,
    pub(super) commands: Vec<CommandRow>,
    /// All commands per second.
    pub(super) rate: f64,
    pub(super) items: u64,
    /// The bytes of the items, and the limit if there is one.
    pub(super) memory: (u64, Option<u64>),
    /// The length of the file, if the server has one.
    pub(super) file: Option<u64>,
    pub(super) evictions: Rate,
    pub(super) connections: (u64, Option<u64>),
    /// New connections per second.
    pub(super) connects: f64,
    /// Bytes received and sent, per second.
    pub(super) network: (f64, f64),
    /// Processor time per second, where 1 is one core.
    pub(super) processor: Option<f64>,
    /// Keys, their part of all accesses, and their estimated accesses per second.
    pub(super) hot_keys: Option<Vec<(String, f64, f64)>>,
}

/// A counter and its growth per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Rate {
    pub(super) total: u64,
    pub(super) per_second: f64,
}

/// One kind of command.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct CommandRow {
    pub(super) name: String,
    pub(super) per_second: f64,
    /// The part of the commands that found an item, if there were any.
    pub(super) hit_ratio: Option<f64>,
    /// The quantiles 0.5, 0.99 and 0.999.
    pub(super) latencies: [Option<Duration>; 3],
}

/// The commands that memcached counts: the name here and in `stats latency`, the statistics that
/// count them, and those that count the ones among them that found an item.
const COUNTED: [(&str, &[&str], &[&str]); 5] = [
    ("get", &["cmd_get"], &["get_hits"]),
    ("set", &["cmd_set"], &[]),
    ("delete", &["delete_hits", "delete_misses"], &["delete_hits"]),
    ("touch", &["cmd_touch"], &["touch_hits"]),
    (
        "arithmetic",
        &["incr_hits", "incr_misses", "decr_hits", "decr_misses"],
        &["incr_hits", "decr_hits"],
    ),
];

/// The commands that only `stats latency` tells apart from others.
const META: [&str; 4] = ["meta_get", "meta_set", "meta_delete", "meta_arithmetic"];

impl Summary {
    /// Summarises what happened from one sample to a later one.
    pub(super) fn between(earlier: &Sample, later: &Sample) -> Self {
        let difference = Difference::new(earlier, later);
        let mut commands: Vec<_> = COUNTED
            .iter()
            .map(|&(name, counts, hits)| difference.counted(name, counts, hits))
            .collect();
        let rate = commands.iter().map(|row| row.per_second).sum();
        commands.extend(META.iter().filter_map(|name| difference.meta(name)));
        let hot_keys = later.hot_keys.as_ref().map(|hot| {
            let share = |count: u64| count as f64 / hot.samples.max(1) as f64;
            let keys = hot.keys.iter();
            keys.map(|(key, count)| (key.clone(), share(*count), share(*count) * rate)).collect()
        });
        let number = |name: &str| later.number(name).unwrap_or(0);
        let limit = |name: &str| later.number(name).filter(|&limit| limit > 0);
        Summary {
            version: later.text("version").unwrap_or("unknown version").to_owned(),
            uptime: Duration::from_secs(number("uptime")),
            commands,
            rate,
            items: number("curr_items"),
            memory: (number("bytes"), limit("limit_maxbytes")),
            file: later.number("evermap_file_bytes"),
            evictions: Rate {
                total: number("evictions"),
                per_second: difference.per_second(&["evictions"]),
            },
            connections: (number("curr_connections"), limit("max_connections")),
            connects: difference.per_second(&["total_connections"]),
            network: (
                difference.per_second(&["bytes_read"]),
                difference.per_second(&["bytes_written"]),
            ),
            processor: difference.processor(),
            hot_keys,
        }
    }
}

/// Two samples of one server.
struct Difference<'s> {
    earlier: &'s Sample,
    later: &'s Sample,
    seconds: f64,
}

impl<'s> Difference<'s> {
    fn new(earlier: &'s Sample, later: &'s Sample) -> Self {
        let elapsed = later.at.saturating_duration_since(earlier.at);
        Difference { earlier, later, seconds: elapsed.as_secs_f64().max(1e-3) }
    }

    /// Returns the growth of the sum of some counters. After a reset or a restart of the server,
    /// they have grown from 0.
    fn growth(&self, names: &[&str]) -> u64 {
        let grown = |name: &&str| {
            let now = self.later.number(name).unwrap_or(0);
            now.checked_sub(self.earlier.number(name).unwrap_or(0)).unwrap_or(now)
        };
        names.iter().map(grown).fold(0, u64::saturating_add)
    }

    fn per_second(&self, names: &[&str]) -> f64 {
        self.growth(names) as f64 / self.seconds
    }

    fn counted(&self, name: &str, counts: &[&str], hits: &[&str]) -> CommandRow {
        let count = self.growth(counts);
        let ratio = self.growth(hits) as f64 / count.max(1) as f64;
        CommandRow {
            name: name.to_owned(),
            per_second: self.per_second(counts),
            hit_ratio: (count > 0 && !hits.is_empty()).then(|| ratio.min(1.0)),
            latencies: self.latencies(name),
        }
    }

    /// Returns the row of a command of the meta protocol, if the server has ever executed it.
    fn meta(&self, name: &str) -> Option<CommandRow> {
        let now = self.later.latencies.get(name)?;
        let count = match self.earlier.latencies.get(name) {
            Some(before) => now.since(before).count(),
            None => now.count(),
        };
        Some(CommandRow {
            name: name.to_owned(),
            per_second: count as f64 / self.seconds,
            hit_ratio: None,
            latencies: self.latencies(name),
        })
    }

    fn latencies(&self, name: &str) -> [Option<Duration>; 3] {
        let Some(now) = self.later.latencies.get(name) else { return [None; 3] };
        let between = match self.earlier.latencies.get(name) {
            Some(before) => now.since(before),
            None => now.clone(),
        };
        [0.5, 0.99, 0.999].map(|part| between.quantile(part))
    }

    fn processor(&self) -> Option<f64> {
        let used = |sample: &Sample| {
            Some(sample.seconds("rusage_user")? + sample.seconds("rusage_system")?)
        };
        let used = used(self.later)? - used(self.earlier)?;
        // A restarted server has used less than before.
        (used >= 0.0).then_some(used / self.seconds)
    }
}

/// Writes a number with three digits and a unit, for example `12.3k`.
pub(super) fn count(number: f64) -> String {
    scaled(number, 1000.0, &["", "k", "M", "G", "T"], "")
}

/// Writes a number of bytes with three digits and a unit, for example `12.3 MiB`.
pub(super) fn bytes(number: f64) -> String {
    scaled(number, 1024.0, &["B", "KiB", "MiB", "GiB", "TiB"], " ")
}

fn scaled(number: f64, step: f64, units: &[&str], space: &str) -> String {
    let (mut number, mut units) = (number, units.iter());
    let mut unit = units.next().unwrap_or(&"");
    // What would be rounded up to a thousand gets the next unit.
    while number >= 999.5 {
        let Some(next) = units.next() else { break };
        (number, unit) = (number / step, next);
    }
    let decimals = match number {
        _ if number.fract() == 0.0 && unit.len() <= 1 && (unit.is_empty() || *unit == "B") => 0,
        ..9.995 => 2,
        ..99.95 => 1,
        _ => 0,
    };
    format!("{number:.decimals$}{space}{unit}")
}

/// Writes a duration with three digits and a unit, for example `12.3 ms`.
pub(super) fn duration(duration: Duration) -> String {
    scaled(duration.as_nanos() as f64, 1000.0, &["ns", "µs", "ms", "s"], " ")
}

/// Writes a duration in days, hours, minutes and seconds.
pub(super) fn age(age: Duration) -> String {
    let seconds = age.as_secs();
    let (days, hours) = (seconds / 86_400, seconds / 3600 % 24);
    let clock = format!("{hours:02}:{:02}:{:02}", seconds / 60 % 60, seconds % 60);
    if days > 0 { format!("{days}d {clock}") } else { clock }
}

/// Writes a part of the whole as a percentage.
pub(super) fn percent(part: f64) -> String {
    format!("{:.1}%", part * 100.0)
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    fn sample(at: Instant, general: &str, latency: &str, hot: Option<&str>) -> Sample {
        let parse = |text: &str| {
            let words: Vec<&str> = text.split_whitespace().collect();
            words.chunks(2).map(|pair| (pair[0].to_owned(), pair[1].to_owned())).collect()
        };
        Sample::new(at, parse(general), &parse(latency), hot.map(parse))
    }

    fn row<'s>(summary: &'s Summary, name: &str) -> &'s CommandRow {
        summary.commands.iter().find(|row| row.name == name).unwrap()
    }

    #[test]
    fn rates_are_differences_over_the_time() {
        let at = Instant::now();
        let before = "cmd_get 100 get_hits 90 cmd_set 7 rusage_user 1.5 rusage_system 1.0 \
                      evictions 4 bytes_read 1000";
        let after = "cmd_get 300 get_hits 240 cmd_set 7 rusage_user 2.5 rusage_system 2.0 \
                     evictions 10 bytes_read 3000 curr_items 5 bytes 50 limit_maxbytes 0 \
                     version 1.2.3 uptime 90061 curr_connections 3 max_connections 10";
        let latency = ("get:histogram 1000=100", "get:histogram 1000=200,9000=100 get:count 300");
        let hot = "hotkeys_samples 10 hotkey:a 4";
        let earlier = sample(at, before, latency.0, None);
        let later = sample(at + Duration::from_secs(2), after, latency.1, Some(hot));
        let summary = Summary::between(&earlier, &later);
        let get = row(&summary, "get");
        assert_eq!((get.per_second, get.hit_ratio), (100.0, Some(0.75)));
        let micros = get.latencies.map(|latency| latency.unwrap().as_micros());
        assert_eq!(micros, [1, 9, 9]);
        let set = row(&summary, "set");
        assert_eq!((set.per_second, set.hit_ratio, set.latencies), (0.0, None, [None; 3]));
        assert_eq!(summary.rate, 100.0);
        assert_eq!(summary.evictions, Rate { total: 10, per_second: 3.0 });
        assert_eq!(summary.memory, (50, None));
        assert_eq!(summary.connections, (3, Some(10)));
        assert_eq!(summary.processor, Some(1.0));
        assert_eq!(summary.network, (1000.0, 0.0));
        assert_eq!(summary.hot_keys, Some(vec![("a".to_owned(), 0.4, 40.0)]));
        assert_eq!(age(summary.uptime), "1d 01:01:01");
        assert_eq!(summary.commands.len(), COUNTED.len(), "no meta command was executed");

        // After a restart, the counters begin at 0.
        let restarted = sample(at + Duration::from_secs(3), before, "ms:count 1", None);
        let summary = Summary::between(&later, &restarted);
        assert_eq!((row(&summary, "get").per_second, summary.processor), (100.0, None));
        assert_eq!(summary.hot_keys, None);
    }

    #[test]
    fn meta_commands_appear_once_they_were_executed() {
        let at = Instant::now();
        let earlier = sample(at, "", "", None);
        let later = sample(at + Duration::from_secs(1), "", "meta_get:histogram 500=8", None);
        let summary = Summary::between(&earlier, &later);
        assert_eq!(row(&summary, "meta_get").per_second, 8.0);
        assert_eq!(summary.rate, 0.0, "they are counted as get and set too");
    }

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let counts = [0.0, 7.0, 7.25, 999.4, 999.5, 1000.0, 12_345.0, 999_500.0, 1e15];
        let expected = ["0", "7", "7.25", "999", "1.00k", "1.00k", "12.3k", "1.00M", "1000T"];
        assert_eq!(counts.map(count), expected);
        let sizes = [0.0, 512.0, 1536.0, 1024.0 * 1024.0 * 64.0];
        assert_eq!(sizes.map(bytes), ["0 B", "512 B", "1.50 KiB", "64.0 MiB"]);
        let durations = [85u64, 85_000, 1_234_567, 12_345_678_901];
        let durations = durations.map(|nanos| duration(Duration::from_nanos(nanos)));
        assert_eq!(durations, ["85.0 ns", "85.0 µs", "1.23 ms", "12.3 s"]);
        assert_eq!(percent(0.98765), "98.8%");
        assert_eq!(age(Duration::from_secs(59)), "00:00:59");
    }
}

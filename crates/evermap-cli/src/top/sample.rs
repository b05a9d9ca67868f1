//! What a server reports at one moment.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, Instant};

use super::connection::{Connection, Stats};

/// The statistics of one moment.
#[derive(Clone, Debug)]
pub(super) struct Sample {
    pub(super) at: Instant,
    general: Stats,
    /// The number of commands by duration, for each command; empty if the server does not tell.
    pub(super) latencies: BTreeMap<String, Histogram>,
    /// `None` if the server does not tell.
    pub(super) hot_keys: Option<HotKeys>,
}

/// The number of commands by their duration in nanoseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Histogram(BTreeMap<u64, u64>);

/// The keys that were sampled most.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct HotKeys {
    pub(super) samples: u64,
    /// The keys and their numbers of samples, in descending order. A key is in URI encoding unless
    /// all its bytes can be printed.
    pub(super) keys: Vec<(String, u64)>,
}

impl Sample {
    /// Requests everything from a server.
    pub(super) fn take(connection: &mut Connection) -> io::Result<Self> {
        let general = connection.stats("stats")?.unwrap_or_default();
        let at = Instant::now();
        let latency = connection.stats("stats latency")?.unwrap_or_default();
        let hot_keys = connection.stats("stats hotkeys")?;
        Ok(Sample::new(at, general, &latency, hot_keys))
    }

    pub(super) fn new(at: Instant, general: Stats, latency: &Stats, hot: Option<Stats>) -> Self {
        let histograms = latency.iter().filter_map(|(name, value)| {
            let command = name.strip_suffix(":histogram")?;
            Some((command.to_owned(), Histogram::parse(value)))
        });
        let hot_keys = hot.as_ref().and_then(HotKeys::parse);
        Sample { at, general, latencies: histograms.collect(), hot_keys }
    }

    /// Returns a statistic as a text.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.general.get(name).map(String::as_str)
    }

    /// Returns a statistic as a number.
    pub(super) fn number(&self, name: &str) -> Option<u64> {
        self.text(name)?.parse().ok()
    }

    /// Returns a statistic that is a number of seconds.
    pub(super) fn seconds(&self, name: &str) -> Option<f64> {
        self.text(name)?.parse().ok()
    }
}

impl Histogram {
    /// Parses a list of durations and counts, for example `8192=3,9728=1`. Whatever else is in it
    /// is ignored.
    fn parse(text: &str) -> Self {
        let buckets = text.split(',').filter_map(|bucket| {
            let (duration, count) = bucket.split_once('=')?;
            Some((duration.parse().ok()?, count.parse().ok()?))
        });
        Histogram(buckets.collect())
    }

    /// Returns the commands since an earlier moment; all of them if the counters were reset
    /// meanwhile.
    pub(super) fn since(&self, earlier: &Histogram) -> Histogram {
        let difference = |(duration, count): (&u64, &u64)| {
            let before = earlier.0.get(duration).copied().unwrap_or(0);
            Some((*duration, count.checked_sub(before)?))
        };
        let buckets: Option<BTreeMap<_, _>> = self.0.iter().map(difference).collect();
        buckets.map_or_else(|| self.clone(), Histogram)
    }

    pub(super) fn count(&self) -> u64 {
        self.0.values().fold(0, |sum, count| sum.saturating_add(*count))
    }

    /// Returns the duration that a part of the commands did not exceed.
    pub(super) fn quantile(&self, part: f64) -> Option<Duration> {
        let rank = ((self.count() as f64 * part).ceil() as u64).max(1);
        let mut seen = 0u64;
        let found = self.0.iter().find(|(_, count)| {
            seen = seen.saturating_add(**count);
            seen >= rank
        });
        found.map(|(duration, _)| Duration::from_nanos(*duration))
    }
}

impl HotKeys {
    fn parse(stats: &Stats) -> Option<HotKeys> {
        let samples = stats.get("hotkeys_samples")?.parse().ok()?;
        let keys = stats.iter().filter_map(|(name, count)| {
            Some((readable(name.strip_prefix("hotkey:")?), count.parse().ok()?))
        });
        let mut keys: Vec<(String, u64)> = keys.collect();
        keys.sort_by(|(_, a), (_, b)| b.cmp(a));
        Some(HotKeys { samples, keys })
    }
}

/// Decodes a key, if the result consists of printable characters of ASCII.
fn readable(encoded: &str) -> String {
    let decoded = || -> Option<String> {
        let mut pieces = encoded.split('%');
        let mut key = pieces.next()?.to_owned();
        for piece in pieces {
            let (digits, rest) = piece.split_at_checked(2)?;
            let byte = u8::from_str_radix(digits, 16).ok().filter(u8::is_ascii_graphic)?;
            key.push(char::from(byte));
            key.push_str(rest);
        }
        Some(key)
    };
    decoded().unwrap_or_else(|| encoded.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_compared_with_earlier_ones() {
        let earlier = Histogram::parse("100=5,200=1");
        let later = Histogram::parse("100=5,200=3,900=1,x=1,7=,");
        let between = later.since(&earlier);
        assert_eq!(between, Histogram::parse("100=0,200=2,900=1"));
        assert_eq!(between.count(), 3);
        let nanos = |part| between.quantile(part).map(|duration| duration.as_nanos());
        assert_eq!([nanos(0.0), nanos(0.5), nanos(0.99)], [Some(200), Some(200), Some(900)]);
        assert_eq!(Histogram::parse("").quantile(0.5), None);
        // A reset.
        assert_eq!(earlier.since(&later), earlier);
    }

    #[test]
    fn keys_are_decoded_if_they_can_be_printed() {
        for (encoded, shown) in [
            ("user%3A1%2F%25", "user:1/%"),
            ("plain", "plain"),
            ("", ""),
            ("a%1B%5B2J", "a%1B%5B2J"),
            ("a%FF", "a%FF"),
            ("a%3", "a%3"),
            ("a%", "a%"),
            ("%zz", "%zz"),
        ] {
            assert_eq!(readable(encoded), shown);
        }
    }

    #[test]
    fn hot_keys_are_sorted_by_their_number() {
        let stats = [("hotkeys_samples", "9"), ("hotkey:a", "2"), ("hotkey:b%20", "5")];
        let stats = stats.map(|(name, value)| (name.to_owned(), value.to_owned())).into();
        let keys = vec![("b%20".to_owned(), 5), ("a".to_owned(), 2)];
        assert_eq!(HotKeys::parse(&stats), Some(HotKeys { samples: 9, keys }));
        assert_eq!(HotKeys::parse(&Stats::new()), None);
    }
}

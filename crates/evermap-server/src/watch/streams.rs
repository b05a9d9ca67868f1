//! What a watcher receives.

/// A set of kinds of events.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Streams(pub(super) u32);

impl Streams {
    /// Items that were looked up.
    pub const FETCHERS: Streams = Streams(1);
    /// Items that were stored, or could not be.
    pub const MUTATIONS: Streams = Streams(1 << 1);
    /// Items that were evicted.
    pub const EVICTIONS: Streams = Streams(1 << 2);
    /// Connections that were opened and closed.
    pub const CONNEVENTS: Streams = Streams(1 << 3);
    /// Items that were deleted.
    pub const DELETIONS: Streams = Streams(1 << 4);

    /// All bits of events that watchers receive.
    pub(super) const ALL: u32 = (1 << 5) - 1;
    /// The sampling of hot keys, which needs to see keys too.
    pub(super) const HOT_KEYS: u32 = 1 << 16;
    /// The counters by prefix, which need to see keys too.
    pub(super) const PREFIXES: u32 = 1 << 17;

    /// Returns the streams of the words after `watch`; without any, the fetchers. Returns `None`
    /// if a word is none of memcached's.
    pub fn parse<'a>(words: impl IntoIterator<Item = &'a [u8]>) -> Option<Streams> {
        let mut words = words.into_iter().peekable();
        if words.peek().is_none() {
            return Some(Self::FETCHERS);
        }
        let mut streams = 0;
        for word in words {
            streams |= match word {
                b"fetchers" => Self::FETCHERS.0,
                b"mutations" => Self::MUTATIONS.0,
                b"evictions" => Self::EVICTIONS.0,
                b"connevents" => Self::CONNEVENTS.0,
                b"deletions" => Self::DELETIONS.0,
                // There are no such events here. memcached has none of raw commands either.
                b"rawcmds" | b"sysevents" | b"proxyreqs" | b"proxyevents" | b"proxyuser" => 0,
                _ => return None,
            };
        }
        Some(Streams(streams))
    }

    /// Returns `true` if the sets have a kind in common.
    pub fn intersects(self, other: Streams) -> bool {
        self.0 & other.0 != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_streams() {
        let parse = |line: &'static str| Streams::parse(line.split_whitespace().map(str::as_bytes));
        assert_eq!(parse(""), Some(Streams::FETCHERS));
        assert_eq!(parse("evictions evictions"), Some(Streams::EVICTIONS));
        let all = parse("fetchers mutations evictions connevents deletions").unwrap();
        assert_eq!(all, Streams(Streams::ALL));
        assert!(all.intersects(Streams::DELETIONS));
        assert!(!Streams::FETCHERS.intersects(Streams::DELETIONS));
        assert_eq!(parse("fetchers proxyreqs"), Some(Streams::FETCHERS));
        assert_eq!(parse("rawcmds sysevents proxyevents proxyuser"), Some(Streams(0)));
        assert_eq!(parse("fetchers nonsense"), None);
        assert_eq!(parse("FETCHERS"), None);
    }
}

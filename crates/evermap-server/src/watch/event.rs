//! What is logged, and the lines that it becomes.

use std::io::Write;

use super::streams::Streams;
use crate::cache::StoreOutcome;
use crate::cache::size_class::{class_of, item_bytes};

/// An event of one item or connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event<'a> {
    /// Microseconds since 1970.
    pub(super) time: u64,
    /// The connection that caused it, by its file descriptor.
    pub(super) connection: u32,
    /// The key; for the events of connections, the address of the peer.
    pub(super) key: &'a [u8],
    /// The length of the value, in bytes.
    pub(super) size: u32,
    pub(super) kind: Kind,
}

/// The kind of an event, with what only this kind has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Fetched { found: bool },
    Stored { command: StoreCommand, status: StoreStatus, ttl: u32 },
    Deleted { command: DeleteCommand },
    Evicted { fetched: bool, ttl: Option<u32>, idle: u32 },
    Connected { transport: Transport, port: u16 },
    Closed { transport: Transport, port: u16, reason: CloseReason },
}

macro_rules! names {
    (
        $(#[$meta:meta])*
        $name:ident { $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)* }
    ) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$variant_meta])* $variant,)* }

        impl $name {
            const ALL: &[$name] = &[$($name::$variant,)*];

            /// Returns the word in the line.
            fn word(self) -> &'static str {
                match self { $($name::$variant => $text,)* }
            }

            /// Returns the value that was converted to `number`.
            pub(super) fn from_number(number: u64) -> Option<Self> {
                Self::ALL.get(usize::try_from(number).ok()?).copied()
            }
        }
    };
}

names! {
    /// The command that stored an item.
    StoreCommand {
        /// set, or ms in its mode set.
        Set = "set",
        /// add, or ms in its mode add.
        Add = "add",
        /// replace, or ms in its mode replace.
        Replace = "replace",
        /// append, or ms in its mode append.
        Append = "append",
        /// prepend, or ms in its mode prepend.
        Prepend = "prepend",
        /// cas, or ms with a CAS id.
        Cas = "cas",
        /// incr, or ma in its mode increment.
        Incr = "incr",
        /// decr, or ma in its mode decrement.
        Decr = "decr",
    }
}

names! {
    /// The outcome of a command that stores.
    StoreStatus {
        /// The condition of the command did not hold.
        NotStored = "not_stored",
        /// The item is stored.
        Stored = "stored",
        /// The item has another CAS id.
        Exists = "exists",
        /// There is no such item.
        NotFound = "not_found",
        /// The item is larger than allowed.
        TooLarge = "too_large",
        /// There is no memory for the item.
        NoMemory = "no_memory",
    }
}

names! {
    /// The command that deleted an item.
    DeleteCommand {
        /// delete.
        Delete = "delete",
        /// md.
        Meta = "md",
    }
}

names! {
    /// How a client is connected.
    Transport {
        /// A unix socket.
        Local = "local",
        /// TCP.
        Tcp = "tcp",
    }
}

names! {
    /// Why a connection was closed.
    CloseReason {
        /// The connection failed, or the client violated the protocol.
        Error = "error",
        /// The client asked for it, or closed its side.
        Normal = "normal",
        /// The client sent nothing for the time that is allowed.
        IdleTimeout = "idle_timeout",
        /// All clients held too many replies that they had not read, and this one had read nothing
        /// for the longest time.
        Unread = "unread_replies",
        /// The server stops.
        Shutdown = "shutdown",
    }
}

impl From<StoreOutcome> for StoreStatus {
    fn from(outcome: StoreOutcome) -> Self {
        match outcome {
            StoreOutcome::Stored => StoreStatus::Stored,
            StoreOutcome::NotStored => StoreStatus::NotStored,
            StoreOutcome::Exists => StoreStatus::Exists,
            StoreOutcome::NotFound => StoreStatus::NotFound,
        }
    }
}

/// The kinds by number, in a record.
const FETCHED: u64 = 0;
const STORED: u64 = 1;
const DELETED: u64 = 2;
const EVICTED: u64 = 3;
const CONNECTED: u64 = 4;
const CLOSED: u64 = 5;

/// The maximum length of an encoded event, in words: the longest key and four words.
pub(super) const RECORD_MAX: usize = 4 + KEY_MAX.div_ceil(8);
/// The maximum length of a key. Longer ones are cut.
const KEY_MAX: usize = 250;
/// No time to live, in a record.
const NEVER: u64 = u32::MAX as u64;

impl Event<'_> {
    /// Writes the event to the front of `words` and returns the number of words.
    pub(super) fn encode(&self, words: &mut [u64; RECORD_MAX]) -> usize {
        // The number of the kind and three small values; one value of 32 bits.
        let (small, large) = match self.kind {
            Kind::Fetched { found } => ([FETCHED, u64::from(found), 0, 0], 0),
            Kind::Stored { command, status, ttl } => {
                ([STORED, command as u64, status as u64, 0], u64::from(ttl))
            }
            Kind::Deleted { command } => ([DELETED, command as u64, 0, 0], 0),
            Kind::Evicted { fetched, ttl, idle } => {
                let ttl = ttl.map_or(NEVER, u64::from);
                ([EVICTED, u64::from(fetched), 0, 0], ttl << 32 | u64::from(idle))
            }
            Kind::Connected { transport, port } => {
                ([CONNECTED, transport as u64, 0, 0], u64::from(port))
            }
            Kind::Closed { transport, port, reason } => {
                ([CLOSED, transport as u64, reason as u64, 0], u64::from(port))
            }
        };
        let key = &self.key[..self.key.len().min(KEY_MAX)];
        let small = small.iter().fold(0, |word, small| word << 8 | small);
        words[0] = small << 32 | key.len() as u64;
        words[1] = self.time;
        words[2] = u64::from(self.connection) << 32 | u64::from(self.size);
        words[3] = large;
        let pieces = key.chunks(8);
        let len = 4 + pieces.len();
        for (word, piece) in words[4..].iter_mut().zip(pieces) {
            let mut bytes = [0; 8];
            bytes[..piece.len()].copy_from_slice(piece);
            *word = u64::from_le_bytes(bytes);
        }
        len
    }

    /// Reads an event that [`encode`](Event::encode) wrote. `key` receives the key. Returns `None`
    /// if it is none.
    pub(super) fn decode<'k>(words: &[u64], key: &'k mut Vec<u8>) -> Option<Event<'k>> {
        let &[first, time, third, large, ref pieces @ ..] = words else { return None };
        key.clear();
        key.extend(pieces.iter().flat_map(|word| word.to_le_bytes()));
        key.truncate((first & 0xff) as usize);
        let small = |at: u32| first >> (56 - 8 * at) & 0xff;
        let port = large as u16;
        let kind = match small(0) {
            FETCHED => Kind::Fetched { found: small(1) != 0 },
            STORED => Kind::Stored {
                command: StoreCommand::from_number(small(1))?,
                status: StoreStatus::from_number(small(2))?,
                ttl: large as u32,
            },
            DELETED => Kind::Deleted { command: DeleteCommand::from_number(small(1))? },
            EVICTED => Kind::Evicted {
                fetched: small(1) != 0,
                ttl: Some(large >> 32).filter(|&ttl| ttl != NEVER).map(|ttl| ttl as u32),
                idle: large as u32,
            },
            CONNECTED => Kind::Connected { transport: Transport::from_number(small(1))?, port },
            CLOSED => Kind::Closed {
                transport: Transport::from_number(small(1))?,
                port,
                reason: CloseReason::from_number(small(2))?,
            },
            _ => return None,
        };
        Some(Event { time, connection: (third >> 32) as u32, key, size: third as u32, kind })
    }

    /// Returns the stream that the event belongs to.
    pub(super) fn stream(&self) -> Streams {
        match self.kind {
            Kind::Fetched { .. } => Streams::FETCHERS,
            Kind::Stored { .. } => Streams::MUTATIONS,
            Kind::Deleted { .. } => Streams::DELETIONS,
            Kind::Evicted { .. } => Streams::EVICTIONS,
            Kind::Connected { .. } | Kind::Closed { .. } => Streams::CONNEVENTS,
        }
    }

    /// Appends the line of the event with the number `gid`.
    pub(super) fn format(&self, gid: u64, line: &mut Vec<u8>) {
        let (seconds, micros) = (self.time / 1_000_000, self.time % 1_000_000);
        write(line, format_args!("ts={seconds}.{micros:06} gid={gid} type="));
        let Event { connection, size, .. } = *self;
        let class = |present: bool| match present {
            // The flags of the item are not known; they count only if they are not 0.
            true => class_of(item_bytes(self.key.len(), size as usize, 0)),
            false => 0,
        };
        match self.kind {
            Kind::Fetched { found } => {
                self.name_and_key("item_get", line);
                let (status, class) = (if found { "found" } else { "not_found" }, class(found));
                let numbers = format_args!("clsid={class} cfd={connection} size={size}\n");
                write(line, format_args!(" status={status} {numbers}"));
            }
            Kind::Stored { command, status, ttl } => {
                self.name_and_key("item_store", line);
                let (command, status) = (command.word(), status.word());
                let class = class(true);
                let numbers = format_args!("clsid={class} cfd={connection} size={size}\n");
                write(line, format_args!(" status={status} cmd={command} ttl={ttl} {numbers}"));
            }
            Kind::Deleted { command } => {
                self.name_and_key("deleted", line);
                let (command, class) = (command.word(), class(true));
                write(line, format_args!(" cmd={command} clsid={class} size={size}\n"));
            }
            Kind::Evicted { fetched, ttl, idle } => {
                self.name_and_key("eviction", line);
                let (fetched, class) = (if fetched { "yes" } else { "no" }, class(true));
                let ttl = ttl.map_or(-1, i64::from);
                let numbers = format_args!("ttl={ttl} la={idle} clsid={class} size={size}\n");
                write(line, format_args!(" fetch={fetched} {numbers}"));
            }
            Kind::Connected { transport, port } => {
                self.address("conn_new", port, transport, line);
                write(line, format_args!(" cfd={connection}\n"));
            }
            Kind::Closed { transport, port, reason } => {
                self.address("conn_close", port, transport, line);
                write(line, format_args!(" reason={} cfd={connection}\n", reason.word()));
            }
        }
    }

    fn name_and_key(&self, name: &str, line: &mut Vec<u8>) {
        write(line, format_args!("{name} key="));
        encode_uri(self.key, line);
    }

    fn address(&self, name: &str, port: u16, transport: Transport, line: &mut Vec<u8>) {
        write(line, format_args!("{name} rip="));
        line.extend_from_slice(self.key);
        write(line, format_args!(" rport={port} transport={}", transport.word()));
    }
}

fn write(line: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    line.write_fmt(text).expect("writing to a vector cannot fail");
}

/// Appends `bytes` with everything but letters, digits and `-._~` as `%` and two hexadecimal
/// digits.
pub(crate) fn encode_uri(bytes: &[u8], out: &mut Vec<u8>) {
    const DIGITS: &[u8; 16] = b"0123456789ABCDEF";
    for &byte in bytes {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            out.push(byte);
        } else {
            let [high, low] = [byte >> 4, byte & 15].map(|digit| DIGITS[usize::from(digit)]);
            out.extend_from_slice(&[b'%', high, low]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(key: &[u8], kind: Kind) -> String {
        let event = Event { time: 5_000_042, connection: 9, key, size: 4, kind };
        let mut words = [0; RECORD_MAX];
        let len = event.encode(&mut words);
        let mut key = Vec::new();
        assert_eq!(Event::decode(&words[..len], &mut key), Some(event));
        let mut line = Vec::new();
        event.format(3, &mut line);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn each_kind_has_the_line_of_memcached() {
        let found = Kind::Fetched { found: true };
        let (command, status) = (StoreCommand::Cas, StoreStatus::Exists);
        let (transport, port) = (Transport::Tcp, 1234);
        let kinds = [
            found,
            Kind::Fetched { found: false },
            Kind::Stored { command, status, ttl: 60 },
            Kind::Deleted { command: DeleteCommand::Delete },
            Kind::Evicted { fetched: true, ttl: None, idle: 7 },
            Kind::Evicted { fetched: false, ttl: Some(8), idle: 0 },
            Kind::Connected { transport, port },
            Kind::Closed { transport, port, reason: CloseReason::Normal },
        ];
        let lines = kinds.map(|kind| line(b"foo", kind));
        let start = "ts=5.000042 gid=3 type=";
        let expected = [
            "item_get key=foo status=found clsid=1 cfd=9 size=4",
            "item_get key=foo status=not_found clsid=0 cfd=9 size=4",
            "item_store key=foo status=exists cmd=cas ttl=60 clsid=1 cfd=9 size=4",
            "deleted key=foo cmd=delete clsid=1 size=4",
            "eviction key=foo fetch=yes ttl=-1 la=7 clsid=1 size=4",
            "eviction key=foo fetch=no ttl=8 la=0 clsid=1 size=4",
            "conn_new rip=foo rport=1234 transport=tcp cfd=9",
            "conn_close rip=foo rport=1234 transport=tcp reason=normal cfd=9",
        ];
        assert_eq!(lines, expected.map(|line| format!("{start}{line}\n")));
    }

    #[test]
    fn keys_of_any_bytes_and_length() {
        let found = Kind::Fetched { found: true };
        assert!(line(b"n,foo \n\xff%", found).contains(" key=n%2Cfoo%20%0A%FF%25 status"));
        assert!(line(&[b'#'; 250], found).contains(&format!(" key={} ", "%23".repeat(250))));
        assert!(line(b"", found).contains(" key= "));
    }

    #[test]
    fn words_that_are_no_event_are_refused() {
        let mut key = Vec::new();
        let bad_kind = 99 << 56;
        let bad_status = STORED << 56 | 99 << 40;
        for first in [bad_kind, bad_status] {
            assert_eq!(Event::decode(&[first, 0, 0, 0], &mut key), None);
        }
        assert_eq!(Event::decode(&[0; 3], &mut key), None);
        // A key that is shorter than announced.
        assert!(Event::decode(&[0xff, 0, 0, 0, 0], &mut key).is_some());
    }
}

//! The grammar of request lines.

use memchr::memchr;

use crate::cache::Side;
use crate::number::{parse_i64, parse_u32, parse_u64};
use crate::protocol::KEY_MAX;
use crate::watch::{StoreCommand, Streams};

/// A parsed request line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    /// get, gets, gat or gats. The keys are the words from byte `keys_at` of the line on. There is
    /// at least one, and none is too long.
    Lookup {
        exptime: Option<i64>,
        with_cas: bool,
        keys_at: usize,
    },
    /// A storage command. Its data block follows the line.
    Store(Store<'a>),
    Delete {
        key: &'a [u8],
        noreply: bool,
    },
    Arithmetic {
        key: &'a [u8],
        delta: u64,
        up: bool,
        noreply: bool,
    },
    Touch {
        key: &'a [u8],
        exptime: i64,
        noreply: bool,
    },
    FlushAll {
        delay: i64,
        noreply: bool,
    },
    Version,
    Verbosity {
        noreply: bool,
    },
    Stats(Stats),
    Watch(Streams),
    Quit,
    /// The first line of an HTTP request.
    Http,
}

/// The line of a storage command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Store<'a> {
    pub(super) verb: Verb,
    pub(super) key: &'a [u8],
    pub(super) flags: u32,
    pub(super) exptime: i64,
    /// Length of the value, bytes. The data block is two bytes longer.
    pub(super) len: usize,
    pub(super) noreply: bool,
}

/// The name of a storage command, with the CAS id of `cas`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Set,
    Add,
    Replace,
    Cas(u64),
    Concat(Side),
}

impl Verb {
    /// Returns the name in log streams.
    pub(super) fn command(self) -> StoreCommand {
        match self {
            Verb::Set => StoreCommand::Set,
            Verb::Add => StoreCommand::Add,
            Verb::Replace => StoreCommand::Replace,
            Verb::Cas(_) => StoreCommand::Cas,
            Verb::Concat(Side::Append) => StoreCommand::Append,
            Verb::Concat(Side::Prepend) => StoreCommand::Prepend,
        }
    }
}

/// The statistics that a `stats` command asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stats {
    General,
    Settings,
    Reset,
    Sizes,
    /// A table that is always empty in this server.
    Empty,
    Connections,
    Latency,
    HotKeys,
    Detail(Detail),
}

/// What `stats detail` does with the counters by prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Detail {
    On,
    Off,
    Dump,
}

/// A request that is malformed or not supported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rejected {
    /// The reply, including its line end.
    pub(super) reply: &'static [u8],
    pub(super) noreply: bool,
    pub(super) after: AfterReject,
}

/// How the session continues after it rejected a request.
///
/// The data block of a rejected command must never be read as commands: it contains what a user of
/// the client wrote, and a `flush_all` in it would be executed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterReject {
    /// The next line is a command, because the rejected one has no data block.
    NextLine,
    /// A data block of this number of bytes follows the line. It is read and dropped.
    Skip(usize),
    /// A data block of unknown length follows the line, so the connection has to be closed.
    Close,
}

type Parsed<'a> = Result<Request<'a>, Rejected>;

const ERROR: &[u8] = b"ERROR\r\n";
const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const BAD_DELETE: &[u8] =
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
const BAD_DETAIL: &[u8] = b"CLIENT_ERROR usage: stats detail on|off|dump\r\n";
const NO_SHUTDOWN: &[u8] = b"ERROR: shutdown not enabled\r\n";

/// The maximum length of a value that a line can announce, in bytes. Lengths are signed 32-bit
/// numbers and include the line end.
const LEN_MAX: u64 = i32::MAX as u64 - 2;

/// Parses a line, given without its line end.
///
/// Words beyond those that a command takes are ignored, with two exceptions: a last word `noreply`
/// has its meaning, and delete and the storage commands accept no other words.
pub(super) fn parse(line: &[u8]) -> Parsed<'_> {
    let mut words = Words::new(line);
    match words.next().ok_or(ERROR)? {
        b"get" => lookup(words, false, false),
        b"gets" => lookup(words, false, true),
        b"gat" => lookup(words, true, false),
        b"gats" => lookup(words, true, true),
        b"set" => store(words, Some(Verb::Set)),
        b"add" => store(words, Some(Verb::Add)),
        b"replace" => store(words, Some(Verb::Replace)),
        b"append" => store(words, Some(Verb::Concat(Side::Append))),
        b"prepend" => store(words, Some(Verb::Concat(Side::Prepend))),
        b"cas" => store(words, None),
        b"ms" => meta_set(words),
        b"delete" => delete(words),
        b"incr" => arithmetic(words, true),
        b"decr" => arithmetic(words, false),
        b"touch" => touch(words),
        b"flush_all" => flush_all(words),
        b"version" => Ok(Request::Version),
        b"verbosity" => verbosity(words),
        b"stats" => stats(words),
        b"watch" => Ok(Request::Watch(Streams::parse(words).ok_or(ERROR)?)),
        b"quit" => Ok(Request::Quit),
        b"shutdown" => Err(NO_SHUTDOWN.into()),
        _ if words.last().is_some_and(|word| word.starts_with(b"HTTP/")) => Ok(Request::Http),
        _ => Err(ERROR.into()),
    }
}

/// Returns `true` if a line that begins with these bytes is a list of keys, which may be longer
/// than other lines.
pub(super) fn lists_keys(line: &[u8]) -> bool {
    const SPACES_MAX: usize = 100;
    let spaces = line.iter().take(SPACES_MAX + 1).take_while(|&&byte| byte == b' ').count();
    let commands: [&[u8]; 4] = [b"get ", b"gets ", b"gat ", b"gats "];
    spaces <= SPACES_MAX && commands.iter().any(|command| line[spaces..].starts_with(command))
}

fn rejected(reply: &'static [u8], noreply: bool) -> Rejected {
    Rejected { reply, noreply, after: AfterReject::NextLine }
}

impl From<&'static [u8]> for Rejected {
    /// Rejects a line that has too few words to end with `noreply`.
    fn from(reply: &'static [u8]) -> Self {
        rejected(reply, false)
    }
}

/// Parses the next word as a key.
fn key<'a>(words: &mut Words<'a>) -> Result<&'a [u8], Rejected> {
    let key = words.next().ok_or(BAD_FORMAT)?;
    if key.len() > KEY_MAX {
        return Err(rejected(BAD_FORMAT, words.ends_with_noreply()));
    }
    Ok(key)
}

fn lookup(mut words: Words<'_>, touching: bool, with_cas: bool) -> Parsed<'_> {
    let mut exptime = None;
    if touching {
        let word = words.next().ok_or(BAD_FORMAT)?;
        exptime = Some(parse_i64(word).ok_or(BAD_EXPTIME)?);
    }
    if words.is_done() {
        return Err(BAD_FORMAT.into());
    }
    let keys_at = words.at;
    // Every key is checked before the first is looked up, so that the reply to a bad one is only
    // the error. A list that is no longer than the longest key needs no check.
    if words.left() > KEY_MAX && words.any(|key| key.len() > KEY_MAX) {
        return Err(BAD_FORMAT.into());
    }
    Ok(Request::Lookup { exptime, with_cas, keys_at })
}

/// Parses the length of a value and returns the length of its data block: the value and a line end.
fn block(word: &[u8]) -> Option<usize> {
    parse_u64(word).filter(|&len| len <= LEN_MAX).map(|len| len as usize + 2)
}

/// Parses a storage command. `verb` is `None` for cas, whose CAS id is the fifth word.
fn store(mut words: Words<'_>, verb: Option<Verb>) -> Parsed<'_> {
    let [key, flags, exptime, len] = std::array::from_fn(|_| words.next());
    let id = if verb.is_none() { words.next() } else { None };
    let tail = words.next();
    let noreply = tail == Some(b"noreply");
    let complete =
        (verb.is_some() || id.is_some()) && (tail.is_none() || noreply && words.is_done());
    // With a missing or an extra word (for example, a space in the key) it is unknown which word is
    // the length, even if one is a number. The reply is sent even with `noreply`, because it says
    // why the connection is closed.
    let (Some(key), Some(flags), Some(exptime), Some(block), true) =
        (key, flags, exptime, len.and_then(block), complete)
    else {
        return Err(Rejected { reply: BAD_FORMAT, noreply: false, after: AfterReject::Close });
    };
    let verb = verb.or_else(|| id.and_then(parse_u64).map(Verb::Cas));
    match (verb, parse_u32(flags), parse_i64(exptime)) {
        (Some(verb), Some(flags), Some(exptime)) if key.len() <= KEY_MAX => {
            Ok(Request::Store(Store { verb, key, flags, exptime, len: block - 2, noreply }))
        }
        _ => Err(Rejected { reply: BAD_FORMAT, noreply, after: AfterReject::Skip(block) }),
    }
}

/// Rejects ms, the storage command of the meta protocol, which this server does not support. It has
/// a data block too.
fn meta_set(mut words: Words<'_>) -> Parsed<'_> {
    let after = words.nth(1).and_then(block).map_or(AfterReject::Close, AfterReject::Skip);
    Err(Rejected { reply: ERROR, noreply: false, after })
}

fn delete(mut words: Words<'_>) -> Parsed<'_> {
    let key = key(&mut words)?;
    let noreply = words.ends_with_noreply();
    // Old versions of the protocol had a time here, of which memcached still accepts 0 ("now"). To
    // delete now what the client wants to be deleted later would be wrong.
    let unexpected = words.find(|&word| word != b"0" && word != b"noreply");
    match unexpected {
        None => Ok(Request::Delete { key, noreply }),
        Some(_) => Err(rejected(BAD_DELETE, noreply)),
    }
}

fn arithmetic(mut words: Words<'_>, up: bool) -> Parsed<'_> {
    let key = key(&mut words)?;
    let delta = words.next().ok_or(BAD_FORMAT)?;
    let noreply = words.ends_with_noreply();
    let delta = parse_u64(delta).ok_or(rejected(BAD_DELTA, noreply))?;
    Ok(Request::Arithmetic { key, delta, up, noreply })
}

fn touch(mut words: Words<'_>) -> Parsed<'_> {
    let key = key(&mut words)?;
    let exptime = words.next().ok_or(BAD_FORMAT)?;
    let noreply = words.ends_with_noreply();
    let exptime = parse_i64(exptime).ok_or(rejected(BAD_EXPTIME, noreply))?;
    Ok(Request::Touch { key, exptime, noreply })
}

fn flush_all(mut words: Words<'_>) -> Parsed<'_> {
    let noreply = words.ends_with_noreply();
    let delay = match words.next() {
        None | Some(b"noreply") => 0,
        Some(delay) => parse_i64(delay).ok_or(rejected(BAD_EXPTIME, noreply))?,
    };
    Ok(Request::FlushAll { delay, noreply })
}

fn verbosity(mut words: Words<'_>) -> Parsed<'_> {
    let noreply = words.ends_with_noreply();
    let level = words.next().ok_or(BAD_FORMAT)?;
    parse_u32(level).ok_or(rejected(BAD_FORMAT, noreply))?;
    Ok(Request::Verbosity { noreply })
}

fn stats(mut words: Words<'_>) -> Parsed<'_> {
    let which = match words.next() {
        None => Stats::General,
        Some(b"settings") => Stats::Settings,
        Some(b"reset") => Stats::Reset,
        Some(b"sizes") => Stats::Sizes,
        Some(b"items" | b"slabs") => Stats::Empty,
        Some(b"conns") => Stats::Connections,
        Some(b"latency") => Stats::Latency,
        Some(b"hotkeys") => Stats::HotKeys,
        Some(b"detail") => Stats::Detail(detail(words)?),
        Some(_) => return Err(ERROR.into()),
    };
    Ok(Request::Stats(which))
}

fn detail(mut words: Words<'_>) -> Result<Detail, Rejected> {
    match words.next() {
        Some(b"on") => Ok(Detail::On),
        Some(b"off") => Ok(Detail::Off),
        Some(b"dump") => Ok(Detail::Dump),
        _ => Err(BAD_DETAIL.into()),
    }
}

/// An iterator over the words of a line, which are separated by spaces.
#[derive(Clone)]
pub(super) struct Words<'a> {
    line: &'a [u8],
    /// The position from which the next word is searched.
    pub(super) at: usize,
}

impl<'a> Words<'a> {
    pub(super) fn new(line: &'a [u8]) -> Self {
        Words { line, at: 0 }
    }

    /// Skips spaces. Returns `true` if no word follows them.
    pub(super) fn is_done(&mut self) -> bool {
        while self.line.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
        self.left() == 0
    }

    /// Returns the number of bytes from the current position to the end of the line.
    fn left(&self) -> usize {
        self.line.len() - self.at
    }

    /// Returns `true` if the last of the remaining words is `noreply`.
    fn ends_with_noreply(&self) -> bool {
        self.left() > 0 && self.clone().last() == Some(b"noreply")
    }
}

impl<'a> Iterator for Words<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        if self.is_done() {
            return None;
        }
        let rest = &self.line[self.at..];
        let word = &rest[..memchr(b' ', rest).unwrap_or(rest.len())];
        self.at += word.len();
        Some(word)
    }
}

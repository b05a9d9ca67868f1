//! The grammar: from one line to what it asks.

use memchr::memchr;

use crate::cache::Side;
use crate::number::{parse_i64, parse_u32, parse_u64};
use crate::protocol::KEY_MAX;

/// What a line asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request<'a> {
    /// get, gets, gat or gats; the keys are the words from byte `keys_at` of the line: at least one, none
    /// too long.
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

/// Which storage command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verb {
    Set,
    Add,
    Replace,
    Cas(u64),
    Concat(Side),
}

/// Which statistics.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stats {
    General,
    Settings,
    Reset,
    Sizes,
    /// A table that is always empty here.
    Empty,
}

/// A request that cannot be done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    /// The reply, with its line end.
    pub(super) reply: &'static [u8],
    pub(super) noreply: bool,
    pub(super) then: Then,
}

/// How the conversation goes on after a refusal.
///
/// The data block of a refused command must never be read as commands: it holds what some user of
/// the client wrote, and `flush_all` there would be obeyed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// The next line is a command: this one has no data block.
    NextLine,
    /// A data block of this many bytes follows the line, and means nothing.
    Swallow(usize),
    /// A data block follows the line, and nobody knows how long it is: the connection has to be
    /// closed.
    Close,
}

type Parsed<'a> = Result<Request<'a>, Refused>;

const ERROR: &[u8] = b"ERROR\r\n";
const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";
const BAD_DELETE: &[u8] =
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
const NO_SHUTDOWN: &[u8] = b"ERROR: shutdown not enabled\r\n";

/// Longest value that a line can announce, bytes: lengths are signed 32-bit and count the line end.
const LEN_MAX: u64 = i32::MAX as u64 - 2;

/// Reads a line, given without its end. Words beyond those that a command takes mean nothing, except that a
/// last one `noreply` is obeyed, and that delete and the storage commands take no others.
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
        b"quit" => Ok(Request::Quit),
        b"shutdown" => Err(NO_SHUTDOWN.into()),
        _ if words.last().is_some_and(|word| word.starts_with(b"HTTP/")) => Ok(Request::Http),
        _ => Err(ERROR.into()),
    }
}

/// Whether a line that begins so may be longer than others: it lists keys.
pub(super) fn lists_keys(line: &[u8]) -> bool {
    const SPACES_MAX: usize = 100;
    let spaces = line.iter().take(SPACES_MAX + 1).take_while(|&&byte| byte == b' ').count();
    let commands: [&[u8]; 4] = [b"get ", b"gets ", b"gat ", b"gats "];
    spaces <= SPACES_MAX && commands.iter().any(|command| line[spaces..].starts_with(command))
}

fn refusal(reply: &'static [u8], noreply: bool) -> Refused {
    Refused { reply, noreply, then: Then::NextLine }
}

impl From<&'static [u8]> for Refused {
    /// A refusal of a line so malformed that it cannot say `noreply`.
    fn from(reply: &'static [u8]) -> Self {
        refusal(reply, false)
    }
}

/// The next word, as a key.
fn key<'a>(words: &mut Words<'a>) -> Result<&'a [u8], Refused> {
    let key = words.next().ok_or(BAD_FORMAT)?;
    if key.len() > KEY_MAX {
        return Err(refusal(BAD_FORMAT, words.says_noreply()));
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
    // Every key is checked before the first is looked up, so that a bad one gets a clean refusal. In a list
    // shorter than the longest key, all are fine.
    if words.left() > KEY_MAX && words.any(|key| key.len() > KEY_MAX) {
        return Err(BAD_FORMAT.into());
    }
    Ok(Request::Lookup { exptime, with_cas, keys_at })
}

/// The data block of a value whose length `word` spells, bytes: the value and its line end.
fn block(word: &[u8]) -> Option<usize> {
    parse_u64(word).filter(|&len| len <= LEN_MAX).map(|len| len as usize + 2)
}

/// set and its kin. Without a verb it is cas, whose verb needs a fifth word.
fn store(mut words: Words<'_>, verb: Option<Verb>) -> Parsed<'_> {
    let [key, flags, exptime, len] = std::array::from_fn(|_| words.next());
    let id = if verb.is_none() { words.next() } else { None };
    let tail = words.next();
    let noreply = tail == Some(b"noreply");
    let whole = (verb.is_some() || id.is_some()) && (tail.is_none() || noreply && words.is_done());
    // With a word too few or too many (a key with a space in it) no word is known to be the length,
    // whatever number it spells. The refusal is sent whatever was asked, since it tells why the
    // connection closes.
    let (Some(key), Some(flags), Some(exptime), Some(block), true) =
        (key, flags, exptime, len.and_then(block), whole)
    else {
        return Err(Refused { reply: BAD_FORMAT, noreply: false, then: Then::Close });
    };
    let verb = verb.or_else(|| id.and_then(parse_u64).map(Verb::Cas));
    match (verb, parse_u32(flags), parse_i64(exptime)) {
        (Some(verb), Some(flags), Some(exptime)) if key.len() <= KEY_MAX => {
            Ok(Request::Store(Store { verb, key, flags, exptime, len: block - 2, noreply }))
        }
        _ => Err(Refused { reply: BAD_FORMAT, noreply, then: Then::Swallow(block) }),
    }
}

/// ms, the storage command of the meta protocol, which this server does not speak. It has a data
/// block too.
fn meta_set(mut words: Words<'_>) -> Parsed<'_> {
    let then = words.nth(1).and_then(block).map_or(Then::Close, Then::Swallow);
    Err(Refused { reply: ERROR, noreply: false, then })
}

fn delete(mut words: Words<'_>) -> Parsed<'_> {
    let key = key(&mut words)?;
    let noreply = words.says_noreply();
    // Once there was a time here, of which only 0 ("now") is still understood. Deleting at once what was to
    // be deleted later would be wrong.
    let more = words.find(|&word| word != b"0" && word != b"noreply");
    match more {
        None => Ok(Request::Delete { key, noreply }),
        Some(_) => Err(refusal(BAD_DELETE, noreply)),
    }
}

fn arithmetic(mut words: Words<'_>, up: bool) -> Parsed<'_> {
    let key = key(&mut words)?;
    let delta = words.next().ok_or(BAD_FORMAT)?;
    let noreply = words.says_noreply();
    let delta = parse_u64(delta).ok_or(refusal(BAD_DELTA, noreply))?;
    Ok(Request::Arithmetic { key, delta, up, noreply })
}

fn touch(mut words: Words<'_>) -> Parsed<'_> {
    let key = key(&mut words)?;
    let exptime = words.next().ok_or(BAD_FORMAT)?;
    let noreply = words.says_noreply();
    let exptime = parse_i64(exptime).ok_or(refusal(BAD_EXPTIME, noreply))?;
    Ok(Request::Touch { key, exptime, noreply })
}

fn flush_all(mut words: Words<'_>) -> Parsed<'_> {
    let noreply = words.says_noreply();
    let delay = match words.next() {
        None | Some(b"noreply") => 0,
        Some(delay) => parse_i64(delay).ok_or(refusal(BAD_EXPTIME, noreply))?,
    };
    Ok(Request::FlushAll { delay, noreply })
}

fn verbosity(mut words: Words<'_>) -> Parsed<'_> {
    let noreply = words.says_noreply();
    let level = words.next().ok_or(BAD_FORMAT)?;
    parse_u32(level).ok_or(refusal(BAD_FORMAT, noreply))?;
    Ok(Request::Verbosity { noreply })
}

fn stats(mut words: Words<'_>) -> Parsed<'_> {
    let which = match words.next() {
        None => Stats::General,
        Some(b"settings") => Stats::Settings,
        Some(b"reset") => Stats::Reset,
        Some(b"sizes") => Stats::Sizes,
        Some(b"items" | b"slabs" | b"conns") => Stats::Empty,
        Some(_) => return Err(ERROR.into()),
    };
    Ok(Request::Stats(which))
}

/// The words of a line, which are what lies between spaces.
#[derive(Clone)]
pub(super) struct Words<'a> {
    line: &'a [u8],
    /// Where the next word is looked for.
    pub(super) at: usize,
}

impl<'a> Words<'a> {
    pub(super) fn new(line: &'a [u8]) -> Self {
        Words { line, at: 0 }
    }

    /// Whether no word is left. Skips the spaces on the way.
    pub(super) fn is_done(&mut self) -> bool {
        while self.line.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
        self.left() == 0
    }

    /// Bytes from where the next word is looked for to the end of the line.
    fn left(&self) -> usize {
        self.line.len() - self.at
    }

    /// Whether the last of the words that are left is `noreply`.
    fn says_noreply(&self) -> bool {
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

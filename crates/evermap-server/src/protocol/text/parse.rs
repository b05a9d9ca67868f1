//! The grammar of request lines.

use crate::cache::Side;
use crate::number::{parse_i64, parse_u32, parse_u64};
use crate::protocol::line::{AfterReject, BAD_FORMAT, ERROR, Rejected, Words, block, rejected};
use crate::protocol::meta;
use crate::protocol::ops::Verb;
use crate::protocol::text::dump::CLASSES_MAX;
use crate::protocol::text::request::{Detail, Request, Stats, Storage, Store};
use crate::protocol::text::tuning;
use crate::watch::Streams;

type Parsed<'a> = Result<Request<'a>, Rejected>;

const BAD_DELETE: &[u8] =
    b"CLIENT_ERROR bad command line format.  Usage: delete <key> [noreply]\r\n";
const BAD_STATS: &[u8] = b"CLIENT_ERROR bad command line\r\n";
const BAD_EXPTIME: &[u8] = b"CLIENT_ERROR invalid exptime argument\r\n";
const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta argument\r\n";
const BAD_DETAIL: &[u8] = b"CLIENT_ERROR usage: stats detail on|off|dump\r\n";
const BAD_SHUTDOWN: &[u8] = b"CLIENT_ERROR invalid shutdown mode\r\n";
const BAD_CLASS: &[u8] = b"CLIENT_ERROR Illegal slab id\r\n";
const SMALL_LIMIT: &[u8] = b"MEMLIMIT_TOO_SMALL cannot set maxbytes to less than 8m\r\n";
const LARGE_LIMIT: &[u8] = b"MEMLIMIT_ADJUST_FAILED input value is megabytes not bytes\r\n";

/// Parses a line, given without its line end. Keys have at most `key_size_max` bytes.
///
/// Words beyond those that a command takes are ignored, with two exceptions: a last word `noreply`
/// has its meaning, and delete and the storage commands accept no other words.
pub(super) fn parse(line: &[u8], key_size_max: usize) -> Parsed<'_> {
    // No command is that short.
    const SHORTEST: usize = 2;
    if line.len() < SHORTEST {
        return Err(BAD_FORMAT.into());
    }
    let mut words = Words::with_keys(line, key_size_max);
    match words.next().ok_or(ERROR)? {
        b"get" => lookup(words, false, false),
        b"gets" => lookup(words, false, true),
        b"gat" => lookup(words, true, false),
        b"gats" => lookup(words, true, true),
        b"set" => store(words, Verb::Set, false),
        b"add" => store(words, Verb::Add, false),
        b"replace" => store(words, Verb::Replace, false),
        b"append" => store(words, Verb::Concat(Side::Append), false),
        b"prepend" => store(words, Verb::Concat(Side::Prepend), false),
        b"cas" => store(words, Verb::Set, true),
        b"mg" => meta::Command::get(words).map(Request::Meta),
        b"ms" => meta::Set::parse(words).map(|set| Request::Store(Storage::Meta(set))),
        b"md" => meta::Command::delete(words).map(Request::Meta),
        b"ma" => meta::Command::arithmetic(words).map(Request::Meta),
        b"mn" => Ok(Request::Meta(meta::Command::Noop)),
        b"me" => meta::Command::debug(words).map(Request::Meta),
        b"delete" => delete(words),
        b"incr" => arithmetic(words, true),
        b"decr" => arithmetic(words, false),
        b"touch" => touch(words),
        b"flush_all" => flush_all(words),
        b"flush_namespace" => flush_namespace(words),
        b"version" => Ok(Request::Version),
        b"verbosity" => verbosity(words),
        b"stats" => stats(words),
        b"watch" => Ok(Request::Watch(Streams::parse(words).ok_or(ERROR)?)),
        b"quit" => Ok(Request::Quit),
        b"shutdown" => shutdown(words),
        b"cache_memlimit" => memory_limit(words),
        b"refresh_certs" => Ok(Request::RefreshCerts),
        b"slabs" => tuning::slabs(words),
        b"lru" => tuning::lru(words),
        b"lru_crawler" => tuning::lru_crawler(words),
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

/// Parses the next word as a key.
fn key<'a>(words: &mut Words<'a>) -> Result<&'a [u8], Rejected> {
    let key = words.next().ok_or(BAD_FORMAT)?;
    if !words.allow_key(key) {
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
    // the error.
    if !words.allow_all_as_keys() {
        return Err(BAD_FORMAT.into());
    }
    Ok(Request::Lookup { exptime, with_cas, keys_at })
}

/// Parses a storage command. The fifth word of one that `compares` is the CAS id.
fn store(mut words: Words<'_>, verb: Verb, compares: bool) -> Parsed<'_> {
    let [key, flags, exptime, len] = std::array::from_fn(|_| words.next());
    let id = if compares { words.next() } else { None };
    let tail = words.next();
    let noreply = tail == Some(b"noreply");
    let complete = compares == id.is_some() && (tail.is_none() || noreply && words.is_done());
    // With a missing or an extra word (for example, a space in the key) it is unknown which word is
    // the length, even if one is a number. The reply is sent even with `noreply`, because it says
    // why the connection is closed.
    let (Some(key), Some(flags), Some(exptime), Some(block), true) =
        (key, flags, exptime, len.and_then(block), complete)
    else {
        return Err(Rejected { reply: BAD_FORMAT, noreply: false, after: AfterReject::Close });
    };
    let compare = id.and_then(parse_u64);
    match (parse_u32(flags), parse_i64(exptime)) {
        (Some(flags), Some(exptime)) if words.allow_key(key) && compares == compare.is_some() => {
            let store = Store { verb, compare, key, flags, exptime, len: block - 2, noreply };
            Ok(Request::Store(Storage::Text(store)))
        }
        _ => Err(Rejected { reply: BAD_FORMAT, noreply, after: AfterReject::Skip(block) }),
    }
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
        None => 0,
        // Only at the end. A flush that was to come later must not come now.
        Some(b"noreply") if words.is_done() => 0,
        Some(delay) => parse_i64(delay).ok_or(rejected(BAD_EXPTIME, noreply))?,
    };
    Ok(Request::FlushAll { delay, noreply })
}

fn flush_namespace(mut words: Words<'_>) -> Parsed<'_> {
    let prefix = words.next().ok_or(BAD_FORMAT)?;
    match (words.next(), words.is_done()) {
        (None, _) => Ok(Request::FlushNamespace { prefix, noreply: false }),
        (Some(b"noreply"), true) => Ok(Request::FlushNamespace { prefix, noreply: true }),
        // Perhaps a space in the prefix: another namespace must not be flushed.
        _ => Err(BAD_FORMAT.into()),
    }
}

fn verbosity(mut words: Words<'_>) -> Parsed<'_> {
    let noreply = words.ends_with_noreply();
    let level = words.next().ok_or(BAD_FORMAT)?;
    let level = parse_u32(level).ok_or(rejected(BAD_FORMAT, noreply))?;
    Ok(Request::Verbosity { level, noreply })
}

fn shutdown(mut words: Words<'_>) -> Parsed<'_> {
    match words.next() {
        None => Ok(Request::Shutdown { graceful: false }),
        Some(b"graceful") => Ok(Request::Shutdown { graceful: true }),
        Some(_) => Err(BAD_SHUTDOWN.into()),
    }
}

fn memory_limit(mut words: Words<'_>) -> Parsed<'_> {
    const LEAST: u64 = 8;
    const MOST: u64 = 1_000_000_000;
    let noreply = words.ends_with_noreply();
    let megabytes = words.next().ok_or(ERROR)?;
    match parse_u64(megabytes) {
        None => Err(rejected(ERROR, noreply)),
        Some(..LEAST) => Err(rejected(SMALL_LIMIT, noreply)),
        Some(megabytes) if megabytes > MOST => Err(rejected(LARGE_LIMIT, noreply)),
        Some(megabytes) => Ok(Request::MemoryLimit { megabytes, noreply }),
    }
}

fn stats(mut words: Words<'_>) -> Parsed<'_> {
    let which = match words.next() {
        None => Stats::General,
        Some(b"settings") => Stats::Settings,
        Some(b"reset") => Stats::Reset,
        Some(b"sizes") => Stats::Sizes,
        Some(b"items") => Stats::Items,
        Some(b"slabs") => Stats::Slabs,
        Some(b"cost") => Stats::Cost,
        Some(b"namespaces") => Stats::Namespaces,
        Some(b"cachedump") => return keys_of_class(words),
        Some(b"conns") => Stats::Connections,
        Some(b"latency") => Stats::Latency,
        Some(b"hotkeys") => Stats::HotKeys,
        Some(b"extstore" | b"proxy") => Stats::Absent,
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

fn keys_of_class(mut words: Words<'_>) -> Parsed<'_> {
    let (class, limit) = (words.next().ok_or(BAD_STATS)?, words.next().ok_or(BAD_STATS)?);
    let class = parse_u32(class).ok_or(BAD_FORMAT)? as usize;
    let limit = parse_u64(limit).ok_or(BAD_FORMAT)?;
    match class {
        1..=CLASSES_MAX => Ok(Request::Stats(Stats::Keys { class, limit })),
        _ => Err(BAD_CLASS.into()),
    }
}

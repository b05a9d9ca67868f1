//! The grammar of the commands that tune memcached's memory management.
//!
//! This store has neither slabs nor a segmented queue, so there is nothing to tune. The commands
//! are accepted or rejected as memcached does, so that scripts that send them work. Only the lists
//! of items that lru_crawler prints are real.

use std::ops::RangeInclusive;

use crate::number::{parse_i64, parse_u32};
use crate::protocol::line::{BAD_FORMAT, ERROR, Rejected, Words};
use crate::protocol::text::dump::{CLASSES_MAX, Dump, Format};
use crate::protocol::text::request::Request;

type Parsed<'a> = Result<Request<'a>, Rejected>;

const OK: &[u8] = b"OK\r\n";
const BAD_CLASS: &[u8] = b"BADCLASS invalid class id\r\n";
const BAD_CLASSES: &[u8] = b"BADCLASS invalid src or dst class id\r\n";
const SAME_CLASS: &[u8] = b"SAME src and dst class are identical\r\n";
const NO_SPARE: &[u8] = b"NOSPARE source class has no spare pages\r\n";
const LONG_SLEEP: &[u8] = b"CLIENT_ERROR sleep must be one second or less\r\n";
const BAD_SHARES: &[u8] = b"ERROR hot and warm pcts must not exceed 80\r\n";
const BAD_AGES: &[u8] = b"ERROR hot/warm age factors must be greater than 0\r\n";

const CLASSES: RangeInclusive<usize> = 1..=CLASSES_MAX;

/// Parses the words after slabs.
pub(super) fn slabs(mut words: Words<'_>) -> Parsed<'_> {
    match words.next() {
        Some(b"reassign") => {
            let (Some(from), Some(to)) = (words.next(), words.next()) else {
                return Err(ERROR.into());
            };
            let number = |word: &[u8]| parse_i64(word).ok_or(BAD_FORMAT);
            let (from, to) = (number(from)?, number(to)?);
            let valid = |class: i64| usize::try_from(class).is_ok_and(|id| CLASSES.contains(&id));
            Ok(Request::Accepted(match from {
                _ if from == to => SAME_CLASS,
                // -1 stands for any class.
                _ if !valid(to) || from != -1 && !valid(from) => BAD_CLASSES,
                // No class has pages that it does not need.
                _ => NO_SPARE,
            }))
        }
        Some(b"automove") => match words.next().map(parse_u32) {
            None => Err(ERROR.into()),
            Some(Some(0..=2)) => Ok(Request::Accepted(OK)),
            Some(None) => Err(BAD_FORMAT.into()),
            Some(Some(_)) => Err(ERROR.into()),
        },
        _ => Err(ERROR.into()),
    }
}

/// Parses the words after lru.
pub(super) fn lru(mut words: Words<'_>) -> Parsed<'_> {
    match (words.next(), words.next()) {
        (Some(b"tune"), Some(hot)) => tune(hot, words),
        (Some(b"mode"), Some(b"flat" | b"segmented")) => Ok(Request::Accepted(OK)),
        (Some(b"temp_ttl"), Some(ttl)) => match parse_i64(ttl) {
            Some(_) => Ok(Request::Accepted(OK)),
            None => Err(ERROR.into()),
        },
        _ => Err(ERROR.into()),
    }
}

/// Parses the shares of the queues and the factors of their ages.
fn tune<'a>(hot: &'a [u8], mut words: Words<'a>) -> Parsed<'a> {
    const SHARES_MAX: u32 = 80;
    let factor = |word: &[u8]| std::str::from_utf8(word).ok()?.parse::<f64>().ok();
    let (Some(warm), Some(hot_age), Some(warm_age)) = (words.next(), words.next(), words.next())
    else {
        return Err(ERROR.into());
    };
    let parsed = (parse_u32(hot), parse_u32(warm), factor(hot_age), factor(warm_age));
    let (Some(hot), Some(warm), Some(hot_age), Some(warm_age)) = parsed else {
        return Err(BAD_FORMAT.into());
    };
    Ok(Request::Accepted(match hot.saturating_add(warm) {
        shares if shares > SHARES_MAX => BAD_SHARES,
        _ if hot_age <= 0.0 || warm_age <= 0.0 => BAD_AGES,
        _ => OK,
    }))
}

/// Parses the words after lru_crawler.
pub(super) fn lru_crawler(mut words: Words<'_>) -> Parsed<'_> {
    const SLEEP_MAX: u32 = 1_000_000;
    match (words.next(), words.next()) {
        // What has expired is always removed in the background.
        (Some(b"enable" | b"disable"), None) => Ok(Request::Accepted(OK)),
        (Some(b"crawl"), Some(word)) => {
            classes(word)?;
            Ok(Request::Accepted(OK))
        }
        (Some(b"tocrawl"), Some(items)) => {
            parse_u32(items).ok_or(BAD_FORMAT)?;
            Ok(Request::Accepted(OK))
        }
        (Some(b"sleep"), Some(microseconds)) => match parse_u32(microseconds) {
            None => Err(BAD_FORMAT.into()),
            Some(..=SLEEP_MAX) => Ok(Request::Accepted(OK)),
            Some(_) => Err(LONG_SLEEP.into()),
        },
        (Some(b"metadump"), Some(word)) => {
            Ok(Request::Dump(Dump::new(Format::Metadata, classes(word)?)))
        }
        (Some(b"mgdump"), Some(word)) => Ok(Request::Dump(Dump::new(Format::Get, classes(word)?))),
        _ => Err(ERROR.into()),
    }
}

/// Parses a list of size classes, separated by commas, as a set of bits. `all`, and `hash`, which
/// stands for the order of the list, are all classes.
fn classes(word: &[u8]) -> Result<u64, Rejected> {
    if matches!(word, b"all" | b"hash") {
        return Ok(u64::MAX);
    }
    word.split(|&byte| byte == b',').try_fold(0, |set, number| {
        let class = parse_u32(number).map_or(0, |class| class as usize);
        if CLASSES.contains(&class) { Ok(set | 1 << class) } else { Err(BAD_CLASS.into()) }
    })
}

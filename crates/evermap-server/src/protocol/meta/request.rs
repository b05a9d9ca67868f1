//! The grammar of meta commands: a key, and flags of one letter with a token behind some of them.

use std::borrow::Cow;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::number::{parse_i64, parse_u32, parse_u64};
use crate::protocol::exptime::expiry;
use crate::protocol::line::{BAD_FORMAT, Rejected, Words};

const TOO_MANY: &[u8] = b"CLIENT_ERROR options flags are too long\r\n";
const DUPLICATE: &[u8] = b"CLIENT_ERROR duplicate flag\r\n";
const INVALID: &[u8] = b"CLIENT_ERROR invalid flag\r\n";
const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad token in command line format\r\n";
const BAD_KEY: &[u8] = b"CLIENT_ERROR error decoding key\r\n";
const BAD_INITIAL: &[u8] = b"CLIENT_ERROR invalid numeric initial value\r\n";
const BAD_DELTA: &[u8] = b"CLIENT_ERROR invalid numeric delta value\r\n";
const LONG_OPAQUE: &[u8] = b"CLIENT_ERROR opaque token too long\r\n";

/// The maximum length of the token behind `O`, in bytes.
const OPAQUE_MAX: usize = 31;

/// A parsed meta command.
#[derive(Clone, Debug)]
pub(in crate::protocol) struct Request<'a> {
    /// The key of the item.
    pub(in crate::protocol) key: Cow<'a, [u8]>,
    pub(in crate::protocol) plan: Plan<'a>,
    pub(super) tokens: Tokens,
}

/// The words of a request that its reply repeats.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::protocol) struct Plan<'a> {
    /// The key as the client wrote it.
    pub(super) key_word: &'a [u8],
    /// The flags, in the order of the request.
    words: &'a [u8],
    seen: Letters,
}

/// A set of ASCII letters.
#[derive(Clone, Copy, Debug, Default)]
struct Letters(u64);

/// The tokens of flags that change something.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tokens {
    /// `C`: the CAS id that the item must have.
    pub(super) compare: Option<u64>,
    /// `E`: the CAS id that the new version gets.
    pub(super) new_cas: Option<u64>,
    /// `F`: the client's own 32 bits.
    pub(super) flags: u32,
    /// `J`: the number of a counter that is created.
    pub(super) initial: u64,
    /// `D`: the number that is added or subtracted.
    pub(super) delta: Option<u64>,
    /// `T`: the new `exptime`.
    pub(super) ttl: Option<i64>,
    /// `N`: the `exptime` of an item that is created because there is none.
    pub(super) vivify: Option<i64>,
    /// `R`: the `exptime` before which an item has to expire for a client to win it.
    pub(super) recache: Option<i64>,
    /// `M`: the first letter of the mode; 0 if there is none.
    pub(super) mode: Option<u8>,
}

impl Letters {
    fn bit(letter: u8) -> u64 {
        1 << (letter - b'A')
    }

    /// Adds a letter. Returns `false` if it was in the set.
    fn insert(&mut self, letter: u8) -> bool {
        let before = self.0;
        self.0 |= Letters::bit(letter);
        self.0 != before
    }

    fn has(self, letter: u8) -> bool {
        self.0 & Letters::bit(letter) != 0
    }
}

impl<'a> Plan<'a> {
    /// Returns `true` if the request has this flag.
    pub(in crate::protocol) fn has(&self, flag: u8) -> bool {
        self.seen.has(flag)
    }

    /// Returns each flag with its token, in the order of the request.
    pub(super) fn flags(&self) -> impl Iterator<Item = (u8, &'a [u8])> + use<'a> {
        Words::new(self.words)
            .filter_map(|word| word.split_first().map(|(&flag, rest)| (flag, rest)))
    }
}

impl<'a> Request<'a> {
    /// Parses a key and flags. There may be at most `words_max` words.
    ///
    /// # Errors
    /// The reply to the first mistake that memcached would report.
    pub(super) fn parse(mut words: Words<'a>, words_max: Option<usize>) -> Result<Self, Rejected> {
        let key_word = words.next().ok_or(BAD_FORMAT)?;
        Request::parse_flags(key_word, words, words_max.map(|max| max - 1)).map_err(Rejected::from)
    }

    /// Parses a key, of whose flags only `b` has a meaning. The others are ignored.
    ///
    /// # Errors
    /// If there is no valid key.
    pub(super) fn parse_key(mut words: Words<'a>) -> Result<Self, Rejected> {
        let key_word = words.next().filter(|key| words.allow_key(key)).ok_or(BAD_FORMAT)?;
        let plan = Plan { key_word, words: words.rest(), seen: Letters::default() };
        let key = if words.any(|word| word == b"b") {
            decode(key_word).map_err(|_| BAD_FORMAT)?.into()
        } else {
            key_word.into()
        };
        Ok(Request { key, plan, tokens: Tokens::default() })
    }

    /// Parses flags, of which there may be at most `flags_max`, after the key.
    ///
    /// # Errors
    /// As [`parse`](Request::parse).
    pub(super) fn parse_flags(
        key_word: &'a [u8],
        words: Words<'a>,
        flags_max: Option<usize>,
    ) -> Result<Self, &'static [u8]> {
        if !words.allow_key(key_word) {
            return Err(BAD_FORMAT);
        }
        if flags_max.is_some_and(|max| words.clone().nth(max).is_some()) {
            return Err(TOO_MANY);
        }
        let mut plan = Plan { key_word, words: words.rest(), seen: Letters::default() };
        let mut tokens = Tokens::default();
        // A flag that is not known ends the parsing; of several bad tokens, the last is reported.
        let mut bad_token = None;
        for (flag, token) in plan.flags() {
            if !flag.is_ascii_alphabetic() {
                return Err(INVALID);
            }
            if !plan.seen.insert(flag) {
                return Err(DUPLICATE);
            }
            bad_token = tokens.parse(flag, token)?.err().or(bad_token);
        }
        if let Some(error) = bad_token {
            return Err(error);
        }
        let key = if plan.has(b'b') { decode(key_word)?.into() } else { key_word.into() };
        Ok(Request { key, plan, tokens })
    }

    /// Returns the expiry that `T` asks for.
    pub(in crate::protocol) fn ttl(&self, now: u32) -> Option<u32> {
        self.tokens.ttl.map(|ttl| expiry(ttl, now))
    }

    /// Returns the expiry of an item that `N` creates.
    pub(super) fn vivify(&self, now: u32) -> Option<u32> {
        self.tokens.vivify.map(|ttl| expiry(ttl, now))
    }

    /// Returns the expiry that the item has after the request, if it had `before`. `created` says
    /// whether `N` has created it.
    pub(super) fn expiry_after(&self, before: u32, created: bool, now: u32) -> u32 {
        self.plan.flags().fold(before, |before, (flag, _)| match flag {
            b'T' => self.ttl(now).unwrap_or(before),
            b'N' if created => self.vivify(now).unwrap_or(before),
            _ => before,
        })
    }
}

impl Tokens {
    /// Parses the token of a flag. Returns the error of a token that is not valid.
    ///
    /// # Errors
    /// If there is no such flag.
    fn parse(
        &mut self,
        flag: u8,
        token: &[u8],
    ) -> Result<Result<(), &'static [u8]>, &'static [u8]> {
        fn set<T>(
            place: &mut Option<T>,
            parsed: Option<T>,
            error: &'static [u8],
        ) -> Result<(), &'static [u8]> {
            *place = parsed;
            if place.is_some() { Ok(()) } else { Err(error) }
        }
        Ok(match flag {
            b'C' => set(&mut self.compare, parse_u64(token), BAD_TOKEN),
            // The id 0 stands for none, so it asks for a new one.
            b'E' => parse_u64(token)
                .map(|id| self.new_cas = Some(id).filter(|&id| id != 0))
                .ok_or(BAD_TOKEN),
            b'N' => set(&mut self.vivify, parse_i64(token), BAD_TOKEN),
            b'R' => set(&mut self.recache, parse_i64(token), BAD_TOKEN),
            b'T' => set(&mut self.ttl, parse_i64(token), BAD_TOKEN),
            b'D' => set(&mut self.delta, parse_u64(token), BAD_DELTA),
            b'F' => parse_u32(token).map(|flags| self.flags = flags).ok_or(BAD_FORMAT),
            b'J' => parse_u64(token).map(|initial| self.initial = initial).ok_or(BAD_INITIAL),
            b'M' => {
                self.mode = Some(token.first().copied().unwrap_or(0));
                Ok(())
            }
            b'O' if token.len() > OPAQUE_MAX => Err(LONG_OPAQUE),
            // `L` and `P` are hints for proxies.
            b'b' | b'c' | b'f' | b'h' | b'k' | b'l' | b'q' | b's' | b't' | b'u' | b'v' | b'x'
            | b'I' | b'L' | b'O' | b'P' => Ok(()),
            _ => return Err(INVALID),
        })
    }
}

/// Decodes a key.
fn decode(word: &[u8]) -> Result<Vec<u8>, &'static [u8]> {
    STANDARD.decode(word).ok().filter(|key| !key.is_empty()).ok_or(BAD_KEY)
}

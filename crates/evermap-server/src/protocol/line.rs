//! What the request lines of the text and of the meta protocol have in common.

use memchr::memchr;

use crate::number::parse_u64;

pub(super) const ERROR: &[u8] = b"ERROR\r\n";
pub(super) const BAD_FORMAT: &[u8] = b"CLIENT_ERROR bad command line format\r\n";

/// The maximum length of a value that a line can announce, in bytes. Lengths are signed 32-bit
/// numbers and include the line end.
const LEN_MAX: u64 = i32::MAX as u64 - 2;

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
    /// A data block of this number of bytes follows the line. It is read and dropped before the
    /// reply.
    Skip(usize),
    /// A data block of unknown length follows the line, so the connection has to be closed.
    Close,
}

/// Rejects a line that has no data block.
pub(super) fn rejected(reply: &'static [u8], noreply: bool) -> Rejected {
    Rejected { reply, noreply, after: AfterReject::NextLine }
}

impl From<&'static [u8]> for Rejected {
    /// Rejects a line that cannot end with `noreply`.
    fn from(reply: &'static [u8]) -> Self {
        rejected(reply, false)
    }
}

/// Parses the length of a value and returns the length of its data block: the value and a line end.
pub(super) fn block(word: &[u8]) -> Option<usize> {
    parse_u64(word).filter(|&len| len <= LEN_MAX).map(|len| len as usize + 2)
}

/// An iterator over the words of a line, which are separated by spaces.
#[derive(Clone)]
pub(super) struct Words<'a> {
    line: &'a [u8],
    /// The maximum length of a word that is a key.
    key_size_max: usize,
    /// The position from which the next word is searched.
    pub(super) at: usize,
}

impl<'a> Words<'a> {
    /// Creates an iterator over words of which none is to be checked as a key.
    pub(super) fn new(line: &'a [u8]) -> Self {
        Words::with_keys(line, 0)
    }

    /// Creates an iterator over words of which some are keys, with this maximum length.
    pub(super) fn with_keys(line: &'a [u8], key_size_max: usize) -> Self {
        Words { line, key_size_max, at: 0 }
    }

    /// Returns `true` if `word` is not too long for a key.
    pub(super) fn allow_key(&self, word: &[u8]) -> bool {
        word.len() <= self.key_size_max
    }

    /// Returns `true` if no word that is left is too long for a key. Consumes words.
    pub(super) fn allow_all_as_keys(&mut self) -> bool {
        let max = self.key_size_max;
        // A list that is no longer than the longest key needs no check.
        self.left() <= max || self.all(|word| word.len() <= max)
    }

    /// Skips spaces. Returns `true` if no word follows them.
    pub(super) fn is_done(&mut self) -> bool {
        while self.line.get(self.at) == Some(&b' ') {
            self.at += 1;
        }
        self.left() == 0
    }

    /// Returns the number of bytes from the current position to the end of the line.
    pub(super) fn left(&self) -> usize {
        self.line.len() - self.at
    }

    /// Returns the line from the current position to its end.
    pub(super) fn rest(&self) -> &'a [u8] {
        &self.line[self.at..]
    }

    /// Returns `true` if the last of the remaining words is `noreply`.
    pub(super) fn ends_with_noreply(&self) -> bool {
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

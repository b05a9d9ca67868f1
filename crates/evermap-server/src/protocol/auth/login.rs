//! Authentication in the text protocol.
//!
//! The client sends a `set` of any key, whose data is the user, a space and the password. A client
//! library without support for authentication can send that as it sends any other value.

use super::{TOKEN_MAX, count_attempt, is_known};
use crate::number::parse_u32;
use crate::protocol::refused::Refused;
use crate::protocol::text;
use crate::protocol::upload::{Upload, UploadProgress};
use crate::protocol::{Context, LINE_MAX, Next, Progress};
use memchr::memchr;

/// The state of a session whose client has not authenticated.
///
/// No command is executed in this state. Each line is answered by an error, unless it begins the
/// data that authenticates the client. The data of other storage commands is read and dropped.
#[derive(Default)]
pub(in crate::protocol) struct Login {
    state: State,
    /// The number of bytes of the unfinished line at the start of the input that are known to
    /// contain no line feed.
    scanned: usize,
}

/// What the next byte of the input belongs to.
#[derive(Default)]
enum State {
    /// A new line.
    #[default]
    Line,
    /// The user, the password and a line end.
    Token(Upload),
    /// The data of a command that is refused.
    Refused(Refused),
    /// A command of the authenticated client.
    Done,
}

const UNAUTHENTICATED: &[u8] = b"CLIENT_ERROR unauthenticated\r\n";
const BAD_END: &[u8] = b"CLIENT_ERROR bad command line termination\r\n";
const BAD_TOKEN: &[u8] = b"CLIENT_ERROR bad authentication token format\r\n";
const FAILURE: &[u8] = b"CLIENT_ERROR authentication failure\r\n";
const TOO_LONG: &[u8] = b"CLIENT_ERROR line too long\r\n";
const NO_MEMORY: &[u8] = b"SERVER_ERROR out of memory reading request\r\n";

impl Login {
    /// Processes `input` until the client has authenticated, or the reply buffer is full. The
    /// progress is [`Next::Receive`] in the first case, and [`is_done`](Login::is_done) returns
    /// `true`.
    pub(in crate::protocol) fn process(
        &mut self,
        input: &[u8],
        context: &Context<'_>,
        out: &mut Vec<u8>,
    ) -> Progress {
        let mut at = 0;
        let next = loop {
            if out.len() >= context.output_limit {
                break Next::Resume;
            }
            let rest = &input[at..];
            let (taken, next) = match &mut self.state {
                State::Done => break Next::Receive,
                State::Line => self.line(rest, context, out),
                State::Token(_) => self.token(rest, context, out),
                State::Refused(_) => self.refused(rest, out),
            };
            at += taken;
            if let Some(next) = next {
                break next;
            }
        };
        Progress { consumed: at, next }
    }

    /// Returns `true` if the client has authenticated.
    pub(in crate::protocol) fn is_done(&self) -> bool {
        matches!(self.state, State::Done)
    }

    /// Returns the number of bytes of memory that the session holds for an unfinished request.
    pub(in crate::protocol) fn held_bytes(&self) -> usize {
        match &self.state {
            State::Token(upload) => upload.held_bytes(),
            State::Refused(refused) => refused.held_bytes(),
            State::Line | State::Done => 0,
        }
    }

    /// Answers the next line. Returns the number of bytes that it took, and what the session needs
    /// if it cannot continue.
    fn line(
        &mut self,
        input: &[u8],
        context: &Context<'_>,
        out: &mut Vec<u8>,
    ) -> (usize, Option<Next>) {
        let end = memchr(b'\n', &input[self.scanned..]).map(|at| self.scanned + at);
        if end.unwrap_or(input.len()) > LINE_MAX {
            out.extend_from_slice(TOO_LONG);
            return (input.len(), Some(Next::Close));
        }
        let Some(end) = end else {
            self.scanned = input.len();
            return (0, Some(Next::Receive));
        };
        self.scanned = 0;
        let line = &input[..end];
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        match token_len(line) {
            None => self.refuse(UNAUTHENTICATED, text::block_len(line), out),
            Some(len) if len <= TOKEN_MAX => {
                self.state = State::Token(Upload::new(len + 2, context.uploads));
            }
            Some(len) => self.refuse(BAD_TOKEN, len + 2, out),
        }
        (end + 1, None)
    }

    /// Drops the next `missing` bytes, and replies behind them.
    fn refuse(&mut self, reply: &[u8], missing: usize, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(reply);
        self.state = State::Refused(Refused::new(missing, out, start));
    }

    /// Takes the next part of the user and the password.
    fn token(
        &mut self,
        input: &[u8],
        context: &Context<'_>,
        out: &mut Vec<u8>,
    ) -> (usize, Option<Next>) {
        let State::Token(upload) = &mut self.state else { return (0, None) };
        match upload.take(input) {
            UploadProgress::Partial => (input.len(), Some(Next::Receive)),
            UploadProgress::NoMemory => {
                let missing = upload.missing();
                self.refuse(NO_MEMORY, missing, out);
                (0, None)
            }
            UploadProgress::Complete(len) => {
                let answer = authenticate(upload.data(), context);
                self.state = if answer.is_ok() { State::Done } else { State::Line };
                out.extend_from_slice(answer.err().unwrap_or(b"STORED\r\n"));
                (len, None)
            }
        }
    }

    /// Drops the next part of the data of a command that is refused.
    fn refused(&mut self, input: &[u8], out: &mut Vec<u8>) -> (usize, Option<Next>) {
        let State::Refused(refused) = &mut self.state else { return (0, None) };
        let taken = refused.take(input, out);
        if !refused.is_complete() {
            return (taken, Some(Next::Receive));
        }
        self.state = State::Line;
        (taken, None)
    }
}

/// Returns the length of the data that a line announces: its fifth word, if the first is `set`.
/// Anything may stand in for the key, the flags and the time, and behind the length.
fn token_len(line: &[u8]) -> Option<usize> {
    let mut words = line.split(|&byte| byte == b' ').filter(|word| !word.is_empty());
    if words.next()? != b"set" {
        return None;
    }
    parse_u32(words.nth(3)?).map(|len| len as usize)
}

/// Checks a user, a space, a password and a line end. Fails with the reply.
fn authenticate(token: &[u8], context: &Context<'_>) -> Result<(), &'static [u8]> {
    let token = token.strip_suffix(b"\r\n").ok_or(BAD_END)?;
    let space = memchr(b' ', token).ok_or(BAD_TOKEN)?;
    let known = is_known(&token[..space], &token[space + 1..], context);
    count_attempt(known, context);
    if known { Ok(()) } else { Err(FAILURE) }
}

//! One client's side of the conversation.

use super::text::Text;
use super::{Context, Next};

/// Takes a client's bytes and answers them. Holds what is not answered yet.
#[derive(Default)]
pub struct Session {
    text: Text,
    /// Bytes received but not consumed: the beginning of a line, or what came after the replies were full.
    rest: Vec<u8>,
}

impl Session {
    /// A new conversation.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes `bytes`, does what they ask, and appends the replies to `out`.
    ///
    /// To be called only at the beginning and after [`Next::Receive`].
    pub fn receive(&mut self, bytes: &[u8], context: &Context<'_>, out: &mut Vec<u8>) -> Next {
        if !self.rest.is_empty() {
            self.rest.extend_from_slice(bytes);
            return self.resume(context, out);
        }
        let progress = self.text.process(bytes, context, out);
        if progress.next != Next::Close {
            self.rest.extend_from_slice(&bytes[progress.consumed..]);
        }
        progress.next
    }

    /// Goes on after [`Next::Resume`], once `out` has room again.
    pub fn resume(&mut self, context: &Context<'_>, out: &mut Vec<u8>) -> Next {
        let progress = self.text.process(&self.rest, context, out);
        if progress.next == Next::Close || progress.consumed == self.rest.len() {
            // An idle connection keeps no buffer.
            self.rest = Vec::new();
        } else {
            self.rest.drain(..progress.consumed);
        }
        progress.next
    }

    /// Bytes of memory that this session keeps for what is not answered yet.
    pub fn held_bytes(&self) -> usize {
        self.rest.capacity() + self.text.held_bytes()
    }
}

/// What a protocol did with the bytes it was shown.
#[derive(Debug)]
pub(super) struct Progress {
    /// Bytes that it needs no more.
    pub(super) consumed: usize,
    pub(super) next: Next,
}

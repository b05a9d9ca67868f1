//! One client's side of the conversation.

use super::text::Text;
use super::{Context, Next, Share};

/// Takes a client's bytes and answers them. Holds what is not answered yet.
#[derive(Default)]
pub struct Session {
    text: Text,
    /// Bytes received but not consumed: the beginning of a line, or what came after the replies were full.
    rest: Vec<u8>,
    /// Counts the memory of `rest` once it is more than [`UNCOUNTED`].
    share: Option<Share>,
}

/// As much of `rest` is not counted, bytes: what one read brings, plus a line of ordinary length.
const UNCOUNTED: usize = 72 << 10;

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
            return match self.keep(bytes, context, out) {
                Next::Close => Next::Close,
                _ => self.resume(context, out),
            };
        }
        let progress = self.text.process(bytes, context, out);
        match (progress.next, &bytes[progress.consumed..]) {
            (Next::Close, _) | (_, []) => progress.next,
            (next, rest) => match self.keep(rest, context, out) {
                Next::Close => Next::Close,
                _ => next,
            },
        }
    }

    /// Keeps `bytes` until they can be consumed, or closes if the budget for that is exhausted.
    fn keep(&mut self, bytes: &[u8], context: &Context<'_>, out: &mut Vec<u8>) -> Next {
        let needed = self.rest.len() + bytes.len();
        if needed > UNCOUNTED {
            let share = self.share.get_or_insert_with(|| Share::of(context.uploads));
            if !share.grow_to(needed) {
                out.extend_from_slice(b"SERVER_ERROR out of memory reading request\r\n");
                self.forget_rest();
                return Next::Close;
            }
        }
        self.rest.extend_from_slice(bytes);
        if let Some(share) = &mut self.share {
            share.count(self.rest.capacity());
        }
        Next::Receive
    }

    /// Goes on after [`Next::Resume`], once `out` has room again.
    pub fn resume(&mut self, context: &Context<'_>, out: &mut Vec<u8>) -> Next {
        let progress = self.text.process(&self.rest, context, out);
        if progress.next == Next::Close || progress.consumed == self.rest.len() {
            self.forget_rest();
        } else {
            self.rest.drain(..progress.consumed);
        }
        progress.next
    }

    /// Frees the memory: an idle connection keeps no buffer.
    fn forget_rest(&mut self) {
        self.rest = Vec::new();
        self.share = None;
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

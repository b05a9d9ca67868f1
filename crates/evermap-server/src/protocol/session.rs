//! The server's side of one connection.

use super::auth::Login;
use super::binary::{self, Binary};
use super::text::Text;
use super::{Binding, Context, Next, Progress, Reservation};

/// Processes the bytes of one client and produces the replies.
#[derive(Default)]
pub struct Session {
    protocol: Protocol,
    /// Bytes that were received but not consumed: the beginning of a request, or what arrived while
    /// the reply buffer was full.
    pending: Vec<u8>,
    /// The number of bytes at the start of `pending` that were consumed since. They are removed
    /// when they are half of it, so that a long list of keys is not moved for each reply.
    consumed: usize,
    /// Accounts for the memory of `pending` once it exceeds [`UNRESERVED_MAX`].
    reservation: Option<Reservation>,
}

/// The protocol of a connection, which its first byte decides.
#[derive(Default)]
enum Protocol {
    /// Nothing has been received.
    #[default]
    Undecided,
    /// The text protocol, before the client has authenticated.
    Login(Login),
    Text(Text),
    Binary(Binary),
}

/// The number of bytes of `pending` that need no reservation: what one read brings, plus a line of
/// ordinary length.
const UNRESERVED_MAX: usize = 72 << 10;

impl Session {
    /// Creates a session for a new connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Processes `bytes` and appends the replies to `out`.
    ///
    /// Must be called only at the beginning and after [`Next::Receive`].
    pub fn receive(&mut self, bytes: &[u8], context: &Context<'_>, out: &mut Vec<u8>) -> Next {
        if !self.pending.is_empty() {
            return match self.keep(bytes, context, out) {
                Next::Close => Next::Close,
                _ => self.resume(context, out),
            };
        }
        let progress = self.protocol.process(bytes, context, out);
        match (progress.next, &bytes[progress.consumed..]) {
            (Next::Close, _) | (_, []) => progress.next,
            (next, rest) => match self.keep(rest, context, out) {
                Next::Close => Next::Close,
                _ => next,
            },
        }
    }

    /// Appends `bytes` to the pending ones. Closes the session if the budget does not allow it.
    fn keep(&mut self, bytes: &[u8], context: &Context<'_>, out: &mut Vec<u8>) -> Next {
        self.remove_consumed();
        let needed = self.pending.len() + bytes.len();
        if needed > UNRESERVED_MAX {
            let reservation =
                self.reservation.get_or_insert_with(|| Reservation::new(context.uploads));
            if !reservation.try_grow_to(needed) {
                // A client of the binary protocol could not read this line.
                if !matches!(self.protocol, Protocol::Binary(_)) {
                    out.extend_from_slice(b"SERVER_ERROR out of memory reading request\r\n");
                }
                self.clear_pending();
                return Next::Close;
            }
        }
        self.pending.extend_from_slice(bytes);
        if let Some(reservation) = &mut self.reservation {
            reservation.resize(self.pending.capacity());
        }
        Next::Receive
    }

    /// Continues after [`Next::Resume`], when `out` has space again.
    pub fn resume(&mut self, context: &Context<'_>, out: &mut Vec<u8>) -> Next {
        let progress = self.protocol.process(&self.pending[self.consumed..], context, out);
        self.consumed += progress.consumed;
        if progress.next == Next::Close || self.consumed == self.pending.len() {
            self.clear_pending();
        } else if self.consumed >= self.pending.len() / 2 {
            self.remove_consumed();
        }
        progress.next
    }

    fn remove_consumed(&mut self) {
        self.pending.drain(..self.consumed);
        self.consumed = 0;
    }

    /// Frees the memory of the pending bytes, so that an idle connection holds no buffer.
    fn clear_pending(&mut self) {
        self.pending = Vec::new();
        self.consumed = 0;
        self.reservation = None;
    }

    /// Returns the number of bytes of memory that the session holds for unfinished requests.
    pub fn held_bytes(&self) -> usize {
        self.pending.capacity() + self.protocol.held_bytes()
    }
}

impl Protocol {
    /// Returns the protocol of a connection whose first byte is `first`, or `None` if the server
    /// does not speak it.
    ///
    /// A client of the wrong protocol is disconnected without a reply, which it could not read.
    fn of(first: u8, context: &Context<'_>) -> Option<Protocol> {
        match (first == binary::REQUEST, context.binding) {
            (true, Binding::Auto | Binding::Binary) => Some(Protocol::Binary(Binary::default())),
            (false, Binding::Auto | Binding::Ascii) => Some(match context.credentials {
                None => Protocol::Text(Text::default()),
                Some(_) => Protocol::Login(Login::default()),
            }),
            _ => None,
        }
    }

    fn process(&mut self, input: &[u8], context: &Context<'_>, out: &mut Vec<u8>) -> Progress {
        let mut consumed = 0;
        loop {
            let rest = &input[consumed..];
            let progress = match self {
                Protocol::Undecided => {
                    let Some(&first) = rest.first() else {
                        return Progress { consumed, next: Next::Receive };
                    };
                    match Protocol::of(first, context) {
                        Some(protocol) => *self = protocol,
                        None => return Progress { consumed, next: Next::Close },
                    }
                    continue;
                }
                Protocol::Login(login) => {
                    let progress = login.process(rest, context, out);
                    if login.is_done() {
                        consumed += progress.consumed;
                        *self = Protocol::Text(Text::default());
                        continue;
                    }
                    progress
                }
                Protocol::Text(text) => text.process(rest, context, out),
                Protocol::Binary(binary) => binary.process(rest, context, out),
            };
            return Progress { consumed: consumed + progress.consumed, next: progress.next };
        }
    }

    fn held_bytes(&self) -> usize {
        match self {
            Protocol::Undecided => 0,
            Protocol::Login(login) => login.held_bytes(),
            Protocol::Text(text) => text.held_bytes(),
            Protocol::Binary(binary) => binary.held_bytes(),
        }
    }
}

//! The binary protocol, as a state machine over packets.
//!
//! memcached has not extended it since 1.6.0, but older clients speak it, and it is the only one
//! with SASL.

mod batch;
mod execute;
mod packet;
mod reply;

use std::ops::ControlFlow;

use super::auth::sasl;
use super::ops::Store;
use super::refused::Refused;
use super::upload::{Upload, UploadProgress};
use super::{Context, Next, Progress};
use crate::cache::BATCH_KEYS;
use batch::{Batch, BatchOutcome, Get};
pub(super) use packet::REQUEST;
use packet::{Command, HEADER_LEN, Header};
use reply::Status;

/// The state of a session of the binary protocol.
#[derive(Default)]
pub(super) struct Binary {
    state: State,
    client: sasl::State,
}

/// What the next byte of the input belongs to.
#[derive(Default)]
enum State {
    /// A new packet.
    #[default]
    Packet,
    /// A value that has not arrived completely.
    Value(Box<Unfinished>),
    /// The rest of a packet that is refused.
    Refused(Refused),
}

/// A request whose value has not arrived completely.
struct Unfinished {
    header: Header,
    command: Command,
    quiet: bool,
    /// The extras, then the key.
    head: Box<[u8]>,
    value: Upload,
}

/// A request, without its value.
#[derive(Clone, Copy)]
struct Request<'a> {
    header: Header,
    command: Command,
    quiet: bool,
    extras: &'a [u8],
    key: &'a [u8],
}

/// A packet that is not a request that the client may send.
struct Rejected {
    status: Status,
    /// Whether the connection is closed, because it is unknown or does not matter what the rest of
    /// the input is. Otherwise the body is read and dropped.
    close: bool,
}

/// One pass over some input.
struct Pass<'a, 'p> {
    binary: &'p mut Binary,
    input: &'a [u8],
    /// The number of bytes of the input that are consumed once the batch is executed.
    at: usize,
    batch: Batch<'a>,
    /// Requests that only set, with their values. Not while there are keys in `batch`.
    sets: Vec<(Request<'a>, &'a [u8])>,
    context: &'p Context<'p>,
    out: &'p mut Vec<u8>,
}

/// Whether the pass continues, or how it ended.
type Step = ControlFlow<Next>;
const CONTINUE: Step = ControlFlow::Continue(());

impl Binary {
    /// Executes the complete requests in `input`, until the reply buffer is full.
    ///
    /// The next call must get the bytes that were not consumed again, either with more bytes behind
    /// them or after the reply buffer was emptied. They are at most one header with its extras and
    /// its key, unless the reply buffer is full.
    pub(super) fn process(
        &mut self,
        input: &[u8],
        context: &Context<'_>,
        out: &mut Vec<u8>,
    ) -> Progress {
        let (batch, sets) = (Batch::new(), Vec::new());
        let mut pass = Pass { binary: self, input, at: 0, batch, sets, context, out };
        let next = loop {
            if let ControlFlow::Break(next) = pass.step() {
                break next;
            }
        };
        Progress { consumed: pass.at, next }
    }

    pub(super) fn held_bytes(&self) -> usize {
        match &self.state {
            State::Value(unfinished) => {
                let Unfinished { head, value, .. } = &**unfinished;
                size_of::<Unfinished>() + head.len() + value.held_bytes()
            }
            State::Refused(refused) => refused.held_bytes(),
            State::Packet => 0,
        }
    }

    /// Checks a header, in the order in which memcached does.
    ///
    /// # Errors
    /// The reply, and whether the session continues after it.
    fn check(&self, header: &Header, context: &Context<'_>) -> Result<(Command, bool), Rejected> {
        let reject = |status, close| Err(Rejected { status, close });
        let Some(value_len) = header.value_len() else {
            return reject(Status::UnknownCommand, true);
        };
        let known = Command::of(header.tag.opcode);
        let open_to_all = known.is_some_and(|(command, _)| command.is_open_to_all());
        let protected = context.credentials.is_some();
        if protected && !open_to_all && self.client != sasl::State::Authenticated {
            return reject(Status::AuthFailure, true);
        }
        if header.key_len > context.key_size_max {
            return reject(Status::InvalidArguments, true);
        }
        let Some((command, quiet)) = known.filter(|(command, _)| protected || !command.is_sasl())
        else {
            return reject(Status::UnknownCommand, false);
        };
        if !command.takes(header.extras_len, header.key_len, value_len) {
            return reject(Status::InvalidArguments, true);
        }
        Ok((command, quiet))
    }
}

impl<'a> Pass<'a, '_> {
    fn step(&mut self) -> Step {
        match self.binary.state {
            State::Packet => self.packet(),
            State::Value(_) => self.value(),
            State::Refused(_) => self.refused(),
        }
    }

    /// Executes the next request.
    fn packet(&mut self) -> Step {
        if self.out.len() >= self.context.output_limit {
            self.execute_batch()?;
            return ControlFlow::Break(Next::Resume);
        }
        let rest = &self.input[self.at..];
        if rest.first().is_some_and(|&first| first != REQUEST) {
            // The client does not speak the protocol, or has lost its place in it.
            self.execute_batch()?;
            return ControlFlow::Break(Next::Close);
        }
        let Some(header) = Header::read(rest) else {
            self.execute_batch()?;
            return ControlFlow::Break(Next::Receive);
        };
        match self.binary.check(&header, self.context) {
            Err(rejected) => self.reject(&header, &rejected),
            Ok((command, quiet)) => match rest.get(HEADER_LEN..header.head_len()) {
                Some(head) => {
                    let (extras, key) = head.split_at(header.extras_len);
                    self.request(Request { header, command, quiet, extras, key })
                }
                None => {
                    self.execute_batch()?;
                    ControlFlow::Break(Next::Receive)
                }
            },
        }
    }

    /// Answers a packet that is not executed.
    fn reject(&mut self, header: &Header, rejected: &Rejected) -> Step {
        self.execute_batch()?;
        self.at += HEADER_LEN;
        let start = self.out.len();
        reply::error(header.tag, rejected.status, self.out);
        if rejected.close {
            return ControlFlow::Break(Next::Close);
        }
        self.refuse(header.body_len, start);
        CONTINUE
    }

    /// Executes a request, whose value follows in the input.
    fn request(&mut self, request: Request<'a>) -> Step {
        let head_len = request.header.head_len();
        // A get only collects its key, and so does what only sets. Any other request must follow
        // the execution of what was collected before it.
        if let Command::Get { with_key } = request.command {
            self.execute_sets();
            let (tag, quiet) = (request.header.tag, request.quiet);
            self.batch.push(request.key, Get { tag, with_key, quiet, start_at: self.at });
            self.at += head_len;
            return if self.batch.is_full() { self.execute_batch() } else { CONTINUE };
        }
        if let Some(value) = self.value_to_set(&request) {
            return self.collect_set(request, value);
        }
        self.execute_batch()?;
        self.at += head_len;
        if request.command.has_value() {
            self.begin_value(&request);
            return CONTINUE;
        }
        self.execute(&request)
    }

    /// Returns the value of a request that only sets, if all of it has arrived and can be stored. A
    /// single request is not worth collecting.
    fn value_to_set(&self, request: &Request<'_>) -> Option<&'a [u8]> {
        let store = self.store_of(request).filter(Store::only_sets)?;
        let len = request.header.value_len()?;
        let (value, rest) =
            self.input[self.at..].get(request.header.head_len()..)?.split_at_checked(len)?;
        let is_single = rest.is_empty() && self.sets.is_empty();
        (!is_single && self.context.fits(store.key, len)).then_some(value)
    }

    /// Collects a request that only sets.
    fn collect_set(&mut self, request: Request<'a>, value: &'a [u8]) -> Step {
        if self.sets.is_empty() {
            self.execute_batch()?;
        }
        self.at += request.header.head_len() + value.len();
        self.sets.push((request, value));
        if self.sets.len() == BATCH_KEYS {
            self.execute_sets();
        }
        CONTINUE
    }

    /// Executes the sets that were collected, or looks up the keys.
    fn execute_batch(&mut self) -> Step {
        self.execute_sets();
        match self.batch.execute(self.context, self.out) {
            BatchOutcome::Complete => CONTINUE,
            BatchOutcome::OutputFull(at) => {
                self.at = at;
                ControlFlow::Break(Next::Resume)
            }
        }
    }

    /// Begins a request whose value follows in the input.
    fn begin_value(&mut self, request: &Request<'a>) {
        let Request { header, command, quiet, extras, key } = *request;
        let len = header.body_len - extras.len() - key.len();
        let start = self.out.len();
        if !self.admit(request, len) {
            self.refuse(len, start);
        } else if let Some(value) = self.input[self.at..].get(..len) {
            self.at += len;
            self.finish(request, value);
        } else {
            let head = [extras, key].concat().into();
            let value = Upload::new(len, self.context.uploads);
            let unfinished = Unfinished { header, command, quiet, head, value };
            self.binary.state = State::Value(Box::new(unfinished));
        }
    }

    /// Takes the next part of a value.
    fn value(&mut self) -> Step {
        let State::Value(mut unfinished) = std::mem::take(&mut self.binary.state) else {
            return CONTINUE;
        };
        let arrived = &self.input[self.at..];
        match unfinished.value.take(arrived) {
            UploadProgress::Complete(len) => {
                self.at += len;
                self.finish(&unfinished.request(), unfinished.value.data());
                CONTINUE
            }
            UploadProgress::Partial => {
                self.at += arrived.len();
                self.binary.state = State::Value(unfinished);
                ControlFlow::Break(Next::Receive)
            }
            UploadProgress::NoMemory => {
                let start = self.out.len();
                self.no_memory(&unfinished.request());
                self.refuse(unfinished.value.missing(), start);
                CONTINUE
            }
        }
    }

    /// Drops the next `missing` bytes. What was replied since `start` follows them.
    fn refuse(&mut self, missing: usize, start: usize) {
        self.binary.state = State::Refused(Refused::new(missing, self.out, start));
    }

    /// Drops the next part of a packet that is refused.
    fn refused(&mut self) -> Step {
        let State::Refused(refused) = &mut self.binary.state else { return CONTINUE };
        self.at += refused.take(&self.input[self.at..], self.out);
        if !refused.is_complete() {
            return ControlFlow::Break(Next::Receive);
        }
        self.binary.state = State::Packet;
        CONTINUE
    }
}

impl Unfinished {
    fn request(&self) -> Request<'_> {
        let Unfinished { header, command, quiet, ref head, .. } = *self;
        let (extras, key) = head.split_at(header.extras_len);
        Request { header, command, quiet, extras, key }
    }
}

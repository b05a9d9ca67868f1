//! The execution of requests whose packets are well-formed.

use std::fmt::Display;
use std::ops::ControlFlow;

use super::packet::{Command, extra_u32, extra_u64};
use super::reply::{self, Status};
use super::{CONTINUE, Pass, Request, Step};
use crate::cache::{CacheError, StoreOutcome, Stored};
use crate::protocol::auth::{TOKEN_MAX, sasl};
use crate::protocol::exptime::expiry;
use crate::protocol::ops::{
    Counter, Delete, DeleteOutcome, Delta, DeltaOutcome, Store, Verb, set_many,
};
use crate::protocol::{Context, Next, reply as text_reply, stats};

/// The expiry with which increment and decrement do not create an item.
const NO_INITIAL_NUMBER: u32 = u32::MAX;

/// What became of a request that changes one item: the status, and the CAS id of the new version
/// (0 if there is none).
type Changed = Result<(Status, u64), CacheError>;

/// Returns the status of a storage command, and the CAS id of what it has stored.
fn became_of(verb: Verb, Stored { outcome, cas }: Stored) -> (Status, u64) {
    let status = match (outcome, verb) {
        (StoreOutcome::Stored, _) => Status::Success,
        (StoreOutcome::Exists, _) | (StoreOutcome::NotStored, Verb::Add) => Status::Exists,
        (StoreOutcome::NotFound, _) | (StoreOutcome::NotStored, Verb::Replace) => Status::NotFound,
        (StoreOutcome::NotStored, Verb::Set | Verb::Concat(_)) => Status::NotStored,
    };
    (status, cas)
}

impl<'a> Pass<'a, '_> {
    /// Executes a request without a value.
    pub(super) fn execute(&mut self, request: &Request<'a>) -> Step {
        let tag = request.header.tag;
        match request.command {
            Command::GetAndTouch { with_key } => self.get_and_touch(request, with_key),
            Command::Touch => self.touch(request),
            Command::Delete => self.delete(request),
            Command::Arithmetic { up } => self.arithmetic(request, up),
            Command::Flush => self.flush(request),
            // Replies are in the order of the requests, so this one says that all requests before
            // it are executed.
            Command::Noop => reply::success(tag, 0, self.out),
            Command::Verbosity => {
                self.context.host.set_verbosity(extra_u32(request.extras, 0));
                reply::success(tag, 0, self.out);
            }
            Command::Version => {
                let version = self.context.host.version().as_bytes();
                reply::body(tag, Status::Success, version, 0, self.out);
            }
            Command::Stat => self.stat(request),
            Command::SaslList => {
                reply::body(tag, Status::Success, sasl::MECHANISMS, 0, self.out);
            }
            Command::Quit => {
                self.succeed(request, 0);
                self.context.quitting();
                return ControlFlow::Break(Next::Close);
            }
            // Gets are collected, and the others have a value.
            Command::Get { .. } | Command::Store(_) | Command::SaslStart | Command::SaslStep => {}
        }
        CONTINUE
    }

    /// Returns `true` if a request may have a value of `len` bytes. Otherwise answers it.
    pub(super) fn admit(&mut self, request: &Request<'_>, len: usize) -> bool {
        let Request { header, key, .. } = *request;
        if let Some(store) = self.store_of(request) {
            let fits = self.context.fits(key, len);
            if !fits {
                store.refuse(&CacheError::TooLarge, len, self.context);
                reply::cache_error(header.tag, &CacheError::TooLarge, self.out);
            }
            return fits;
        }
        let refusal = if key.len() > sasl::MECHANISM_MAX {
            Status::InvalidArguments
        } else if len > TOKEN_MAX {
            self.binary.client.refuse(self.context);
            Status::AuthFailure
        } else {
            return true;
        };
        reply::error(header.tag, refusal, self.out);
        false
    }

    /// Answers a request for whose value there is no memory.
    pub(super) fn no_memory(&mut self, request: &Request<'_>) {
        let len = request.header.value_len().unwrap_or(0);
        match self.store_of(request) {
            Some(store) => store.refuse(&CacheError::OutOfMemory, len, self.context),
            None => self.binary.client.refuse(self.context),
        }
        reply::error(request.header.tag, Status::OutOfMemory, self.out);
    }

    /// Executes a request whose value has arrived.
    pub(super) fn finish(&mut self, request: &Request<'_>, value: &[u8]) {
        if let Some(store) = self.store_of(request) {
            return self.store(request, &store, value);
        }
        match request.command {
            Command::SaslStart => {
                self.binary.client.start(request.key, value, self.context);
                self.authenticated(request);
            }
            Command::SaslStep => {
                self.binary.client.step(request.key, value, self.context);
                self.authenticated(request);
            }
            _ => {}
        }
    }

    fn get_and_touch(&mut self, request: &Request<'_>, with_key: bool) {
        let Request { header, key, quiet, .. } = *request;
        let shown: &[u8] = if with_key { key } else { b"" };
        let before = self.out.len();
        let touched = self.context.get_and_touch(key, self.expiry(request, 0), &mut |item| {
            reply::item(header.tag, shown, item, self.out)
        });
        match (touched, with_key) {
            (Ok(true), _) => {}
            (Ok(false), _) if quiet => {}
            (Ok(false), true) => reply::missing_key(header.tag, key, self.out),
            (Ok(false), false) => reply::error(header.tag, Status::NotFound, self.out),
            (Err(error), _) => {
                self.out.truncate(before);
                reply::cache_error(header.tag, &error, self.out);
            }
        }
    }

    /// Executes a touch, which is answered by the flags and the CAS id of the item.
    fn touch(&mut self, request: &Request<'_>) {
        let tag = request.header.tag;
        let mut found = (0, 0);
        let expiry = self.expiry(request, 0);
        let touched = self.context.touch_with(request.key, expiry, &mut |item| {
            found = (item.flags, item.cas);
            Ok(())
        });
        match touched {
            Ok(true) => reply::touched(tag, found.0, found.1, self.out),
            Ok(false) => reply::error(tag, Status::NotFound, self.out),
            Err(error) => reply::cache_error(tag, &error, self.out),
        }
    }

    /// Returns what a storage command is to do; `None` for other commands.
    pub(super) fn store_of<'r>(&self, request: &Request<'r>) -> Option<Store<'r>> {
        let Command::Store(verb) = request.command else { return None };
        // A CAS id makes every storage command a comparison, as in memcached.
        let compare = Some(request.header.cas).filter(|&cas| cas != 0);
        // append and prepend have no extras, and do not need them.
        let (flags, expiry) = (extra_u32(request.extras, 0), self.expiry(request, 4));
        Some(Store { key: request.key, verb, compare, flags, expiry, ..Store::default() })
    }

    fn store(&mut self, request: &Request<'_>, store: &Store<'_>, value: &[u8]) {
        let stored = store.execute(value, self.context);
        self.changed(request, stored.map(|(stored, _)| became_of(store.verb, stored)));
    }

    /// Executes the sets that were collected.
    pub(super) fn execute_sets(&mut self) {
        if self.sets.is_empty() {
            return;
        }
        let sets = std::mem::take(&mut self.sets);
        let store = |request| self.store_of(request).expect("only sets are collected");
        let commands: Vec<_> =
            sets.iter().map(|(request, value)| (store(request), *value)).collect();
        set_many(&commands, self.context, &mut |at, stored| {
            self.changed(&sets[at].0, stored.map(|stored| became_of(Verb::Set, stored)));
        });
    }

    fn delete(&mut self, request: &Request<'_>) {
        let Request { header, key, .. } = *request;
        let compare = Some(header.cas).filter(|&cas| cas != 0);
        let delete = Delete { key, compare, ..Delete::default() };
        let deleted = delete.execute(self.context).map(|outcome| match outcome {
            DeleteOutcome::Done => (Status::Success, 0),
            DeleteOutcome::OtherVersion => (Status::Exists, 0),
            DeleteOutcome::NotFound => (Status::NotFound, 0),
        });
        self.changed(request, deleted);
    }

    /// Executes an increment or decrement. The extras are the difference, the number that an item
    /// which does not exist gets, and the expiry of such an item.
    fn arithmetic(&mut self, request: &Request<'_>, up: bool) {
        let Request { header, key, extras, quiet, .. } = *request;
        let creates = extra_u32(extras, 16) != NO_INITIAL_NUMBER;
        let delta = Delta {
            key,
            delta: extra_u64(extras, 0),
            up,
            compare: Some(header.cas),
            create: creates.then(|| (extra_u64(extras, 8), self.expiry(request, 16))),
            ..Delta::default()
        };
        let status = match delta.execute(self.context) {
            Ok(DeltaOutcome::Changed(_)) if quiet => return,
            Ok(DeltaOutcome::Changed(Counter { number, cas, .. })) => {
                let number = number.to_be_bytes();
                return reply::body(header.tag, Status::Success, &number, cas, self.out);
            }
            Ok(DeltaOutcome::OtherVersion) => Status::Exists,
            Ok(DeltaOutcome::NotFound) => Status::NotFound,
            Ok(DeltaOutcome::NonNumeric) => Status::NonNumeric,
            Err(error) => return reply::cache_error(header.tag, &error, self.out),
        };
        reply::error(header.tag, status, self.out);
    }

    fn flush(&mut self, request: &Request<'_>) {
        match self.context.flush_all(self.expiry(request, 0)) {
            None => reply::error(request.header.tag, Status::AuthFailure, self.out),
            Some(flushed) => self.changed(request, flushed.map(|()| (Status::Success, 0))),
        }
    }

    /// Answers by one packet for each statistic, and one without a name.
    fn stat(&mut self, request: &Request<'_>) {
        let Context { host, cache, .. } = *self.context;
        let tag = request.header.tag;
        let before = self.out.len();
        let mut each = |name: &str, value: &dyn Display| reply::stat(tag, name, value, self.out);
        let shown = match request.key {
            b"" => {
                stats::general(self.context, &mut each);
                Ok(())
            }
            b"settings" => {
                stats::settings(self.context, &mut each);
                Ok(())
            }
            b"reset" => {
                host.reset();
                Ok(())
            }
            b"sizes" => {
                each("sizes_status", &"disabled");
                Ok(())
            }
            b"items" => cache.item_stats(&mut each),
            b"slabs" => cache.slab_stats(&mut each),
            b"cost" => cache.cost_stats(&mut each),
            b"conns" => {
                host.connections(&mut each);
                Ok(())
            }
            b"latency" => {
                host.latencies(&mut each);
                Ok(())
            }
            b"hotkeys" => {
                host.hot_keys(&mut each);
                Ok(())
            }
            b"detail on" | b"detail off" => {
                host.set_detail(request.key.ends_with(b"on"));
                Ok(())
            }
            b"detail dump" => {
                // One statistic, whose value is the whole reply of the text protocol.
                let mut dump = Vec::new();
                host.prefixes(&mut |prefix, counts| text_reply::prefix(prefix, counts, &mut dump));
                dump.extend_from_slice(b"END\r\n");
                reply::stat_bytes(tag, b"detailed", &dump, self.out);
                Ok(())
            }
            _ => return reply::error(tag, Status::NotFound, self.out),
        };
        match shown {
            Ok(()) => reply::success(tag, 0, self.out),
            Err(error) => {
                self.out.truncate(before);
                reply::cache_error(tag, &error, self.out);
            }
        }
    }

    /// Answers a request of an authentication by the state that it led to.
    fn authenticated(&mut self, request: &Request<'_>) {
        let tag = request.header.tag;
        match self.binary.client {
            sasl::State::Authenticated => {
                reply::body(tag, Status::Success, b"Authenticated", 0, self.out);
            }
            sasl::State::Started => reply::error(tag, Status::AuthContinue, self.out),
            sasl::State::Unauthenticated => reply::error(tag, Status::AuthFailure, self.out),
        }
    }

    /// Answers a request that changes an item.
    fn changed(&mut self, request: &Request<'_>, outcome: Changed) {
        match outcome {
            Ok((Status::Success, cas)) => self.succeed(request, cas),
            Ok((status, _)) => reply::error(request.header.tag, status, self.out),
            Err(error) => reply::cache_error(request.header.tag, &error, self.out),
        }
    }

    fn succeed(&mut self, request: &Request<'_>, cas: u64) {
        if !request.quiet {
            reply::success(request.header.tag, cas, self.out);
        }
    }

    /// Returns the expiry that the extras of a request have at this offset. An expiry of the binary
    /// protocol is never negative.
    fn expiry(&self, request: &Request<'_>, at: usize) -> u32 {
        expiry(extra_u32(request.extras, at).into(), self.context.now)
    }
}

//! Authentication of clients.
//!
//! If the server has [`Credentials`], a session executes no command before its client has named a
//! user and the password: by the data of a `set` in the text protocol ([`Login`]), by SASL PLAIN
//! in the binary protocol ([`sasl`]).

mod credentials;
mod login;
pub(super) mod sasl;

pub use credentials::{Credentials, CredentialsError};
pub(super) use login::Login;

use super::Context;
use crate::stats::Count;

/// The maximum length of what a client sends to authenticate, in bytes: more than any user and
/// password of a file.
pub(super) const TOKEN_MAX: usize = 2048;

/// Returns `true` if the server accepts this user and password.
fn is_known(user: &[u8], password: &[u8], context: &Context<'_>) -> bool {
    context.credentials.is_some_and(|known| known.verify(user, password))
}

/// Counts an attempt to authenticate.
fn count_attempt(succeeded: bool, context: &Context<'_>) {
    context.counters.add(Count::AuthCmds, 1);
    if !succeeded {
        context.counters.add(Count::AuthErrors, 1);
    }
}

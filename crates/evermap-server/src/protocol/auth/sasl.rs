//! The mechanism PLAIN of SASL (RFC 4616).
//!
//! It is the only mechanism, because the others need the password in a form that only they use, or
//! protect less than TLS does.

use super::{count_attempt, is_known};
use crate::protocol::Context;

/// The names of the mechanisms, as a client receives them.
pub(in crate::protocol) const MECHANISMS: &[u8] = b"PLAIN";
/// The maximum length of the name of a mechanism, in bytes.
pub(in crate::protocol) const MECHANISM_MAX: usize = 32;

/// Whether the client of a session has authenticated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::protocol) enum State {
    #[default]
    Unauthenticated,
    /// The client has chosen the mechanism, and sends its credentials in the next step.
    Started,
    Authenticated,
}

impl State {
    /// Begins an authentication, which ends one that succeeded before.
    ///
    /// Without a message, the client is asked for one (the state becomes [`State::Started`]),
    /// because SASL allows it to send the message either way.
    pub(in crate::protocol) fn start(
        &mut self,
        mechanism: &[u8],
        message: &[u8],
        context: &Context<'_>,
    ) {
        *self = if mechanism != MECHANISMS {
            count_attempt(false, context);
            State::Unauthenticated
        } else if message.is_empty() {
            State::Started
        } else {
            verify(message, context)
        };
    }

    /// Continues an authentication that was started.
    pub(in crate::protocol) fn step(
        &mut self,
        mechanism: &[u8],
        message: &[u8],
        context: &Context<'_>,
    ) {
        *self = if *self == State::Started && mechanism == MECHANISMS {
            verify(message, context)
        } else {
            count_attempt(false, context);
            State::Unauthenticated
        };
    }

    /// Ends an authentication whose message is too long.
    pub(in crate::protocol) fn refuse(&mut self, context: &Context<'_>) {
        count_attempt(false, context);
        *self = State::Unauthenticated;
    }
}

/// Checks a message of the mechanism, and counts the attempt.
fn verify(message: &[u8], context: &Context<'_>) -> State {
    let verified = is_valid(message, context);
    count_attempt(verified, context);
    if verified { State::Authenticated } else { State::Unauthenticated }
}

/// Returns `true` if a message has an identity to act as, a known user, and the password, separated
/// by zero bytes.
fn is_valid(message: &[u8], context: &Context<'_>) -> bool {
    let mut parts = message.split(|&byte| byte == 0);
    let (Some(identity), Some(user), Some(password), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return false;
    };
    // No user may act as another one.
    is_known(user, password, context) && (identity.is_empty() || identity == user)
}

//! The tests of the server, in one program: each of these would compile the store again.

mod agreement;
mod auth;
mod binary;
mod common;
mod copies;
mod disconnects;
mod listening;
mod meta;
mod metrics;
mod namespaces;
mod pieces;
mod refusals;
mod sockets;
mod store;
mod text;
#[cfg(feature = "tls")]
mod tls;
mod torture;
mod watch;

//! The tests of the server, in one program: each of these would compile the store again.

mod agreement;
mod auth;
mod binary;
mod common;
mod copies;
mod disconnects;
mod meta;
mod metrics;
mod pieces;
mod sockets;
mod store;
mod text;
mod torture;
mod watch;

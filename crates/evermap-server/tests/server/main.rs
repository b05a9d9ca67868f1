//! The tests of the server, in one program: each of these would compile the store again.

mod common;
mod copies;
mod disconnects;
mod metrics;
mod pieces;
mod sockets;
mod store;
mod text;
mod torture;
mod watch;

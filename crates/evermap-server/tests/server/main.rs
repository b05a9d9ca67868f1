//! The tests of the server, in one program: each of these would compile the store again.

mod common;
mod copies;
mod disconnects;
mod meta;
mod pieces;
mod sockets;
mod store;
mod text;
mod torture;

//! The store's tests, in one program: each of these would compile the whole store again.

mod atomic;
mod batch;
mod common;
mod compact;
mod concurrent;
mod conservation;
mod costs;
mod crash;
mod damage;
mod expire;
mod files;
mod full;
mod guards;
mod maps;
mod model;
mod ordered;
mod panics;
mod read_only;
mod refs;
mod saved;
mod space;
mod streams;
mod sweep;
mod trust;
mod typed;
mod walks;

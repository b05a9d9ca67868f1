//! The store's tests. They are one program, because each program would compile the whole store
//! again.

mod atomic;
mod batch;
mod common;
mod compact;
mod concurrent;
mod conservation;
mod cost;
mod costs;
mod crash;
mod damage;
mod evict;
mod expire;
mod files;
mod find_many;
mod full;
mod guards;
mod live_copy;
mod maps;
mod model;
mod ordered;
#[path = "../fixtures/packed.rs"]
mod packed;
mod panics;
mod persistent_order;
mod read_only;
mod refs;
mod saved;
mod space;
mod streams;
mod sweep;
mod trust;
mod typed;
mod unreadable;
mod waits;
mod walks;

//! Engines of a memcached server, to compare: the tables under the same commands, protocol and
//! sockets.
//!
//! After section 6 of "Resizable, Scalable, Concurrent Hash Tables via Relativistic Programming"
//! (Triplett, McKenney, Walpole; USENIX ATC 2011): there the look-ups of memcached leave its one
//! lock, and copy a value to the reply before they leave their reader section.
//!
//! | name | a `get` |
//! |---|---|
//! | `one-lock` | takes the lock twice: to find an item and count a reference, and to drop that |
//! | `ddds`, `rp` | copies inside its reader section |
//! | `volatile-map` | copies under its guard |
//!
//! All of them hold [`Entry`](evermap_server::memory::Entry)s of a
//! [`MemoryCache`], under one hash function. What a `get` notes of its
//! access is stored at most once a second, so the relativistic engines need no slow path for it:
//! the version of an item that a reader sees stays readable, and only a change needs the locks of
//! updaters.

use std::sync::Arc;

use evermap_server::{Cache, MemoryCache};

mod keys;
mod one_lock;
mod relativistic;
mod volatile;

pub use one_lock::OneLock;
pub use relativistic::Relativistic;
pub use volatile::Volatile;

/// The names of the engines.
pub const NAMES: [&str; 4] = ["one-lock", "ddds", "rp", "volatile-map"];

/// Creates an empty cache over the engine called `name`, or returns `None` if there is none.
///
/// # Errors
///
/// `NoSpace` if there is no memory for the table.
pub fn engine(name: &str) -> Option<evermap_pm::Result<Arc<dyn Cache>>> {
    Some(match name {
        "one-lock" => Ok(Arc::new(MemoryCache::over(OneLock::default()))),
        "ddds" => Relativistic::ddds().map(|table| Arc::new(MemoryCache::over(table)) as _),
        "rp" => Relativistic::rp().map(|table| Arc::new(MemoryCache::over(table)) as _),
        "volatile-map" => Ok(Arc::new(MemoryCache::over(Volatile::default()))),
        _ => return None,
    })
}

#[cfg(test)]
mod tests;

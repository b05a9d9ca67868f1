//! A memcached-compatible server over Evermap.
//!
//! A request walks one way: bytes from a socket ([`server`]) → [`protocol`] → a [`Cache`] → the store.
//! The protocols know neither sockets nor the store, so they can be driven by tests, by a fuzzer, or by
//! another event loop.
//!
//! ```no_run
//! use std::sync::Arc;
//! use evermap_server::{Config, ModelCache, Server};
//!
//! let server = Server::start(Arc::new(ModelCache::new(0)), Config::default())?;
//! println!("listening on {}", server.local_addr());
//! server.join();
//! # Ok::<(), std::io::Error>(())
//! ```

pub mod cache;
pub mod model;
mod number;
pub mod protocol;
pub mod server;
pub mod stats;
mod store;

pub use cache::{Cache, CacheError};
pub use model::ModelCache;
pub use server::{Config, Port, Server};

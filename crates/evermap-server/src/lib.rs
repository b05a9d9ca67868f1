//! A memcached-compatible server over Evermap.
//!
//! The bytes of a socket ([`server`]) go to a session of a [`protocol`], which turns them into
//! operations on a [`Cache`], which the store implements. The protocols know neither sockets nor
//! the store, so a test, a fuzzer or another event loop can drive them.
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
pub mod cumulative;
pub mod latency;
pub mod memory;
mod metrics;
pub mod model;
mod namespaces;
mod number;
pub mod protocol;
pub mod server;
pub mod stats;
mod store;
pub mod watch;

pub use cache::{Cache, CacheError};
pub use cumulative::Cumulative;
pub use memory::MemoryCache;
pub use metrics::METRICS_CONNECTIONS_MAX;
pub use model::ModelCache;
pub use namespaces::{Namespace, Namespaces, WhenFull};
pub use server::{Config, ListenAddress, Listener, Server};

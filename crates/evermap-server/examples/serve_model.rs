//! Serves a model cache, to measure the protocols and sockets without a store.
//!
//! ```text
//! cargo run --release -p evermap-server --example serve_model -- 127.0.0.1:11211 [THREADS]
//! ```

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use evermap_server::{Config, ModelCache, Server};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let mut config = Config::default();
    if let Some(listen) = arguments.next() {
        config.listen = listen.parse()?;
    }
    if let Some(threads) = arguments.next() {
        config.threads = threads.parse()?;
    }
    let cache = Arc::new(ModelCache::new(0));
    let server = Server::start(cache.clone(), config)?;
    println!("process {} serves {}", std::process::id(), server.local_addr());
    loop {
        let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
        cache.set_now(now.try_into()?);
        std::thread::sleep(Duration::from_millis(250));
    }
}

//! A store in an asynchronous program: `async [PATH]`.
//!
//! Operations on one key take about a microsecond, and are called directly, like those of a hash
//! map. Operations that wait for other processes or walk over many records are run on threads that
//! may block.

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use evermap::{Evermap, KeyRange, Map, Options};
use tokio::task::{JoinSet, spawn_blocking};

type Failure = Box<dyn Error + Send + Sync>;

/// A key and its value.
type Pair = (Vec<u8>, Vec<u8>);

/// The number of requests that are served concurrently, and of writes in each.
const REQUESTS: u64 = 64;
const WRITES: u64 = 1000;
/// The number of pairs of a page: small, so that a blocking thread is soon free for others.
const PAGE: u64 = 500;

/// Runs `work`, which would delay an asynchronous thread, on a thread that may block.
async fn blocking<R: Send + 'static>(
    work: impl FnOnce() -> evermap::Result<R> + Send + 'static,
) -> Result<R, Failure> {
    Ok(spawn_blocking(work).await??)
}

/// Serves a request. The calls take microseconds and do not wait for a disk, so they need no
/// separate thread. A task that makes many of them yields from time to time.
async fn serve(map: Map, request: u64) -> Result<(), Failure> {
    for number in 0..WRITES {
        let key = format!("{request:04}/{number:06}");
        map.put(key.as_bytes(), b"value")?;
        // `get` returns a copy, so nothing of the store is held when the task is suspended.
        let value = map.get(key.as_bytes())?;
        assert_eq!(value.as_deref(), Some(&b"value"[..]));
        if number % 64 == 0 {
            tokio::task::yield_now().await;
        }
    }
    map.fetch_add(b"requests", 1)?;
    Ok(())
}

/// Returns the next pairs of a range, and the rest of it. A scan borrows the store, so it cannot be
/// sent to another thread; the rest of its range can.
fn page(map: &Map, range: KeyRange) -> evermap::Result<(Vec<Pair>, KeyRange)> {
    let mut scan = map.scan(range)?.limit(PAGE);
    let pairs = scan.by_ref().collect::<evermap::Result<_>>()?;
    Ok((pairs, scan.rest()))
}

/// Counts the records under a prefix, a page at a time. Between two pages the task may wait for
/// anything, for example for a slow client.
async fn count(map: &Map, prefix: &str) -> Result<usize, Failure> {
    let mut range = KeyRange::prefix(prefix);
    let mut count = 0;
    loop {
        let map = map.clone();
        let (pairs, rest) = blocking(move || page(&map, range)).await?;
        if pairs.is_empty() {
            return Ok(count);
        }
        count += pairs.len();
        range = rest;
    }
}

#[tokio::main]
async fn main() -> Result<(), Failure> {
    let named = std::env::args().nth(1);
    let directory = tempfile::tempdir()?;
    let path = named.map_or_else(|| directory.path().join("map"), Into::into);
    // Opening waits for a process that holds the file but is dying.
    let options = Options::new().ordered(true);
    let map = blocking(move || Evermap::open(path, options)).await?.default_map();

    let served = Arc::new(AtomicU64::new(0));
    let mut requests = JoinSet::new();
    for request in 0..REQUESTS {
        // A handle is a reference-counted pointer: every task has its own.
        let (map, served) = (map.clone(), served.clone());
        requests.spawn(async move {
            serve(map, request).await?;
            served.fetch_add(1, Relaxed);
            Ok::<_, Failure>(())
        });
    }
    while let Some(ended) = requests.join_next().await {
        ended??;
    }
    assert_eq!(served.load(Relaxed), REQUESTS);
    println!("{REQUESTS} requests, {} records of the first", count(&map, "0000/").await?);

    // A purge walks over all records; closing waits for running operations and for readers.
    let purging = map.clone();
    println!("{} records had expired", blocking(move || purging.db().purge()).await?);
    blocking(move || map.into_db().close()).await
}

//! A cache in a web service: `cargo run -p evermap --example web_cache [FILE]`.
//!
//! The service makes a page from something slow, and keeps it in a file that evicts at a limit of
//! memory. Pages expire, so that what has changed at the source is not served for ever. The program
//! starts the service, asks it for pages as a client, and ends.
//!
//! Kill it while it runs, and start it again: the cache is warm.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use evermap::{Evermap, Map, Options};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// How long a page may be older than its source.
const LIFE: Duration = Duration::from_secs(60);
/// The clients, and the requests of each.
const CLIENTS: u64 = 4;
const REQUESTS: u64 = 100;
/// The number of pages. All together are as long as the limit of the cache.
const PAGES: u64 = 100;
const PAGE_BYTES: usize = 40 << 10;

struct Service {
    cache: Map,
    made: AtomicU64,
}

impl Service {
    /// Makes a page, slowly.
    fn make(&self, path: &str) -> String {
        self.made.fetch_add(1, Relaxed);
        thread::sleep(Duration::from_millis(5));
        format!("<h1>{path}</h1>{}", " ".repeat(PAGE_BYTES))
    }

    /// Returns a page from the cache, or makes it.
    fn page(&self, path: &str) -> evermap::Result<Vec<u8>> {
        if let Some(page) = self.cache.get(path)? {
            return Ok(page);
        }
        let page = self.make(path);
        self.cache.set(path).expires(LIFE).put(&page)?;
        Ok(page.into_bytes())
    }

    /// Answers one request.
    fn answer(&self, client: &TcpStream) -> Result<(), Failure> {
        let mut lines = BufReader::new(client).lines();
        let request = lines.next().ok_or("no request")??;
        // The headers end with an empty line.
        for line in lines.by_ref() {
            if line?.is_empty() {
                break;
            }
        }
        let path = request.split(' ').nth(1).ok_or("no path")?;
        let page = self.page(path)?;
        let mut client = client;
        write!(client, "HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", page.len())?;
        Ok(client.write_all(&page)?)
    }

    /// Answers requests, each on a thread of its own.
    fn serve(&self, listener: &TcpListener, requests: u64) -> Result<(), Failure> {
        thread::scope(|scope| {
            let one = || {
                let (client, _) = listener.accept()?;
                Ok(scope.spawn(move || self.answer(&client)))
            };
            let answers: Result<Vec<_>, Failure> = (0..requests).map(|_| one()).collect();
            answers?.into_iter().try_for_each(|answer| answer.join().expect("no panic"))
        })
    }
}

/// Asks for pages: for those with small numbers more often than for others.
fn browse(service: SocketAddr, client: u64) -> Result<(), Failure> {
    for number in 0..REQUESTS {
        let page = (number * (2 * client + 37) % PAGES).min(number * 53 % PAGES);
        let path = format!("/{page}");
        let mut stream = TcpStream::connect(service)?;
        write!(stream, "GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        if !reply.contains(&format!("<h1>{path}</h1>")) {
            return Err(format!("{path}: another page").into());
        }
    }
    Ok(())
}

fn main() -> Result<(), Failure> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm/evermap-web-cache.map".into());
    let db = Evermap::open(&path, Options::new().memory_limit(4 << 20).evict(true))?;
    println!("{} pages are in the cache at the start", db.default_map().len());
    let service = Service { cache: db.default_map(), made: AtomicU64::new(0) };
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    println!("http://{address}/ answers {} requests", CLIENTS * REQUESTS);
    thread::scope(|scope| {
        let clients: Vec<_> =
            (0..CLIENTS).map(|client| scope.spawn(move || browse(address, client))).collect();
        service.serve(&listener, CLIENTS * REQUESTS)?;
        clients.into_iter().try_for_each(|client| client.join().expect("no panic"))
    })?;
    println!("all pages were right, and {} had to be made", service.made.load(Relaxed));
    drop(service);
    Ok(db.close()?)
}

//! Sessions of a web application: `cargo run -p evermap --example sessions [FILE]`.
//!
//! A session expires some time after it was last used: each request stores it again, with a new
//! expiry. What several requests change at the same time is changed by compare-and-swap. (A session
//! that is only read is not written again: `Map::touch` moves its expiry in place.)
//!
//! Kill it while it runs, and start it again at once: the session is still there, and the requests
//! that were answered are counted in it.

use std::hash::{BuildHasher, RandomState};
use std::thread;
use std::time::Duration;

use evermap::{Evermap, Map, MapOptions, Options};

/// How long a session lives after it was used. Half an hour would be usual.
const LIFE: Duration = Duration::from_secs(2);
/// The browsers that use one session at the same time, and the requests of each.
const BROWSERS: u64 = 4;
const REQUESTS: u64 = 25;

/// What the application remembers of a session: here as `user:requests`.
struct Session {
    user: String,
    requests: u64,
}

impl Session {
    fn decode(bytes: &[u8]) -> Option<Self> {
        let (user, requests) = std::str::from_utf8(bytes).ok()?.rsplit_once(':')?;
        Some(Session { user: user.to_owned(), requests: requests.parse().ok()? })
    }

    fn encode(&self) -> String {
        format!("{}:{}", self.user, self.requests)
    }
}

/// Begins a session. Returns its id, which nobody can guess, for a cookie of the browser.
fn log_in(sessions: &Map, user: &str) -> evermap::Result<String> {
    loop {
        let [one, two] = [1, 2].map(|number| RandomState::new().hash_one(number));
        let id = format!("{one:016x}{two:016x}");
        let session = Session { user: user.to_owned(), requests: 0 }.encode();
        if sessions.set(&id).expires(LIFE).try_insert(session)?.changed() {
            return Ok(id);
        }
    }
}

/// Answers a request. Returns the session with this request counted, or `None` if there is none.
fn request(sessions: &Map, id: &str) -> evermap::Result<Option<Session>> {
    loop {
        // The closure sees the record and its CAS id.
        let read = |item: evermap::Item<'_>| Some((Session::decode(item.value)?, item.cas));
        let Some((mut session, cas)) = sessions.get_with(id, read)?.flatten() else {
            return Ok(None);
        };
        session.requests += 1;
        // Each request keeps it alive.
        let renewed = sessions.set(id).expires(LIFE);
        if renewed.compare_exchange(cas, session.encode())?.changed() {
            return Ok(Some(session));
        }
        // Another request of the same session was faster: read again what it has stored.
    }
}

fn main() -> evermap::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm/evermap-sessions.map".into());
    let db = Evermap::open(&path, Options::new())?;
    let sessions = db.map("sessions", MapOptions::new())?;

    // The default map plays the browser here, which keeps the id in a cookie.
    let cookie = db.default_map().get("cookie")?.and_then(|id| String::from_utf8(id).ok());
    let known = cookie.filter(|id| sessions.contains(id).unwrap_or(false));
    let id = match known {
        Some(id) => id,
        None => log_in(&sessions, "ann")?,
    };
    db.default_map().put("cookie", &id)?;
    let idle = log_in(&sessions, "bob")?;
    let before = request(&sessions, &id)?.map_or(0, |session| session.requests);
    println!("the first request of this run is number {before} of its session");

    thread::scope(|scope| {
        let browse = || {
            for _ in 0..REQUESTS {
                request(&sessions, &id)?;
                thread::sleep(LIFE / 16); // longer in all than a session lives
            }
            Ok::<(), evermap::Error>(())
        };
        let browsers: Vec<_> = (0..BROWSERS).map(|_| scope.spawn(browse)).collect();
        browsers.into_iter().try_for_each(|one| one.join().expect("no panic"))
    })?;

    let session = request(&sessions, &id)?.expect("it was used all the time");
    println!("{}: {} requests since", session.user, session.requests - before);
    if request(&sessions, &idle)?.is_none() {
        println!("bob, who was idle, has been logged out");
    }
    sessions.delete(&id)?; // logged out
    println!("sessions that are left: {}", sessions.iter().count());
    db.close()
}

//! Shards: maps that divide the keys among them by their hashes, each with one owner.
//!
//! An owner is a thread, or a process with a file of its own. It has its shard alone, so nothing
//! waits for locks, and what it changes stays in the caches of one processor. A [`Driver`] takes a
//! batch of requests, sends each owner its part, and returns the replies in the order of the
//! requests; owners work at the same time, and each prefetches what its part needs.
//!
//! ```text
//!                         +- link -> owner 0: Shard { map, 0 of 2 }
//! batch ->  Driver  ------+
//!                         +- link -> owner 1: Shard { map, 1 of 2 }
//! ```
//!
//! | owners | link | |
//! |---|---|---|
//! | threads | [`ThreadLink`]: channels | [`Owners`] starts them |
//! | processes | [`StreamLink`]: two streams of bytes, like pipes | each calls [`serve`] |
//!
//! Requests of one batch for one key are executed in their order, each durable before the reply.
//! Which shard a key belongs to depends on nothing but the key and the number of shards. A shard
//! has its number and that one in its file, so that a set that is not the whole one is refused.

use std::io;
use std::sync::Arc;

use evermap_index::hash::hash_prefix::check_bits;
use evermap_index::index::BATCH_KEYS;
use evermap_papers::tranche::{Config, Geometry, Sizes, TrancheMap};
use evermap_pm::{Error, Medium, PmU64, Pool, Result};
use xxhash_rust::xxh3::xxh3_64_with_seed;

mod threads;
pub(crate) mod wire;

pub(crate) use threads::Owners;
pub(crate) use wire::{StreamLink, serve};

/// Something to be done with one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    /// Returns the value of a key.
    Get {
        /// The key.
        key: Vec<u8>,
    },
    /// Stores a value for a key.
    Put {
        /// The key.
        key: Vec<u8>,
        /// The value.
        value: Vec<u8>,
    },
    /// Removes a key.
    Remove {
        /// The key.
        key: Vec<u8>,
    },
}

impl Request {
    /// Returns the key that the request is about.
    pub(crate) fn key(&self) -> &[u8] {
        match self {
            Request::Get { key } | Request::Put { key, .. } | Request::Remove { key } => key,
        }
    }
}

/// The reply to a [`Request`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    /// To a `Get`: the value.
    Value(Option<Vec<u8>>),
    /// To a change, which is durable: whether the key was present before.
    Done {
        /// See the variant.
        present: bool,
    },
    /// The request has failed, and others of its batch may not have.
    Failed {
        /// `true` if there was no space for it; then nothing has changed.
        no_space: bool,
        /// The error in words.
        error: String,
    },
}

/// Which of how many shards one is.
///
/// ```text
/// bit  0..16  number
/// bit 16..32  shards
/// bit 48..64  check bits
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Place {
    /// The number of the shard, less than `shards`.
    pub(crate) number: u16,
    /// The number of all shards.
    pub(crate) shards: u16,
}

impl Place {
    const SALT: u64 = 0x5348_4152;
    /// The seed of the hash that chooses a shard. Maps have other seeds, so that the keys of a
    /// shard are distributed in its map like any others.
    const SEED: u64 = 0x6f77_6e65_7200_0001;

    /// Returns the number of the shard, of this many, that has a key.
    pub(crate) fn of(key: &[u8], shards: u16) -> u16 {
        let hash = xxh3_64_with_seed(key, Self::SEED);
        (((hash >> 32) * u64::from(shards)) >> 32) as u16
    }

    fn encode(self) -> u64 {
        let fields = u64::from(self.number) | u64::from(self.shards) << 16;
        fields | check_bits(fields, Self::SALT) << 48
    }

    fn decode(word: u64) -> Option<Self> {
        let place = Place { number: word as u16, shards: (word >> 16) as u16 };
        (place.number < place.shards && place.encode() == word).then_some(place)
    }
}

/// One of the maps that divide the keys among them.
pub(crate) struct Shard<M: Medium, G: Geometry = Sizes<256, 16, 8>> {
    map: TrancheMap<M, G>,
    place: Place,
}

impl<M: Medium, G: Geometry> Shard<M, G> {
    /// Creates an empty shard: stores its place in the root cell `label`, and then its map in the
    /// root cell `root`. Crash-atomic: before the map is stored, there is no shard.
    ///
    /// # Errors
    /// `NoSpace`; `Config` if the place is impossible.
    pub(crate) fn create(
        pool: Arc<Pool<M>>,
        root: &PmU64,
        label: &PmU64,
        place: Place,
        config: Config,
    ) -> Result<Self> {
        if place.number >= place.shards {
            let what = format!("shard {} of {}", place.number, place.shards);
            return Err(evermap_pm::ErrorKind::Config(what).into());
        }
        pool.region().ensure_writable()?;
        pool.medium().store(label, place.encode());
        pool.medium().persist(label);
        Ok(Shard { map: TrancheMap::create(pool, root, config)?, place })
    }

    /// Opens the shard with these root cells. O(1).
    ///
    /// # Errors
    /// `Damaged`, also if the cells are not those of a shard.
    pub(crate) fn open(pool: Arc<Pool<M>>, root: &PmU64, label: &PmU64) -> Result<Self> {
        let place = Place::decode(pool.medium().load(label)).ok_or_else(|| {
            Error::damaged(pool.medium().offset_of(label), "impossible place of a shard")
        })?;
        Ok(Shard { map: TrancheMap::open(pool, root)?, place })
    }

    /// Returns which of the shards it is.
    pub(crate) fn place(&self) -> Place {
        self.place
    }

    /// Returns the map. Keys of other shards in it would not be found.
    pub(crate) fn map(&mut self) -> &mut TrancheMap<M, G> {
        &mut self.map
    }

    /// Executes requests in their order, with overlapping cache misses, and returns a reply to
    /// each. A key of another shard is refused.
    pub(crate) fn execute(&mut self, requests: &[Request]) -> Vec<Reply> {
        let mut replies = Vec::with_capacity(requests.len());
        for requests in requests.chunks(BATCH_KEYS) {
            let batch = self.map.prefetch(requests.iter().map(Request::key));
            for (place, request) in requests.iter().enumerate() {
                batch.prefetch_after(place);
                replies.push(self.execute_one(request));
            }
        }
        replies
    }

    fn execute_one(&self, request: &Request) -> Reply {
        let owner = Place::of(request.key(), self.place.shards);
        if owner != self.place.number {
            let error = format!("a key of shard {owner} was sent to shard {}", self.place.number);
            return Reply::Failed { no_space: false, error };
        }
        let done = match request {
            Request::Get { key } => self.map.get(key).map(Reply::Value),
            Request::Put { key, value } => {
                self.map.upsert(key, value).map(|present| Reply::Done { present })
            }
            Request::Remove { key } => self.map.remove(key).map(|present| Reply::Done { present }),
        };
        done.unwrap_or_else(|error| Reply::Failed {
            no_space: error.is_no_space(),
            error: error.to_string(),
        })
    }
}

/// A way to an owner: what is sent is answered in its order.
pub(crate) trait Link {
    /// Sends requests.
    ///
    /// # Errors
    /// If the owner cannot be reached; what was sent before may have been executed.
    fn send(&mut self, requests: Vec<Request>) -> io::Result<()>;

    /// Waits for the replies to the requests that were sent first of those unanswered.
    ///
    /// # Errors
    /// If the owner cannot be reached; the requests may have been executed.
    fn receive(&mut self) -> io::Result<Vec<Reply>>;
}

/// Divides batches of requests among the owners of shards.
pub(crate) struct Driver<L: Link> {
    links: Vec<L>,
    /// Whether a batch has failed, so that replies to it may still be under way.
    failed: bool,
}

impl<L: Link> Driver<L> {
    /// Creates a driver for owners, in the order of the numbers of their shards.
    ///
    /// # Errors
    /// `InvalidInput` if there are none, or more than 65,535.
    pub(crate) fn new(links: Vec<L>) -> io::Result<Self> {
        if links.is_empty() || u16::try_from(links.len()).is_err() {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        Ok(Driver { links, failed: false })
    }

    /// Executes a batch of requests, and returns the replies in the same order.
    ///
    /// # Errors
    /// If an owner cannot be reached or gives a wrong number of replies: then each of the requests
    /// may have been executed, and the driver can only be dropped.
    pub(crate) fn execute(&mut self, requests: Vec<Request>) -> io::Result<Vec<Reply>> {
        if self.failed {
            return Err(io::Error::new(io::ErrorKind::BrokenPipe, "a batch has failed before"));
        }
        let replies = self.exchange(requests);
        self.failed = replies.is_err();
        replies
    }

    fn exchange(&mut self, requests: Vec<Request>) -> io::Result<Vec<Reply>> {
        let shards = self.links.len() as u16;
        let mut parts: Vec<Vec<Request>> = self.links.iter().map(|_| Vec::new()).collect();
        let owners: Vec<u16> =
            requests.iter().map(|request| Place::of(request.key(), shards)).collect();
        for (request, &owner) in requests.into_iter().zip(&owners) {
            parts[usize::from(owner)].push(request);
        }
        let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
        for (link, part) in self.links.iter_mut().zip(parts).filter(|(_, part)| !part.is_empty()) {
            link.send(part)?;
        }
        let mut replies = Vec::with_capacity(counts.len());
        for (link, count) in self.links.iter_mut().zip(counts) {
            let part = if count == 0 { Vec::new() } else { link.receive()? };
            if part.len() != count {
                let what = "a wrong number of replies";
                return Err(io::Error::new(io::ErrorKind::InvalidData, what));
            }
            replies.push(part.into_iter());
        }
        let in_order = owners.iter().filter_map(|&owner| replies[usize::from(owner)].next());
        Ok(in_order.collect())
    }
}

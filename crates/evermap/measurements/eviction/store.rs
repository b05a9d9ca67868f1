//! The store as a policy.

use std::ops::ControlFlow;
use std::time::{Duration, SystemTime};

use evermap::{Clock, Evermap, Map, Options};

use super::policies::Policy;
use super::trace::Request;

/// Returns the time that is this number of seconds after the first request.
fn time(seconds: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000 + seconds)
}

pub(crate) struct Store {
    map: Map,
    clock: Clock,
    value: Vec<u8>,
    /// Requests in a second.
    per_second: u64,
    /// Most bytes that were in use at any time.
    most: u64,
}

impl Store {
    pub(crate) fn new(bytes: u64, per_second: u64) -> evermap::Result<Self> {
        let clock = Clock::manual(time(0));
        let options = Options::new().memory_limit(bytes).evict(true).clock(clock.clone()).seed(7);
        let map = Evermap::in_memory(options)?.default_map();
        Ok(Store { map, clock, value: vec![7; 1 << 20], per_second, most: 0 })
    }

    /// Writes what it did to the standard error stream.
    pub(crate) fn report(&self, trace: &str, bytes: u64) -> evermap::Result<()> {
        let (stat, space) = (self.map.stat(), self.map.space()?);
        eprintln!(
            "{trace}, {bytes} bytes: used at most {:.2} %, now {:.2} %, allocated {:.2} %, \
             {} evicted ({} directly), {} moved",
            self.most as f64 * 100.0 / bytes as f64,
            stat.memory_used as f64 * 100.0 / bytes as f64,
            space.allocated_bytes as f64 * 100.0 / bytes as f64,
            stat.evictions,
            stat.evicted_directly,
            stat.moved_for_space,
        );
        Ok(())
    }
}

impl Policy for Store {
    fn name(&self) -> &'static str {
        "Evermap, measured"
    }

    fn get(&mut self, request: &Request, now: u64) -> bool {
        self.clock.set(time(now / self.per_second));
        if now.is_multiple_of(1_000) {
            self.most = self.most.max(self.map.stat().memory_used);
        }
        let mut hit = false;
        let looked_up = self.map.cache().find_many(&[request.key.to_le_bytes()], |_, found| {
            hit = found.is_ok_and(|found| found.value_len() > 0);
            ControlFlow::Break(())
        });
        looked_up.expect("nothing is damaged");
        hit
    }

    fn put(&mut self, request: &Request, now: u64) {
        let expiry =
            (request.ttl > 0).then(|| time(now / self.per_second + u64::from(request.ttl)));
        let (key, value) = (request.key.to_le_bytes(), &self.value[..request.len as usize]);
        let stored = self.map.set(key).expires(expiry).put(value);
        stored.expect("a cache stores everything that fits");
    }
}

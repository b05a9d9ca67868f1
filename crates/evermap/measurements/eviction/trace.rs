//! The traces.

use std::collections::HashMap;

/// The number of keys that requests are drawn from, at a scale of 1.
const KEYS: u64 = 200_000;
/// Requests in a second of the traces, at a scale of 1.
const PER_SECOND: u64 = 10_000;

/// One request: a lookup, and what is stored if it finds nothing.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) key: u64,
    pub(crate) len: u32,
    /// Seconds for which the item is valid; 0: for ever.
    pub(crate) ttl: u32,
}

pub(crate) struct Trace {
    pub(crate) name: &'static str,
    pub(crate) requests: Vec<Request>,
    /// Requests in a second.
    pub(crate) per_second: u64,
}

impl Trace {
    /// Returns the bytes that all items take at their largest.
    pub(crate) fn footprint(&self) -> u64 {
        let mut items = HashMap::new();
        for request in &self.requests {
            let bytes = items.entry(request.key).or_insert(0);
            *bytes = super::policies::record_bytes(request.len).max(*bytes);
        }
        items.values().sum()
    }

    /// Returns whether items expire.
    pub(crate) fn expires(&self) -> bool {
        self.requests.iter().any(|request| request.ttl > 0)
    }

    /// Makes the times for which items are valid this many times as long.
    pub(crate) fn stretch(&mut self, factor: f64) {
        for request in &mut self.requests {
            request.ttl = (f64::from(request.ttl) * factor).ceil() as u32;
        }
    }
}

pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Random(seed)
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// Returns a number from 0 to 1.
    fn unit(&mut self) -> f64 {
        (self.next() >> 11) as f64 / (1u64 << 53) as f64
    }
}

pub(crate) fn mix(mut word: u64) -> u64 {
    word = (word ^ word >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    word = (word ^ word >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    word ^ word >> 31
}

/// Draws ranks by Zipf's law.
pub(crate) struct Zipf(Vec<f64>);

impl Zipf {
    pub(crate) fn new(keys: u64, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=keys).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Zipf(sums.collect())
    }

    pub(crate) fn draw(&self, random: &mut Random) -> u64 {
        let at = random.unit() * self.0.last().copied().unwrap_or(1.0);
        self.0.partition_point(|&sum| sum < at) as u64
    }
}

/// Returns the usual length of a value: 100 to 3,300 bytes, most of them short.
pub(crate) fn usual_len(key: u64) -> u32 {
    let word = mix(key ^ 0x51ed);
    (100u64 << (word % 6)) as u32 + (word >> 8) as u32 % 100
}

/// The names of all traces.
pub(crate) const NAMES: [&str; 8] = [
    "Zipf 0.8",
    "Zipf 0.99",
    "Zipf 1.2",
    "scans",
    "read once",
    "popularity shifts",
    "sizes shift",
    "short-lived",
];

/// Makes traces of one size.
pub(crate) struct Traces {
    keys: u64,
    requests: u64,
    scale: f64,
}

impl Traces {
    /// Traces of this number of requests, times `scale`.
    pub(crate) fn new(requests: usize, scale: f64) -> Self {
        let mut traces = Traces { keys: 0, requests: 0, scale };
        (traces.keys, traces.requests) = (traces.scaled(KEYS), traces.scaled(requests as u64));
        traces
    }

    fn scaled(&self, number: u64) -> u64 {
        ((number as f64 * self.scale).round() as u64).max(1)
    }

    /// Returns the trace with one of [`NAMES`].
    pub(crate) fn make(&self, name: &'static str) -> Trace {
        match name {
            "Zipf 0.8" => self.zipf(name, 0.8),
            "Zipf 0.99" => self.zipf(name, 0.99),
            "Zipf 1.2" => self.zipf(name, 1.2),
            "scans" => self.scans(name),
            "read once" => self.once(name),
            "popularity shifts" => self.shifting_popularity(name),
            "sizes shift" => self.shifting_sizes(name),
            _ => self.expiring(name),
        }
    }

    fn collect(
        &self,
        name: &'static str,
        mut draw: impl FnMut(u64, &mut Random) -> Request,
    ) -> Trace {
        let mut random = Random::new(7);
        let requests = (0..self.requests).map(|at| draw(at, &mut random)).collect();
        Trace { name, requests, per_second: self.scaled(PER_SECOND) }
    }

    fn zipf(&self, name: &'static str, exponent: f64) -> Trace {
        let draws = Zipf::new(self.keys, exponent);
        self.collect(name, |_, random| lasting(draws.draw(random)))
    }

    /// A third of the time, a walk through keys that nothing else reads.
    fn scans(&self, name: &'static str) -> Trace {
        let (draws, mut walked) = (Zipf::new(self.keys, 0.99), 0u64);
        let walk = self.scaled(20_000);
        self.collect(name, |at, random| {
            let walks = at / walk % 3 == 2;
            let rank = if walks { self.keys + walked % self.keys } else { draws.draw(random) };
            walked += u64::from(walks);
            lasting(rank)
        })
    }

    /// Two of five requests are for keys that come once.
    fn once(&self, name: &'static str) -> Trace {
        let draws = Zipf::new(self.keys, 0.99);
        self.collect(name, |at, random| {
            lasting(if random.below(5) < 2 { 1 << 40 | at } else { draws.draw(random) })
        })
    }

    /// Other keys are popular every 200,000 requests, at a scale of 1.
    fn shifting_popularity(&self, name: &'static str) -> Trace {
        let draws = Zipf::new(self.keys, 0.99);
        let phase_len = self.scaled(200_000);
        self.collect(name, |at, random| {
            lasting(draws.draw(random) + at / phase_len * (self.keys / 10))
        })
    }

    /// Keys come and go, and later ones have values of other lengths.
    fn shifting_sizes(&self, name: &'static str) -> Trace {
        let phases = [60, 300, 2_000, 12_000, 200, 5_000, 100];
        let draws = Zipf::new(self.scaled(KEYS / 8), 0.9);
        let phase_len = self.requests / phases.len() as u64 + 1;
        self.collect(name, |at, random| {
            let phase = at / phase_len;
            // Gradually: within a phase, more and more requests are for its keys.
            let within = at % phase_len;
            let late = random.below(phase_len) <= 2 * within;
            let phase = if late { phase } else { phase.saturating_sub(1) };
            let key = mix(draws.draw(random) | phase << 32);
            let usual = phases[phase as usize];
            let len = usual + (mix(key ^ 0x77) % (u64::from(usual) / 4 + 1)) as u32;
            Request { key, len, ttl: 0 }
        })
    }

    /// Most items are valid for some seconds only.
    fn expiring(&self, name: &'static str) -> Trace {
        let draws = Zipf::new(self.keys, 0.99);
        self.collect(name, |_, random| {
            let item = lasting(draws.draw(random));
            let ttl = match mix(item.key ^ 0x3333) % 10 {
                0..=3 => 5,
                4..=6 => 20,
                7 | 8 => 60,
                _ => 0,
            };
            Request { ttl, ..item }
        })
    }
}

/// Returns a request for an item of the usual length that does not expire.
fn lasting(rank: u64) -> Request {
    let key = mix(rank);
    Request { key, len: usual_len(key), ttl: 0 }
}

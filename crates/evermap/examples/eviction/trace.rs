//! The traces.

use std::collections::HashMap;

/// The number of keys that requests are drawn from.
const KEYS: u64 = 200_000;
/// Requests in a second of the traces.
pub(crate) const PER_SECOND: u64 = 10_000;

/// One request: a lookup, and what is stored if it finds nothing.
#[derive(Clone, Copy)]
pub(crate) struct Request {
    pub(crate) key: u64,
    pub(crate) len: u32,
    /// Seconds for which the item is valid; 0: for ever.
    pub(crate) ttl: u32,
}

pub(crate) struct Trace {
    pub(crate) name: String,
    pub(crate) requests: Vec<Request>,
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

    fn below(&mut self, end: u64) -> u64 {
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
struct Zipf(Vec<f64>);

impl Zipf {
    fn new(keys: u64, exponent: f64) -> Self {
        let mut sum = 0.0;
        let sums = (1..=keys).map(|rank| {
            sum += (rank as f64).powf(-exponent);
            sum
        });
        Zipf(sums.collect())
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let at = random.unit() * self.0.last().copied().unwrap_or(1.0);
        self.0.partition_point(|&sum| sum < at) as u64
    }
}

/// Returns the usual length of a value: 100 to 3,300 bytes, most of them short.
fn usual_len(key: u64) -> u32 {
    let word = mix(key ^ 0x51ed);
    (100u64 << (word % 6)) as u32 + (word >> 8) as u32 % 100
}

/// Returns all traces, each of this number of requests.
pub(crate) fn all(requests: usize) -> Vec<Trace> {
    let zipf = |exponent| {
        let draws = Zipf::new(KEYS, exponent);
        make(&format!("Zipf {exponent}"), requests, move |_, random| {
            let key = mix(draws.draw(random));
            Request { key, len: usual_len(key), ttl: 0 }
        })
    };
    vec![
        zipf(0.8),
        zipf(0.99),
        zipf(1.2),
        scans(requests),
        once(requests),
        shifting_popularity(requests),
        shifting_sizes(requests),
        expiring(requests),
    ]
}

fn make(name: &str, requests: usize, mut draw: impl FnMut(u64, &mut Random) -> Request) -> Trace {
    let mut random = Random::new(7);
    let requests = (0..requests as u64).map(|at| draw(at, &mut random)).collect();
    Trace { name: name.into(), requests }
}

/// A third of the time, a walk through keys that nothing else reads.
fn scans(requests: usize) -> Trace {
    let (draws, mut walked) = (Zipf::new(KEYS, 0.99), 0u64);
    make("scans", requests, move |at, random| {
        let walks = at / 20_000 % 3 == 2;
        let rank = if walks { KEYS + walked % KEYS } else { draws.draw(random) };
        walked += u64::from(walks);
        let key = mix(rank);
        Request { key, len: usual_len(key), ttl: 0 }
    })
}

/// Two of five requests are for keys that come once.
fn once(requests: usize) -> Trace {
    let draws = Zipf::new(KEYS, 0.99);
    make("read once", requests, move |at, random| {
        let rank = if random.below(5) < 2 { 1 << 40 | at } else { draws.draw(random) };
        let key = mix(rank);
        Request { key, len: usual_len(key), ttl: 0 }
    })
}

/// Other keys are popular every 200,000 requests.
fn shifting_popularity(requests: usize) -> Trace {
    let draws = Zipf::new(KEYS, 0.99);
    make("popularity shifts", requests, move |at, random| {
        let key = mix(draws.draw(random) + at / 200_000 * (KEYS / 10));
        Request { key, len: usual_len(key), ttl: 0 }
    })
}

/// Keys come and go, and later ones have values of other lengths.
fn shifting_sizes(requests: usize) -> Trace {
    let (draws, phases) = (Zipf::new(KEYS / 8, 0.9), [60, 300, 2_000, 12_000, 200, 5_000, 100]);
    let phase_len = requests / phases.len() + 1;
    make("sizes shift", requests, move |at, random| {
        let phase = at as usize / phase_len;
        // Gradually: within a phase, more and more requests are for its keys.
        let within = at as usize % phase_len;
        let late = random.below(phase_len as u64) as usize <= 2 * within;
        let phase = if late { phase } else { phase.saturating_sub(1) };
        let key = mix(draws.draw(random) | (phase as u64) << 32);
        let len = phases[phase] + (mix(key ^ 0x77) % (phases[phase] / 4 + 1) as u64) as u32;
        Request { key, len, ttl: 0 }
    })
}

/// Most items are valid for some seconds only.
fn expiring(requests: usize) -> Trace {
    let draws = Zipf::new(KEYS, 0.99);
    make("short-lived", requests, move |_, random| {
        let key = mix(draws.draw(random));
        let ttl = match mix(key ^ 0x3333) % 10 {
            0..=3 => 5,
            4..=6 => 20,
            7 | 8 => 60,
            _ => 0,
        };
        Request { key, len: usual_len(key), ttl }
    })
}

//! Ranks by Zipf's law.
//!
//! Inverts the distribution, as the generator of Gray et al. (SIGMOD 1994) that YCSB uses. That one
//! is exact for the first two ranks only. Here the first 1024 are tabulated and the others come
//! from the integral of the density, which differs from the sum by less than a millionth there. So
//! no sum over all ranks is needed, and their number may change from one draw to the next.

/// The number of ranks whose probabilities are tabulated.
const HEAD: usize = 1024;

/// Rank `r`, counted from 0, comes up in proportion to `(r + 1)^-theta`.
#[derive(Clone, Debug)]
pub struct Zipf {
    theta: f64,
    /// Sums of the weights of the first ranks.
    head: Vec<f64>,
}

impl Zipf {
    /// The skew of YCSB.
    pub const YCSB: f64 = 0.99;

    /// Creates a law with this skew: 0 is uniform, 1 is Zipf's own.
    pub fn new(theta: f64) -> Self {
        let mut sum = 0.0;
        let weigh = |rank: usize| {
            sum += (rank as f64).powf(-theta);
            sum
        };
        Zipf { theta, head: (1..=HEAD).map(weigh).collect() }
    }

    /// Returns the rank below `n`, which is at least 1, for a number that is uniform in `0..2^64`.
    pub fn rank(&self, n: u64, uniform: u64) -> u64 {
        let part = (uniform >> 11) as f64 / (1u64 << 53) as f64;
        self.inverse(n, part * self.weight(n))
    }

    /// Returns the probability of `rank` among `n`.
    pub fn probability(&self, n: u64, rank: u64) -> f64 {
        ((rank + 1) as f64).powf(-self.theta) / self.weight(n)
    }

    /// Returns the sum of the weights of the first `n` ranks.
    fn weight(&self, n: u64) -> f64 {
        match usize::try_from(n) {
            Ok(n) if n <= HEAD => self.head[n.max(1) - 1],
            _ => self.head[HEAD - 1] + self.area(n as f64 + 0.5) - self.area(HEAD as f64 + 0.5),
        }
    }

    /// Returns the rank in which the sum of weights reaches `weight`.
    fn inverse(&self, n: u64, weight: f64) -> u64 {
        let rank = if weight < self.head[HEAD - 1] {
            self.head.partition_point(|&sum| sum <= weight) as u64
        } else {
            let area = weight - self.head[HEAD - 1] + self.area(HEAD as f64 + 0.5);
            (self.edge(area) - 0.5) as u64
        };
        rank.min(n.max(1) - 1)
    }

    /// The antiderivative of the density, whose weight of rank `r` is between `r + 0.5` and `r +
    /// 1.5`.
    fn area(&self, edge: f64) -> f64 {
        if self.theta == 1.0 { edge.ln() } else { edge.powf(1.0 - self.theta) / (1.0 - self.theta) }
    }

    /// The inverse of [`area`](Zipf::area).
    fn edge(&self, area: f64) -> f64 {
        if self.theta == 1.0 {
            area.exp()
        } else {
            ((1.0 - self.theta) * area).powf(1.0 / (1.0 - self.theta))
        }
    }
}

/// The number of items of YCSB's scrambled Zipf, whatever the number of keys.
const SCRAMBLED_ITEMS: u64 = 10_000_000_000;

/// Returns a key index below `n` as YCSB's "scrambled zipfian" picks it: a rank among ten billion
/// items, hashed, and reduced to `n`. Many ranks share a key then, so the popularity of keys is
/// flatter than Zipf's law of `n`.
pub fn scrambled(zipf: &Zipf, n: u64, uniform: u64) -> u64 {
    fnv(zipf.rank(SCRAMBLED_ITEMS, uniform)) % n
}

/// FNV-1a over the eight bytes of a word, lowest first.
fn fnv(word: u64) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3);
    word.to_le_bytes().iter().fold(0xcbf2_9ce4_8422_2325, step)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workload::keys::random;

    /// Every rank is drawn as often as the law says, within what chance allows: tabulated ranks,
    /// the first beyond them, and the tail in bands.
    #[test]
    fn ranks_follow_the_law() {
        const DRAWS: u64 = 1_000_000;
        for (n, theta) in
            [(10, 0.99), (1000, 0.5), (100_000, 0.99), (1_000_000, 1.0), (50_000, 1.3)]
        {
            let zipf = Zipf::new(theta);
            let bounds: Vec<_> = [0, 1, 2, 5, 10, 100, 1000, 1024, 1025, 1100, 10_000, 100_000, n]
                .into_iter()
                .filter(|&bound| bound <= n)
                .collect();
            let mut counts = vec![0u64; bounds.len() - 1];
            for draw in 0..DRAWS {
                let rank = zipf.rank(n, random(7, draw));
                assert!(rank < n);
                counts[bounds.partition_point(|&bound| bound <= rank) - 1] += 1;
            }
            let total: f64 = (0..n).map(|rank| ((rank + 1) as f64).powf(-theta)).sum();
            for (band, &count) in bounds.windows(2).zip(&counts) {
                let weight: f64 = (band[0]..band[1]).map(|r| ((r + 1) as f64).powf(-theta)).sum();
                let expected = DRAWS as f64 * weight / total;
                // Five standard deviations.
                let allowed = 5.0 * expected.sqrt() + 1.0;
                let off = (count as f64 - expected).abs();
                assert!(off < allowed, "{n} {theta} {band:?}: {count}, expected {expected:.0}");
            }
        }
    }

    #[test]
    fn weights_are_those_of_the_sum() {
        for theta in [0.0, 0.5, 0.99, 1.0, 1.2] {
            let zipf = Zipf::new(theta);
            for n in [1, 2, 1023, 1024, 1025, 5000, 300_000] {
                let sum: f64 = (1..=n).map(|rank| (rank as f64).powf(-theta)).sum();
                assert!((zipf.weight(n) / sum - 1.0).abs() < 1e-6, "{theta} {n}");
                let ranks: f64 = (0..n.min(2000)).map(|rank| zipf.probability(n, rank)).sum();
                assert!(ranks <= 1.0 + 1e-6);
            }
        }
    }

    #[test]
    fn the_ends_are_inside() {
        let zipf = Zipf::new(Zipf::YCSB);
        for n in [1, 2, 1024, 1025, 10_000_000] {
            assert_eq!(zipf.rank(n, 0), 0);
            let last = zipf.rank(n, u64::MAX);
            assert!(last < n && last >= n - 1 - n / 100, "{n}: {last}");
            assert!(scrambled(&zipf, n, u64::MAX) < n);
        }
    }

    /// Published values of the hash.
    #[test]
    fn the_scramble_is_fnv() {
        // FNV-1a of eight zero bytes, and of the byte `a` is af63dc4c8601ec8c: the first step of
        // any word that starts with it.
        let first = (0xcbf2_9ce4_8422_2325u64 ^ 0x61).wrapping_mul(0x0000_0100_0000_01b3);
        assert_eq!(first, 0xaf63_dc4c_8601_ec8c);
        let zeros = (0..7).fold(first, |hash, _| hash.wrapping_mul(0x0000_0100_0000_01b3));
        assert_eq!(fnv(0x61), zeros);
    }

    /// The most popular key of the scrambled kind is less popular than by Zipf's law of `n`.
    #[test]
    fn the_scrambled_kind_is_flatter() {
        let (zipf, n) = (Zipf::new(Zipf::YCSB), 1000);
        let mut counts = vec![0u64; n as usize];
        for draw in 0..200_000 {
            counts[scrambled(&zipf, n, random(3, draw)) as usize] += 1;
        }
        let most = *counts.iter().max().unwrap() as f64 / 200_000.0;
        assert!(most < 0.6 * zipf.probability(n, 0) && most > 0.02, "{most}");
    }
}

//! Random numbers whose sequence never changes, so that a seed found today fails the same way
//! tomorrow.

/// xoshiro256++ by Blackman and Vigna, seeded through splitmix64.
#[derive(Clone, Debug)]
pub struct Rng {
    state: [u64; 4],
}

impl Rng {
    /// Creates the generator for `seed`. Any seed is good.
    pub fn new(seed: u64) -> Self {
        let mut seed = seed;
        let mut split = || {
            seed = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
            finish(seed)
        };
        Rng { state: [split(), split(), split(), split()] }
    }

    /// Returns the next 64 random bits.
    #[inline]
    pub fn draw(&mut self) -> u64 {
        let s = &mut self.state;
        let result = s[0].wrapping_add(s[3]).rotate_left(23).wrapping_add(s[0]);
        let shifted = s[1] << 17;
        s[2] ^= s[0];
        s[3] ^= s[1];
        s[1] ^= s[2];
        s[0] ^= s[3];
        s[2] ^= shifted;
        s[3] = s[3].rotate_left(45);
        result
    }

    /// Returns a number below `limit`, which must not be zero. The bias is below `limit` / 2^64.
    #[inline]
    pub fn below(&mut self, limit: u64) -> u64 {
        debug_assert!(limit > 0);
        ((u128::from(self.draw()) * u128::from(limit)) >> 64) as u64
    }

    /// Returns `true` once in `n` times on average. `n` must not be zero.
    #[inline]
    pub fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    /// Returns one of `from`, which must not be empty.
    #[inline]
    pub fn pick<'a, T>(&mut self, from: &'a [T]) -> &'a T {
        &from[self.below(from.len() as u64) as usize]
    }

    /// Puts `items` in a random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            items.swap(at, self.below(at as u64 + 1) as usize);
        }
    }
}

/// Mixes 64 bits with the output function of splitmix64.
#[inline]
pub(crate) fn finish(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// Folds `next` into `hash`.
#[inline]
pub(crate) fn fold(hash: u64, next: u64) -> u64 {
    finish(hash.rotate_left(5) ^ next.wrapping_add(0x9e37_79b9_7f4a_7c15))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The published vector of xoshiro256++ for the state 1, 2, 3, 4.
    #[test]
    fn golden() {
        let mut rng = Rng { state: [1, 2, 3, 4] };
        let drawn: Vec<u64> = (0..4).map(|_| rng.draw()).collect();
        assert_eq!(drawn, [41943041, 58720359, 3588806011781223, 3591011842654386]);
    }

    /// Recorded crashes refer to seeds, so these values must never change.
    #[test]
    fn seeds_never_change_their_meaning() {
        let mut rng = Rng::new(0);
        assert_eq!(rng.state[0], 0xe220_a839_7b1d_cdaf);
        assert_eq!(rng.draw(), 5_987_356_902_031_041_503);
    }

    #[test]
    fn below_covers_its_range_evenly() {
        let mut rng = Rng::new(5);
        let mut counts = [0; 10];
        for _ in 0..10_000 {
            counts[rng.below(10) as usize] += 1;
        }
        // Mean 1000, standard deviation 30.
        assert!(counts.iter().all(|&n| n > 800 && n < 1200), "{counts:?}");
    }
}

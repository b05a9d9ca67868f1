//! Block sizes.
//!
//! Sizes grow in steps of 12.5 % (eight per doubling), so at most a ninth of a block is wasted, up
//! to an eighth of the largest extent. If that is less than eight units, so that whole units would
//! waste too much, there are also the sizes of an extent divided by 7, 6, 5, 4, 3, 2 and 1. Larger
//! blocks get units of their own.

use crate::region::GRANULE;

/// Smallest block, in bytes.
const SMALLEST: u64 = 32;

/// The block sizes of one heap, ascending.
pub(crate) struct Classes {
    sizes: Vec<u64>,
    /// Class of every size up to `small.len() * GRANULE`, so that common sizes need no search.
    small: Vec<u8>,
}

impl Classes {
    pub(crate) fn new(extent_size: u64, unit: u64) -> Self {
        let mut sizes = Vec::new();
        let mut doubling = SMALLEST;
        while doubling <= extent_size / 8 {
            for eighth in 0..8 {
                let size = (doubling + doubling * eighth / 8) / GRANULE * GRANULE;
                if sizes.last() != Some(&size) && size <= extent_size / 8 {
                    sizes.push(size);
                }
            }
            doubling *= 2;
        }
        let parts = (1..8).rev().map(|parts| extent_size / parts / GRANULE * GRANULE);
        sizes.extend(parts.filter(|_| extent_size / 8 < 8 * unit));
        let class_of = |size| sizes.partition_point(|&class| class < size) as u8;
        let small = (0..=256.min(extent_size / GRANULE)).map(|i| class_of(i * GRANULE)).collect();
        Classes { sizes, small }
    }

    pub(crate) fn len(&self) -> usize {
        self.sizes.len()
    }

    pub(crate) fn size(&self, class: usize) -> u64 {
        self.sizes[class]
    }

    /// Returns the smallest class that holds `size` bytes, or `None` above the largest.
    #[inline]
    pub(crate) fn of(&self, size: u64) -> Option<usize> {
        match self.small.get(size.div_ceil(GRANULE) as usize) {
            Some(&class) => Some(usize::from(class)),
            None => {
                let class = self.sizes.partition_point(|&class| class < size);
                (class < self.sizes.len()).then_some(class)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_size_fits_its_class_with_little_waste() {
        for (extent, unit) in [(4096, 4096), (16384, 4096), (2 << 20, 16384)] {
            let classes = Classes::new(extent, unit);
            assert!(classes.sizes.windows(2).all(|pair| pair[0] < pair[1]));
            let largest = *classes.sizes.last().unwrap();
            assert_eq!(largest, if extent / unit > 64 { extent / 8 } else { extent });
            for size in (1..=largest).step_by(if extent > 16384 { 41 } else { 1 }) {
                let class = classes.of(size).unwrap();
                let block = classes.size(class);
                assert!(block >= size);
                assert!(class == 0 || classes.size(class - 1) < size, "a smaller class would do");
                let steps = block > 128 && block <= extent / 8;
                assert!(!steps || block <= size + size / 8 + GRANULE, "{size} in {block}");
            }
            assert_eq!(classes.of(largest + 1), None);
        }
    }
}

//! A bounded cache of tranches.

use std::collections::{HashMap, VecDeque};

use super::page::Page;

/// Up to a number of tranches that were read, the least recently used of which give way: each gets
/// a second chance if it was used since it came to the front.
pub(super) struct Cache<const T: usize> {
    capacity: usize,
    pages: HashMap<u64, (Page<T>, bool)>,
    queue: VecDeque<u64>,
}

impl<const T: usize> Cache<T> {
    /// Creates a cache of this number of tranches, which may be 0.
    pub(super) fn new(capacity: usize) -> Self {
        Cache { capacity, pages: HashMap::new(), queue: VecDeque::new() }
    }

    /// Returns a tranche, if it is here.
    pub(super) fn get(&mut self, place: u64) -> Option<&Page<T>> {
        let (page, used) = self.pages.get_mut(&place)?;
        *used = true;
        Some(page)
    }

    /// Takes a tranche out.
    pub(super) fn take(&mut self, place: u64) -> Option<Page<T>> {
        let (page, _) = self.pages.remove(&place)?;
        self.queue.retain(|&other| other != place);
        Some(page)
    }

    /// Puts a tranche in, which is not here. Returns one that gives way.
    pub(super) fn put(&mut self, place: u64, page: Page<T>) -> Option<Page<T>> {
        if self.capacity == 0 {
            return Some(page);
        }
        let gone = if self.pages.len() == self.capacity { self.evict() } else { None };
        self.pages.insert(place, (page, false));
        self.queue.push_back(place);
        gone
    }

    fn evict(&mut self) -> Option<Page<T>> {
        while let Some(place) = self.queue.pop_front() {
            match self.pages.get_mut(&place) {
                Some((_, used)) if *used => {
                    *used = false;
                    self.queue.push_back(place);
                }
                _ => return self.pages.remove(&place).map(|(page, _)| page),
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::super::queue::Buffer;
    use super::*;

    #[test]
    fn what_was_not_used_gives_way_first() {
        let page = || Page::<4096>::empty(Buffer::new(4096));
        let mut cache = Cache::new(3);
        for place in 0..3 {
            assert!(cache.put(place, page()).is_none());
        }
        assert!(cache.get(0).is_some());
        assert!(cache.put(3, page()).is_some());
        assert!(cache.get(1).is_none() && cache.get(0).is_some() && cache.get(3).is_some());
        assert!(cache.take(0).is_some() && cache.take(0).is_none());
        assert!(cache.put(4, page()).is_none());
        assert_eq!(cache.pages.len(), 3);
        assert_eq!(cache.queue.len(), 3);
        let mut none = Cache::new(0);
        assert!(none.put(1, page()).is_some() && none.get(1).is_none());
    }
}

//! Walks and scans, a page at a time.

use std::mem::ManuallyDrop;
use std::ops::ControlFlow;
use std::sync::Arc;

use evermap::{Iter, KeyRange, Keys, Map, Scan};

use crate::{Fault, Result, StoreMap};

/// What to walk through.
#[derive(Clone, Debug)]
pub enum Walk {
    /// All pairs, in no order.
    All,
    /// All keys, in no order. The values are not read, and are empty.
    Keys,
    /// Pairs in the order of their keys.
    Scan {
        /// Which.
        range: KeyRange,
        /// Whether the last one comes first.
        reverse: bool,
        /// How many at most.
        limit: u64,
    },
}

/// A walk that goes on where it was, and keeps its map and file open. Between two pages it holds
/// nothing in the store.
pub struct Pairs {
    /// Dropped before `map`, from which it borrows.
    from: ManuallyDrop<Source>,
    /// Set when there is nothing more.
    is_over: bool,
    map: Arc<StoreMap>,
}

enum Source {
    All(Iter<'static>),
    Keys(Keys<'static>),
    Scan(Box<Scan<'static>>),
}

/// Pairs, one behind the other.
#[derive(Default)]
pub struct Page {
    bytes: Vec<u8>,
    /// Where each key ends, and each value.
    ends: Vec<(usize, usize)>,
    /// What was met behind them.
    fault: Option<evermap::Error>,
}

impl Page {
    /// Returns an empty page.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the number of pairs.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns `true` if there are none.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the key and the value of the pair at `at`, which must be less than the length.
    pub fn pair(&self, at: usize) -> (&[u8], &[u8]) {
        let start = at.checked_sub(1).map_or(0, |before| self.ends[before].1);
        let (key, value) = self.ends[at];
        (&self.bytes[start..key], &self.bytes[key..value])
    }

    /// Takes the fault that was met behind the pairs. The walk can go on after it.
    ///
    /// # Errors
    /// That fault.
    pub fn take_fault(&mut self) -> Result<()> {
        self.fault.take().map_or(Ok(()), |error| Err(Fault::Store(error)))
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.fault = None;
    }

    fn push(&mut self, key: &[u8], value: &[u8]) {
        self.bytes.extend_from_slice(key);
        let key = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.ends.push((key, self.bytes.len()));
    }

    /// Adds a pair or a fault, and says whether there is room for another one.
    fn add(
        &mut self,
        pair: Result<(&[u8], &[u8]), evermap::Error>,
        pairs: usize,
        bytes: usize,
    ) -> ControlFlow<()> {
        match pair {
            Ok((key, value)) => self.push(key, value),
            Err(error) => self.fault = Some(error),
        }
        let is_full = self.ends.len() >= pairs || self.bytes.len() >= bytes;
        if is_full || self.fault.is_some() {
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    }
}

impl StoreMap {
    /// Begins a walk.
    ///
    /// # Errors
    /// Those of [`Map::scan`]; a walk without an order cannot fail here.
    pub fn pairs(self: &Arc<Self>, walk: Walk) -> Result<Pairs> {
        // SAFETY: the `Pairs` that the walk is put into keeps the map, at the same address, until
        // the walk was dropped.
        let map: &'static Map = unsafe { &*std::ptr::from_ref(self.map()) };
        let from = match walk {
            Walk::All => Source::All(map.iter()),
            Walk::Keys => Source::Keys(map.keys()),
            Walk::Scan { range, reverse, limit } => {
                let scan = map.scan(range)?.limit(limit);
                Source::Scan(Box::new(if reverse { scan.reverse() } else { scan }))
            }
        };
        Ok(Pairs { from: ManuallyDrop::new(from), is_over: false, map: self.clone() })
    }
}

impl Pairs {
    /// Replaces what is in `page` by the next pairs: about `pairs` of them, or `bytes` bytes, and
    /// none if there are no more. What is damaged ends a page, which [tells](Page::take_fault).
    ///
    /// # Errors
    /// Those of [`Scan::visit`]; the walk is over then.
    pub fn next_page(&mut self, page: &mut Page, pairs: usize, bytes: usize) -> Result<()> {
        page.clear();
        if self.is_over {
            return Ok(());
        }
        let filled = self.fill(page, pairs, bytes);
        self.is_over = filled.is_err() || page.is_empty() && page.fault.is_none();
        filled
    }

    fn fill(&mut self, page: &mut Page, pairs: usize, bytes: usize) -> Result<()> {
        match &mut *self.from {
            Source::All(iter) => {
                for pair in iter {
                    let flow = match pair {
                        Ok((key, value)) => page.add(Ok((&key, &value)), pairs, bytes),
                        Err(error) => page.add(Err(error), pairs, bytes),
                    };
                    if flow.is_break() {
                        break;
                    }
                }
                Ok(())
            }
            Source::Keys(keys) => {
                for key in keys {
                    let flow = match key {
                        Ok(key) => page.add(Ok((&key, &[])), pairs, bytes),
                        Err(error) => page.add(Err(error), pairs, bytes),
                    };
                    if flow.is_break() {
                        break;
                    }
                }
                Ok(())
            }
            Source::Scan(scan) => {
                scan.visit(|item| page.add(item.map(|item| (item.key, item.value)), pairs, bytes))?;
                Ok(())
            }
        }
    }

    /// Returns the map that is walked through.
    pub fn map(&self) -> &Arc<StoreMap> {
        &self.map
    }
}

impl Drop for Pairs {
    fn drop(&mut self) {
        // SAFETY: not used afterwards, and `map` still lives.
        unsafe { ManuallyDrop::drop(&mut self.from) };
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use evermap::KeyRange;

    use super::{Page, Walk};
    use crate::{Settings, Store, StoreMap};

    fn numbers(settings: &[(&str, &str)]) -> Arc<StoreMap> {
        let mut all = Settings::new();
        for (name, value) in settings {
            all.set(name, value).unwrap();
        }
        let map = Store::open(None, &all).unwrap().map(None, true).unwrap();
        for number in 0..1000_u32 {
            map.map().put(number.to_be_bytes(), number.to_string()).unwrap();
        }
        map
    }

    /// Walks with pages of `pairs`, in a thread of its own for each of them.
    fn walked(map: &Arc<StoreMap>, walk: Walk, pairs: usize) -> Vec<(u32, String)> {
        let (mut walk, mut found) = (map.pairs(walk).unwrap(), Vec::new());
        loop {
            let (mut page, next);
            (walk, page, next) = std::thread::spawn(move || {
                let mut page = Page::new();
                let next = walk.next_page(&mut page, pairs, 1 << 20);
                (walk, page, next)
            })
            .join()
            .unwrap();
            next.unwrap();
            page.take_fault().unwrap();
            if page.is_empty() {
                return found;
            }
            found.extend((0..page.len()).map(|at| {
                let (key, value) = page.pair(at);
                let key = u32::from_be_bytes(key.try_into().unwrap());
                (key, String::from_utf8(value.to_vec()).unwrap())
            }));
        }
    }

    #[test]
    fn pages_have_every_pair_once_and_in_order() {
        let map = numbers(&[("ordered", "true")]);
        let all: Vec<_> = (0..1000).map(|number: u32| (number, number.to_string())).collect();
        let range = KeyRange::from(..);
        for pairs in [1, 7, 128, 5000] {
            let scan = Walk::Scan { range: range.clone(), reverse: false, limit: u64::MAX };
            assert_eq!(walked(&map, scan, pairs), all);
            let last = Walk::Scan { range: range.clone(), reverse: true, limit: 10 };
            let last: Vec<_> = walked(&map, last, pairs).into_iter().rev().collect();
            assert_eq!(last, all[990..]);
            let mut walk = walked(&map, Walk::All, pairs);
            walk.sort();
            assert_eq!(walk, all);
        }
        let mut keys: Vec<_> =
            walked(&map, Walk::Keys, 100).into_iter().map(|(key, _)| key).collect();
        keys.sort();
        assert_eq!(keys, (0..1000).collect::<Vec<_>>());
    }

    #[test]
    fn without_an_order_there_is_no_scan() {
        let map = numbers(&[]);
        let scan = Walk::Scan { range: KeyRange::from(..), reverse: false, limit: 1 };
        assert!(map.pairs(scan).is_err());
        assert_eq!(walked(&map, Walk::All, 64).len(), 1000);
    }

    #[test]
    fn a_page_ends_where_it_has_enough_bytes() {
        let map = numbers(&[]);
        let mut walk = map.pairs(Walk::All).unwrap();
        let mut page = Page::new();
        walk.next_page(&mut page, 1000, 100).unwrap();
        assert!(page.len() < 30, "{}", page.len());
        map.store().close().unwrap();
        while !page.is_empty() {
            walk.next_page(&mut page, 1000, 100).unwrap();
        }
        assert!(page.take_fault().is_err() || page.is_empty());
    }
}

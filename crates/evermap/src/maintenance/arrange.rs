//! Moving the records of a map next to each other in the order of their keys, so that scans read
//! the file from one end to the other.

use evermap_index::BATCH_KEYS;
use evermap_index::key::BytesRef;
use evermap_index::ordered::{Cursor, Direction, Run};
use evermap_index::record::OFFSET_MASK;
use evermap_pm::Medium;
use evermap_pm::heap::Evacuation;

use crate::maintenance::compact::{Mover, RECLAMATION_WAIT};
use crate::{Map, Result};

/// # Records in the order of their keys
impl<M: Medium> Map<M> {
    /// Moves the records of the map next to each other in the order of their keys. Scans read
    /// memory from one end to the other then, and take less time; records that are stored later are
    /// wherever there is space. Returns the number of records that it has moved: 0 while another
    /// thread compacts, sweeps or checks. Needs [`Options::ordered`](crate::Options::ordered).
    ///
    /// Other operations may go on meanwhile. O(n log n). As nothing becomes free before most
    /// records have moved, the file needs as much space again until this returns; that is given
    /// back to the system then. Records that are alone in an extent stay where they are. Each
    /// record moves by itself, so a crash leaves some of them moved.
    ///
    /// ```
    /// use evermap::{Evermap, Options};
    /// let map = Evermap::in_memory(Options::new().ordered(true))?.default_map();
    /// for name in ["cow", "ant", "bee"] {
    ///     map.put(name, "")?;
    /// }
    /// assert_eq!(map.arrange()?, 3);
    /// # Ok::<(), evermap::Error>(())
    /// ```
    ///
    /// # Errors
    /// Those of [`scan`](Map::scan); [`Error::ReadOnly`](crate::Error::ReadOnly),
    /// [`Error::GuardHeld`](crate::Error::GuardHeld), and
    /// [`Error::Storage`](crate::Error::Storage) with `NoSpace` if there is no space for the
    /// copies: what has moved stays where it is then.
    pub fn arrange(&self) -> Result<u64> {
        self.db.ensure_no_guard("arrange")?;
        let file = &*self.db.file;
        file.ensure_writable()?;
        let tree = self.tree(false)?;
        let Some(_sweeping) = file.maintenance.try_sweeping() else { return Ok(0) };
        if !file.maintenance.sweep_state().is_over() || file.pool.epoch().is_backed_up() {
            return Ok(0);
        }
        let heap = file.pool.heap();
        // Nothing is allocated between the records that are there.
        let mut evacuation = heap.begin_evacuation();
        let mut from = 0;
        while let Some(extent) = heap.extent_from(from) {
            if !extent.is_large {
                evacuation.add(extent.extent);
            }
            from = extent.next;
        }
        let mut mover = Mover::new(self);
        let moved = self.move_in_order(
            &mut mover,
            Cursor::new(tree, .., Direction::Ascending),
            &evacuation,
        );
        self.db.wait_for_reclamation(&evacuation, RECLAMATION_WAIT);
        drop(evacuation);
        file.pool.trim();
        moved
    }

    fn move_in_order(
        &self,
        mover: &mut Mover<'_, M>,
        mut cursor: Cursor<'_>,
        evacuation: &Evacuation<'_, M>,
    ) -> Result<u64> {
        let (mut keys, mut moved) = (Run::new(), 0);
        loop {
            keys.clear();
            while keys.len() < BATCH_KEYS
                && let Some((key, hash)) = cursor.next()?
            {
                keys.push(key, hash);
            }
            if keys.is_empty() || self.db.file.maintenance.is_stopping() {
                return Ok(moved);
            }
            let guard = self.enter_writing()?;
            let mut refs = [BytesRef { bytes: &[], hash: 0 }; BATCH_KEYS];
            for (at, key) in refs.iter_mut().enumerate().take(keys.len()) {
                *key = BytesRef { bytes: keys.key(at), hash: keys.word(at) };
            }
            let mut words = [None; BATCH_KEYS];
            self.inner.index.get_many(&refs[..keys.len()], &mut words, &guard)?;
            let there = || {
                let words = words.iter().copied().flatten();
                words.filter(|word| evacuation.contains(word & OFFSET_MASK))
            };
            there().for_each(|word| self.prefetch(word));
            for word in there() {
                moved += u64::from(mover.move_record(word, &guard)?);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::{Evermap, Options};

    use super::*;

    fn key(number: u64) -> [u8; 8] {
        number.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes()
    }

    /// Returns how many records lie right behind the one whose key comes before theirs.
    fn neighbours<M: Medium>(map: &Map<M>) -> u64 {
        let guard = map.enter().unwrap();
        let mut cursor = Cursor::new(map.tree(false).unwrap(), .., Direction::Ascending);
        let (mut last, mut neighbours) = (0, 0);
        while let Some((key, hash)) = cursor.next().unwrap() {
            let word = map.inner.index.get(BytesRef { bytes: key, hash }, &guard).unwrap().unwrap();
            let offset = word & OFFSET_MASK;
            neighbours += u64::from(offset > last && offset - last <= 256);
            last = offset;
        }
        neighbours
    }

    #[test]
    fn records_are_arranged_beside_writers() {
        const RECORDS: u64 = 20_000;
        let map = Evermap::in_memory(Options::new().ordered(true)).unwrap().default_map();
        let value = |number: u64| vec![number as u8; 90 + (number % 3) as usize];
        (0..RECORDS).for_each(|number| map.put(key(number), value(number)).unwrap());
        // A replaced record lies elsewhere.
        (0..RECORDS / 2).for_each(|number| map.put(key(number), value(number)).unwrap());
        let ids = |map: &Map<_>| -> Vec<_> {
            (0..RECORDS).map(|n| map.get_with(key(n), |item| item.cas).unwrap()).collect()
        };
        let before = ids(&map);
        assert!(neighbours(&map) < RECORDS / 20);
        assert_eq!(map.arrange().unwrap(), RECORDS);
        assert!(neighbours(&map) > RECORDS * 9 / 10, "{}", neighbours(&map));
        assert_eq!(ids(&map), before);

        let stop = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut number = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let at = number % RECORDS;
                    match number % 3 {
                        0 => map.put(key(at), value(at)).unwrap(),
                        1 => drop(map.delete(key(at)).unwrap()),
                        _ => map.put(key(RECORDS + at), value(at)).unwrap(),
                    }
                    number += 1;
                }
            });
            for _ in 0..3 {
                map.arrange().unwrap();
            }
            stop.store(true, std::sync::atomic::Ordering::Relaxed);
        });
        for number in 0..2 * RECORDS {
            let found = map.get(key(number)).unwrap();
            assert!(found.is_none_or(|found| found == value(number % RECORDS)), "{number}");
        }
        let report = map.db().check(true).unwrap();
        assert!(report.is_sound(), "{report}");
    }
}

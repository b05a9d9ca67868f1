//! Checking what must always hold.

use evermap_index::ordered::Run;
use evermap_pm::{Medium, Result};

use super::Core;
use super::hash::Shown;
use super::item::Item;

/// The number of pairs that are read from the tree at a time.
const TOGETHER: usize = 1 << 10;

impl<M: Medium> Core<M> {
    /// Adds a description of each violated invariant to `problems`. There are no concurrent
    /// changes.
    pub(super) fn check(&self, problems: &mut Vec<String>) -> Result<()> {
        let tree = self.settled_tree()?;
        let (m, seed) = (self.pool.medium(), self.pool.seed());
        let (mut key, mut keys) = (Vec::new(), 0);
        for partition in 0..self.hash.partitions.len() {
            self.hash.walk(partition, &mut |shown| {
                let Shown::Entry(signature, position) = shown else { return Ok(()) };
                keys += 1;
                if !Item::at(m, position)?.read_key_of(signature, seed, &mut key) {
                    problems.push(format!("the item at {position:#x} is not that of its entry"));
                    return Ok(());
                }
                match tree.get(&key)? {
                    Some(found) if found == position => {}
                    // A key that is bound twice is one of these.
                    Some(_) => {
                        problems.push(format!("the tree names another item than {position:#x}"))
                    }
                    None => problems.push(format!("the tree lacks the key of {position:#x}")),
                }
                Ok(())
            })?;
        }
        if tree.len()? != keys {
            problems.push(format!("the hash index has {keys} keys, the tree {}", tree.len()?));
        }
        let (mut from, mut run) = (Vec::new(), Run::new());
        loop {
            run.clear();
            tree.collect(&from, TOGETHER, &mut run)?;
            for (key, position) in run.iter() {
                if self.hash.find(self.hash.place(key), key)? != Some(position) {
                    problems.push(format!("the tree names {position:#x}, its entry does not"));
                }
            }
            let Some(last) = run.len().checked_sub(1) else { return Ok(()) };
            from.clear();
            from.extend_from_slice(run.key(last));
            from.push(0);
        }
    }
}

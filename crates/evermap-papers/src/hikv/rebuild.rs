//! Building the tree after an opening: from the [image](super::image) that a normal shutdown has
//! left, or from the hash index (section 3.5 of the paper), beside readers and writers.

use evermap_index::ordered::Run;
use evermap_pm::{ErrorKind, Medium, Result, parallel};

use super::hash::Shown;
use super::item::Item;
use super::tree::Tree;
use super::{Core, Rebuild, Trees};

/// The number of items whose keys are fetched together.
const TOGETHER: usize = 32;
/// The number of bytes of an item that are fetched: most keys end in them.
const FETCHED: u64 = 64;

impl<M: Medium> Core<M> {
    /// Returns the complete tree, which is built by `threads` threads if it has to be.
    ///
    /// # Errors
    ///
    /// `Damaged`, `NoSpace`; `Interrupted` if the store is closed meanwhile.
    pub(super) fn complete_tree(&self, threads: usize) -> Result<&Tree> {
        if let Some(tree) = self.order.complete() {
            return Ok(tree);
        }
        let tree = self.order.finish(|| self.build(threads.max(1)))?;
        self.image.free(&self.pool, self.root()?)?;
        Ok(tree)
    }

    fn build(&self, threads: usize) -> Result<Tree> {
        let partitions = self.hash.partitions.len();
        let saved = self.image.read(&self.pool, threads)?;
        if self.config.rebuild == Rebuild::Bulk && self.config.trees == Trees::Optimistic {
            let collect = || {
                let runs = parallel(threads, partitions, |partition| self.collect(partition));
                runs.into_iter().collect::<Result<Vec<_>>>()
            };
            return Tree::load(&saved.map_or_else(collect, Ok)?, threads);
        }
        let tree = Tree::new(self.config.trees);
        match saved {
            Some(runs) => tree.insert_all(&runs, threads)?,
            None => {
                let insert = |partition| tree.insert_all(&[self.collect(partition)?], 1);
                parallel(threads, partitions, insert).into_iter().collect::<Result<()>>()?;
            }
        }
        Ok(tree)
    }

    /// Returns the keys of a partition with their positions. An entry whose item is not that of a
    /// key with its signature, because of damage, is left out.
    fn collect(&self, partition: usize) -> Result<Run> {
        if self.helpers.is_stopped() {
            return Err(ErrorKind::Interrupted.into());
        }
        // No item that is found is reused before its key is read.
        let _guard = self.pool.pin();
        let (mut run, mut found, mut key) = (Run::new(), Vec::new(), Vec::new());
        self.hash.walk(partition, &mut |shown| {
            if let Shown::Entry(signature, position) = shown {
                self.pool.medium().prefetch_bytes(position, FETCHED);
                found.push((signature, position));
                if found.len() == TOGETHER {
                    self.read_keys(&mut found, &mut key, &mut run);
                }
            }
            Ok(())
        })?;
        self.read_keys(&mut found, &mut key, &mut run);
        Ok(run)
    }

    fn read_keys(&self, found: &mut Vec<(u64, u64)>, key: &mut Vec<u8>, run: &mut Run) {
        for (signature, position) in found.drain(..) {
            let item = Item::at(self.pool.medium(), position);
            if item.is_ok_and(|item| item.read_key_of(signature, self.pool.seed(), key)) {
                run.push(key, position);
            }
        }
    }
}

//! Blocks of an index that is being made.

use evermap_pm::{Medium, Pool, Result};

/// Allocates blocks, and frees them when it is dropped before they are [kept](Fresh::keep): so that
/// an index for which there is no room leaves nothing behind.
pub(crate) struct Fresh<'p, M: Medium> {
    pool: &'p Pool<M>,
    blocks: Vec<u64>,
}

impl<'p, M: Medium> Fresh<'p, M> {
    pub(crate) fn new(pool: &'p Pool<M>) -> Self {
        Fresh { pool, blocks: Vec::new() }
    }

    /// See [`Pool::allocate`].
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn allocate(&mut self, size: u64) -> Result<u64> {
        self.note(self.pool.allocate(size)?)
    }

    /// See [`Pool::allocate_exact`].
    ///
    /// # Errors
    /// `NoSpace`.
    pub(crate) fn allocate_exact(&mut self, size: u64) -> Result<u64> {
        self.note(self.pool.allocate_exact(size)?)
    }

    fn note(&mut self, block: u64) -> Result<u64> {
        self.blocks.push(block);
        Ok(block)
    }

    /// The index has all that it needs.
    pub(crate) fn keep(mut self) {
        self.blocks.clear();
    }
}

impl<M: Medium> Drop for Fresh<'_, M> {
    fn drop(&mut self) {
        self.blocks.iter().for_each(|&block| self.pool.free_unpublished(block));
    }
}

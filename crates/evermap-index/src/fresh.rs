//! The blocks of an index that is being created.

use evermap_pm::{Medium, Pool, Result};

/// Allocates blocks, and frees them when dropped, unless [`keep`](Fresh::keep) was called. So the
/// creation of an index that fails for lack of space leaves no blocks allocated.
pub struct Fresh<'p, M: Medium> {
    pool: &'p Pool<M>,
    blocks: Vec<u64>,
}

impl<'p, M: Medium> Fresh<'p, M> {
    /// Creates an owner of no blocks yet.
    pub fn new(pool: &'p Pool<M>) -> Self {
        Fresh { pool, blocks: Vec::new() }
    }

    /// See [`Pool::allocate`].
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn allocate(&mut self, size: u64) -> Result<u64> {
        self.note(self.pool.allocate(size)?)
    }

    /// See [`Pool::allocate_fixed`].
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn allocate_fixed(&mut self, size: u64) -> Result<u64> {
        self.note(self.pool.allocate_fixed(size)?)
    }

    /// See [`Pool::allocate_exact`].
    ///
    /// # Errors
    /// `NoSpace`.
    pub fn allocate_exact(&mut self, size: u64) -> Result<u64> {
        self.note(self.pool.allocate_exact(size)?)
    }

    /// Adds a block that the index has had for such a case. Returns its offset.
    pub fn adopt(&mut self, block: u64) -> u64 {
        self.blocks.push(block);
        block
    }

    fn note(&mut self, block: u64) -> Result<u64> {
        self.blocks.push(block);
        Ok(block)
    }

    /// Keeps the blocks: the index has all blocks that it needs.
    pub fn keep(mut self) {
        self.blocks.clear();
    }
}

impl<M: Medium> Drop for Fresh<'_, M> {
    fn drop(&mut self) {
        self.blocks.iter().for_each(|&block| self.pool.free_unpublished(block));
    }
}

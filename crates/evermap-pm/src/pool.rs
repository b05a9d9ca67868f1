//! A region, its heap and its epoch domain as one object: what an index is built on.

use crate::{Domain, Guard, Medium};

/// Everything that an index needs, shared by all indexes of one store.
pub struct Pool<M: Medium> {
    medium: M,
    epoch: Domain,
}

impl<M: Medium> Pool<M> {
    /// The medium underneath.
    #[inline(always)]
    pub fn medium(&self) -> &M {
        &self.medium
    }

    /// Begins to protect everything reachable from now on.
    #[inline(always)]
    pub fn pin(&self) -> Guard<'_> {
        self.epoch.pin()
    }
}

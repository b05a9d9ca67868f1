//! What a root slot names: a block whose first word says which index it is.

use evermap_pm::{Error, Medium, PmU64, Pool, Result};

/// The block that root slot `root` names, if there is one, and its first word.
fn named<M: Medium>(pool: &Pool<M>, root: usize) -> Option<(u64, u64)> {
    let m = pool.medium();
    let block = m.load(pool.root(root));
    let kind = m.at::<PmU64>(block).filter(|_| block != 0)?;
    Some((block, m.load(kind)))
}

/// Whether root slot `root` names a block that begins with `kind`.
pub(crate) fn is_of<M: Medium>(pool: &Pool<M>, root: usize, kind: u64) -> bool {
    named(pool, root).is_some_and(|(_, found)| found == kind)
}

/// The block that root slot `root` names, which begins with `kind`.
pub(crate) fn block_of<M: Medium>(pool: &Pool<M>, root: usize, kind: u64) -> Result<u64> {
    let at = pool.medium().offset_of(pool.root(root));
    match named(pool, root) {
        None => Err(Error::damaged(at, "the root names no index")),
        Some((block, found)) if found != kind => {
            Err(Error::damaged(block, "the root names another kind of index"))
        }
        Some((block, _)) => Ok(block),
    }
}

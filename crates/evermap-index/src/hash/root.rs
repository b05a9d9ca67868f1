//! What a root cell names: a block whose first word says which index it is.

use evermap_pm::{Error, Medium, PmU64, Pool, Result};

/// The block that the root cell `root` names, if there is one, and its first word.
fn named<M: Medium>(pool: &Pool<M>, root: &PmU64) -> Option<(u64, u64)> {
    let m = pool.medium();
    let block = m.load(root);
    let kind = m.at::<PmU64>(block).filter(|_| block != 0)?;
    Some((block, m.load(kind)))
}

/// Whether the root cell `root` names a block that begins with `kind`.
pub(crate) fn is_of<M: Medium>(pool: &Pool<M>, root: &PmU64, kind: u64) -> bool {
    named(pool, root).is_some_and(|(_, found)| found == kind)
}

/// The block that the root cell `root` names, which begins with `kind`. That it names it is durable then.
pub(crate) fn block_of<M: Medium>(pool: &Pool<M>, root: &PmU64, kind: u64) -> Result<u64> {
    let at = pool.medium().offset_of(root);
    match named(pool, root) {
        None => Err(Error::damaged(at, "the root names no index")),
        Some((block, found)) if found != kind => {
            Err(Error::damaged(block, "the root names another kind of index"))
        }
        Some((block, _)) => {
            // Whoever stored it may have died before it was.
            pool.medium().persist(root);
            Ok(block)
        }
    }
}

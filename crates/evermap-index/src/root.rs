//! The block that a root cell refers to. Its first word identifies the kind of index.

use evermap_pm::medium::Note;
use evermap_pm::{Error, Medium, PmU64, Pool, Result};

/// Returns the offset and the first word of the block that the root cell `root` refers to. Returns
/// `None` if there is no block.
fn named<M: Medium>(pool: &Pool<M>, root: &PmU64) -> Option<(u64, u64)> {
    let m = pool.medium();
    let block = m.load(root);
    let kind = m.at::<PmU64>(block).filter(|_| block != 0)?;
    Some((block, m.load(kind)))
}

/// Returns whether the root cell `root` refers to a block that begins with `kind`.
pub fn is_of<M: Medium>(pool: &Pool<M>, root: &PmU64, kind: u64) -> bool {
    named(pool, root).is_some_and(|(_, found)| found == kind)
}

/// Returns the offset of the block that the root cell `root` refers to, which must begin with
/// `kind`. Makes the cell durable.
pub fn block_of<M: Medium>(pool: &Pool<M>, root: &PmU64, kind: u64) -> Result<u64> {
    let at = pool.medium().offset_of(root);
    match named(pool, root) {
        None => Err(Error::damaged(at, "the root cell refers to no index")),
        Some((block, found)) if found != kind => {
            Err(Error::damaged(block, "the root cell refers to another kind of index"))
        }
        Some((block, _)) => {
            // An earlier process may have stored the cell and terminated before it was durable.
            let m = pool.medium();
            m.note(Note::Harmless(
                "needed where the cell is in a block: \
                 `the_cell_that_names_an_index_is_durable_before_it_is_used`",
            ));
            m.persist(root);
            Ok(block)
        }
    }
}

/// Replaces the first word of the block that the root cell `root` refers to, durably.
pub fn convert<M: Medium>(pool: &Pool<M>, root: &PmU64, from: u64, to: u64) -> Result<()> {
    let block = block_of(pool, root, from)?;
    let m = pool.medium();
    if let Some(first) = m.at::<PmU64>(block) {
        m.store(first, to);
        m.persist(first);
    }
    Ok(())
}

/// Commits the creation of an index: stores `kind` in the first word of the block at `block`, whose
/// other words are flushed, and then the offset of the block in the root cell `root`, durably.
pub fn publish<M: Medium>(pool: &Pool<M>, root: &PmU64, block: u64, kind: u64) {
    let m = pool.medium();
    let first = m.at::<PmU64>(block).expect("just allocated");
    m.store(first, kind);
    m.flush(first);
    m.fence();
    m.store(root, block);
    m.persist(root);
}

#[cfg(test)]
mod tests {
    use evermap_pm::region::{Identity, RegionConfig};
    use evermap_pm::sim::Sim;

    use super::*;
    use crate::testkit::crash_states::{is_kept, record};

    /// A process has stored the offset of an index in a cell, and has terminated before it was
    /// durable. The cell is in a block, because the root cells of the region itself are durable
    /// once it is open.
    #[test]
    fn the_cell_that_names_an_index_is_durable_before_it_is_used() {
        const KIND: u64 = 7;
        let sim = Sim::new(1 << 20).unwrap();
        let shape = RegionConfig { extent_size: 4096, capacity: 1 << 20, seed: Some(1) };
        let pool = Pool::create(sim.clone(), &shape, Identity::default()).unwrap();
        let [cell, kind] =
            [64, 128].map(|bytes| sim.at::<PmU64>(pool.allocate_fixed(bytes).unwrap()).unwrap());
        sim.store(kind, KIND);
        sim.store(cell, 0);
        record(&sim, || {
            sim.store(cell, sim.offset_of(kind));
            block_of(&pool, cell, KIND).unwrap();
        });
        is_kept(&sim, cell);
    }
}

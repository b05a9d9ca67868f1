//! A conversion by RECIPE: a hash table in ordinary memory (`before.rs`), the same in a pool, where
//! it survives every crash (`after.rs`), and how few lines differ. Shows these lines.

mod after;
mod before;
mod lines;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use evermap_index::{Index, Persistent};
use evermap_pm::region::{Identity, OnSuspect, RegionConfig};
use evermap_pm::sim::Sim;
use evermap_pm::{Pool, Result};

fn main() -> Result<()> {
    let difference = lines::of_example();
    for (sign, line) in &difference.changes {
        println!("{sign} {line}");
    }
    println!("{difference}");
    let volatile = before::Chains::new();
    volatile.insert(1, 2, &volatile.domain.pin())?;
    // The converted one is opened again, by another owner of the same memory.
    let medium = Sim::in_memory(1 << 20)?;
    let shape = RegionConfig { extent_size: 4096, capacity: 1 << 20, seed: None };
    let pool = Pool::create(medium.clone(), &shape, Identity::default())?;
    let table = after::Chains::create(Arc::clone(&pool), pool.root(0), ())?;
    table.insert(1, 2, &pool.pin())?;
    pool.close()?;
    let (pool, _) = Pool::open(medium, Identity::default(), OnSuspect::Refuse)?;
    let table = after::Chains::open(Arc::clone(&pool), pool.root(0))?;
    println!("after another opening: {:?}", table.get(1, &pool.pin())?);
    Ok(())
}

//! Indexes of words.

use std::sync::Arc;
use std::time::Instant;

use evermap_index::ordered::PersistentOrdered;
use evermap_index::ordered::art::Art;
use evermap_index::{Clht, DashEh, Index, OrderedIndex, Persistent, Visitor};
use evermap_papers::bwtree::BwTree;
use evermap_papers::fast_fair::FastFair;
use evermap_papers::fptree::FpTree;
use evermap_papers::hikv::{Alone, Indexed};
use evermap_papers::hot::Hot;
use evermap_papers::masstree::Masstree;
use evermap_papers::nvtree::NvTree;
use evermap_papers::{Cceh, DashLh, Level, LineHash, Tranche, names};
use evermap_pm::Pool;
use evermap_pm::medium::MappedOptions;
use evermap_pm::region::{OnSuspect, Region, RegionConfig};

use crate::moment::{self, Moment};
use crate::mortal::Mortal;
use crate::subject::{self, Result};
use crate::words::{Keys, Words};

const CAPACITY: u64 = 1 << 30;

/// Opens or creates the index `name` in a file, checks it and changes it.
pub(crate) fn run(name: &str, level: &str, file: &str) -> Result<()> {
    let began = Instant::now();
    let pool = open(level, file)?;
    match names::canonical(name) {
        names::DASH_EH => hashed::<DashEh<u64, Mortal>>(pool, file, began),
        names::DASH_LH => hashed::<DashLh<u64, Mortal>>(pool, file, began),
        names::CCEH => hashed::<Cceh<u64, Mortal>>(pool, file, began),
        names::LEVEL => hashed::<Level<u64, Mortal>>(pool, file, began),
        names::P_CLHT => hashed::<Clht<u64, Mortal>>(pool, file, began),
        names::LINE_HASH => hashed::<LineHash<u64, Mortal>>(pool, file, began),
        names::TRANCHE_256 => hashed::<Tranche<u64, Mortal>>(pool, file, began),
        names::P_ART => ordered::<Art<Mortal>>(pool, file, began),
        names::FAST_FAIR => ordered::<FastFair<Mortal>>(pool, file, began),
        names::FP_TREE => ordered::<FpTree<Mortal>>(pool, file, began),
        names::NV_TREE => ordered::<NvTree<Mortal>>(pool, file, began),
        names::P_BWTREE => ordered::<BwTree<Mortal>>(pool, file, began),
        names::P_MASSTREE => ordered::<Masstree<Mortal>>(pool, file, began),
        names::HIKV => ordered::<Indexed<Mortal, Alone>>(pool, file, began),
        names::P_HOT => ordered::<Hot<Mortal>>(pool, file, began),
        _ => Err(format!("there is no index {name}").into()),
    }
}

pub(crate) fn open(level: &str, file: &str) -> Result<Arc<Pool<Mortal>>> {
    let flush = level.parse()?;
    // Enough for what is not a new one, but a store that was filled.
    let capacity = 4 * CAPACITY;
    let options = MappedOptions { flush, create: true, capacity, ..Default::default() };
    let medium = Mortal::open(file, &options)?;
    let identity = medium.identity();
    if Region::is_blank(&medium) {
        moment::enter(Moment::Creation);
        let config = RegionConfig { capacity: CAPACITY, extent_size: 1 << 18, seed: Some(1) };
        return Ok(Pool::create(medium, &config, identity)?);
    }
    moment::enter(Moment::Opening);
    let (pool, opened) = Pool::open(medium, identity, OnSuspect::Refuse)?;
    match opened.recover_all {
        // Opening would not be instant.
        true => Err(format!("everything has to be recovered: {opened:?}").into()),
        false => Ok(pool),
    }
}

fn hashed<I: Index<u64> + Persistent<Mortal>>(
    pool: Arc<Pool<Mortal>>,
    file: &str,
    began: Instant,
) -> Result<()>
where
    I::Config: Default,
{
    let root = pool.root(0);
    let index = match I::is_at(&pool, root) {
        true => I::open(pool.clone(), root)?,
        false => I::create(pool.clone(), root, I::Config::default())?,
    };
    let sweep = || sweep(&pool, |mark| index.visit(&mut Blocks(mark)));
    subject::run(&Keys { words: &Hashed(&index, &pool), finish: sweep }, file, began)
}

fn ordered<I: PersistentOrdered<Mortal>>(
    pool: Arc<Pool<Mortal>>,
    file: &str,
    began: Instant,
) -> Result<()> {
    let root = pool.root(0);
    let index = match I::is_at(&pool, root) {
        true => I::open(pool.clone(), root)?,
        false => I::create(pool.clone(), root)?,
    };
    let sweep = || sweep(&pool, |mark| index.visit(&mut Blocks(mark)));
    subject::run(&Keys { words: &Ordered(&index), finish: sweep }, file, began)
}

/// Finds out which blocks are in use: what was allocated and never bound is free again.
fn sweep(
    pool: &Pool<Mortal>,
    visit: impl FnOnce(&mut dyn FnMut(u64)) -> evermap_pm::Result<()>,
) -> Result<()> {
    if !pool.is_swept() {
        moment::enter(Moment::Sweep);
        pool.sweep(visit)?;
    }
    Ok(())
}

/// Marks the blocks of an index, whose words name none.
struct Blocks<'m>(&'m mut dyn FnMut(u64));

impl Visitor for Blocks<'_> {
    fn block(&mut self, offset: u64) {
        (self.0)(offset);
    }

    fn word(&mut self, _word: u64) {}
}

struct Hashed<'i, I>(&'i I, &'i Pool<Mortal>);

impl<I: Index<u64>> Words for Hashed<'_, I> {
    fn get(&self, key: u64) -> Result<Option<u64>> {
        Ok(self.0.get(key, &self.1.pin())?)
    }

    fn insert(&self, key: u64, word: u64) -> Result<()> {
        self.0.insert(key, word, &self.1.pin())?;
        Ok(())
    }

    fn update(&self, key: u64, word: u64) -> Result<()> {
        self.0.update(key, word, &self.1.pin())?;
        Ok(())
    }

    fn remove(&self, key: u64) -> Result<()> {
        self.0.remove(key, &self.1.pin())?;
        Ok(())
    }
}

struct Ordered<'i, I>(&'i I);

impl<I: OrderedIndex> Words for Ordered<'_, I> {
    fn get(&self, key: u64) -> Result<Option<u64>> {
        Ok(self.0.get(&key.to_be_bytes())?)
    }

    fn insert(&self, key: u64, word: u64) -> Result<()> {
        self.0.insert(&key.to_be_bytes(), word)?;
        Ok(())
    }

    fn update(&self, key: u64, word: u64) -> Result<()> {
        self.0.update(&key.to_be_bytes(), word)?;
        Ok(())
    }

    fn remove(&self, key: u64) -> Result<()> {
        self.0.remove(&key.to_be_bytes())?;
        Ok(())
    }
}

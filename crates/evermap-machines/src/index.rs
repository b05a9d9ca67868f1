//! Indexes of words.

use std::sync::Arc;
use std::time::Instant;

use evermap_index::ordered::PersistentOrdered;
use evermap_index::ordered::art::Art;
use evermap_index::{Clht, DashEh, Index, OrderedIndex, Persistent, Visitor};
use evermap_papers::bwtree::BwTree;
use evermap_papers::fast_fair::FastFair;
use evermap_papers::hot::Hot;
use evermap_papers::masstree::Masstree;
use evermap_papers::{Cceh, DashLh, Level, LineHash, Tranche, names};
use evermap_pm::Pool;
use evermap_pm::medium::{Mapped, MappedOptions};
use evermap_pm::region::{OnSuspect, Region, RegionConfig};

use crate::subject::{self, Result, Subject, expect};

const CAPACITY: u64 = 1 << 30;
/// A step changes a key that was inserted this many steps before, and removes one that was inserted
/// twice as many steps before.
const AGE: u64 = 200;

/// Opens or creates the index `name` in a file, checks it and changes it.
pub(crate) fn run(name: &str, level: &str, file: &str) -> Result<()> {
    let began = Instant::now();
    let pool = open(level, file)?;
    match names::canonical(name) {
        names::DASH_EH => hashed::<DashEh<u64, Mapped>>(pool, began),
        names::DASH_LH => hashed::<DashLh<u64, Mapped>>(pool, began),
        names::CCEH => hashed::<Cceh<u64, Mapped>>(pool, began),
        names::LEVEL => hashed::<Level<u64, Mapped>>(pool, began),
        names::P_CLHT => hashed::<Clht<u64, Mapped>>(pool, began),
        names::LINE_HASH => hashed::<LineHash<u64, Mapped>>(pool, began),
        names::TRANCHE_256 => hashed::<Tranche<u64, Mapped>>(pool, began),
        names::P_ART => ordered::<Art<Mapped>>(pool, began),
        names::FAST_FAIR => ordered::<FastFair<Mapped>>(pool, began),
        names::P_BWTREE => ordered::<BwTree<Mapped>>(pool, began),
        names::P_MASSTREE => ordered::<Masstree<Mapped>>(pool, began),
        names::P_HOT => ordered::<Hot<Mapped>>(pool, began),
        _ => Err(format!("there is no index {name}").into()),
    }
}

fn open(level: &str, file: &str) -> Result<Arc<Pool<Mapped>>> {
    let flush = level.parse()?;
    let options = MappedOptions { flush, create: true, capacity: CAPACITY, ..Default::default() };
    let medium = Mapped::open(file, &options)?;
    let identity = medium.identity();
    if Region::is_blank(&medium) {
        let config = RegionConfig { capacity: CAPACITY, extent_size: 1 << 18, seed: Some(1) };
        return Ok(Pool::create(medium, &config, identity)?);
    }
    let (pool, opened) = Pool::open(medium, identity, OnSuspect::Refuse)?;
    match opened.recover_all {
        // Opening would not be instant.
        true => Err(format!("everything has to be recovered: {opened:?}").into()),
        false => Ok(pool),
    }
}

fn hashed<I: Index<u64> + Persistent<Mapped>>(pool: Arc<Pool<Mapped>>, began: Instant) -> Result<()>
where
    I::Config: Default,
{
    let root = pool.root(0);
    let index = match I::is_at(&pool, root) {
        true => I::open(pool.clone(), root)?,
        false => I::create(pool.clone(), root, I::Config::default())?,
    };
    let sweep = |mark: &mut dyn FnMut(u64)| index.visit(&mut Blocks(mark));
    subject::run(&Keys { pool: &pool, index: &Hashed(&index, &pool), sweep }, began)
}

fn ordered<I: PersistentOrdered<Mapped>>(pool: Arc<Pool<Mapped>>, began: Instant) -> Result<()> {
    let root = pool.root(0);
    let index = match I::is_at(&pool, root) {
        true => I::open(pool.clone(), root)?,
        false => I::create(pool.clone(), root)?,
    };
    let sweep = |mark: &mut dyn FnMut(u64)| index.visit(&mut Blocks(mark));
    subject::run(&Keys { pool: &pool, index: &Ordered(&index), sweep }, began)
}

/// Marks the blocks of an index, whose words name none.
struct Blocks<'m>(&'m mut dyn FnMut(u64));

impl Visitor for Blocks<'_> {
    fn block(&mut self, offset: u64) {
        (self.0)(offset);
    }

    fn word(&mut self, _word: u64) {}
}

/// Keys that are numbers, in any index.
trait Words {
    fn get(&self, key: u64) -> Result<Option<u64>>;
    fn insert(&self, key: u64, word: u64) -> Result<()>;
    fn update(&self, key: u64, word: u64) -> Result<()>;
    fn remove(&self, key: u64) -> Result<()>;
}

struct Hashed<'i, I>(&'i I, &'i Pool<Mapped>);

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

/// Step `n` inserts the key that `n` stands for, updates every third key when it is `AGE` steps
/// old, and removes every fourth one when it is twice as old.
struct Keys<'i, W, S> {
    pool: &'i Pool<Mapped>,
    index: &'i W,
    sweep: S,
}

/// Returns the key of a step. Its neighbours in the order of keys are from all times.
fn key_of(step: u64) -> u64 {
    step.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) | 1 << 63
}

fn word_of(step: u64, version: u64) -> u64 {
    (step << 8 | version) & ((1 << 48) - 1) | 1 << 47
}

fn is_updated(step: u64) -> bool {
    step.is_multiple_of(3)
}

fn is_removed(step: u64) -> bool {
    step.is_multiple_of(4)
}

/// Returns what the key of `step` is bound to when the steps before `next` are done.
fn wanted(step: u64, next: u64) -> Option<u64> {
    let age = next.checked_sub(step + 1)?;
    if is_removed(step) && age >= 2 * AGE {
        return None;
    }
    Some(word_of(step, u64::from(is_updated(step) && age >= AGE)))
}

impl<W: Words, S: Fn(&mut dyn FnMut(u64)) -> evermap_pm::Result<()>> Subject for Keys<'_, W, S> {
    fn is_present(&self, step: u64) -> Result<bool> {
        Ok(self.index.get(key_of(step))?.is_some())
    }

    fn check(&self, next: u64) -> Result<()> {
        for step in 0..next + 8 {
            let found = self.index.get(key_of(step))?;
            let states = [wanted(step, next), wanted(step, next.saturating_sub(1))];
            // The last step has begun, and may have ended after its first part.
            let states = if step + 1 == next { [states[0]; 2] } else { states };
            expect(format!("the word of step {step} of {next}"), found, &states)?;
        }
        // What was allocated and never bound is free again.
        match self.pool.is_swept() {
            true => Ok(()),
            false => Ok(self.pool.sweep(|mark| (self.sweep)(mark))?),
        }
    }

    fn step(&self, step: u64) -> Result<()> {
        self.index.insert(key_of(step), word_of(step, 0))?;
        if let Some(old) = step.checked_sub(AGE)
            && is_updated(old)
        {
            self.index.update(key_of(old), word_of(old, 1))?;
        }
        if let Some(old) = step.checked_sub(2 * AGE)
            && is_removed(old)
        {
            self.index.remove(key_of(old))?;
        }
        Ok(())
    }
}

//! Failure words in a region.

use std::collections::{BTreeMap, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use evermap_pm::sim::Sim;
use evermap_pm::sim::rng::Rng;
use evermap_pm::{Medium, PmU64};

use super::erased::AnyPoolSubject;
use super::keys::Numbered;
use super::model::panicked;
use super::observers::Budget;
use super::persistence::{
    PoolInstance, PoolSubject, image, open, restore, small_pool, spread_keys,
};
use super::{Config, Failure, Instance, Stop};
use crate::record::OFFSET_MASK;

/// Stores wrong values in the words of a small pool, one at a time: zero, all ones, a random
/// number, the preceding word. Then opening, reading, writing, sweeping and checking may return
/// errors and find less, but must neither panic nor loop without end; and if words are records, no
/// lookup may return a word that was never put for its key. Words that the same run over the
/// undamaged pool never loads cannot matter, and are skipped.
///
/// At scale 1 a sample of the words is tried.
///
/// # Errors
/// The wrong word, and its effect.
pub fn damage<K: Numbered, P: PoolSubject<K>>(subject: &P, config: &Config) -> Result<(), Failure> {
    damage_of::<K>(subject, config)
}

fn damage_of<K: Numbered>(subject: &dyn AnyPoolSubject<K>, config: &Config) -> Result<(), Failure> {
    let trials = config.rounds(100, 3000);
    for stop in [Stop::Clean, Stop::Unclean] {
        let name = if stop == Stop::Clean { "closed pool" } else { "pool not closed" };
        let fail = |what| Failure::new::<K>("damage", name, config.seed, what);
        let sample = prepare(subject, stop, config.seed).map_err(fail)?;
        let whole = exercise(subject, &sample, None, u64::MAX)
            .map_err(|what| fail(format!("undamaged: {what}")))?;
        let random = &mut Rng::new(config.seed);
        let mut corruptions = corruptions(&sample.image, &whole.loaded, random);
        random.shuffle(&mut corruptions);
        // Damage may cost retries and rebuilding, but within a limit.
        let budget = whole.steps * 20 + 100_000;
        // One mistake appears with many words: an example of each is enough.
        let mut failures: BTreeMap<String, (usize, String)> = BTreeMap::new();
        for corruption in corruptions.iter().take(trials) {
            let run = || exercise(subject, &sample, Some(corruption), budget);
            let result = catch_unwind(AssertUnwindSafe(run));
            if let Err(what) = result.unwrap_or_else(|panic| Err(panicked(panic))) {
                let (offset, was) =
                    (corruption.offset, sample.image[corruption.offset as usize / 8]);
                let example =
                    format!("word at {offset:#x} set from {was:#x} to {:#x}", corruption.value);
                failures.entry(what).or_insert((0, example)).0 += 1;
            }
        }
        if !failures.is_empty() {
            let lines = failures.iter().map(|(what, (times, example))| {
                format!("\n  {what} ({times} times, such as {example})")
            });
            return Err(fail(lines.collect()));
        }
    }
    Ok(())
}

/// A pool to be damaged.
struct Sample {
    image: Vec<u64>,
    /// The numbers of the keys in it, and the word of each.
    pairs: Vec<(u64, u64)>,
}

fn prepare<K: Numbered>(
    subject: &dyn AnyPoolSubject<K>,
    stop: Stop,
    seed: u64,
) -> Result<Sample, String> {
    const KEYS: usize = 80;
    let instance = small_pool(subject).map_err(|error| error.to_string())?;
    let mut pairs = Vec::new();
    for number in spread_keys::<K>(seed).take(KEYS) {
        let owned = K::owned(number, instance.pool.seed());
        let (key, guard) = (K::lend(&owned), instance.pool.pin());
        let word = instance.word(key, pairs.len() as u64 + 1);
        let word = word.and_then(|word| instance.index.upsert(key, word, &guard));
        let change = word.map_err(|error| error.to_string())?;
        pairs.push((number, change.new.ok_or("an upsert left the key absent")?));
    }
    if stop == Stop::Clean {
        instance.close().map_err(|error| error.to_string())?;
    }
    Ok(Sample { image: image(instance.pool.medium()), pairs })
}

/// A wrong word.
struct Corruption {
    offset: u64,
    value: u64,
}

fn corruptions(image: &[u64], offsets: &[u64], random: &mut Rng) -> Vec<Corruption> {
    let mut corruptions = Vec::new();
    for &offset in offsets {
        let place = offset as usize / 8;
        let Some(&word) = image.get(place) else { continue };
        let beside = image[place.saturating_sub(1)];
        for value in [0, u64::MAX, random.draw(), beside] {
            if value != word {
                corruptions.push(Corruption { offset, value });
            }
        }
    }
    corruptions
}

/// The accesses of a run.
#[derive(Default)]
struct Effort {
    steps: u64,
    /// The offsets of the words that were loaded.
    loaded: Vec<u64>,
}

/// Opens the pool and runs every operation, whatever they return, with at most `budget` loads and
/// stores.
fn exercise<K: Numbered>(
    subject: &dyn AnyPoolSubject<K>,
    sample: &Sample,
    corruption: Option<&Corruption>,
    budget: u64,
) -> Result<Effort, String> {
    let capacity = sample.image.len() as u64 * 8 + (1 << 20);
    let budget = Arc::new(Budget::new(budget, capacity));
    let medium = Sim::in_memory(capacity).map_err(|error| error.to_string())?;
    let medium = medium.observed_by(budget.clone());
    restore(&medium, &sample.image).map_err(|error| error.to_string())?;
    if let Some(corruption) = corruption {
        let cell = medium.at::<PmU64>(corruption.offset).expect("inside the image");
        medium.store(cell, corruption.value);
    }
    budget.reset();
    let instance = match open(subject, medium) {
        Ok(instance) => instance,
        Err(error) if corruption.is_none() => return Err(error.to_string()),
        Err(_) => return Ok(Effort::default()),
    };
    operate(&instance, sample, corruption.is_none())?;
    Ok(Effort { steps: budget.steps(), loaded: budget.loaded() })
}

/// Runs every operation, on keys in the pool and on others, and checks the results as far as
/// possible.
fn operate<K: Numbered>(
    instance: &PoolInstance<K>,
    sample: &Sample,
    undamaged: bool,
) -> Result<(), String> {
    const ABSENT_KEYS: usize = 20;
    let mut words: HashMap<u64, Vec<u64>> =
        sample.pairs.iter().map(|&(number, word)| (number, vec![word])).collect();
    // A word that is not a record cannot be distinguished from a damaged one.
    let strict = K::WORDS_ARE_RECORDS || undamaged;
    let judge = |number: u64, found: Option<u64>, words: &HashMap<u64, Vec<u64>>| {
        let put = words.get(&number).map_or(&[][..], Vec::as_slice);
        let known = |word: u64| put.iter().any(|put| (put ^ word) & OFFSET_MASK == 0);
        match found {
            Some(word) if strict && !known(word) => {
                Err(format!("key {number} returns {word:#x}, never put for it"))
            }
            None if undamaged && !put.is_empty() => Err(format!("key {number} is missing")),
            _ => Ok(()),
        }
    };
    let (pool, index) = (&instance.pool, &instance.index);
    let numbers: Vec<u64> = sample
        .pairs
        .iter()
        .map(|pair| pair.0)
        .chain(spread_keys::<K>(!0).take(ABSENT_KEYS))
        .collect();
    let owned: Vec<K::Owned> =
        numbers.iter().map(|&number| K::owned(number, pool.seed())).collect();
    let refs: Vec<K::Ref<'_>> = owned.iter().map(K::lend).collect();
    for (&number, &key) in numbers.iter().zip(&refs) {
        if let Ok(found) = index.get(key, &pool.pin()) {
            judge(number, found, &words)?;
        }
    }
    let mut found = vec![None; numbers.len()];
    if index.get_many(&refs, &mut found, &pool.pin()).is_ok() {
        for (&number, &word) in numbers.iter().zip(&found) {
            judge(number, word, &words)?;
        }
    }
    // Whether these succeed is undefined; they must return.
    let _ = instance.sweep();
    let _ = index.for_each(&pool.pin(), &mut |_, _| true);
    for (at, (&number, &key)) in numbers.iter().zip(&refs).enumerate() {
        let guard = pool.pin();
        let Ok(word) = instance.word(key, 1000 + at as u64) else { continue };
        words.entry(number).or_default().push(word);
        let changed = match at % 4 {
            0 => index.remove(key, &guard),
            1 => index.insert(key, word, &guard),
            _ => index.upsert(key, word, &guard),
        };
        let change = changed.unwrap_or_default();
        if change.new != Some(word) {
            instance.discard(word);
        }
        judge(number, change.old.or(words[&number].first().copied()), &words)?;
        if let Some(old) = change.old.filter(|_| change.changed()) {
            instance.retire(old, &guard);
        }
    }
    let _ = index.stats(&pool.pin());
    let wrong = instance.audit();
    if undamaged && pool.is_swept() && !wrong.is_empty() {
        return Err(format!("audit: {}", wrong.join("; ")));
    }
    let _ = instance.close();
    Ok(())
}

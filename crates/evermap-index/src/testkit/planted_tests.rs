//! Tests of the kit: each mistake that is planted here must be found by the part that is meant for
//! it.

use std::collections::HashMap;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::SeqCst};

use evermap_pm::pool::Pool;
use evermap_pm::sim::Sim;
use evermap_pm::sync::Mutex;
use evermap_pm::{Error, Guard, Medium, PmU64, Result};

use super::chain::{Chain, MakeChain};
use super::reference::{Locked, Volatile};
use super::*;
use crate::{Action, Bytes, Change, MutateMode, Persistent, Visitor};

/// A mistake in an index in ordinary memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mistake {
    LosesAnInsert,
    ReadsThePastUnderConcurrency,
    UpdateIsARemoveAndAnInsert,
    UpdateIsAReadAndAWrite,
    MissesWhileItGrows,
    WalkShowsAPairTwice,
    WalkShowsAMovingPairTwice,
    WalkGoesOnWhenStopped,
    RemoveForgets,
    ExchangeIgnoresWhatItExpects,
    RemoveIfIgnoresWhatItExpects,
    GetManySwapsAnswers,
    GetManyWritesTooFar,
    ToldTheWrongOldWord,
    CountsWrong,
    DecidesTwice,
    DecidesForAbsentKeys,
    ZeroIsNoKey,
    AllOnesIsNoWord,
    EqualHashesAreEqualKeys,
    PanicsNowAndThen,
    /// Returns `NoSpace` beyond this number of keys with the same hash.
    HoldsSoManyOfOneHash(usize),
}

/// A [`Locked`] index with a mistake.
struct Mistaken {
    inner: Locked,
    mistake: Mistake,
    calls: AtomicU64,
    /// The number of mutations in progress.
    mutating: AtomicU64,
    growing: AtomicBool,
    /// The state of each key before its last change.
    past: Mutex<HashMap<u64, Option<u64>>>,
}

impl Mistaken {
    /// Returns `true` if `mistake` is planted, in every `every`th call.
    fn errs(&self, mistake: Mistake, every: u64) -> bool {
        self.mistake == mistake && self.calls.fetch_add(1, SeqCst) % every == every - 1
    }

    fn inner<K: for<'a> Key<Ref<'a> = u64>>(&self) -> &dyn Index<K> {
        &self.inner
    }

    /// Returns the key under which the map stores `key`.
    fn place<K: for<'a> Key<Ref<'a> = u64>>(&self, key: u64) -> u64 {
        if self.mistake == Mistake::EqualHashesAreEqualKeys { K::hash(key, 0) } else { key }
    }
}

/// A mutate that is not atomic: it yields after reading, and between removing and inserting.
fn read_and_write<K: for<'a> Key<Ref<'a> = u64>>(
    inner: &dyn Index<K>,
    key: u64,
    mode: MutateMode,
    guard: &Guard<'_>,
    decide: &mut dyn FnMut(Option<u64>) -> Action,
) -> Result<Change> {
    let old = inner.get(key, guard)?;
    if old.is_none() && mode == MutateMode::ExistingOnly {
        return Ok(Change::default());
    }
    let action = decide(old);
    if action == Action::Keep {
        return Ok(Change { old, new: old });
    }
    std::thread::yield_now();
    inner.remove(key, guard)?;
    std::thread::yield_now();
    match action {
        Action::Put(word) => Ok(Change { old, ..inner.upsert(key, word, guard)? }),
        _ => Ok(Change { old, new: None }),
    }
}

impl<K: for<'a> Key<Ref<'a> = u64>> Index<K> for Mistaken {
    fn get(&self, key: u64, guard: &Guard<'_>) -> Result<Option<u64>> {
        let found = self.inner::<K>().get(self.place::<K>(key), guard)?;
        Ok(match self.mistake {
            Mistake::ReadsThePastUnderConcurrency if self.mutating.load(SeqCst) > 0 => {
                self.past.lock().unwrap().get(&key).copied().unwrap_or(found)
            }
            Mistake::MissesWhileItGrows if self.growing.load(SeqCst) => None,
            Mistake::ZeroIsNoKey if key == 0 => None,
            Mistake::AllOnesIsNoWord => found.filter(|&word| word != u64::MAX),
            _ => found,
        })
    }

    fn get_many(&self, keys: &[u64], out: &mut [Option<u64>], guard: &Guard<'_>) -> Result<()> {
        for (&key, out) in keys.iter().zip(&mut *out) {
            *out = Index::<K>::get(self, key, guard)?;
        }
        if keys.len() >= 2 && self.errs(Mistake::GetManySwapsAnswers, 50) {
            out.swap(0, keys.len() - 1);
        }
        if out.len() > keys.len() && self.errs(Mistake::GetManyWritesTooFar, 1) {
            out[keys.len()] = None;
        }
        Ok(())
    }

    fn mutate(
        &self,
        key: u64,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let (inner, key) = (self.inner::<K>(), self.place::<K>(key));
        assert!(!self.errs(Mistake::PanicsNowAndThen, 2000), "a rare assertion");
        if self.errs(Mistake::DecidesTwice, 500) {
            decide(None);
        }
        if self.mistake == Mistake::DecidesForAbsentKeys {
            return inner.mutate(key, MutateMode::MayInsert, guard, decide);
        }
        if self.mistake == Mistake::UpdateIsAReadAndAWrite {
            return read_and_write(inner, key, mode, guard, decide);
        }
        if self.mistake == Mistake::UpdateIsARemoveAndAnInsert {
            let _one_at_a_time = self.past.lock().unwrap();
            return read_and_write(inner, key, mode, guard, decide);
        }
        if let Mistake::HoldsSoManyOfOneHash(most) = self.mistake
            && mode == MutateMode::MayInsert
            && inner.get(key, guard)?.is_none()
        {
            let mut others = 0;
            inner.for_each(guard, &mut |other, _| {
                others += usize::from(K::hash(other, 0) == K::hash(key, 0));
                true
            })?;
            if others >= most {
                return Err(Error::no_space("keys of one hash", 16));
            }
        }
        self.mutating.fetch_add(1, SeqCst);
        let mut change = inner.mutate(key, mode, guard, decide)?;
        if change.changed() {
            self.past.lock().unwrap().insert(key, change.old);
        }
        if matches!(
            self.mistake,
            Mistake::ReadsThePastUnderConcurrency | Mistake::WalkShowsAMovingPairTwice
        ) {
            std::thread::yield_now();
        }
        self.mutating.fetch_sub(1, SeqCst);
        if change.inserted() && self.errs(Mistake::MissesWhileItGrows, 64) {
            self.growing.store(true, SeqCst);
            std::thread::yield_now();
            self.growing.store(false, SeqCst);
        }
        if change.inserted() && self.errs(Mistake::LosesAnInsert, 500) {
            inner.remove(key, guard)?;
        }
        if change.removed() && self.errs(Mistake::RemoveForgets, 100) {
            inner.insert(key, change.old.unwrap(), guard)?;
        }
        if change.changed() && self.errs(Mistake::ToldTheWrongOldWord, 100) {
            change.old = change.old.map(|old| old ^ 1);
        }
        Ok(change)
    }

    fn compare_exchange(
        &self,
        key: u64,
        expected: u64,
        new: u64,
        guard: &Guard<'_>,
    ) -> Result<Change> {
        Index::<K>::mutate(self, key, MutateMode::ExistingOnly, guard, &mut |old| {
            let matches = old == Some(expected);
            let ignores = self.mistake == Mistake::ExchangeIgnoresWhatItExpects;
            if matches || ignores { Action::Put(new) } else { Action::Keep }
        })
    }

    fn remove_if(&self, key: u64, expected: u64, guard: &Guard<'_>) -> Result<Change> {
        Index::<K>::mutate(self, key, MutateMode::ExistingOnly, guard, &mut |old| {
            let matches = old == Some(expected);
            let ignores = self.mistake == Mistake::RemoveIfIgnoresWhatItExpects;
            if matches || ignores { Action::Remove } else { Action::Keep }
        })
    }

    fn for_each(&self, guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        let mut last = None;
        let goes_on = self.mistake == Mistake::WalkGoesOnWhenStopped;
        self.inner::<K>().for_each(guard, &mut |slot_key, word| {
            last = Some((slot_key, word));
            each(slot_key, word) || goes_on
        })?;
        let moving = self.mistake == Mistake::WalkShowsAMovingPairTwice;
        if moving {
            std::thread::yield_now();
        }
        if let Some((slot_key, word)) = last
            && ((moving && self.mutating.load(SeqCst) > 0)
                || self.errs(Mistake::WalkShowsAPairTwice, 10))
        {
            each(slot_key, word);
        }
        Ok(())
    }

    fn stats(&self, guard: &Guard<'_>) -> Result<Stats> {
        let stats = self.inner::<K>().stats(guard)?;
        let wrong = u64::from(self.errs(Mistake::CountsWrong, 3));
        Ok(Stats { len: stats.len + wrong, ..stats })
    }
}

impl<K: Numbered + for<'a> Key<Ref<'a> = u64>> Subject<K> for Mistake {
    type Instance = Volatile<Mistaken>;

    fn fresh(&self) -> Result<Self::Instance> {
        Ok(Volatile::new(Mistaken {
            inner: Locked::default(),
            mistake: *self,
            calls: AtomicU64::new(0),
            mutating: AtomicU64::new(0),
            growing: AtomicBool::new(false),
            past: Mutex::default(),
        }))
    }
}

/// One part of the kit, for a subject.
type Part<S> = fn(&S, &Config) -> std::result::Result<(), Failure>;

/// Returns the report of a part about a mistake. Panics if the part does not find it in three
/// attempts: threads do not always meet, and the default tier is short.
fn must_find<S: std::fmt::Debug>(part: Part<S>, subject: &S) -> String {
    let config = Config::from_env();
    let failure =
        (0..3).find_map(|run| part(subject, &Config { seed: config.seed_of(run), ..config }).err());
    failure.unwrap_or_else(|| panic!("{subject:?} was not found")).to_string()
}

#[test]
fn the_model_finds_wrong_answers() {
    use Mistake::*;
    for (mistake, sign) in [
        (LosesAnInsert, "must "),
        (WalkShowsAPairTwice, "for_each"),
        (WalkGoesOnWhenStopped, "continued after it was stopped"),
        (RemoveForgets, "remove"),
        (ExchangeIgnoresWhatItExpects, "compare_exchange"),
        (RemoveIfIgnoresWhatItExpects, "remove_if"),
        (GetManySwapsAnswers, "get_many"),
        (GetManyWritesTooFar, "beyond the results"),
        (ToldTheWrongOldWord, "must return"),
        (CountsWrong, "stats().len"),
        (DecidesTwice, "called 2 times"),
        (DecidesForAbsentKeys, "absent became"),
        (ZeroIsNoKey, "(0"),
        (AllOnesIsNoWord, "18446744073709551615"),
        (PanicsNowAndThen, "a rare assertion"),
    ] {
        let report = must_find(model::model::<u64, _>, &mistake);
        assert!(report.contains(sign), "{mistake:?}: {report}");
    }
    let equal = must_find(model::model::<Coarse, _>, &EqualHashesAreEqualKeys);
    // Two changes, which may be one group.
    assert!(["1 steps fail", "2 steps fail"].iter().any(|few| equal.contains(few)), "{equal}");
}

/// With bad hashes, `NoSpace` is a valid result, but only beyond the promised number of keys.
#[test]
fn bad_hashes_may_run_out_of_space_only_beyond_the_promise() {
    let enough = &Mistake::HoldsSoManyOfOneHash(40);
    let config = &Config::from_env();
    model::model::<Coarse, _>(enough, config).unwrap();
    concurrent::growth::<Coarse, _>(enough, config).unwrap();
    let report = must_find(model::model::<Coarse, _>, &Mistake::HoldsSoManyOfOneHash(12));
    assert!(report.contains("no space for key 13"), "{report}");
}

#[test]
fn threads_find_races() {
    use Mistake::*;
    let histories: Part<Mistake> = concurrent::histories::<u64, _>;
    let storm: Part<Mistake> = concurrent::storm::<u64, _>;
    let growth: Part<Mistake> = concurrent::growth::<u64, _>;
    let walks: Part<Mistake> = concurrent::walks::<u64, _>;
    for (part, mistake, sign) in [
        (histories, ReadsThePastUnderConcurrency, "no order of these calls"),
        (histories, UpdateIsARemoveAndAnInsert, "no order of these calls"),
        (histories, UpdateIsAReadAndAWrite, "no order of these calls"),
        (histories, MissesWhileItGrows, "no order of these calls"),
        (histories, RemoveForgets, "no order of these calls"),
        (histories, ToldTheWrongOldWord, ""),
        (histories, GetManySwapsAnswers, "no order of these calls"),
        (histories, PanicsNowAndThen, "a rare assertion"),
        (storm, UpdateIsAReadAndAWrite, "key"),
        (storm, LosesAnInsert, "put and then lost"),
        (storm, RemoveForgets, "key"),
        (storm, ToldTheWrongOldWord, ""),
        (storm, ExchangeIgnoresWhatItExpects, "compare_exchange"),
        (growth, ReadsThePastUnderConcurrency, "found absent"),
        (growth, MissesWhileItGrows, "found absent"),
        (growth, UpdateIsARemoveAndAnInsert, "absent"),
        (growth, WalkShowsAMovingPairTwice, "twice"),
        (walks, WalkShowsAMovingPairTwice, "twice"),
        (growth, GetManySwapsAnswers, "get_many"),
        (growth, LosesAnInsert, "remove"),
    ] {
        let report = must_find(part, &mistake);
        assert!(report.contains(sign), "{mistake:?}: {report}");
    }
}

/// A mistake in an index in a pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flaw {
    LeaksABlock,
    FreesABlockTwice,
    ForgetsAPairWhenOpened,
    VisitMissesABlock,
    VisitMissesAWord,
    VisitShowsABlockTwice,
    ChangesAndSaysNoSpace,
    PanicsOnDamage,
    LoopsOnDamage,
    TrustsSlotsToNameTheirKey,
    PersistsTwice,
}

/// The flaw of an index as a type, because opening takes no configuration.
trait Flawed: Sync + Send + 'static {
    const FLAW: Flaw;
}

/// A [`Chain`] with a flaw.
struct FlawedChain<K, M: Medium, F> {
    inner: Chain<K, M>,
    pool: Arc<Pool<M>>,
    root: u64,
    calls: AtomicU64,
    flaw: PhantomData<F>,
}

impl<K: Key, M: Medium, F: Flawed> FlawedChain<K, M, F> {
    fn new(inner: Chain<K, M>, pool: Arc<Pool<M>>, root: &PmU64) -> Self {
        let root = pool.medium().offset_of(root);
        FlawedChain { inner, pool, root, calls: AtomicU64::new(0), flaw: PhantomData }
    }

    fn root(&self) -> &PmU64 {
        self.pool.medium().at(self.root).expect("checked when opened")
    }

    fn errs(&self, flaw: Flaw, every: u64) -> bool {
        F::FLAW == flaw && self.calls.fetch_add(1, SeqCst) % every == every - 1
    }
}

impl<K: Key, M: Medium, F: Flawed> Index<K> for FlawedChain<K, M, F> {
    fn get(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Option<u64>> {
        match F::FLAW {
            Flaw::PanicsOnDamage => {
                return Ok(self.inner.get(key, guard).expect("nothing is ever damaged"));
            }
            Flaw::LoopsOnDamage => {
                let m = self.pool.medium();
                while self.inner.stats(guard).is_err() {
                    m.load(self.root());
                }
            }
            Flaw::TrustsSlotsToNameTheirKey => {
                let slot_key = K::slot_key(key, K::hash(key, self.pool.seed()));
                let mut found = None;
                self.inner.for_each(guard, &mut |other, word| {
                    found = found.or((slot_key == other).then_some(word));
                    found.is_none()
                })?;
                return Ok(found);
            }
            _ => {}
        }
        self.inner.get(key, guard)
    }

    fn mutate(
        &self,
        key: K::Ref<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        let change = self.inner.mutate(key, mode, guard, decide)?;
        if F::FLAW == Flaw::PersistsTwice && change.changed() {
            self.pool.medium().persist(self.root());
        }
        if self.errs(Flaw::LeaksABlock, 300) {
            self.pool.allocate(64)?;
        }
        if self.errs(Flaw::FreesABlockTwice, 300) {
            let block = self.pool.allocate(64)?;
            self.pool.retire(block, 64, guard);
            self.pool.retire(block, 64, guard);
        }
        if change.inserted() && self.errs(Flaw::ChangesAndSaysNoSpace, 50) {
            return Err(Error::no_space("patience", 1));
        }
        Ok(change)
    }

    fn for_each(&self, guard: &Guard<'_>, each: &mut dyn FnMut(u64, u64) -> bool) -> Result<()> {
        self.inner.for_each(guard, each)
    }

    fn stats(&self, guard: &Guard<'_>) -> Result<Stats> {
        self.inner.stats(guard)
    }
}

impl<K: Key, M: Medium, F: Flawed> Persistent<M> for FlawedChain<K, M, F> {
    type Config = ();

    fn create(pool: Arc<Pool<M>>, root: &PmU64, (): ()) -> Result<Self> {
        Ok(Self::new(Chain::create(pool.clone(), root, ())?, pool, root))
    }

    fn is_at(pool: &Pool<M>, root: &PmU64) -> bool {
        Chain::<K, M>::is_at(pool, root)
    }

    fn open(pool: Arc<Pool<M>>, root: &PmU64) -> Result<Self> {
        let chain = Chain::<K, M>::open(pool.clone(), root)?;
        if F::FLAW == Flaw::ForgetsAPairWhenOpened {
            // The root's second word names the first node, whose third word has the bits of its
            // pairs.
            let m = pool.medium();
            let first = m.at::<[PmU64; 2]>(m.load(root)).map(|root| m.load(&root[1]));
            if let Some(node) = first.and_then(|first| m.at::<[PmU64; 3]>(first)) {
                m.store(&node[2], m.load(&node[2]) & (m.load(&node[2]).wrapping_sub(1)));
            }
        }
        Ok(Self::new(chain, pool, root))
    }

    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        struct Blind<'a>(Flaw, &'a mut dyn Visitor, u32);
        impl Visitor for Blind<'_> {
            fn block(&mut self, offset: u64) {
                self.2 += 1;
                if self.0 != Flaw::VisitMissesABlock || self.2 != 2 {
                    self.1.block(offset);
                }
                if self.0 == Flaw::VisitShowsABlockTwice && self.2 == 2 {
                    self.1.block(offset);
                }
            }
            fn word(&mut self, word: u64) {
                self.2 += 1;
                if self.0 != Flaw::VisitMissesAWord || !self.2.is_multiple_of(8) {
                    self.1.word(word);
                }
            }
        }
        self.inner.visit(&mut Blind(F::FLAW, visitor, 0))
    }

    fn scan(
        &self,
        from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        self.inner.scan(from, guard, each)
    }

    fn check(&self) -> Vec<String> {
        self.inner.check()
    }
}

/// Creates indexes with a flaw.
struct MakeFlawed<F>(PhantomData<F>);

impl<K: Numbered, F: Flawed> PoolSubject<K> for MakeFlawed<F> {
    type Index = FlawedChain<K, Sim, F>;

    fn config(&self) {}

    fn extent_size(&self) -> u64 {
        PoolSubject::<K>::extent_size(&MakeChain)
    }
}

impl<F: Flawed> fmt::Debug for MakeFlawed<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        F::FLAW.fmt(f)
    }
}

/// Runs `$part` on an index with `$flaw`, and expects a report that contains `$sign`.
macro_rules! finds {
    ($($part:expr, $flaw:ident, $sign:expr;)+) => {
        $({
            struct This;
            impl Flawed for This {
                const FLAW: Flaw = Flaw::$flaw;
            }
            let report = must_find($part, &MakeFlawed::<This>(PhantomData));
            assert!(report.contains($sign), "{:?}: {report}", Flaw::$flaw);
        })+
    };
}

/// The part `model`, for an index in a pool.
fn pooled_model<K: Numbered, F: Flawed>(
    subject: &MakeFlawed<F>,
    config: &Config,
) -> std::result::Result<(), Failure> {
    model::model::<K, _>(&Pooled(subject), config)
}

#[test]
fn reopening_and_sweeping_find_lost_and_leaked_blocks() {
    finds! {
        pooled_model::<u64, _>, LeaksABlock, "allocated but not reachable";
        pooled_model::<u64, _>, FreesABlockTwice, "not allocated";
        pooled_model::<u64, _>, ForgetsAPairWhenOpened, "reopen";
        pooled_model::<u64, _>, VisitMissesABlock, "not reachable";
        pooled_model::<Bytes, _>, VisitMissesAWord, "not reachable";
        pooled_model::<u64, _>, VisitShowsABlockTwice, "named twice";
        pooled_model::<Bytes, _>, TrustsSlotsToNameTheirKey, "2 steps fail";
        persistence::sweep::<u64, _>, LeaksABlock, "allocated but not reachable";
        persistence::sweep::<u64, _>, FreesABlockTwice, "not allocated";
        persistence::sweep::<u64, _>, VisitMissesABlock, "";
        persistence::sweep::<Bytes, _>, VisitMissesAWord, "";
        persistence::full::<u64, _>, ChangesAndSaysNoSpace, "pairs, not";
        persistence::full::<u64, _>, LeaksABlock, "";
    }
}

/// Words that are copied while threads change them are no instant, and neither is what misses
/// stores.
#[test]
fn instants_find_what_no_kill_leaves() {
    use evermap_pm::sim::{Mutation, unmarked};
    fn find<K: Numbered>(take: instants::Take, mistake: Option<&'static str>) -> String {
        let config = Config::from_env();
        let failure = (0..3).find_map(|run| {
            let config = Config { seed: config.seed_of(run), ..config };
            let plant = |medium: &Sim| medium.mutate(mistake.map(Mutation::Planted));
            instants::instants_of::<K>(&MakeChain, &config, take, plant).err()
        });
        failure.unwrap_or_else(|| panic!("{mistake:?} was not found")).to_string()
    }
    println!("{}", find::<u64>(instants::Capture::copy, None));
    println!("{}", find::<u64>(instants::Capture::take, Some(unmarked::STORE)));
    println!("{}", find::<Bytes>(instants::Capture::take, Some(unmarked::FILL)));
}

#[test]
fn damage_finds_trust() {
    finds! {
        damage::damage::<u64, _>, PanicsOnDamage, "panicked: nothing is ever damaged";
        damage::damage::<u64, _>, LoopsOnDamage, "no end after";
        damage::damage::<Bytes, _>, TrustsSlotsToNameTheirKey, "never put for it";
    }
}

#[test]
fn counters_find_an_extra_flush() {
    fn counted<F: Flawed>(
        subject: &MakeFlawed<F>,
        config: &Config,
    ) -> std::result::Result<(), Failure> {
        counters::counters::<u64, _>(subject, config, 1000, &super::chain::tests::promises())
    }
    finds! {
        counted, PersistsTwice, "Update: 0 of 1000 within";
    }
}

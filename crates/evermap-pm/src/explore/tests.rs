use std::collections::BTreeSet;
use std::sync::atomic::Ordering::{AcqRel, Acquire, Release};

use super::{AtomicU64, Mutex, Search, fence_all_threads};
use crate::sim::rng::Rng;
use crate::sync::Backoff;

/// What a thread does with words that are zero at first.
type Thread<'a, R> = &'a dyn Fn(&[AtomicU64; 3]) -> R;

/// Returns the results of the threads in all runs of a search, and the number of runs.
fn outcomes<R: Ord>(mut search: Search, threads: &[Thread<'_, R>]) -> (BTreeSet<Vec<R>>, u64) {
    let mut outcomes = BTreeSet::new();
    while search.has_next() {
        outcomes.insert(run(&mut search, threads).unwrap());
    }
    (outcomes, search.runs())
}

fn run<R>(search: &mut Search, threads: &[Thread<'_, R>]) -> Result<Vec<R>, String> {
    let words = &[0; 3].map(AtomicU64::new);
    let threads =
        threads.iter().map(|thread| -> Box<dyn FnOnce() -> R> { Box::new(move || thread(words)) });
    search.run(threads.collect()).map(|(results, _)| results)
}

/// Each of two threads stores a word, and loads that of the other: both may miss the other's store
/// unless there is a fence.
#[test]
fn stores_wait_in_buffers() {
    let missed = |fence: fn(&AtomicU64)| {
        let thread = |own: usize| {
            move |words: &[AtomicU64; 3]| {
                words[own].store(1, Release);
                fence(&words[2]);
                words[1 - own].load(Acquire)
            }
        };
        let (outcomes, _) = outcomes(Search::all(), &[&thread(0), &thread(1)]);
        assert!(outcomes.len() >= 3, "{outcomes:?}");
        outcomes.contains(&vec![0, 0])
    };
    assert!(missed(|_| {}));
    assert!(!missed(|word| _ = word.fetch_or(1, AcqRel)));
    assert!(!missed(|_| _ = fence_all_threads()));
}

/// Stores reach memory in order, and a thread that waits for one goes on.
#[test]
fn a_thread_that_waits_goes_on() {
    let write: Thread<'_, u64> = &|words| {
        words[0].store(7, Release);
        words[1].store(1, Release);
        0
    };
    let read: Thread<'_, u64> = &|words| {
        let mut backoff = Backoff::new();
        while words[1].load(Acquire) == 0 {
            backoff.wait();
        }
        words[0].load(Acquire)
    };
    let (outcomes, runs) = outcomes(Search::all(), &[write, read]);
    assert_eq!((outcomes, runs), (BTreeSet::from([vec![0, 7]]), 2));
}

#[test]
fn locks_exclude_threads() {
    let lock = Mutex::<()>::default();
    let add: Thread<'_, u64> = &|words| {
        let _guard = lock.lock();
        words[0].store(words[0].load(Acquire) + 1, Release);
        words[0].load(Acquire)
    };
    let (outcomes, _) = outcomes(Search::all(), &[add, add, add]);
    assert!(outcomes.iter().all(|seen| seen.iter().sum::<u64>() == 6), "{outcomes:?}");
    assert_eq!(outcomes.len(), 6);
}

#[test]
fn threads_that_wait_for_each_other_are_reported() {
    let (one, two) = (Mutex::<()>::default(), Mutex::<()>::default());
    let threads: [Thread<'_, ()>; 2] =
        [&|_| _ = (one.lock(), two.lock()), &|_| _ = (two.lock(), one.lock())];
    let mut search = Search::all();
    let mut failures = std::iter::repeat_with(|| run(&mut search, &threads).err()).flatten();
    assert_eq!(failures.next().as_deref(), Some("all threads wait for each other"));
}

/// Whatever an order by chance leads to, one of all orders does.
#[test]
fn no_outcome_is_left_out() {
    for seed in 0..40 {
        let mut random = Rng::new(seed);
        let mut steps =
            || [0; 3].map(|_| (random.below(4), random.below(2) as usize, random.below(90) + 10));
        let program = [steps(), steps(), steps()];
        let [one, two, three] = program.each_ref().map(|steps| {
            move |words: &[AtomicU64; 3]| {
                steps.map(|(what, word, value)| match what {
                    0 => words[word].swap(value, AcqRel),
                    1 => u64::from(fence_all_threads()),
                    2 => words[word].load(Acquire),
                    _ => {
                        words[word].store(value, Release);
                        0
                    }
                })
            }
        });
        let threads: [Thread<'_, [u64; 3]>; 3] = [&one, &two, &three];
        let (all, _) = outcomes(Search::all(), &threads);
        let (some, _) = outcomes(Search::random(2000, move |limit| random.below(limit)), &threads);
        assert!(some.is_subset(&all), "seed {seed}: {program:?}");
    }
}

//! Tests of guards, and of blocks that wait for them.

use super::super::slots::FIRST_CHUNK;
use super::*;

#[test]
fn a_guard_protects_what_is_retired_after_its_creation() {
    let (domain, freed) = counting();
    let guard = domain.pin();
    domain.retire(7, 100);
    for _ in 0..10 {
        let _ = domain.advance();
        domain.shards.iter().for_each(|shard| domain.collect(shard));
    }
    assert!(freed.lock().unwrap().is_empty());
    assert_eq!(domain.stats().bytes_waiting, 100);
    assert_eq!(domain.stats().guards, 1);
    drop(guard);
    domain.drain();
    assert_eq!(*freed.lock().unwrap(), [7]);
    let EpochStats { epoch, fences, .. } = domain.stats();
    assert_eq!(domain.stats(), EpochStats { epoch, fences, ..Default::default() });
}

#[test]
fn any_number_of_guards_can_be_nested() {
    const MANY: usize = 10_000;
    for process_fence in ways_to_fence() {
        let (domain, freed) = counting_with(process_fence);
        assert!(!domain.is_pinned());
        let mut guards: Vec<_> = (0..MANY).map(|_| domain.pin()).collect();
        assert_eq!(domain.stats().guards, MANY);
        domain.retire(1, 8);
        // Not in the order of their creation.
        let last = guards.swap_remove(MANY / 3);
        drop(guards);
        assert!(domain.is_pinned());
        domain.drain_within(Duration::ZERO);
        assert!(freed.lock().unwrap().is_empty());
        drop(last);
        assert!(!domain.is_pinned());
        domain.drain();
        assert_eq!(*freed.lock().unwrap(), [1]);
        // Slots of guards that have been dropped are reused.
        let created = domain.shared.created.load(SeqCst);
        drop((0..MANY).map(|_| domain.pin()).collect::<Vec<_>>());
        assert_eq!(domain.shared.created.load(SeqCst), created);
        assert_eq!(domain.stats().guards, 0);
    }
}

#[test]
fn a_nested_guard_reuses_the_previous_slot() {
    let (domain, _) = counting();
    let _outer = domain.pin();
    (0..1000).for_each(|_| drop(domain.pin()));
    let most = thread_ordinal() + 1;
    assert!(domain.shared.used.load(SeqCst) <= most.max(FIRST_CHUNK));
}

/// All threads hold two guards each before any of them drops one.
#[test]
fn any_number_of_threads_hold_guards() {
    const THREADS: usize = 520;
    for process_fence in ways_to_fence() {
        let (domain, _) = counting_with(process_fence);
        let (domain, all) = (&domain, &std::sync::Barrier::new(THREADS));
        std::thread::scope(|threads| {
            for _ in 0..THREADS {
                let thread = std::thread::Builder::new().stack_size(64 << 10);
                let body = move || {
                    let _outer = domain.pin();
                    all.wait();
                    let _inner = domain.pin();
                    all.wait();
                    assert!(domain.is_pinned());
                };
                thread.spawn_scoped(threads, body).unwrap();
            }
        });
        assert_eq!(domain.stats().guards, 0);
    }
}

#[test]
fn slots_are_found_by_their_numbers() {
    let mut expected =
        (0..10).flat_map(|chunk| (0..FIRST_CHUNK << chunk).map(move |at| (chunk, at)));
    for index in 0..FIRST_CHUNK * 1023 {
        assert_eq!(Some(SharedSlots::locate(index)), expected.next(), "{index}");
    }
}

/// Threads pass their protection from one guard to the next, in slots that are being created in
/// the meantime, while another thread retires the blocks that they read: in many orders of
/// their steps.
#[test]
fn nothing_is_reclaimed_while_slots_are_created() {
    const RETIRED: u64 = 12;
    let mut grown = 0;
    for seed in 0..400 {
        for process_fence in ways_to_fence() {
            let alive: Arc<Vec<AtomicBool>> =
                Arc::new((0..=RETIRED).map(|_| AtomicBool::new(true)).collect());
            let dead = alive.clone();
            let reclaim = Box::new(move |token| dead[token as usize].store(false, SeqCst));
            let (domain, shared) = (Domain::with(reclaim, process_fence), AtomicU64::new(0));
            let read = || {
                for _ in 0..3 {
                    let outer = domain.pin();
                    let inner = domain.pin();
                    let third = domain.pin();
                    drop(outer);
                    schedule_point();
                    let seen = shared.load(Acquire) as usize;
                    schedule_point();
                    drop(inner);
                    schedule_point();
                    assert!(alive[seen].load(SeqCst), "reclaimed under a guard, seed {seed}");
                    drop(third);
                }
            };
            let write = || {
                for next in 1..=RETIRED {
                    let old = shared.swap(next, SeqCst);
                    schedule_point();
                    domain.retire(old, *COLLECT_AT.start() as usize);
                }
            };
            simulate(seed, vec![Box::new(read), Box::new(read), Box::new(read), Box::new(write)]);
            grown += u32::from(domain.shared.created.load(SeqCst) > FIRST_CHUNK);
            domain.drain();
            assert_eq!(domain.stats().bytes_waiting, 0);
        }
    }
    assert!(grown > 200, "slots were created in {grown} runs only");
}

/// If more bytes wait than the limit allows, the error names the thread that holds the guard;
/// immediately, if it is the calling thread itself.
#[test]
fn a_backlog_names_its_holder() {
    const LONG: Duration = Duration::from_secs(1000);
    const BLOCK: usize = 64 << 10;
    for process_fence in ways_to_fence() {
        let (domain, freed) = counting_with(process_fence);
        domain.set_backlog_limit(3 * BLOCK as u64);
        let (held, over) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|threads| {
            let holder = std::thread::Builder::new().name("holder".into());
            let body = || {
                let _outer = domain.pin();
                let _inner = domain.pin();
                held.wait();
                over.wait();
                let backlog = domain.reduce_backlog(LONG).unwrap_err();
                assert_eq!(backlog.holder.unwrap().thread, thread_id());
                thread_id()
            };
            let holder = holder.spawn_scoped(threads, body).unwrap();
            held.wait();
            for token in 0..4 {
                assert!(!domain.is_backed_up(), "after {token} blocks");
                domain.retire(token, BLOCK);
            }
            assert!(domain.is_backed_up());
            let backlog = domain.reduce_backlog(Duration::ZERO).unwrap_err();
            assert_eq!((backlog.waiting, backlog.limit), (4 * BLOCK as u64, 3 * BLOCK as u64));
            let named = backlog.holder.unwrap();
            assert_eq!(named.name.as_deref(), Some("holder"));
            assert!(named.to_string().contains("(\"holder\") has held a guard for at least"));
            over.wait();
            assert_eq!(holder.join().unwrap(), named.thread);
        });
        domain.reduce_backlog(LONG).unwrap();
        assert!(!domain.is_backed_up());
        domain.drain();
        assert_eq!(*freed.lock().unwrap(), [0, 1, 2, 3]);
        // If the total is large, more may wait.
        let _guard = domain.pin();
        domain.retire_with_total(4, 64 * BLOCK, 256 * BLOCK as u64);
        assert!(!domain.is_backed_up());
        domain.retire_with_total(5, BLOCK, 256 * BLOCK as u64);
        domain.retire_with_total(6, 64 * BLOCK, 256 * BLOCK as u64);
        assert!(domain.is_backed_up());
    }
}

#[test]
fn numbers_of_ended_threads_are_reused() {
    let numbers: std::collections::HashSet<_> =
        (0..1000).map(|_| std::thread::spawn(thread_ordinal).join().unwrap()).collect();
    // Not 1, because threads of other tests take numbers and return them.
    assert!(
        numbers.len() < 500,
        "{} numbers for a thousand threads one after the other",
        numbers.len()
    );
}

#[test]
fn unprotected_blocks_are_reclaimed_without_waiting() {
    let (domain, freed) = counting();
    let old = domain.pin();
    domain.retire(1, 8);
    domain.drain_within(Duration::ZERO);
    assert!(freed.lock().unwrap().is_empty());
    drop(old);
    domain.retire(2, 8);
    domain.drain_within(Duration::ZERO);
    assert_eq!(*freed.lock().unwrap(), [1, 2]);
}

/// Draining waits for guards of other threads, but not for one of the calling thread, because
/// that would never end.
#[test]
fn draining_waits_for_guards_of_other_threads() {
    const LONG: Duration = Duration::from_secs(1000);
    let (domain, freed) = counting_with(false);
    let (held, ahead) = (std::sync::Barrier::new(2), AtomicBool::new(true));
    domain.retire(1, 8);
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let _guard = domain.pin();
            domain.advance().unwrap();
            held.wait();
            while ahead.load(SeqCst) {
                std::thread::yield_now();
            }
        });
        held.wait();
        let own = domain.pin();
        domain.drain_within(LONG);
        assert!(freed.lock().unwrap().is_empty());
        drop(own);
        domain.drain_within(Duration::from_millis(1));
        assert!(freed.lock().unwrap().is_empty());
        let draining = threads.spawn(|| domain.drain_within(LONG));
        ahead.store(false, SeqCst);
        draining.join().unwrap();
        assert_eq!(*freed.lock().unwrap(), [1]);
    });
}

/// A block that another thread is just reclaiming does not count as reclaimed.
#[test]
fn draining_waits_for_reclaiming_threads() {
    let (entered, go_on, finished) =
        <(Arc<AtomicBool>, Arc<AtomicBool>, Arc<AtomicBool>)>::default();
    let seen = (entered.clone(), go_on.clone(), finished.clone());
    let domain = Domain::new(Box::new(move |_| {
        entered.store(true, SeqCst);
        while !go_on.load(SeqCst) {
            std::thread::yield_now();
        }
        finished.store(true, SeqCst);
    }));
    let (entered, go_on, finished) = seen;
    domain.retire(1, 8);
    std::thread::scope(|threads| {
        let domain = &domain;
        threads.spawn(|| domain.drain());
        while !entered.load(SeqCst) {
            std::thread::yield_now();
        }
        let drained = threads.spawn(|| {
            domain.drain();
            finished.load(SeqCst)
        });
        (0..1000).for_each(|_| std::thread::yield_now());
        go_on.store(true, SeqCst);
        assert!(drained.join().unwrap());
    });
}

/// A guard that existed when draining began may retire something in the meantime.
#[test]
fn draining_includes_what_older_guards_retire() {
    for _ in 0..20 {
        let (domain, freed) = counting();
        std::thread::scope(|threads| {
            let guard = domain.pin();
            let before = domain.stats().epoch;
            let drained = threads.spawn(|| {
                domain.drain();
                freed.lock().unwrap().clone()
            });
            while domain.stats().epoch == before {
                std::thread::yield_now();
            }
            domain.retire(7, 8);
            drop(guard);
            assert_eq!(drained.join().unwrap(), [7]);
        });
    }
}

/// Readers load a shared slot and must never see a value that was reclaimed.
#[test]
fn nothing_is_reclaimed_under_a_reader() {
    const ROUNDS: u64 = 20_000;
    let alive: Arc<Vec<AtomicBool>> =
        Arc::new((0..=ROUNDS).map(|_| AtomicBool::new(true)).collect());
    let dead = alive.clone();
    let domain = Domain::new(Box::new(move |token| dead[token as usize].store(false, SeqCst)));
    let shared = AtomicU64::new(0);
    std::thread::scope(|threads| {
        for _ in 0..2 {
            threads.spawn(|| {
                loop {
                    let guard = domain.pin();
                    let seen = shared.load(Acquire);
                    for _ in 0..20 {
                        assert!(alive[seen as usize].load(SeqCst), "reclaimed under a guard");
                    }
                    drop(guard);
                    if seen == ROUNDS {
                        break;
                    }
                }
            });
        }
        for next in 1..=ROUNDS {
            let old = shared.swap(next, SeqCst);
            domain.retire(old, 1 << 10);
        }
    });
    domain.drain();
    assert_eq!(domain.stats().bytes_waiting, 0);
    assert!((0..ROUNDS).all(|token| !alive[token as usize].load(SeqCst)));
}

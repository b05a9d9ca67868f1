//! Tests of readers that announce quiescent states.

use std::sync::Barrier;

use super::*;
use crate::sim::tier;

/// How often a writer asks for the end of a grace period that must not be held up.
const PATIENCE: u32 = 20_000;

/// The rounds of an event loop: sections, which may overlap, a quiescent state, and sometimes
/// sleep.
fn event_loop(domain: &Domain, place: &Place, rounds: u32) {
    let mut reader = domain.register();
    for round in 0..rounds {
        let section = reader.section();
        place.read(section);
        place.read(reader.section());
        place.read(section);
        if round % 3 == 1 {
            // A guard of the same thread works too, whatever the reader does.
            reader.offline(|| {
                schedule_point();
                place.read(&domain.pin());
                schedule_point();
            });
            place.read(reader.section());
        }
        place.read(&domain.pin());
        reader.quiescent();
        schedule_point();
    }
}

/// Event loops, a reader under guards, and writers of which one is an event loop itself.
fn replace_under_readers(domain: &Domain, seed: u64) {
    const OBJECTS: u64 = 4;
    let place = &Place::new(3 * OBJECTS);
    let read_under_guards = || (0..4).for_each(|_| place.read(&domain.pin()));
    let write = || {
        for _ in 0..OBJECTS {
            let old = place.replace();
            let period = domain.start();
            let ended = (0..PATIENCE).any(|_| {
                crate::sync::Backoff::new().wait();
                domain.is_over(period)
            });
            assert!(ended, "the grace period is held up");
            place.free(old);
        }
    };
    let write_online = || {
        let mut reader = domain.register();
        for _ in 0..OBJECTS {
            place.read(reader.section());
            let old = place.replace();
            reader.synchronize().unwrap();
            place.free(old);
            place.read(reader.section());
        }
    };
    let mut bodies: Vec<Body<'_>> =
        vec![Box::new(read_under_guards), Box::new(write), Box::new(write)];
    if domain.mistake.is_none() {
        bodies.push(Box::new(write_online));
    }
    bodies.extend((0..2).map(|_| -> Body<'_> { Box::new(|| event_loop(domain, place, 5)) }));
    simulate(seed, bodies);
}

#[test]
fn a_grace_period_waits_for_quiescent_states() {
    for seed in 0..tier().choose(40, 200) {
        for process_fence in ways_to_fence() {
            let domain = plain(process_fence);
            replace_under_readers(&domain, seed);
            assert_eq!(domain.stats().guards, 0);
        }
    }
}

#[test]
fn mistakes_of_readers_are_found() {
    for mistake in
        ["grace.one-epoch-too-few", "reader.online-unannounced", "reader.quiescent-goes-offline"]
    {
        let is_found = (0..400).any(|seed| {
            let domain = mistaken(Some(mistake), true);
            let panic = panic_of(|| replace_under_readers(&domain, seed));
            panic.is_some_and(|text| text.contains("freed under a reader"))
        });
        assert!(is_found, "{mistake} is not found");
    }
}

/// A worker that waits for a message, as in `epoll_wait`, and a writer that sends it only after a
/// grace period. Returns whether the grace period ended, and the name of the mistake's holder.
fn send_to_a_sleeping_worker(
    domain: &Domain,
    sleep: impl Fn(&mut Reader<'_>, &dyn Fn()) + Sync,
    seed: u64,
) -> (bool, Option<report::Holder>) {
    let (sleeping, message) = (AtomicBool::new(false), AtomicBool::new(false));
    let outcome = Mutex::new((false, None));
    let work = || {
        let mut reader = domain.register();
        reader.quiescent();
        sleep(&mut reader, &|| {
            sleeping.store(true, SeqCst);
            wait_until(|| message.load(SeqCst));
        });
    };
    let write = || {
        wait_until(|| sleeping.load(SeqCst));
        let period = domain.start();
        let ended = (0..100).any(|_| domain.is_over(period));
        *outcome.lock().unwrap() = (ended, domain.held_up_by(period));
        message.store(true, SeqCst);
    };
    simulate(seed, vec![Box::new(work), Box::new(write)]);
    outcome.into_inner().unwrap()
}

/// A worker that sleeps holds up no grace period if it is offline. If it is online, or the code
/// that takes it offline makes a mistake, it is named.
#[test]
fn a_worker_that_sleeps_must_be_offline() {
    for seed in 0..tier().choose(10, 50) {
        for process_fence in ways_to_fence() {
            let offline = |reader: &mut Reader<'_>, sleep: &dyn Fn()| reader.offline(sleep);
            let online = |_: &mut Reader<'_>, sleep: &dyn Fn()| sleep();
            let domain = plain(process_fence);
            assert_eq!(send_to_a_sleeping_worker(&domain, offline, seed), (true, None));

            let (ended, holder) = send_to_a_sleeping_worker(&domain, online, seed);
            assert!(!ended && holder.is_some_and(|holder| holder.online));

            let domain = mistaken(Some("reader.offline-stays-online"), process_fence);
            let (ended, holder) = send_to_a_sleeping_worker(&domain, offline, seed);
            assert!(!ended && holder.is_some_and(|holder| holder.online));
        }
    }
}

/// Returns whether a grace period waits for a reader, and ends when the reader has announced one
/// quiescent state.
fn one_announcement_is_enough(domain: &Domain) -> bool {
    let mut reader = domain.register();
    let period = domain.start();
    assert!((0..10).all(|_| !domain.is_over(period)));
    assert_eq!(domain.stats().oldest_guard_lag, 1);
    reader.quiescent();
    let is_over = domain.is_over(period);
    let next = domain.start();
    assert!(!domain.is_over(next));
    drop(reader);
    assert!(domain.is_over(next));
    is_over
}

#[test]
fn an_online_reader_holds_up_a_grace_period_until_it_announces() {
    for process_fence in ways_to_fence() {
        assert!(one_announcement_is_enough(&plain(process_fence)));
        let domain = mistaken(Some("reader.quiescent-unannounced"), process_fence);
        assert!(!one_announcement_is_enough(&domain));
    }
}

/// A section stores nothing, and neither does a quiescent state in the same epoch.
#[test]
fn a_section_changes_nothing() {
    let domain = plain(true);
    let mut reader = domain.register();
    reader.quiescent();
    let slot: *const GuardSlot = reader.section().slot;
    let announced = || domain.shared.used().map(|slot| slot.announced.load(SeqCst)).collect();
    let before: Vec<u64> = announced();
    for _ in 0..100 {
        let (one, two) = (reader.section(), reader.section());
        assert!(std::ptr::eq(one, two) && std::ptr::eq(one.slot, slot));
        assert_eq!(announced(), before);
        reader.quiescent();
    }
    assert_eq!(announced(), before);
    assert_eq!(domain.stats().guards, 1);
}

/// While a thread is offline, another guard can take its slot.
#[test]
fn a_slot_that_was_left_can_be_taken() {
    for process_fence in ways_to_fence() {
        let domain = plain(process_fence);
        let mut reader = domain.register();
        let mut guards = Vec::new();
        for round in 0..5 {
            assert_eq!(domain.stats().guards, guards.len() + 1);
            reader.offline(|| {
                assert_eq!(domain.stats().online_readers, 0);
                guards.extend((0..3).map(|_| domain.pin()));
            });
            assert_eq!(domain.stats().guards, 3 * (round + 1) + 1);
            assert_eq!(domain.stats().online_readers, 1);
        }
        drop(reader);
        assert_eq!((domain.stats().guards, domain.stats().online_readers), (15, 0));
        drop(guards);
        assert_eq!(domain.stats().guards, 0);
    }
}

/// A guard that takes the slot of a former reader is not reported as one.
#[test]
fn a_slot_is_marked_only_as_long_as_it_is_a_readers() {
    let domain = plain(false);
    drop(domain.register());
    let _guard = domain.pin();
    assert_eq!(domain.stats().online_readers, 0);
    assert!(!domain.oldest_guard().unwrap().online);
}

#[test]
fn a_panic_brings_the_thread_back_online() {
    let domain = plain(true);
    let mut reader = domain.register();
    let text = panic_of(|| reader.offline(|| panic!("the loop failed")));
    assert_eq!(text.as_deref(), Some("the loop failed"));
    assert_eq!(domain.stats().online_readers, 1);
    let period = domain.start();
    assert!(!domain.is_over(period), "its sections protect again");
    reader.quiescent();
    assert!(domain.is_over(period));
}

/// The guards of a reader's thread use the thread's own slot, as on any other thread.
#[test]
fn guards_of_a_reader_cost_no_more() {
    if !register_process_fence() {
        return;
    }
    let domain = plain(true);
    // One that has a slot of its own, whatever the number of threads of other tests.
    with_ordinal(0, || {
        let _reader = domain.register();
        let before = domain.shared.used.load(SeqCst);
        let guard = domain.pin();
        assert!(domain.own.iter().any(|slot| std::ptr::eq(slot, guard.slot)));
        assert_eq!(domain.shared.used.load(SeqCst), before);
    });
}

#[test]
fn any_number_of_threads_are_readers() {
    const THREADS: usize = 300;
    for process_fence in ways_to_fence() {
        let (domain, all) = (&plain(process_fence), &Barrier::new(THREADS));
        std::thread::scope(|threads| {
            for _ in 0..THREADS {
                let thread = std::thread::Builder::new().stack_size(64 << 10);
                let body = move || {
                    let mut reader = domain.register();
                    all.wait();
                    let online = domain.stats().online_readers;
                    all.wait();
                    // All wait, so all are offline.
                    reader.synchronize().unwrap();
                    assert_eq!(online, THREADS);
                };
                thread.spawn_scoped(threads, body).unwrap();
            }
        });
        assert_eq!(domain.stats().guards, 0);
    }
}

/// The same with the processor's own reordering: event loops that run freely beside a writer.
#[test]
fn nothing_is_freed_under_an_online_reader() {
    const ROUNDS: u64 = 3_000;
    for process_fence in ways_to_fence() {
        let (domain, place) = (plain(process_fence), Place::new(ROUNDS));
        std::thread::scope(|threads| {
            let loops: Vec<_> = (0..2)
                .map(|_| {
                    threads.spawn(|| {
                        let mut reader = domain.register();
                        while place.current.load(Relaxed) < ROUNDS {
                            for _ in 0..20 {
                                place.read(reader.section());
                                reader.quiescent();
                            }
                            reader.offline(|| ());
                        }
                    })
                })
                .collect();
            for round in 0..ROUNDS {
                let old = place.replace();
                if round % 2 == 0 {
                    domain.synchronize().unwrap();
                    place.free(old);
                } else {
                    let place = place.clone();
                    domain.defer(1 << 12, move || place.free(old));
                }
            }
            loops.into_iter().for_each(|event_loop| event_loop.join().unwrap());
        });
        domain.drain();
        assert!((0..ROUNDS).all(|object| !place.alive[object as usize].load(SeqCst)));
    }
}

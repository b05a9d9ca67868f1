//! Tests of waiting for grace periods.

use super::*;

const LONG: Duration = Duration::from_secs(1000);

/// A way to wait for a grace period.
type Wait = fn(&Domain);

const WAYS_TO_WAIT: [Wait; 3] = [
    |domain| domain.synchronize().unwrap(),
    |domain| domain.synchronize_within(LONG).unwrap(),
    |domain| {
        let period = domain.start();
        wait_until(|| domain.is_over(period));
    },
];

/// Two readers under guards, and two writers that replace objects, and free them after a grace
/// period.
fn replace_under_guards(domain: &Domain, wait: Wait, seed: u64) {
    const OBJECTS: u64 = 4;
    let place = &Place::new(2 * OBJECTS);
    let read = || (0..4).for_each(|_| place.read(&domain.pin()));
    let write = || {
        for _ in 0..OBJECTS {
            let old = place.replace();
            wait(domain);
            place.free(old);
        }
    };
    let bodies: Vec<Body<'_>> =
        vec![Box::new(read), Box::new(read), Box::new(write), Box::new(write)];
    simulate(seed, bodies);
}

#[test]
fn a_grace_period_waits_for_guards() {
    for seed in 0..150 {
        for process_fence in ways_to_fence() {
            for wait in WAYS_TO_WAIT {
                replace_under_guards(&plain(process_fence), wait, seed);
            }
        }
    }
}

/// A guard that was created in the epoch before may announce that one.
#[test]
fn one_epoch_is_too_few() {
    for wait in WAYS_TO_WAIT {
        assert!((0..400).any(|seed| {
            let domain = mistaken(Some("grace.one-epoch-too-few"), true);
            let panic = panic_of(|| replace_under_guards(&domain, wait, seed));
            panic.is_some_and(|text| text.contains("freed under a reader"))
        }));
    }
}

/// Grace periods are shared: the number of epochs, and of fences, does not depend on the number of
/// threads that wait.
#[test]
fn threads_that_wait_share_grace_periods() {
    const WRITERS: usize = 8;
    for seed in 0..100 {
        for process_fence in ways_to_fence() {
            let domain = plain(process_fence);
            let (held, waiting) = (AtomicBool::new(false), AtomicU64::new(0));
            let before = domain.stats();
            let hold = || {
                let guard = domain.pin();
                held.store(true, SeqCst);
                // The first epoch ends despite the guard.
                wait_until(|| {
                    waiting.load(SeqCst) == WRITERS as u64 && domain.stats().oldest_guard_lag == 1
                });
                drop(guard);
            };
            let write = || {
                wait_until(|| held.load(SeqCst));
                let period = domain.start();
                waiting.fetch_add(1, SeqCst);
                domain.wait_for(period, None).unwrap();
            };
            let mut bodies: Vec<Body<'_>> = vec![Box::new(hold)];
            bodies.extend((0..WRITERS).map(|_| -> Body<'_> { Box::new(write) }));
            simulate(seed, bodies);
            // All of them began in the first epoch or the second.
            let after = domain.stats();
            let epochs = after.epoch - before.epoch;
            assert!((2..=3).contains(&epochs), "{epochs} epochs, seed {seed}");
            let fences = after.fences - before.fences;
            assert_eq!(fences, epochs, "fences without an advance, seed {seed}");
        }
    }
}

/// A grace period that is started in the same epoch as another is over together with it.
#[test]
fn started_grace_periods_are_shared() {
    let (domain, _) = counting();
    let guard = domain.pin();
    let before = domain.stats();
    let periods: Vec<GracePeriod> = (0..1000).map(|_| domain.start()).collect();
    assert!(periods.iter().all(|&period| period == periods[0]));
    assert_eq!(domain.stats(), before, "starting one costs nothing");
    assert!(!domain.is_over(periods[0]));
    drop(guard);
    assert!(periods.iter().all(|&period| domain.is_over(period)));
    let after = domain.stats();
    assert_eq!((after.epoch, after.fences), (before.epoch + 2, before.fences + 2));
}

#[test]
fn asking_never_waits_and_waits_for_no_later_guard() {
    let (domain, _) = counting();
    let old = domain.pin();
    let period = domain.start();
    assert!((0..10).all(|_| !domain.is_over(period)));
    let new = domain.pin();
    drop(old);
    assert!(domain.is_over(period), "the new guard was created after the start");
    assert!(!domain.is_over(domain.start()));
    drop(new);
}

#[test]
#[should_panic(expected = "a grace period of another domain")]
fn a_grace_period_of_another_domain_is_refused() {
    let (here, there) = (plain(false), plain(false));
    here.is_over(there.start());
}

#[test]
fn a_thread_does_not_wait_for_itself() {
    for process_fence in ways_to_fence() {
        let domain = plain(process_fence);
        let guard = domain.pin();
        assert_eq!(domain.synchronize(), Err(WaitError::HoldsGuard));
        assert_eq!(domain.synchronize_within(LONG), Err(WaitError::HoldsGuard));
        let inner = domain.pin();
        drop(guard);
        assert_eq!(domain.synchronize(), Err(WaitError::HoldsGuard));
        drop(inner);
        domain.synchronize().unwrap();
        let mut reader = domain.register();
        assert_eq!(domain.synchronize(), Err(WaitError::HoldsGuard));
        reader.synchronize().unwrap();
        reader.offline(|| domain.synchronize()).unwrap();
        assert!(domain.is_pinned());
        drop(reader);
        domain.synchronize().unwrap();
    }
}

/// A wait names the thread that it waits for, by its error, by the report, and for a grace period
/// that another thread only asks for.
#[test]
fn a_stall_names_its_holder() {
    for online in [false, true] {
        let domain = plain(true);
        let stalls = Arc::new(Mutex::new(Vec::new()));
        let log = stalls.clone();
        assert!(domain.report_stalls(Duration::ZERO, move |stall| {
            log.lock().unwrap().push(stall.clone());
        }));
        assert!(!domain.report_stalls(Duration::ZERO, |_| ()), "it has one");
        let (held, over) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|threads| {
            let body = || {
                let _reader = online.then(|| domain.register());
                // The inner one's slot contains the id of its thread. The outer one's thread is
                // known by its number, which simulated threads of other tests may use too.
                let _guards = (!online).then(|| (domain.pin(), domain.pin()));
                held.wait();
                over.wait();
                thread_id()
            };
            let holder = std::thread::Builder::new().name("holder".into());
            let holder = holder.spawn_scoped(threads, body).unwrap();
            held.wait();
            let period = domain.start();
            let Err(WaitError::Stalled(stall)) = domain.synchronize_within(Duration::ZERO) else {
                panic!("it did not wait");
            };
            let polled = domain.held_up_by(period).unwrap();
            let waiting = threads.spawn(|| domain.synchronize());
            wait_until(|| !stalls.lock().unwrap().is_empty());
            over.wait();
            let thread = holder.join().unwrap();
            waiting.join().unwrap().unwrap();
            let reported = stalls.lock().unwrap()[0].holder.clone();
            for named in [stall.holder.as_ref(), Some(&polled), reported.as_ref()] {
                let named = named.unwrap();
                assert_eq!((named.thread, named.online), (thread, online));
                assert_eq!(named.name.as_deref(), Some("holder"));
            }
            let text = stall.to_string();
            let what = if online { "announced no quiescent state" } else { "held a guard" };
            assert!(text.starts_with("a grace period has lasted for"), "{text}");
            assert!(text.contains("(\"holder\")") && text.contains(what), "{text}");
            assert!(domain.is_over(period));
            assert_eq!(domain.held_up_by(period), None);
        });
    }
}

/// Reports come after the configured time, and then each time the wait has doubled.
#[test]
fn a_stall_is_reported_more_and_more_seldom() {
    let domain = plain(false);
    let waits = Arc::new(Mutex::new(Vec::new()));
    let log = waits.clone();
    domain.report_stalls(Duration::from_secs(10), move |stall| {
        log.lock().unwrap().push(stall.waited.as_secs());
    });
    let mut watch = report::Watch::new(&domain);
    (0..100).for_each(|second| watch.waited(Duration::from_secs(second)));
    assert_eq!(*waits.lock().unwrap(), [10, 20, 40, 80]);
}

#[test]
fn errors_say_what_to_do() {
    for (error, part) in [
        (WaitError::HoldsGuard, "would wait for itself"),
        (WaitError::Forked, "forked"),
        (WaitError::FenceRefused, "membarrier"),
    ] {
        assert!(error.to_string().contains(part));
    }
}

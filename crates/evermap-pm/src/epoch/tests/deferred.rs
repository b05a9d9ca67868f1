//! Tests of deferred calls.

use super::*;

/// Deferring this many bytes makes the thread try to execute calls.
const DUE: usize = *COLLECT_AT.start() as usize;

const LONG: Duration = Duration::from_secs(1000);

fn add(count: &AtomicU64, number: u64) {
    count.fetch_add(number, SeqCst);
}

/// Returns a counter, and a call that adds one to it.
fn counter() -> (Arc<AtomicU64>, impl Fn() -> Box<dyn FnOnce() + Send>) {
    let count = Arc::new(AtomicU64::new(0));
    let counted = count.clone();
    let call = move || -> Box<dyn FnOnce() + Send> {
        let counted = counted.clone();
        Box::new(move || add(&counted, 1))
    };
    (count, call)
}

#[test]
fn a_call_is_deferred_until_guards_are_dropped() {
    let (domain, (count, call)) = (plain(true), counter());
    let guard = domain.pin();
    let bytes = |domain: &Domain| domain.stats().bytes_waiting;
    domain.defer(1000, call());
    assert!(bytes(&domain) >= 1000);
    (0..10).for_each(|_| domain.flush());
    assert_eq!(count.load(SeqCst), 0);
    drop(guard);
    domain.flush();
    assert_eq!((count.load(SeqCst), bytes(&domain)), (1, 0));
    // With nothing left, it costs no fence.
    let fences = domain.stats().fences;
    domain.flush();
    assert_eq!(domain.stats().fences, fences);
}

/// Whatever a call captures is moved into it and dropped once.
#[test]
fn calls_capture_anything() {
    #[repr(align(64))]
    struct Aligned(u64);

    let domain = plain(true);
    let (sum, shared) = (Arc::new(AtomicU64::new(0)), Arc::new(()));
    let adds = |number: u64| {
        let sum = sum.clone();
        move || add(&sum, number)
    };
    domain.defer(0, || ());
    domain.defer(0, adds(1));
    let (call, words) = (adds(2), [3_u64; 2]);
    domain.defer(0, move || {
        assert_eq!(words, [3; 2]);
        call();
    });
    let (call, words, kept) = (adds(4), [5_u64; 40], shared.clone());
    domain.defer(0, move || {
        assert_eq!((words, Arc::strong_count(&kept)), ([5; 40], 2));
        call();
    });
    let (call, aligned) = (adds(8), Aligned(6));
    domain.defer(0, move || {
        let aligned = aligned;
        assert!(aligned.0 == 6 && (&raw const aligned).addr().is_multiple_of(64));
        call();
    });
    domain.drain();
    assert_eq!((sum.load(SeqCst), Arc::strong_count(&sum)), (15, 1));
    assert_eq!(Arc::strong_count(&shared), 1);
}

#[test]
fn a_call_may_borrow_what_outlives_the_domain() {
    let count = AtomicU64::new(0);
    let domain = plain(true);
    // SAFETY: the counter can be shared, and was declared before the domain.
    unsafe { domain.defer_unchecked(8, || add(&count, 1)) };
    drop(domain);
    assert_eq!(count.load(SeqCst), 1);
}

#[test]
fn dropping_a_domain_executes_what_is_left() {
    let (domain, (count, call)) = (plain(true), counter());
    (0..100).for_each(|_| domain.defer(1, call()));
    assert_eq!(count.load(SeqCst), 0);
    drop(domain);
    assert_eq!((count.load(SeqCst), Arc::strong_count(&count)), (100, 2));
}

/// Calls of one thread are executed in their order, without any request.
#[test]
fn calls_are_executed_in_their_order_while_more_are_deferred() {
    let domain = plain(true);
    let order = Arc::new(Mutex::new(Vec::new()));
    for number in 0..1000_u64 {
        let order = order.clone();
        domain.defer(DUE / 8, move || order.lock().unwrap().push(number));
    }
    let executed = order.lock().unwrap().clone();
    assert!(executed.len() > 900 && executed.iter().copied().eq(0..executed.len() as u64));
    // What waits is bounded, although nothing asks for it.
    assert!(domain.stats().bytes_waiting < 8 * DUE);
}

/// Small calls count too, so that their number is bounded.
#[test]
fn calls_that_free_nothing_are_executed_too() {
    let (domain, (count, call)) = (plain(true), counter());
    (0..10_000).for_each(|_| domain.defer(0, call()));
    assert!(count.load(SeqCst) > 9_000);
}

#[test]
fn retiring_executes_calls() {
    let (domain, (count, call)) = (plain(true), counter());
    domain.defer(1, call());
    (0..3).for_each(|token| domain.retire(token, DUE));
    assert_eq!(count.load(SeqCst), 1);
}

/// After a long wait the calls that have gathered are executed by many threads' deferrals, not by
/// one.
#[test]
fn one_deferral_does_not_pay_for_a_backlog() {
    let (domain, (count, call)) = (plain(true), counter());
    let guard = domain.pin();
    (0..1000).for_each(|_| domain.defer(DUE, call()));
    drop(guard);
    let mut before = count.load(SeqCst);
    for _ in 0..600 {
        domain.defer(DUE, call());
        let now = count.load(SeqCst);
        assert!(now - before <= 2, "{} calls at once", now - before);
        before = now;
    }
    assert!(before > 1000, "the backlog has shrunk");
}

/// A call may defer calls. They are not executed within it, because that could nest without a
/// bound.
#[test]
fn calls_may_defer_calls() {
    fn chain(domain: &Arc<Domain>, left: u32, depth: &Arc<AtomicU64>, done: &Arc<AtomicU64>) {
        let (here, depth, done) = (domain.clone(), depth.clone(), done.clone());
        domain.defer(DUE, move || {
            assert_eq!(depth.fetch_add(1, SeqCst), 0, "a call in a call");
            if left > 0 {
                chain(&here, left - 1, &depth, &done);
                here.flush();
                here.drain();
            } else {
                done.fetch_add(1, SeqCst);
            }
            depth.fetch_sub(1, SeqCst);
        });
    }
    let (domain, depth, done) = (Arc::new(plain(true)), Arc::default(), Arc::default());
    (0..10).for_each(|_| chain(&domain, 100, &depth, &done));
    wait_until(|| {
        domain.flush();
        done.load(SeqCst) == 10
    });
}

#[test]
fn a_call_that_panics_leaves_the_others() {
    let (domain, (count, call)) = (plain(true), counter());
    domain.defer(1, call());
    domain.defer(1, || panic!("a call failed"));
    domain.defer(1, call());
    assert_eq!(panic_of(|| domain.flush()).as_deref(), Some("a call failed"));
    assert_eq!(count.load(SeqCst), 1);
    domain.drain();
    assert_eq!((count.load(SeqCst), domain.stats().bytes_waiting), (2, 0));
}

/// Draining waits for a call that another thread is executing.
#[test]
fn draining_waits_for_calls_that_are_being_executed() {
    let domain = &plain(true);
    let [entered, go_on, finished] = [(); 3].map(|()| Arc::new(AtomicBool::new(false)));
    let seen = [&entered, &go_on, &finished].map(Arc::clone);
    domain.defer(1, move || {
        let [entered, go_on, finished] = seen;
        entered.store(true, SeqCst);
        wait_until(|| go_on.load(SeqCst));
        finished.store(true, SeqCst);
    });
    std::thread::scope(|threads| {
        threads.spawn(|| domain.flush());
        wait_until(|| entered.load(SeqCst));
        let drained = threads.spawn(|| {
            domain.drain();
            finished.load(SeqCst)
        });
        (0..1000).for_each(|_| std::thread::yield_now());
        // Others do not wait for that call.
        domain.defer(2 * DUE, || ());
        domain.flush();
        go_on.store(true, SeqCst);
        assert!(drained.join().unwrap());
    });
}

/// Bytes of deferred calls count towards the limit, and the error names the thread that holds them
/// up.
#[test]
fn calls_are_bounded_by_back_pressure() {
    let (domain, (count, call)) = (plain(true), counter());
    domain.set_backlog_limit(4 * DUE as u64);
    let mut reader = domain.register();
    let mut deferred = 0;
    while !domain.is_backed_up() {
        domain.defer(DUE, call());
        deferred += 1;
    }
    assert!((4..=5).contains(&deferred), "{deferred} calls");
    let backlog = domain.reduce_backlog(LONG).unwrap_err();
    let holder = backlog.holder.unwrap();
    assert_eq!((holder.thread, holder.online), (thread_id(), true));
    assert_eq!(count.load(SeqCst), 0);
    reader.offline(|| domain.reduce_backlog(LONG)).unwrap();
    assert!(count.load(SeqCst) > 0 && !domain.is_backed_up());
}

/// Two threads replace objects and defer their freeing, while others read them.
fn defer_under_readers(domain: &Domain, seed: u64) {
    const OBJECTS: u64 = 6;
    let place = Place::new(2 * OBJECTS);
    let shared = &place;
    let read = || (0..6).for_each(|_| shared.read(&domain.pin()));
    let read_online = || {
        let mut reader = domain.register();
        for _ in 0..6 {
            shared.read(reader.section());
            reader.quiescent();
        }
    };
    let write = || {
        for _ in 0..OBJECTS {
            let old = shared.replace();
            let place = shared.clone();
            domain.defer(DUE, move || place.free(old));
        }
    };
    let bodies: Vec<Body<'_>> =
        vec![Box::new(read), Box::new(read_online), Box::new(write), Box::new(write)];
    simulate(seed, bodies);
    domain.drain();
    assert_eq!(domain.stats().bytes_waiting, 0);
    assert!((0..2 * OBJECTS).all(|object| !place.alive[object as usize].load(SeqCst)));
}

#[test]
fn calls_are_executed_after_a_grace_period() {
    for seed in 0..300 {
        ways_to_fence().for_each(|fence| defer_under_readers(&plain(fence), seed));
    }
}

#[test]
fn calls_that_are_executed_an_epoch_too_early_are_found() {
    assert!((0..400).any(|seed| {
        let domain = mistaken(Some("defer.one-epoch-too-early"), true);
        let panic = panic_of(|| defer_under_readers(&domain, seed));
        panic.is_some_and(|text| text.contains("freed under a reader"))
    }));
}

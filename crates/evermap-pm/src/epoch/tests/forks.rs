//! Tests of what a forked child can do with a domain.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::*;

/// Runs `child` in a forked child, and returns `true` if it returned there. A child that hangs is
/// ended by an alarm.
fn in_child(child: impl FnOnce()) -> bool {
    // SAFETY: the child ends without running anything of the test harness.
    unsafe {
        match libc::fork() {
            0 => {
                libc::alarm(20);
                let result = catch_unwind(AssertUnwindSafe(child));
                libc::_exit(i32::from(result.is_err()))
            }
            pid => {
                let mut status = 0;
                assert_eq!(libc::waitpid(pid, &raw mut status, 0), pid);
                assert!(libc::WIFEXITED(status), "the child hung or crashed");
                libc::WEXITSTATUS(status) == 0
            }
        }
    }
}

/// Uses everything that ends with a grace period, on several threads.
fn use_everything(domain: &Domain) {
    let place = Place::new(20);
    std::thread::scope(|threads| {
        threads.spawn(|| (0..20).for_each(|_| place.read(&domain.pin())));
        threads.spawn(|| {
            let mut reader = domain.register();
            for _ in 0..20 {
                place.read(reader.section());
                reader.quiescent();
            }
        });
        for _ in 0..10 {
            let old = place.replace();
            domain.synchronize().unwrap();
            place.free(old);
            let (old, place) = (place.replace(), place.clone());
            domain.defer(8, move || place.free(old));
            domain.retire(1, 8);
        }
    });
    domain.drain();
    assert_eq!(domain.stats().bytes_waiting, 0);
    assert!(domain.is_over(domain.start()));
}

/// Runs `test` while another thread of this process does something to the domain, until the end of
/// the test: it holds what `hold` returns.
fn while_another_thread_holds<H>(hold: impl FnOnce() -> H + Send, test: impl FnOnce()) {
    let (held, over) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            let _holds = hold();
            held.wait();
            over.wait();
        });
        held.wait();
        test();
        over.wait();
    });
}

/// A server that is started in the background forks after it has set up everything.
#[test]
fn a_child_goes_on_with_a_domain_that_no_thread_used() {
    for process_fence in ways_to_fence() {
        let domain = plain(process_fence);
        domain.retire(7, 8);
        assert!(in_child(|| use_everything(&domain)));
        // In the second generation too, whether the first has used it or not.
        assert!(in_child(|| assert!(in_child(|| use_everything(&domain)))));
        assert!(in_child(|| {
            use_everything(&domain);
            assert!(in_child(|| use_everything(&domain)));
        }));
        use_everything(&domain);
        assert!(in_child(|| use_everything(&plain(process_fence))), "a domain of its own");
    }
}

/// What the forking thread itself holds, it can drop in the child.
#[test]
fn a_child_keeps_the_guards_of_its_thread() {
    for process_fence in ways_to_fence() {
        let domain = plain(process_fence);
        let (mut reader, guard) = (Some(domain.register()), Some(domain.pin()));
        assert!(in_child(|| {
            let guard = guard;
            assert_eq!(domain.synchronize(), Err(WaitError::HoldsGuard));
            domain.defer(8, || ());
            drop(guard);
            reader.as_mut().unwrap().synchronize().unwrap();
            drop(reader.take());
            use_everything(&domain);
        }));
    }
}

/// Guards of threads that do not exist in the child are never dropped there. So nothing that waits
/// for them waits: it is refused, or does nothing. Reading works.
#[test]
fn a_child_is_refused_what_would_never_end() {
    for process_fence in ways_to_fence() {
        let domain = plain(process_fence);
        domain.set_backlog_limit(1 << 20);
        let period = domain.start();
        let test = || {
            assert!(in_child(|| {
                assert_eq!(domain.synchronize(), Err(WaitError::Forked));
                assert_eq!(domain.register().synchronize(), Err(WaitError::Forked));
                assert!(!domain.is_over(period));
                while !domain.is_backed_up() {
                    domain.retire(1, 64 << 10);
                    domain.defer(64 << 10, || unreachable!("no grace period ends"));
                }
                domain.reduce_backlog(Duration::from_secs(1000)).unwrap_err();
                assert_eq!(domain.try_drain(), Err(WaitError::Forked));
                domain.drain_within(Duration::from_secs(1000));
                domain.flush();
                let reader = domain.register();
                Place::new(1).read(reader.section());
                Place::new(1).read(&domain.pin());
            }));
        };
        while_another_thread_holds(|| domain.pin(), test);
        while_another_thread_holds(|| domain.register(), test);
        use_everything(&domain);
    }
}

/// A lock that a thread held that does not exist in the child is never released there.
#[test]
fn a_child_waits_for_no_lock_of_its_parent() {
    let domain = plain(true);
    let test = || {
        assert!(in_child(|| {
            for number in 0..SHARDS {
                with_ordinal(number, || {
                    domain.retire(1, 64 << 10);
                    domain.defer(64 << 10, || ());
                });
            }
            assert_eq!(domain.synchronize(), Err(WaitError::Forked));
            assert_eq!(domain.try_drain(), Err(WaitError::Forked));
            domain.flush();
            // SAFETY: this is a copy of the domain, which nothing uses after this.
            unsafe { std::ptr::drop_in_place((&raw const domain).cast_mut()) };
        }));
    };
    let all = || domain.shards.iter().map(|shard| shard.try_lock().unwrap()).collect::<Vec<_>>();
    while_another_thread_holds(all, test);
    let lock = |list| CallList::lock(list, &domain);
    while_another_thread_holds(|| domain.calls.iter().map(lock).collect::<Vec<_>>(), test);
    while_another_thread_holds(|| domain.advancing.lock(), test);
    use_everything(&domain);
}

/// The child's own threads are no remains of the parent, whatever they do when it first waits.
#[test]
fn a_child_waits_for_threads_of_its_own() {
    for process_fence in ways_to_fence() {
        let domain = plain(process_fence);
        let moment = Duration::from_millis(10);
        let is_held_up = || {
            let result = domain.synchronize_within(moment);
            assert!(matches!(result, Err(WaitError::Stalled(_))), "{result:?}");
        };
        // Another thread holds a guard, or two: the second is in a shared slot.
        assert!(in_child(|| while_another_thread_holds(|| domain.pin(), is_held_up)));
        let two_guards = || (domain.pin(), domain.pin());
        assert!(in_child(|| while_another_thread_holds(two_guards, is_held_up)));
        // The forking thread holds them, from before, and another one waits.
        let guards = two_guards();
        assert!(in_child(|| {
            std::thread::scope(|threads| _ = threads.spawn(is_held_up));
            drop(guards);
            use_everything(&domain);
        }));
        // Another thread has locked something.
        assert!(in_child(|| {
            let held = std::sync::Barrier::new(2);
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    let _locks = (domain.shards[3].lock(), domain.advancing.lock());
                    held.wait();
                    std::thread::sleep(moment);
                });
                held.wait();
                domain.synchronize().unwrap();
            });
        }));
    }
}

//! Tests of the fence of all threads, where the system refuses it.

use super::*;
use crate::medium::{Dram, Pages};
use crate::region::{Identity, RegionConfig};
use crate::{ErrorKind, Pool};

/// Makes the kernel refuse `membarrier` with `errno` to the calling thread, and to those that it
/// creates, until they end. Returns `false` if the system has no such filters.
fn refuse_membarrier(errno: libc::c_int) -> bool {
    let statement = |code: u32, k: u32| libc::sock_filter { code: code as u16, jt: 0, jf: 0, k };
    let number_of_call = 0; // its offset in `seccomp_data`
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, number_of_call),
        libc::sock_filter {
            code: (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16,
            jt: 0,
            jf: 1,
            k: libc::SYS_membarrier as u32,
        },
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ERRNO | errno as u32),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    let [zero, one, mode] = [0, 1, libc::c_ulong::from(libc::SECCOMP_MODE_FILTER)];
    // SAFETY: the first call takes only numbers, and the second reads a program that lives.
    unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, one, zero, zero, zero) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, mode, &raw const filter) == 0
    }
}

/// Runs `test` in a thread that cannot use `membarrier`.
fn without_membarrier(errno: libc::c_int, test: impl FnOnce() + Send) {
    std::thread::scope(|threads| {
        threads.spawn(|| {
            assert!(refuse_membarrier(errno), "the system has filters");
            assert!(!register_process_fence(), "the filter works");
            test();
        });
    });
}

/// Where the fence is refused from the beginning, as in many containers, guards and readers execute
/// fences themselves, and everything else is the same.
#[test]
fn without_the_fence_readers_execute_it_themselves() {
    for errno in [libc::EPERM, libc::ENOSYS] {
        without_membarrier(errno, || {
            let domain = Domain::new(Box::new(|_| {}));
            assert!(domain.own.is_empty());
            let place = Place::new(1000);
            std::thread::scope(|threads| {
                threads.spawn(|| {
                    while place.current.load(Relaxed) < 1000 {
                        place.read(&domain.pin());
                    }
                });
                threads.spawn(|| {
                    let mut reader = domain.register();
                    while place.current.load(Relaxed) < 1000 {
                        place.read(reader.section());
                        reader.quiescent();
                    }
                });
                for _ in 0..1000 {
                    let old = place.replace();
                    domain.synchronize().unwrap();
                    place.free(old);
                }
            });
            domain.retire(1, 8);
            domain.drain();
            assert_eq!(domain.stats().bytes_waiting, 0);
        });
    }
}

/// A filter that is installed later, as by a server that confines itself once it has started: the
/// guards rely on the fence by then, so no grace period ends without it. That is an error, no
/// panic; memory waits, and the owner of the domain is told by back-pressure.
#[test]
fn a_fence_that_is_refused_later_ends_no_grace_period() {
    if !register_process_fence() {
        return;
    }
    let (domain, freed) = counting_with(true);
    domain.set_backlog_limit(1 << 20);
    without_membarrier(libc::EPERM, || {
        let period = domain.start();
        assert_eq!(domain.synchronize(), Err(WaitError::FenceRefused));
        assert_eq!(domain.register().synchronize(), Err(WaitError::FenceRefused));
        assert!(!domain.is_over(period));
        (0..32).for_each(|token| domain.retire(token, 64 << 10));
        assert!(domain.is_backed_up());
        assert!(domain.reduce_backlog(Duration::from_secs(1000)).is_err());
        assert_eq!(domain.try_drain(), Err(WaitError::FenceRefused));
        domain.flush();
        assert!(freed.lock().unwrap().is_empty());
        let epoch = domain.stats().epoch;
        assert!(!domain.is_over(period));
        assert_eq!((domain.stats().epoch, domain.stats().fences), (epoch, 0));
    });
    // A thread that may use it continues.
    domain.synchronize().unwrap();
    domain.drain();
    assert_eq!(freed.lock().unwrap().len(), 32);
}

/// What relies on the end of a grace period fails where none ends.
#[test]
fn a_pool_is_not_closed_while_no_grace_period_ends() {
    if !register_process_fence() {
        return;
    }
    let config = RegionConfig { extent_size: 4096, capacity: 1 << 20, seed: Some(1) };
    let medium = Dram::reserve(config.capacity, Pages::Base).unwrap();
    let pool = Pool::create(medium, &config, Identity::default()).unwrap();
    let refused = || {
        for result in [pool.sweep(|_| Ok(())), pool.close()] {
            assert!(matches!(result.unwrap_err().kind(), ErrorKind::Io { .. }));
        }
    };
    without_membarrier(libc::EPERM, refused);
    let guard = pool.epoch().pin();
    refused();
    drop(guard);
    pool.sweep(|_| Ok(())).unwrap();
    pool.close().unwrap();
}

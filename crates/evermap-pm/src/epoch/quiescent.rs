//! Readers that announce when they read nothing, instead of when they read something.

use std::mem;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release, SeqCst};
use std::sync::atomic::{compiler_fence, fence};

use super::slots::{EPOCHS, IDLE, schedule_point};
use super::{Domain, Guard};

/// A thread whose reader sections cost nothing, because it announces the moments between them.
///
/// This is the quiescent-state flavour of read-copy-update, for threads that come back to one place
/// again and again, such as the event loop of a server. As long as the thread is *online*, it
/// counts as reading, and a [`section`](Reader::section) needs no store at all. Once a round, where
/// it holds no reference, it announces a [quiescent state](Reader::quiescent), and while it sleeps
/// it is [offline](Reader::offline). A grace period waits for one of the two from every online
/// thread. A thread that is online and announces nothing, because it sleeps or computes for long,
/// holds up every grace period of the domain, and is named by [`Domain::report_stalls`] and by a
/// [`Backlog`](super::Backlog).
///
/// Guards of [`Domain::pin`] and readers can be used in one domain, and on one thread. An online
/// reader counts as holding a guard: [`Domain::is_pinned`] returns `true`, and the thread must be
/// offline when it waits for a grace period (see [`Reader::synchronize`]).
///
/// # Examples
///
/// A worker with an event loop. Here the events are messages of a channel; with `epoll_wait` or
/// `poll` it is the same.
///
/// ```
/// use std::sync::atomic::AtomicPtr;
/// use std::sync::atomic::Ordering::{AcqRel, Acquire};
/// use std::sync::mpsc::{RecvError, channel};
/// use std::time::Duration;
///
/// use evermap_pm::{Domain, Guard};
///
/// /// A number that is replaced as a whole.
/// struct Setting(AtomicPtr<u64>);
///
/// impl Setting {
///     /// The guard may be one of `Domain::pin`, or the section of a reader.
///     fn get<'g>(&self, _guard: &'g Guard<'_>) -> &'g u64 {
///         // SAFETY: `replace` frees a number a grace period after it was replaced, and the guard
///         // prevents the end of one.
///         unsafe { &*self.0.load(Acquire) }
///     }
///
///     fn replace(&self, number: u64, domain: &Domain) {
///         let old = self.0.swap(Box::into_raw(Box::new(number)), AcqRel);
///         // SAFETY: from `Box::into_raw`. No thread can find it any more, and after a grace
///         // period no thread has a reference to it. A number may be freed by any thread.
///         unsafe { domain.defer_unchecked(8, move || drop(Box::from_raw(old))) };
///     }
/// }
/// #
/// # impl Drop for Setting {
/// #     fn drop(&mut self) {
/// #         drop(unsafe { Box::from_raw(*self.0.get_mut()) });
/// #     }
/// # }
///
/// let setting = &Setting(AtomicPtr::new(Box::into_raw(Box::new(1))));
/// let domain = &Domain::new(Box::new(|_| {}));
/// let (events, inbox) = channel();
/// std::thread::scope(|threads| {
///     let worker = threads.spawn(move || {
///         let mut reader = domain.register();
///         let mut sum = 0;
///         loop {
///             // First whatever is ready. The thread sleeps only if nothing is, and goes offline
///             // for that: otherwise it would hold up every grace period as long as it sleeps.
///             let event = match inbox.try_recv() {
///                 Ok(event) => event,
///                 Err(_) => match reader.offline(|| inbox.recv()) {
///                     Ok(event) => event,
///                     Err(RecvError) => return sum,
///                 },
///             };
///             // Any number of sections, which may be nested and overlap, at no cost.
///             sum += event * setting.get(reader.section());
///             // The end of the round: no reference is left, or this would not compile.
///             reader.quiescent();
///             // If memory waits for slower threads, this one does too, without holding it up.
///             if domain.is_backed_up() {
///                 let reduced = reader.offline(|| domain.reduce_backlog(Duration::from_secs(1)));
///                 reduced.unwrap_or_else(|backlog| eprintln!("{backlog}"));
///             }
///         }
///     });
///     for event in 1..=10_u64 {
///         events.send(event).unwrap();
///         setting.replace(event, domain);
///     }
///     // The worker sleeps by now, or announces its quiescent states.
///     domain.synchronize().unwrap();
///     drop(events);
///     assert!(worker.join().unwrap() >= 55);
/// });
/// ```
///
/// A quiescent state cannot be announced while a section is in use, nor can the thread go offline:
///
/// ```compile_fail,E0502
/// let domain = evermap_pm::Domain::new(Box::new(|_| {}));
/// let mut reader = domain.register();
/// let section = reader.section();
/// reader.quiescent();
/// section.domain();
/// ```
///
/// ```compile_fail,E0502
/// let domain = evermap_pm::Domain::new(Box::new(|_| {}));
/// let mut reader = domain.register();
/// let section = reader.section();
/// reader.offline(|| section.domain());
/// ```
///
/// A reader stays on the thread that registered it:
///
/// ```compile_fail,E0277
/// let domain = evermap_pm::Domain::new(Box::new(|_| {}));
/// let reader = domain.register();
/// std::thread::scope(|threads| threads.spawn(move || drop(reader)).join());
/// ```
#[must_use = "a thread is a reader only while it holds this"]
pub struct Reader<'d> {
    /// What is announced in its slot is what a guard would announce that was created at the last
    /// quiescent state. While the thread is offline, the slot may belong to another thread.
    guard: Guard<'d>,
}

impl Domain {
    /// Registers the calling thread as a reader that announces quiescent states. It is online from
    /// now on, until the returned value is dropped.
    pub fn register(&self) -> Reader<'_> {
        Reader { guard: self.pin_online() }
    }

    /// Creates a guard that is marked as one of an online reader. The slot is a shared one, so that
    /// the thread's own slot is left to the guards that it creates besides.
    fn pin_online(&self) -> Guard<'_> {
        let guard = self.pin_shared();
        // Relaxed: only used in messages.
        guard.slot.online.store(true, Relaxed);
        guard
    }
}

impl<'d> Reader<'d> {
    /// Begins a reader section, which lasts as long as the returned reference is used. Costs
    /// nothing.
    ///
    /// It can be passed wherever a guard is wanted: nothing that is reachable now is reused while
    /// it is borrowed.
    #[inline(always)]
    pub fn section(&self) -> &Guard<'d> {
        &self.guard
    }

    /// Announces a quiescent state: the thread holds no reference to what it has read in any
    /// section. Costs two loads, and a store if the epoch has advanced since the last announcement.
    #[inline]
    pub fn quiescent(&mut self) {
        let (domain, slot) = (self.guard.domain, &self.guard.slot.announced);
        // Acquire: loads in later sections happen after this one, as in `pin_own`.
        let epoch = domain.global.load(Acquire) & EPOCHS;
        // Relaxed: only this thread stores to its slot.
        let announced = slot.load(Relaxed);
        if announced & EPOCHS == epoch || domain.mutant("reader.quiescent-unannounced") {
            // What was announced is still the most that a new guard could announce.
            return;
        }
        schedule_point();
        let idle = domain.mutant("reader.quiescent-goes-offline");
        // Release: loads in earlier sections happen before any reuse that this allows.
        slot.store(if idle { IDLE } else { announced & !EPOCHS | epoch }, Release);
        // Before the loads of later sections. As in `pin_own`, the advancing thread makes this
        // thread execute the fence, if the kernel can do that.
        if domain.own.is_empty() {
            fence(SeqCst);
        } else {
            compiler_fence(SeqCst);
        }
    }

    /// Calls `call` while the thread is offline, and returns what it returns. Grace periods do not
    /// wait for the thread meanwhile, so `call` may block. Costs about as much as two atomic
    /// exchanges.
    ///
    /// `call` can read under a [guard](Domain::pin) of its own. The thread is online again when it
    /// returns or panics.
    pub fn offline<R>(&mut self, call: impl FnOnce() -> R) -> R {
        struct Offline<'r, 'd>(&'r mut Reader<'d>);
        impl Drop for Offline<'_, '_> {
            fn drop(&mut self) {
                self.0.go_online();
            }
        }
        self.go_offline();
        let _offline = Offline(self);
        call()
    }

    fn go_offline(&mut self) {
        if self.guard.domain.mutant("reader.offline-stays-online") {
            return;
        }
        self.guard.slot.online.store(false, Relaxed);
        // Release: as in `Drop` of a guard. The slot can be taken by another thread from now on.
        self.guard.slot.announced.store(IDLE, Release);
    }

    fn go_online(&mut self) {
        let domain = self.guard.domain;
        if domain.mutant("reader.offline-stays-online")
            || domain.mutant("reader.online-unannounced")
        {
            return;
        }
        // The old guard's slot is no longer this thread's, so it must not be dropped.
        mem::forget(mem::replace(&mut self.guard, domain.pin_online()));
    }

    /// Waits for a grace period, [offline](Reader::offline) meanwhile.
    ///
    /// # Errors
    ///
    /// As of [`Domain::synchronize`].
    pub fn synchronize(&mut self) -> Result<(), super::WaitError> {
        let domain = self.guard.domain;
        self.offline(|| domain.synchronize())
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        self.guard.slot.online.store(false, Relaxed);
    }
}

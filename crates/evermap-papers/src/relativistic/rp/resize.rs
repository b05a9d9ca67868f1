//! Growing and shrinking, step by step.
//!
//! A resize is a machine that any thread can advance: a caller of `resize`, which waits for readers
//! between two steps, and updaters, which do not. Its steps in order:
//!
//! | | to grow | to shrink |
//! |---|---|---|
//! | 1 | fill the new heads, which no reader uses | link each lower chain to the upper one |
//! | 2 | in place: wait for readers | in place: wait for readers |
//! | 3 | publish the new array, or the mask | publish the new array, or the mask |
//! | 4 | wait for readers | in place: wait for readers, return the upper half |
//! | 5 | change one link in each chain that is not unzipped yet | |
//! | 6 | if one is left: wait for readers, and go to 5 | |
//!
//! The waits 2 order stores that no reader may see the other way round. The mask is loaded without
//! a barrier, so that only a grace period makes sure that a reader with the new mask also sees the
//! heads, or links, that it needs.
//!
//! Updates run at any time but for an instant in step 3. In step 1, a bucket whose heads or link
//! are ready and that is updated afterwards is made ready again under the same lock.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use evermap_pm::epoch::GracePeriod;
use evermap_pm::{Guard, Result};

use super::super::bits::Bits;
use super::super::heads::Heads;
use super::super::node::Link;
use super::super::published::Published;
use super::super::resizing::{Base, Outcome, Resizes};
use super::super::steps::Mistake;
use super::super::{Effort, Order, Place, Progress, Shared, Stage};
use super::Rp;

/// What updaters have to know about a running resize. It is published before the first bucket is
/// processed, and what an updater reads of it changes only under the lock of its stripe, or all
/// locks.
pub(super) struct Work<K, V> {
    /// The smaller number of buckets. Each bucket `g` of these is a *group*: it becomes, or comes
    /// from, the buckets `g` and `g + groups`.
    pub(super) groups: u64,
    grows: bool,
    in_place: bool,
    /// Groups below this are ready.
    ready: AtomicU64,
    /// Whether the array or the mask is published.
    published: AtomicBool,
    /// The array that is not the table's: the new one until it is published, and the old one then.
    /// Its heads are the auxiliary pointers when chains are unzipped. In place, these have an array
    /// of their own.
    side: Published<Heads<K, V>>,
    /// The groups whose chains are still zipped.
    pub(super) unfinished: Bits,
    /// The groups whose auxiliary pointer does not say where the next pass begins.
    pub(super) uncertain: Bits,
}

impl<K, V> Work<K, V> {
    pub(super) fn is_unzipping(&self) -> bool {
        // Relaxed: changed under all locks, and the caller holds one.
        self.grows && self.published.load(Relaxed)
    }

    fn side<'s>(&'s self, guard: &'s Guard<'_>) -> &'s Heads<K, V> {
        self.side.load(guard).expect("an array unless a table shrinks in place")
    }

    /// Returns the auxiliary pointer of a group: the first node of the run where the next pass
    /// begins.
    pub(super) fn aux<'s>(&'s self, group: u64, guard: &'s Guard<'_>) -> &'s Link<K, V> {
        self.side(guard).head(group)
    }
}

/// A running resize.
pub(in super::super) struct Run {
    from: u64,
    to: u64,
    at: At,
    effort: Effort,
    /// No other thread uses the table, so there are no readers to wait for.
    alone: bool,
}

/// What a running resize does next.
#[derive(Clone, Copy)]
enum At {
    /// Make this group ready.
    Link(u64),
    /// Publish the mask, when the readers from before the links are gone.
    Settled(GracePeriod),
    /// Unzip, or return the upper half, when the readers from before the publication are gone.
    Drained(GracePeriod),
    /// Unzip the chains from this group on.
    Pass(u64),
    /// Begin another pass, when the readers from before the last one are gone.
    Between(GracePeriod),
}

impl<K: Shared, V: Shared, S, O: Order> Resizes for Rp<K, V, S, O> {
    type Hasher = S;
    type Run = Run;

    fn base(&self) -> &Base<S, Run> {
        &self.base
    }

    fn buckets(&self) -> u64 {
        self.heads(&self.base.domain.pin()).buckets()
    }

    fn begin(&self, to: u64) -> Result<Run> {
        let from = self.buckets();
        let config = &self.base.config;
        let (grows, groups) = (to > from, from.min(to));
        let place = if grows { config.grow } else { config.shrink };
        let in_place = place == Place::Same;
        let side = match (in_place, grows) {
            (false, _) => Some(Self::new_heads(config, to)?),
            (true, true) => Some(Heads::new(groups)?),
            (true, false) => None,
        };
        let zipped = if grows { groups } else { 0 };
        let work = Work {
            groups,
            grows,
            in_place,
            ready: AtomicU64::new(0),
            published: AtomicBool::new(false),
            side: Published::new(side),
            unfinished: Bits::new(zipped, true)?,
            uncertain: Bits::new(zipped, in_place)?,
        };
        self.work.replace(Some(Box::new(work)));
        Ok(Run { from, to, at: At::Link(0), effort: Effort::default(), alone: false })
    }

    fn advance(&self, run: &mut Run, budget: &mut u64) -> Outcome {
        loop {
            let next = match run.at {
                At::Link(group) => self.link_from(run, group, budget),
                At::Settled(period) if self.is_over(run, period, Mistake::MaskWithoutWait) => {
                    self.publish(run)
                }
                At::Drained(period) if self.is_over(run, period, self.early_drain(run)) => {
                    self.drained(run)
                }
                At::Between(period) if self.is_over(run, period, Mistake::NoWaitBetweenPasses) => {
                    Next::At(At::Pass(0))
                }
                At::Pass(group) => self.pass_from(run, group, budget),
                At::Settled(_) | At::Drained(_) | At::Between(_) => return Outcome::Waiting,
            };
            match next {
                Next::At(at) => run.at = at,
                Next::Later(at) => {
                    run.at = at;
                    return Outcome::Unfinished;
                }
                Next::Done => {
                    self.finish();
                    return Outcome::Done;
                }
            }
        }
    }

    fn progress(run: &Run) -> Progress {
        let of = run.from.min(run.to);
        let stage = match run.at {
            At::Link(done) => Stage::Linking { done, of },
            At::Pass(done) => Stage::Splitting { done, of },
            At::Settled(_) | At::Drained(_) | At::Between(_) => Stage::Waiting,
        };
        Progress { from: run.from, to: run.to, stage, effort: run.effort }
    }
}

/// What follows a step.
enum Next {
    At(At),
    /// The budget is used up.
    Later(At),
    Done,
}

impl<K: Shared, V: Shared, S, O: Order> Rp<K, V, S, O> {
    /// Completes the running resize. No other thread uses the table.
    pub(super) fn finish_alone(&mut self) {
        if let Some(mut run) = self.base.take_run() {
            run.alone = true;
            while self.advance(&mut run, &mut { u64::MAX }) != Outcome::Done {}
        }
    }

    fn is_over(&self, run: &Run, period: GracePeriod, mistake: Mistake) -> bool {
        run.alone || self.base.is_over(period, mistake)
    }

    /// Returns the planted mistake of not waiting after the publication.
    fn early_drain(&self, run: &Run) -> Mistake {
        if run.to > run.from {
            Mistake::NoWaitAfterPublication
        } else {
            Mistake::UpperHalfReturnedAtOnce
        }
    }

    fn work<'s>(&self, guard: &'s Guard<'_>) -> &'s Work<K, V> {
        self.work.load(guard).expect("published while a resize is running")
    }

    /// Makes groups ready, from one on.
    fn link_from(&self, run: &mut Run, from: u64, budget: &mut u64) -> Next {
        let guard = self.base.domain.pin();
        let work = self.work(&guard);
        for group in from..work.groups {
            if *budget == 0 {
                return Next::Later(At::Link(group));
            }
            *budget -= 1;
            let _lock = self.base.stripes.lock(group);
            self.link(work, group, &guard);
            // Relaxed: read under the same lock for this group.
            work.ready.store(group + 1, Relaxed);
        }
        if work.in_place {
            return Next::At(At::Settled(self.base.start(&mut run.effort)));
        }
        self.publish(run)
    }

    /// Makes a group ready: finds the first nodes of both chains, or links both chains together.
    /// The caller has locked its stripe.
    fn link(&self, work: &Work<K, V>, group: u64, guard: &Guard<'_>) {
        let heads = self.heads(guard);
        let (lower, upper) = (heads.head(group), group + work.groups);
        if work.grows {
            let first = lower.follow(guard);
            let upper_first = work.first_of::<O>(first, true, guard);
            if work.in_place {
                // Beyond the mask. The lower head names the whole chain until it is unzipped.
                heads.head(upper).point_to(upper_first);
            } else {
                let side = work.side(guard);
                side.head(upper).point_to(upper_first);
                side.head(group).point_to(work.first_of::<O>(first, false, guard));
            }
            return;
        }
        let upper_first = heads.head(upper).follow(guard);
        let mut end = lower;
        while let Some(node) = end.follow(guard).filter(|&node| !work.is_upper::<O>(node)) {
            end = &node.get().next;
        }
        end.point_to(upper_first);
        if !work.in_place {
            work.side(guard).head(group).point_to(lower.follow(guard));
        }
    }

    /// Makes the group of a key ready again that was just updated, if it was ready and the new
    /// array is not published yet. The caller has locked its stripe.
    pub(super) fn link_again(&self, work: &Work<K, V>, hash: u64, guard: &Guard<'_>) {
        let group = hash & (work.groups - 1);
        // Relaxed: both change only under this lock, or all locks, for this group.
        if !work.published.load(Relaxed) && group < work.ready.load(Relaxed) {
            self.link(work, group, guard);
        }
    }

    /// Publishes the new array, or the new mask.
    fn publish(&self, run: &mut Run) -> Next {
        let guard = self.base.domain.pin();
        let work = self.work(&guard);
        {
            // Updates use either the one or the other.
            let _all = self.base.stripes.lock_all();
            if work.in_place {
                self.heads(&guard).set_buckets(run.to);
            } else {
                self.table.exchange(&work.side);
            }
            work.published.store(true, Relaxed);
        }
        if work.grows || work.in_place {
            Next::At(At::Drained(self.base.start(&mut run.effort)))
        } else {
            // Readers of the old array still find everything there. It is freed when they are gone.
            Next::Done
        }
    }

    /// Goes on when no reader uses what was published before.
    fn drained(&self, run: &Run) -> Next {
        if run.to > run.from {
            return Next::At(At::Pass(0));
        }
        self.heads(&self.base.domain.pin()).discard(run.to, run.from);
        Next::Done
    }

    /// Unzips one step of each chain that is not finished, from a group on.
    fn pass_from(&self, run: &mut Run, from: u64, budget: &mut u64) -> Next {
        let guard = self.base.domain.pin();
        let work = self.work(&guard);
        let mut next = from;
        while let Some(group) = work.unfinished.next(next) {
            if *budget == 0 {
                return Next::Later(At::Pass(group));
            }
            *budget -= 1;
            let _lock = self.base.stripes.lock(group);
            run.effort.steps += u64::from(self.unzip(work, group, &guard));
            next = group + 1;
        }
        run.effort.passes += 1;
        if work.unfinished.next(0).is_none() {
            // The last link that was changed in a chain ends it, so no reader depends on it.
            return Next::Done;
        }
        Next::At(At::Between(self.base.start(&mut run.effort)))
    }

    /// Lets updaters forget the resize that is done.
    fn finish(&self) {
        let guard = self.base.domain.pin();
        let side = self.work.load(&guard).and_then(|work| work.side.load(&guard));
        let bytes = size_of::<Work<K, V>>() + side.map_or(0, Heads::bytes);
        let Some(work) = self.work.replace(None) else { return };
        if self.base.planted.has(Mistake::OldArrayFreedAtOnce) {
            work.leak(|work| work.side.load(&guard).into_iter().for_each(Heads::mark_freed));
            return;
        }
        // Updaters may still use the auxiliary pointers, and readers the old array.
        work.after_grace_period(&self.base.domain, bytes);
    }
}

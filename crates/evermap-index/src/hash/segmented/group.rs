//! Making the changes of several keys together, for indexes that lock buckets: they wait once for
//! their cache misses, and once until all of them are durable.
//!
//! All home buckets are locked first, then all changes are stored, then all lines are flushed, and
//! one fence later all locks are released. So until its change is durable, no other thread sees it.
//!
//! * **No deadlock**: a thread that holds locks of a group only *tries* to lock further ones.
//! * **What is awkward comes afterwards**, one by one: a bucket that another thread or another key
//!   of the group has locked, a full one, a stale segment.
//! * **Locking before flushing**, for all keys: a locked instruction waits for every line that was
//!   flushed, as a fence does.

use evermap_pm::{Guard, Medium, Result};

use super::apply::{
    self, BucketLocked, HeldBucket, Home, LockingHome, Operation, OtherLocks, Staged,
};
use super::map::SegmentMap;
use crate::index::{Action, BATCH_KEYS, Change, MutateMode};

/// A key of a group whose home bucket is locked, and its change, once that was stored.
struct Member<'a, T: BucketLocked + 'a> {
    home: Home<'a, T>,
    staged: Option<Staged<'a, T>>,
}

/// The keys of a group.
type Probes<'k, T> = [Option<<T as BucketLocked>::Probe<'k>>; BATCH_KEYS];

/// Keys by their places in a group.
#[derive(Clone, Copy, Default)]
struct Places(u32);

const _: () = assert!(BATCH_KEYS <= u32::BITS as usize);

impl Places {
    fn add(&mut self, at: usize) {
        self.0 |= 1 << at;
    }

    fn iter(mut self) -> impl Iterator<Item = usize> {
        std::iter::from_fn(move || {
            let at = self.0.trailing_zeros() as usize;
            self.0 &= self.0.checked_sub(1)?;
            Some(at)
        })
    }
}

/// Makes the changes that `decide` chooses for at most [`BATCH_KEYS`] keys. Implements
/// [`Index::mutate_batch`](crate::Index::mutate_batch).
///
/// # Panics
/// If there are more keys.
pub fn apply_batch<'k, T: BucketLocked>(
    index: &T,
    keys: impl ExactSizeIterator<Item = T::Probe<'k>>,
    mode: MutateMode,
    guard: &Guard<'_>,
    decide: &mut dyn FnMut(usize, Option<u64>) -> Action,
    out: &mut [Result<Change>],
) {
    let count = keys.len();
    let mut probes: Probes<'k, T> = [const { None }; BATCH_KEYS];
    let probes = &mut probes[..count];
    probes.iter_mut().zip(keys).for_each(|(probe, key)| *probe = Some(key));
    let later = match index.core().begin_change(guard) {
        Ok(poison) => {
            let later = apply_together(index, probes, mode, guard, decide, out);
            poison.disarm();
            later
        }
        // Each of them returns the error.
        Err(_) => Places(((1u64 << count) - 1) as u32),
    };
    for at in later.iter() {
        let Some(probe) = &probes[at] else { continue };
        out[at] = apply::apply(index, probe, mode, guard, |old| decide(at, old));
    }
}

/// Makes those changes that can be made together. Returns the places of the other keys.
fn apply_together<T: BucketLocked>(
    index: &T,
    probes: &[Option<T::Probe<'_>>],
    mode: MutateMode,
    guard: &Guard<'_>,
    decide: &mut dyn FnMut(usize, Option<u64>) -> Action,
    out: &mut [Result<Change>],
) -> Places {
    let m = index.core().medium();
    let mut members: [Option<Member<'_, T>>; BATCH_KEYS] = [const { None }; BATCH_KEYS];
    let mut later = lock_homes(index, probes, mode, &mut members);
    let mut flushes = false;
    for (at, (member, probe)) in members.iter_mut().zip(probes).enumerate() {
        let (Some(Member { home, staged }), Some(probe)) = (member, probe) else { continue };
        let operation = Operation { probe, mode, guard };
        *staged = index.stage(home, operation, &mut |old| decide(at, old));
        match staged {
            Some(staged) => flushes |= staged.unflushed[0].is_some(),
            None => later.add(at),
        }
    }
    for staged in members.iter().flatten().filter_map(|member| member.staged.as_ref()) {
        staged.unflushed.iter().flatten().for_each(|&word| m.flush(word));
    }
    if flushes {
        m.fence();
    }
    let mut sparse = [None; BATCH_KEYS];
    for (at, member) in members.into_iter().enumerate() {
        let Some(Member { home, staged }) = member else { continue };
        let Some(Staged { change, locks, .. }) = staged else {
            home.held.release(m);
            continue;
        };
        if change.removed() && index.may_be_sparse(&home.held) {
            sparse[at] = Some(home.segment);
        }
        out[at] = Ok(change);
        locks.release(m, change.changed());
        if change.changed() { home.held.release_changed(m) } else { home.held.release(m) }
    }
    for (at, (segment, probe)) in sparse.into_iter().zip(probes).enumerate() {
        let (Some(segment), Some(probe)) = (segment, probe) else { continue };
        if let Err(error) = T::Map::emptied(index, segment, T::rank(probe), guard) {
            out[at] = Err(error);
        }
    }
    later
}

/// Locks the home buckets of a group that are not locked. Returns the places of the other keys.
fn lock_homes<'a, T: BucketLocked>(
    index: &'a T,
    probes: &[Option<T::Probe<'_>>],
    mode: MutateMode,
    members: &mut [Option<Member<'a, T>>; BATCH_KEYS],
) -> Places {
    probes.iter().flatten().for_each(|probe| index.prefetch_for_change(probe, mode));
    // A key that occurs twice must not overtake itself, so no key is locked whose rank looks like
    // that of one that comes later. Its first occurrence holds the lock, or is among these.
    let (mut later, mut ranks) = (Places::default(), 0u64);
    for (at, probe) in probes.iter().flatten().enumerate() {
        let rank = T::rank(probe).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58;
        if ranks >> rank & 1 == 0
            && let Ok(LockingHome::Held(home)) = index.try_lock_home(probe, mode, false)
        {
            members[at] = Some(Member { home, staged: None });
        } else {
            ranks |= 1 << rank;
            later.add(at);
        }
    }
    later
}

//! The function through which every mutation of one key goes, except batches.

use evermap_index::key::BytesRef;
use evermap_index::{Action, BATCH_KEYS, Change, Guard, MutateMode};
use evermap_pm::Medium;

use crate::ordered::KeyEvent;
use crate::record::{Draft, Record};
use crate::watch::ChangeKind;
use crate::watch::feed::Turn;
use crate::{Error, Map, Result, mistakes};

/// What a mutation decides about a key.
pub(crate) enum Verdict {
    /// Leave things as they are.
    Keep,
    /// Leave the record where it is, whose control word was changed.
    KeepTouched,
    /// Bind the key to the draft.
    Publish,
    /// Bind the key to the draft, with this control word.
    PublishWith(u64),
    /// Remove the key.
    Remove,
}

/// Why a key could not be changed while it was locked. The change is tried again.
#[derive(Clone, Copy)]
enum Obstacle {
    /// A batch has reserved the key.
    Reserved,
    /// A flush has chosen its mark, and not made it visible yet.
    Flushing,
    /// A flush came after the draft got its CAS id: the draft needs a newer one.
    DraftFlushed,
    /// The key could not be made part of the persistent ordered index.
    NotInOrder,
}

/// The result of one attempt to change a locked key.
#[derive(Clone, Copy)]
enum Round {
    /// The key is absent from the index, and only an existing key is to be changed.
    Absent,
    /// Nothing was changed.
    Again(Obstacle),
    /// A decision was made. `was_hidden`: the key was bound to a record that no reader can see.
    /// `touched`: its control word was changed.
    Decided { change: Change, action: Action, was_hidden: bool, touched: bool },
    /// The key is bound to this, which cannot be read, and that is to stay so.
    Unreadable(u64),
    /// The key was bound to a record that was removed before, which damage has led to again, and
    /// is unbound from it. The right record may be elsewhere in the index, so the change is tried
    /// again.
    Misled(Change),
}

impl Round {
    /// Returns what the index is to do.
    fn action(self) -> Action {
        match self {
            Round::Decided { action, .. } => action,
            Round::Misled(_) => Action::Remove,
            Round::Absent | Round::Again(_) | Round::Unreadable(_) => Action::Keep,
        }
    }

    /// Returns the change that the index makes if it succeeds.
    fn change(self) -> Option<Change> {
        match self {
            Round::Decided { change, .. } | Round::Misled(change) => Some(change),
            Round::Absent | Round::Again(_) | Round::Unreadable(_) => None,
        }
    }
}

impl<M: Medium> Map<M> {
    /// Returns whether a record is flushed or expired, or `None` if its control word is damaged or
    /// a tombstone.
    #[inline]
    pub(crate) fn is_dead(&self, record: &Record<'_, M>, mark: u64) -> Option<bool> {
        if record.cas() < mark {
            return Some(true);
        }
        let expires_at = record.expires_at()?;
        Some(expires_at != 0 && expires_at <= self.db.file.clock.now())
    }

    /// Returns the record that `word` names, or `None` if it is unreadable, flushed or expired.
    pub(crate) fn live(&self, word: u64, mark: u64) -> Option<Record<'_, M>> {
        let record = Record::at(self.db.file.pool.medium(), word).ok()?;
        (self.is_dead(&record, mark) == Some(false)).then_some(record)
    }

    /// Returns `true` if the record that `word` names can be read, and is flushed or expired.
    #[cold]
    fn is_certainly_dead(&self, word: u64, mark: u64) -> bool {
        let record = Record::at(self.db.file.pool.medium(), word);
        record.is_ok_and(|record| self.is_dead(&record, mark) == Some(true))
    }

    /// Returns `true` if the record that `word` names was removed or replaced before.
    #[cold]
    fn was_removed(&self, word: u64) -> bool {
        Record::at(self.db.file.pool.medium(), word).is_ok_and(|record| record.has_tombstone())
    }

    /// Returns the error that reports the record that `word` names, which cannot be read.
    #[cold]
    fn unreadable(&self, key: BytesRef<'_>, word: u64) -> Error {
        let why = match Record::at(self.db.file.pool.medium(), word) {
            Ok(record) => record.why_unreadable(),
            Err(why) => why,
        };
        self.damaged_at(key, word, why)
    }

    /// Changes `key` while it is locked: calls `decide` with its live record, if there is one, and
    /// does what it decides. Everything but [batches](Map::apply) changes this way.
    ///
    /// A record that is dead or unreadable is not shown to `decide`. One that is dead is removed
    /// along the way. `decide` may be called more than once, of which the last call counts. It must
    /// not panic, and must not use the store.
    ///
    /// # Errors
    /// `Damaged` if the record is unreadable and `decide` neither replaces nor removes it: it stays
    /// for a repair of the file.
    pub(crate) fn commit(
        &self,
        key: BytesRef<'_>,
        mode: MutateMode,
        guard: &Guard<'_>,
        draft: Option<&Draft<'_, M>>,
        decide: &mut dyn FnMut(Option<Record<'_, M>>) -> Verdict,
    ) -> Result<Change> {
        let mut permit = None;
        loop {
            let since = self.unbindings(key);
            let mut round = Round::Absent;
            let order = self.inner.feed.order(key);
            let done = self.inner.index.mutate(key, mode, guard, &mut |word| {
                round = self.round(key, word, draft, permit.is_some(), guard, decide);
                round.action()
            });
            if let Some(order) = order {
                self.report(order, key, round, draft, ChangeKind::Removed);
            }
            match round {
                Round::Again(obstacle) => {
                    settled(self.injected_failure(done), None)?;
                    match obstacle {
                        Obstacle::Reserved => permit = Some(self.db.file.reservations.permit()),
                        _ => self.overcome(obstacle, key, draft, guard)?,
                    }
                    continue;
                }
                // An earlier round may have shown a record that is gone by now.
                Round::Absent if done.is_ok() => drop(decide(None)),
                _ => {}
            }
            if let Some(change) = self.finish(key, round, done, since, draft, guard)? {
                return Ok(change);
            }
        }
    }

    /// Does what the next attempt needs, without a lock.
    #[cold]
    fn overcome(
        &self,
        obstacle: Obstacle,
        key: BytesRef<'_>,
        draft: Option<&Draft<'_, M>>,
        guard: &Guard<'_>,
    ) -> Result<()> {
        let file = &self.db.file;
        match obstacle {
            Obstacle::Reserved => drop(file.reservations.permit()),
            Obstacle::Flushing => self.inner.flush.wait_for_flush(),
            Obstacle::DraftFlushed => draft
                .expect("only a draft can be flushed")
                .set_cas(file.cas_counter.take(file.pool.region())?),
            // For its error. If there is space by now, the next round has it.
            Obstacle::NotInOrder => self.enter_order(key, guard)?,
        }
        Ok(())
    }

    /// Ends an attempt to change `key`: `done` is what the index has answered, and `since` is from
    /// before. Returns `None` if the change is to be tried again.
    #[inline]
    fn finish(
        &self,
        key: BytesRef<'_>,
        round: Round,
        done: evermap_pm::Result<Change>,
        since: u64,
        draft: Option<&Draft<'_, M>>,
        guard: &Guard<'_>,
    ) -> Result<Option<Change>> {
        // What `decide` has decided is done, even if tidying up afterwards fails.
        let (change, failed) = settled(self.injected_failure(done), round.change())?;
        match round {
            Round::Again(_) => return Ok(None),
            Round::Unreadable(word) => return Err(self.unreadable(key, word)),
            Round::Misled(_) => {
                self.account(key, change.old, None, guard);
                return Ok(None);
            }
            Round::Decided { was_hidden, .. } if change.changed() => {
                self.account(key, change.old, draft.filter(|_| change.new.is_some()), guard);
                let event = KeyEvent::of(change.old, change.new, was_hidden, since);
                if let Some(event) = event {
                    self.notice(key, event, guard);
                }
            }
            Round::Absent | Round::Decided { .. } => {}
        }
        failed.map_or(Ok(Some(change)), |error| Err(error.into()))
    }

    /// Binds keys to drafts, of which each is durable, together. `keys` are at most [`BATCH_KEYS`]
    /// keys with different hashes. Returns for each of them an error, or whether it is bound: if it
    /// is not, it is to be tried [alone](Map::commit).
    pub(crate) fn commit_many(
        &self,
        keys: &[BytesRef<'_>],
        drafts: &[Draft<'_, M>],
        guard: &Guard<'_>,
    ) -> [Result<bool>; BATCH_KEYS] {
        if self.inner.feed.is_watched() {
            // Alone, they can be reported in their order.
            return [const { Ok(false) }; BATCH_KEYS];
        }
        let mut since = [0; BATCH_KEYS];
        for (since, key) in since.iter_mut().zip(keys) {
            *since = self.unbindings(*key);
        }
        let mut rounds = [Round::Absent; BATCH_KEYS];
        let mut done = [const { Ok(Change { old: None, new: None }) }; BATCH_KEYS];
        let decide = &mut |at: usize, word| {
            let publish = &mut |_: Option<Record<'_, M>>| Verdict::Publish;
            rounds[at] = self.round(keys[at], word, Some(&drafts[at]), false, guard, publish);
            rounds[at].action()
        };
        self.inner.index.mutate_many(keys, MutateMode::MayInsert, guard, decide, &mut done);
        let mut at = 0;
        done.map(|done| {
            let Some(key) = keys.get(at) else { return Ok(false) };
            let (round, since, draft) = (rounds[at], since[at], &drafts[at]);
            at += 1;
            Ok(self.finish(*key, round, done, since, Some(draft), guard)?.is_some())
        })
    }

    /// Reports what a round has changed. A live record that is gone was `removed` in this way.
    #[cold]
    fn report(
        &self,
        order: Turn<'_>,
        key: BytesRef<'_>,
        round: Round,
        draft: Option<&Draft<'_, M>>,
        removed: ChangeKind,
    ) {
        let Round::Decided { change, was_hidden, touched, .. } = round else { return };
        // The guard keeps it.
        let old = change.old.and_then(|word| Record::at(self.db.file.pool.medium(), word).ok());
        let old_cas = old.map_or(0, |record| record.cas());
        match draft.filter(|_| change.new.is_some() && change.changed()) {
            // A copy of the record at another place.
            Some(draft) if draft.cas() == old_cas => {}
            Some(draft) => order.report(key, ChangeKind::Stored, draft.cas()),
            None if change.removed() && was_hidden => {
                order.report(key, ChangeKind::Expired, old_cas);
            }
            None if change.removed() => order.report(key, removed, old_cas),
            None if touched => order.report(key, ChangeKind::Touched, old_cas),
            None => {}
        }
    }

    /// Removes `key` as [`commit`](Map::commit) does, if that is what `decide` decides. Returns
    /// `None` without having done anything if the key is absent, or it would have to wait for a
    /// batch or a flush.
    pub(crate) fn commit_unless_reserved(
        &self,
        key: BytesRef<'_>,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<Record<'_, M>>) -> Verdict,
    ) -> Result<Option<Change>> {
        let (since, mode) = (self.unbindings(key), MutateMode::ExistingOnly);
        let early = self.db.file.pool.medium().mutant(mistakes::EVICTED_TOO_EARLY);
        let mut round = Round::Absent;
        let order = self.inner.feed.order(key);
        let done = self.inner.index.mutate(key, mode, guard, &mut |word| {
            round = self.round(key, word, None, false, guard, decide);
            if early && let Some(change) = round.change().filter(Change::changed) {
                self.account(key, change.old, None, guard);
            }
            round.action()
        });
        if let Some(order) = order {
            self.report(order, key, round, None, ChangeKind::Evicted);
        }
        let (change, failed) = settled(self.injected_failure(done), round.change())?;
        if let Round::Unreadable(word) = round {
            return Err(self.unreadable(key, word));
        }
        let Round::Decided { was_hidden, .. } = round else { return Ok(None) };
        if change.changed() && !early {
            self.account(key, change.old, None, guard);
            if let Some(event) = KeyEvent::of(change.old, change.new, was_hidden, since) {
                self.notice(key, event, guard);
            }
        }
        failed.map_or(Ok(Some(change)), |error| Err(error.into()))
    }

    /// Decides about `key`, which is locked and bound to `word`. The caller has a `permit` if no
    /// batch can run.
    #[inline(always)]
    fn round(
        &self,
        key: BytesRef<'_>,
        word: Option<u64>,
        draft: Option<&Draft<'_, M>>,
        has_permit: bool,
        guard: &Guard<'_>,
        decide: &mut dyn FnMut(Option<Record<'_, M>>) -> Verdict,
    ) -> Round {
        if !has_permit && self.db.file.reservations.is_reserved(key.hash) {
            return Round::Again(Obstacle::Reserved);
        }
        let Some(mark) = self.inner.flush.settled_mark() else {
            return Round::Again(Obstacle::Flushing);
        };
        let live = word.and_then(|word| self.live(word, mark));
        let was_hidden = word.is_some() && live.is_none();
        let verdict = decide(live);
        let touched = matches!(verdict, Verdict::KeepTouched);
        let binds = matches!(verdict, Verdict::Publish | Verdict::PublishWith(_));
        if binds && was_hidden && word.is_some_and(|word| self.was_removed(word)) {
            return Round::Misled(Change::of(word, Action::Remove));
        }
        let action = match (verdict, draft) {
            (Verdict::Publish | Verdict::PublishWith(_), Some(draft)) if draft.cas() < mark => {
                // A flush came between the draft and now. The record that this one replaces may be
                // absent because of the flush, so this one comes after it, and must not be flushed
                // itself.
                return Round::Again(Obstacle::DraftFlushed);
            }
            // A new key is part of the persistent ordered index before it is bound.
            _ if binds && word.is_none() && self.enter_order(key, guard).is_err() => {
                return Round::Again(Obstacle::NotInOrder);
            }
            (Verdict::Publish, Some(draft)) => publish(draft),
            (Verdict::PublishWith(control), Some(draft)) => {
                draft.set_control(control);
                publish(draft)
            }
            (Verdict::Remove, _) => Action::Remove,
            _ if was_hidden => match word.filter(|&word| !self.is_certainly_dead(word, mark)) {
                Some(word) => return Round::Unreadable(word),
                None => Action::Remove,
            },
            _ => Action::Keep,
        };
        if self.db.file.pool.medium().mutant(mistakes::TOMBSTONE_TOO_EARLY)
            && action != Action::Keep
        {
            live.inspect(|record| record.set_tombstone(self.db.file.tombstone));
        }
        Round::Decided { change: Change::of(word, action), action, was_hidden, touched }
    }

    /// In tests, returns an error after the change was made instead of the result of the index.
    #[inline(always)]
    fn injected_failure(&self, done: evermap_pm::Result<Change>) -> evermap_pm::Result<Change> {
        if self.db.file.pool.medium().mutant(mistakes::ERROR_AFTER_CHANGE)
            && done.as_ref().is_ok_and(Change::changed)
        {
            return Err(evermap_pm::Error::damaged(0, "injected by a test"));
        }
        done
    }

    /// Retires the record that was replaced, updates the counts, and makes the key due when the new
    /// record expires.
    #[inline]
    pub(crate) fn account(
        &self,
        key: BytesRef<'_>,
        old: Option<u64>,
        new: Option<&Draft<'_, M>>,
        guard: &Guard<'_>,
    ) {
        if let Some(expiry) = new.and_then(Draft::expiry) {
            // No thread changes it any more, because it is unlinked, and the guard keeps it.
            let old = old.and_then(|word| Record::at(self.db.file.pool.medium(), word).ok());
            let before = old.and_then(|record| record.expires_at());
            self.expect_replacement(key.hash, before, Some(expiry));
        }
        let (mut records, mut bytes) = (0, 0);
        if let Some(word) = old
            && let Some(gone) = self.retire(word, guard)
        {
            (records, bytes) = (-1, -(gone as i64));
        }
        if let Some(draft) = new {
            records += 1;
            let block = draft.block_bytes();
            bytes += block as i64;
            self.inner.size_hint.written(draft.cas(), block);
        }
        if self.inner.counters.change(records, bytes) {
            self.inner.set_bound(&self.db.file.pool);
        }
    }

    /// Retires a record that was unlinked durably, and makes it unreadable. Returns the bytes that
    /// it was counted with, or `None` if it was retired before: then it was not counted, and its
    /// block must not be freed.
    #[inline]
    fn retire(&self, word: u64, guard: &Guard<'_>) -> Option<u64> {
        let Ok(record) = Record::at(self.db.file.pool.medium(), word) else {
            // Damage: its block may be part of something else by now. It is better to leak it than
            // to free that.
            return Some(0);
        };
        // Damage has led the index to it again. Its block is free, or another thread is about to
        // write it.
        if record.is_unbound() {
            self.met(record.damaged(record.why_unreadable()));
            return None;
        }
        record.set_tombstone(self.db.file.tombstone);
        let (offset, bytes) = (record.offset(), self.db.file.pool.block_size(record.bytes()));
        if self.inner.counters.is_counting() && record.cas() < self.db.file.cas_counter.first() {
            self.inner.counters.departed(offset, bytes);
        }
        self.db.file.pool.retire(offset, bytes, guard);
        Some(bytes)
    }
}

/// Returns what a mutation has changed, and the error of what failed afterwards, given the result
/// of the index and the change that was decided.
///
/// # Errors
/// The error of the index, if nothing has changed.
#[inline]
fn settled(
    done: evermap_pm::Result<Change>,
    decided: Option<Change>,
) -> evermap_pm::Result<(Change, Option<evermap_pm::Error>)> {
    match (done, decided.filter(Change::changed)) {
        (Ok(change), _) => Ok((change, None)),
        // The change was made. The caller would repeat it for lack of space, which only what comes
        // after it lacked.
        (Err(error), Some(change)) if error.is_no_space() => Ok((change, None)),
        (Err(error), Some(change)) => Ok((change, Some(error))),
        (Err(error), None) => Err(error),
    }
}

fn publish<M: Medium>(draft: &Draft<'_, M>) -> Action {
    // From here on a panic must not free it: it may be reachable.
    draft.set_published();
    Action::Put(draft.word())
}

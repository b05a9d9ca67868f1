//! The operations, on what all threads of a store share.

use std::sync::Arc;
use std::time::Duration;

use evermap_index::ordered::{Page, Run};
use evermap_index::record::KEY_MAX;
use evermap_index::{Action, Change, MutateMode, Visitor};
use evermap_pm::{Error, ErrorKind, Guard, Medium, PmU64, Pool, Result};

use super::backend::Service;
use super::balance::Kind;
use super::hash::{Found, Hash, Place, Shown};
use super::helpers::HelperThreads;
use super::image::Image;
use super::item::{Draft, Item};
use super::layout::Root;
use super::log::{LockedLog, Log, Record};
use super::order::Order;
use super::queue::{Request, Reservation};
use super::tree::Tree;
use super::{Config, mistakes};

/// How long the thread that moves ranges sleeps while they are balanced.
const MIGRATION_NAP: Duration = Duration::from_millis(2);
/// The number of pairs that are read from the tree at a time where all are.
const TOGETHER: usize = 1 << 10;

/// The state that all threads share.
pub(super) struct Core<M: Medium> {
    pub(super) pool: Arc<Pool<M>>,
    /// The offset of the root block.
    pub(super) root: u64,
    pub(super) hash: Hash<M>,
    pub(super) order: Order,
    pub(super) log: Option<Log>,
    pub(super) service: Option<Service>,
    pub(super) image: Image,
    pub(super) helpers: HelperThreads,
    pub(super) config: Config,
}

/// What a change holds from its beginning on.
struct Begun<'c> {
    place: Place,
    reservation: Option<Reservation<'c>>,
    log: Option<LockedLog<'c>>,
}

impl<M: Medium> Core<M> {
    /// Returns the root block.
    pub(super) fn root(&self) -> Result<&Root> {
        let root = self.pool.medium().at(self.root);
        root.ok_or_else(|| Error::damaged(self.root, "there is no root of a store"))
    }

    /// Serves as a backend.
    pub(super) fn serve(&self, number: usize) -> Result<()> {
        match &self.service {
            Some(service) => service.run(number, &self.helpers, self.server()),
            None => Ok(()),
        }
    }

    /// Serves each queue once, as backend `number` of `of`.
    pub(super) fn serve_once(&self, number: usize, of: usize) -> Result<u64> {
        match &self.service {
            Some(service) => service.round(number, of, &mut self.server()),
            None => Ok(0),
        }
    }

    /// Balances ranges until the helper threads stop.
    pub(super) fn migrate(&self) -> Result<()> {
        while !self.helpers.is_stopped() {
            let is_even = match self.order.complete() {
                Some(Tree::Parts(parts)) => !parts.balance()?,
                _ => true,
            };
            if is_even {
                self.helpers.sleep(MIGRATION_NAP);
            }
        }
        Ok(())
    }

    /// Returns what carries out a request.
    fn server(&self) -> impl FnMut(Request) -> Result<()> + '_ {
        let mut key = Vec::new();
        move |request| {
            let guard = self.pool.pin();
            // The item exists: only the thread that serves the queue retires it, below.
            let named = if request.new == 0 { request.old } else { request.new };
            Item::at(self.pool.medium(), named)?.read_key(&mut key);
            self.apply(&key, request, &guard)
        }
    }

    /// Makes the tree agree with the hash index about `key`, and retires the item that neither
    /// names any more.
    fn apply(&self, key: &[u8], request: Request, guard: &Guard<'_>) -> Result<()> {
        self.order.update(key, request.old, request.new)?;
        match self.pool.medium().mutant(mistakes::ITEM_RETIRED_EARLY) {
            true => Ok(()),
            false => self.retire(request.old, guard),
        }
    }

    /// Retires the item at a position, if that is not 0.
    fn retire(&self, position: u64, guard: &Guard<'_>) -> Result<()> {
        if position != 0 {
            Item::at(self.pool.medium(), position)?.retire(&self.pool, guard);
        }
        Ok(())
    }

    /// Propagates a change to the tree. The key is locked, so that changes of a key are propagated
    /// in order.
    fn propagate(
        &self,
        key: &[u8],
        request: Request,
        begun: &mut Begun<'_>,
        guard: &Guard<'_>,
    ) -> Result<()> {
        if self.order.keep(begun.place.partition, key, request.new)? {
            return self.retire(request.old, guard);
        }
        match begun.reservation.take() {
            Some(reservation) => {
                if self.pool.medium().mutant(mistakes::ITEM_RETIRED_EARLY) {
                    self.retire(request.old, guard)?;
                }
                reservation.send(request);
                Ok(())
            }
            None => self.apply(key, request, guard),
        }
    }

    /// Begins a change of a key, whose value will have at most `most` bytes.
    fn begin(&self, key: &[u8], most: usize, removes: bool) -> Result<Begun<'_>> {
        self.pool.region().ensure_writable()?;
        if self.image.is_own() {
            self.image.free(&self.pool, self.root()?)?;
        }
        let place = self.hash.place(key);
        // First, because a thread that waits for a reservation must hold nothing.
        let reservation = match &self.service {
            Some(service) => {
                let other = removes && self.pool.medium().mutant(mistakes::TWO_QUEUES);
                let queue = place.partition + usize::from(other);
                Some(service.reserve(queue, &self.helpers, self.server())?)
            }
            None => None,
        };
        let lengths = (key.len(), most);
        let log = self.log.as_ref().map(|log| log.lock(place.partition, lengths)).transpose()?;
        Ok(Begun { place, reservation, log })
    }

    /// Binds `key` to `value`, or removes it. Returns whether it was bound.
    pub(super) fn change(&self, key: &[u8], value: Option<&[u8]>) -> Result<bool> {
        if key.len() > KEY_MAX {
            return match value {
                Some(_) => Err(too_long(key)),
                None => Ok(false),
            };
        }
        let begun = self.begin(key, value.map_or(0, <[u8]>::len), value.is_none())?;
        self.change_begun(key, value, begun)
    }

    fn change_begun(&self, key: &[u8], value: Option<&[u8]>, mut begun: Begun<'_>) -> Result<bool> {
        // After the wait for a reservation, which is no cost of a write.
        let _sample = self.service.as_ref().and_then(|all| all.sample(Kind::Write));
        let (pool, m, partition) = (&*self.pool, self.pool.medium(), begun.place.partition);
        let draft = value.map(|value| Draft::allocate(pool, key.len(), value.len())).transpose()?;
        let new = draft.zip(value);
        if let Some((draft, value)) = new.as_ref().filter(|_| begun.log.is_none()) {
            write_item(m, draft, key, value);
        }
        let guard = pool.pin();
        let stripe = self.hash.lock(begun.place)?;
        let mut found = stripe.search(key)?;
        let old = found.old();
        let (mut crowded, mut position) = (false, 0);
        match new {
            Some((draft, value)) => {
                found = stripe.make_room(found)?;
                crowded = found.is_crowded();
                if let Some(log) = &mut begun.log {
                    log.append(m, key, Some(value));
                    write_item(m, &draft, key, value);
                }
                stripe.bind(found, draft.position())?;
                position = draft.keep();
            }
            None => {
                let Found::Bound(entry, _) = found else { return Ok(false) };
                if let Some(log) = &mut begun.log {
                    log.append(m, key, None);
                }
                stripe.unbind(entry);
            }
        }
        let request = Request { old: old.unwrap_or(0), new: position };
        self.propagate(key, request, &mut begun, &guard)?;
        drop((stripe, begun, guard));
        if crowded {
            self.hash.grow(partition)?;
        }
        Ok(old.is_some())
    }

    /// See [`OrderedIndex::mutate`](evermap_index::OrderedIndex::mutate). Values are words. If
    /// `decide` never puts one, no space is needed.
    pub(super) fn mutate(
        &self,
        key: &[u8],
        (mode, puts): (MutateMode, bool),
        decide: &mut dyn FnMut(Option<u64>) -> Action,
    ) -> Result<Change> {
        const WORD: usize = 8;
        if key.len() > KEY_MAX {
            return match mode {
                MutateMode::ExistingOnly => Ok(Change::default()),
                MutateMode::MayInsert => Err(too_long(key)),
            };
        }
        let mut begun = self.begin(key, WORD, !puts)?;
        let (pool, m, partition) = (&*self.pool, self.pool.medium(), begun.place.partition);
        let draft = puts.then(|| Draft::allocate(pool, key.len(), WORD)).transpose()?;
        let guard = pool.pin();
        let stripe = self.hash.lock(begun.place)?;
        let mut found = stripe.search(key)?;
        let old = found.old();
        if old.is_none() {
            match mode {
                MutateMode::ExistingOnly => return Ok(Change::default()),
                MutateMode::MayInsert => found = stripe.make_room(found)?,
            }
        }
        let mut buffer = Vec::new();
        let read = |position| Item::at(m, position)?.word(&mut buffer);
        let word = old.map(read).transpose()?;
        let poison = pool.region().poison_on_panic();
        let action = decide(word);
        poison.disarm();
        let change = Change::of(word, action);
        let (mut crowded, mut position) = (false, 0);
        match action {
            Action::Put(new) => {
                let Some(draft) = draft else { return Ok(Change::default()) };
                crowded = found.is_crowded();
                let value = new.to_le_bytes();
                if let Some(log) = &mut begun.log {
                    log.append(m, key, Some(&value));
                }
                write_item(m, &draft, key, &value);
                stripe.bind(found, draft.position())?;
                position = draft.keep();
            }
            Action::Remove => {
                let Found::Bound(entry, _) = found else { return Ok(change) };
                if let Some(log) = &mut begun.log {
                    log.append(m, key, None);
                }
                stripe.unbind(entry);
            }
            Action::Keep => return Ok(change),
        }
        let request = Request { old: old.unwrap_or(0), new: position };
        self.propagate(key, request, &mut begun, &guard)?;
        drop((stripe, begun, guard));
        if crowded {
            self.hash.grow(partition)?;
        }
        Ok(change)
    }

    /// Carries out a change again that a log has recorded, unless it is there.
    pub(super) fn redo(&self, record: &Record) -> Result<()> {
        let (key, value) = (&record.key[..], record.value.as_deref());
        if let Some(value) = value.filter(|_| self.pool.medium().mutant(mistakes::REDO_TWICE)) {
            return self.bind_once_more(key, value);
        }
        let mut current = Vec::new();
        let is_bound = self.get(key, &mut current)?;
        if is_bound == value.is_some() && value.is_none_or(|value| value == current) {
            return Ok(());
        }
        let mut begun = self.begin(key, 0, value.is_none())?;
        // Its record is there.
        begun.log = None;
        match self.change_begun(key, value, begun) {
            // It was not acknowledged, so it need not be there.
            Err(error) if error.is_no_space() => Ok(()),
            done => done.map(drop),
        }
    }

    /// The mistake [`REDO_TWICE`](mistakes::REDO_TWICE).
    fn bind_once_more(&self, key: &[u8], value: &[u8]) -> Result<()> {
        let draft = Draft::allocate(&self.pool, key.len(), value.len())?;
        write_item(self.pool.medium(), &draft, key, value);
        let stripe = self.hash.lock(self.hash.place(key))?;
        let elsewhere = stripe.make_room(stripe.search(b"no such key")?)?;
        stripe.bind(elsewhere, draft.position())?;
        draft.keep();
        Ok(())
    }

    /// Replaces the contents of `value` with the value of `key`. Returns whether it is bound.
    #[inline]
    pub(super) fn get(&self, key: &[u8], value: &mut Vec<u8>) -> Result<bool> {
        let _sample = self.service.as_ref().and_then(|all| all.sample(Kind::Get));
        let _guard = self.pool.pin();
        let Some(position) = self.hash.find(self.hash.place(key), key)? else { return Ok(false) };
        Item::at(self.pool.medium(), position)?.read_value(value);
        Ok(true)
    }

    /// Returns the word of `key`.
    pub(super) fn word(&self, key: &[u8]) -> Result<Option<u64>> {
        let _guard = self.pool.pin();
        let position = self.hash.find(self.hash.place(key), key)?;
        let read = |position| Item::at(self.pool.medium(), position)?.word(&mut Vec::new());
        position.map(read).transpose()
    }

    /// Returns the tree, when it shows all acknowledged changes. The caller holds no guard.
    pub(super) fn settled_tree(&self) -> Result<&Tree> {
        let tree = self.complete_tree(1)?;
        self.settle()?;
        Ok(tree)
    }

    /// Returns when all requests that have been sent are carried out.
    pub(super) fn settle(&self) -> Result<()> {
        let service = self.service.as_ref();
        service.map_or(Ok(()), |service| service.settle(&self.helpers, self.server()))
    }

    /// Calls `each` with up to `count` pairs from `from` on.
    pub(super) fn scan(
        &self,
        from: &[u8],
        count: usize,
        each: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let tree = self.settled_tree()?;
        // As in `change_begun`.
        let _sample = self.service.as_ref().and_then(|all| all.sample(Kind::Scan));
        // An item that the tree names is not reused from here on.
        let _guard = self.pool.pin();
        let (mut run, mut value) = (Run::new(), Vec::new());
        tree.collect(from, count, &mut run)?;
        for (key, position) in run.iter() {
            self.named(key, position)?.read_value(&mut value);
            each(key, &value);
        }
        Ok(())
    }

    /// See [`OrderedIndex::page`](evermap_index::OrderedIndex::page). Values are words.
    pub(super) fn page(
        &self,
        from: std::ops::Bound<&[u8]>,
        direction: evermap_index::Direction,
        page: &mut Page,
    ) -> Result<()> {
        let tree = self.settled_tree()?;
        let _guard = self.pool.pin();
        tree.page(from, direction, page)?;
        let (positions, mut buffer) = (std::mem::take(&mut page.pairs), Vec::new());
        for (key, position) in positions.iter() {
            page.pairs.push(key, self.named(key, position)?.word(&mut buffer)?);
        }
        Ok(())
    }

    /// Returns the item of `key` that the tree names. The caller has had a guard since before it
    /// read the tree.
    fn named(&self, key: &[u8], position: u64) -> Result<Item<'_, M>> {
        let item = Item::at(self.pool.medium(), position)?;
        // Under the guard no item is reused whose position the tree still held; this would detect
        // it.
        match item.has_key(key) {
            true => Ok(item),
            false => Err(Error::damaged(position, "the tree names another key's item")),
        }
    }

    /// Shows every block, and every word if values are words, to `visitor`.
    pub(super) fn visit(&self, visitor: &mut dyn Visitor, words: bool) -> Result<()> {
        visitor.block(self.root);
        visitor.block(self.hash.descriptors());
        if let Some(log) = &self.log {
            log.blocks(&mut |block| visitor.block(block))?;
        }
        self.image.show(&self.pool, &mut |block| visitor.block(block))?;
        let (mut damage, mut buffer) = (Ok(()), Vec::new());
        for partition in 0..self.hash.partitions.len() {
            if visitor.is_done() {
                return damage;
            }
            // An item cannot be retired while its entry is locked.
            damage = damage.and(self.hash.walk(partition, &mut |shown| {
                match shown {
                    Shown::Chunk(block) | Shown::Chained(block) => visitor.block(block),
                    Shown::Entry(_, position) => {
                        visitor.block(position);
                        if words {
                            let item = Item::at(self.pool.medium(), position)?;
                            visitor.word(item.word(&mut buffer)?);
                        }
                    }
                }
                Ok(())
            }));
        }
        self.hash.spares()?.iter().for_each(|&spare| visitor.block(spare));
        // An item that was unlinked before it was shown is retired by the thread that carries
        // out the request. A sweep has to know of it.
        damage.and(self.settle())
    }

    /// Returns whether there is an image that was not used and that no change has outdated.
    pub(super) fn has_unused_image(&self) -> Result<bool> {
        let is_unused = self.order.complete().is_none() && self.image.is_named()?;
        Ok(is_unused && self.order.kept()? == 0)
    }

    /// Saves what speeds up the next opening, and frees what only this one needs.
    pub(super) fn close(&self) -> Result<()> {
        self.pool.region().ensure_writable()?;
        let root = self.root()?;
        self.settle()?;
        self.hash.free_spares()?;
        match self.order.complete() {
            None if self.has_unused_image()? => self.image.renew(&self.pool, root),
            None => self.image.free(&self.pool, root),
            Some(_) if self.image.is_own() => Ok(()),
            Some(tree) => self.save(tree, root),
        }
    }

    fn save(&self, tree: &Tree, root: &Root) -> Result<()> {
        let mut from = Vec::new();
        let saved = self.image.save(&self.pool, root, |run| {
            tree.collect(&from, TOGETHER, run)?;
            if let Some(last) = run.len().checked_sub(1) {
                from.clear();
                from.extend_from_slice(run.key(last));
                // The least key that is greater.
                from.push(0);
            }
            Ok(())
        });
        match saved {
            // The next opening builds the tree from the hash index.
            Err(error) if error.is_no_space() => Ok(()),
            done => done,
        }
    }
}

fn too_long(key: &[u8]) -> Error {
    ErrorKind::KeyTooLong { len: key.len(), max: KEY_MAX }.into()
}

/// Writes an item and makes it durable with one persist.
fn write_item<M: Medium>(m: &M, draft: &Draft<'_, M>, key: &[u8], value: &[u8]) {
    let cells: &[PmU64] = draft.write(key, value);
    if !m.mutant(mistakes::ENTRY_BEFORE_ITEM) {
        m.persist(cells);
    }
}

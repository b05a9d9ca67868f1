//! incr, decr and ma.

use crate::cache::{Arithmetic, CacheError, Item, Marks, Update, apply_delta};
use crate::latency::Command;
use crate::number;
use crate::protocol::Context;
use crate::stats::Count;

/// A command that adds to a number, or subtracts from it. By default it has no condition, creates
/// no item and changes no expiry.
#[derive(Default)]
pub(in crate::protocol) struct Delta<'a> {
    pub(in crate::protocol) key: &'a [u8],
    pub(in crate::protocol) delta: u64,
    pub(in crate::protocol) up: bool,
    /// The CAS id that the item must have. memcached takes 0 for none.
    pub(in crate::protocol) compare: Option<u64>,
    /// The CAS id that the client chose for the new version; `None`: a new one.
    pub(in crate::protocol) new_cas: Option<u64>,
    /// The number and the absolute expiry of the item that is created if there is none.
    pub(in crate::protocol) create: Option<(u64, u32)>,
    /// The new absolute expiry of an item that there is; `None`: it stays.
    pub(in crate::protocol) expiry: Option<u32>,
    /// Whether the reply says when the item expired before.
    pub(in crate::protocol) wants_expiry: bool,
    /// Whether it is ma, whose latency is counted apart.
    pub(in crate::protocol) meta: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol) enum DeltaOutcome {
    /// The item has this number now.
    Changed(Counter),
    OtherVersion,
    NotFound,
    NonNumeric,
}

/// A number after a change.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::protocol) struct Counter {
    pub(in crate::protocol) number: u64,
    pub(in crate::protocol) cas: u64,
    /// The expiry before the change; 0 unless it is wanted.
    pub(in crate::protocol) expiry: u32,
    pub(in crate::protocol) created: bool,
}

impl Delta<'_> {
    pub(in crate::protocol) fn execute(
        &self,
        context: &Context<'_>,
    ) -> Result<DeltaOutcome, CacheError> {
        context.executed(if self.meta { Command::MetaArithmetic } else { Command::Arithmetic }, 1);
        let outcome = self.apply(context)?;
        let (hits, misses) = match self.up {
            true => (Count::IncrHits, Count::IncrMisses),
            false => (Count::DecrHits, Count::DecrMisses),
        };
        match outcome {
            DeltaOutcome::Changed(Counter { number, created, .. }) => {
                if !created {
                    context.counters.add(hits, 1);
                }
                context.counted(self.key, number, self.up);
            }
            DeltaOutcome::NotFound => context.counters.add(misses, 1),
            DeltaOutcome::OtherVersion | DeltaOutcome::NonNumeric => {}
        }
        Ok(outcome)
    }

    fn apply(&self, context: &Context<'_>) -> Result<DeltaOutcome, CacheError> {
        let Delta { key, delta, up, new_cas, expiry, wants_expiry, .. } = *self;
        if self.compare().is_some() || new_cas.is_some() || expiry.is_some() || wants_expiry {
            return self.update(context);
        }
        Ok(match context.cache.arithmetic(key, delta, up)? {
            Arithmetic::Changed { number, cas } => {
                DeltaOutcome::Changed(Counter { number, cas, expiry: 0, created: false })
            }
            // Another client may create the item at the same time, so this one must look again in
            // the step that creates it.
            Arithmetic::NotFound if self.create.is_some() => self.update(context)?,
            Arithmetic::NotFound => DeltaOutcome::NotFound,
            Arithmetic::NonNumeric => DeltaOutcome::NonNumeric,
        })
    }

    fn compare(&self) -> Option<u64> {
        self.compare.filter(|&cas| cas != 0)
    }

    /// Changes the number under conditions, with an expiry, or creates it.
    fn update(&self, context: &Context<'_>) -> Result<DeltaOutcome, CacheError> {
        let mut outcome = DeltaOutcome::NotFound;
        let cas = context.cache.update(self.key, &mut |item| {
            let update;
            (outcome, update) = match item {
                None => self.create(),
                Some(item) => self.change(item)?,
            };
            Ok(update)
        })?;
        if let DeltaOutcome::Changed(counter) = &mut outcome {
            counter.cas = cas.unwrap_or(0);
        }
        Ok(outcome)
    }

    /// Returns what happens if there is no item. The CAS id is not known yet.
    fn create(&self) -> (DeltaOutcome, Update) {
        let Some((number, expiry)) = self.create else {
            return (DeltaOutcome::NotFound, Update::Keep);
        };
        let mut value = Vec::new();
        number::append(number, &mut value);
        let counter = Counter { number, cas: 0, expiry: 0, created: true };
        let (marks, cas) = (Marks::default(), self.new_cas);
        (DeltaOutcome::Changed(counter), Update::Put { value, flags: 0, expiry, marks, cas })
    }

    /// Returns what happens to an item. The CAS id is not known yet.
    fn change(&self, item: &Item<'_>) -> Result<(DeltaOutcome, Update), CacheError> {
        if self.compare().is_some_and(|cas| cas != item.cas) {
            return Ok((DeltaOutcome::OtherVersion, Update::Keep));
        }
        let (mut old, mut value) = (Vec::new(), Vec::new());
        item.value.append_to(&mut old)?;
        let Some(number) = apply_delta(&old, self.delta, self.up, &mut value) else {
            return Ok((DeltaOutcome::NonNumeric, Update::Keep));
        };
        let counter = Counter { number, cas: 0, expiry: item.expiry, created: false };
        let (expiry, cas) = (self.expiry.unwrap_or(item.expiry), self.new_cas);
        let Item { flags, marks, .. } = *item;
        Ok((DeltaOutcome::Changed(counter), Update::Put { value, flags, expiry, marks, cas }))
    }
}

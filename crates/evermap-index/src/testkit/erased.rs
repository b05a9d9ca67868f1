//! Subjects and indexes without their types.
//!
//! The parts of the kit are generic over the index that they test. Through [`AnySubject`] and
//! [`AnyPoolSubject`] they are compiled once for each kind of key, and not once for each index too;
//! those for ordered indexes are compiled once, through [`AnyOrderedSubject`].
//! The simulator is generic over the structure that it crashes. Through [`Erased`] its campaigns
//! are compiled once.

use std::any::Any;
use std::fmt::Display;
use std::str::FromStr;
use std::sync::Arc;

use evermap_pm::pool::Pool;
use evermap_pm::sim::{self, CrashPoint, Failure, Sim};
use evermap_pm::{Guard, Result};

use super::keys::Numbered;
use super::ordered::OrderedSubject;
use super::persistence::{PoolSubject, ROOT};
use super::{Instance, Stop, Subject};
use crate::ordered::OrderedIndex;
use crate::{Index, Key, Persistent, Visitor};

/// The object-safe part of [`Subject`].
pub(super) trait AnySubject<K: Key>: Sync {
    fn fresh(&self) -> Result<Box<dyn AnyInstance<K> + '_>>;
    fn always_holds(&self) -> usize;
}

/// An index that an [`AnySubject`] has created.
pub(super) trait AnyInstance<K: Key> {
    fn instance(&self) -> &dyn Instance<K>;
    fn reopen<'s>(self: Box<Self>, stop: Stop) -> Result<Box<dyn AnyInstance<K> + 's>>
    where
        Self: 's;
}

/// An index and the subject that has created it.
struct Created<'s, K: Key, S: Subject<K>> {
    subject: &'s S,
    instance: S::Instance,
}

impl<K: Key, S: Subject<K>> AnySubject<K> for S {
    fn fresh(&self) -> Result<Box<dyn AnyInstance<K> + '_>> {
        Ok(Box::new(Created { subject: self, instance: Subject::fresh(self)? }))
    }

    fn always_holds(&self) -> usize {
        Subject::always_holds(self)
    }
}

impl<K: Key, S: Subject<K>> AnyInstance<K> for Created<'_, K, S> {
    fn instance(&self) -> &dyn Instance<K> {
        &self.instance
    }

    fn reopen<'s>(self: Box<Self>, stop: Stop) -> Result<Box<dyn AnyInstance<K> + 's>>
    where
        Self: 's,
    {
        let Created { subject, instance } = *self;
        Ok(Box::new(Created { subject, instance: subject.reopen(instance, stop)? }))
    }
}

/// The object-safe part of [`PoolSubject`].
pub(super) trait AnyPoolSubject<K: Key>: Sync {
    fn create(&self, pool: Arc<Pool<Sim>>) -> Result<Box<dyn AnyIndex<K>>>;
    fn open(&self, pool: Arc<Pool<Sim>>) -> Result<Box<dyn AnyIndex<K>>>;
    fn always_holds(&self) -> usize;
    fn extent_size(&self) -> u64;
}

impl<K: Numbered, P: PoolSubject<K>> AnyPoolSubject<K> for P {
    fn create(&self, pool: Arc<Pool<Sim>>) -> Result<Box<dyn AnyIndex<K>>> {
        let root = pool.root(ROOT);
        let index: P::Index = Persistent::create(pool.clone(), root, self.config())?;
        Ok(Box::new(index))
    }

    fn open(&self, pool: Arc<Pool<Sim>>) -> Result<Box<dyn AnyIndex<K>>> {
        let index: P::Index = Persistent::open(pool.clone(), pool.root(ROOT))?;
        Ok(Box::new(index))
    }

    fn always_holds(&self) -> usize {
        PoolSubject::always_holds(self)
    }

    fn extent_size(&self) -> u64 {
        PoolSubject::extent_size(self)
    }
}

/// An index with the object-safe part of [`Persistent`].
pub(super) trait AnyIndex<K: Key>: Index<K> {
    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()>;
    fn scan(
        &self,
        from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>);
    fn check(&self) -> Vec<String>;
    fn close(&self) -> Result<()>;
}

impl<K: Key, I: Index<K> + Persistent<Sim>> AnyIndex<K> for I {
    fn visit(&self, visitor: &mut dyn Visitor) -> Result<()> {
        Persistent::visit(self, visitor)
    }

    fn scan(
        &self,
        from: u64,
        guard: &Guard<'_>,
        each: &mut dyn FnMut(u64, u64),
    ) -> (Result<()>, Option<u64>) {
        Persistent::scan(self, from, guard, each)
    }

    fn check(&self) -> Vec<String> {
        Persistent::check(self)
    }

    fn close(&self) -> Result<()> {
        Persistent::close(self)
    }
}

/// The object-safe part of [`OrderedSubject`].
pub(super) trait AnyOrderedSubject: Sync {
    fn fresh(&self) -> Result<Box<dyn OrderedIndex + '_>>;
}

impl<S: OrderedSubject> AnyOrderedSubject for S {
    fn fresh(&self) -> Result<Box<dyn OrderedIndex + '_>> {
        Ok(Box::new(OrderedSubject::fresh(self)?))
    }
}

/// A crashed index with any kind of keys, with calls `C` and histories `H`.
pub(super) struct Erased<C, H>(Box<dyn AnyCrashed<C, H>>);

impl<C, H> Erased<C, H> {
    /// Erases the type of `crashed`.
    pub(super) fn new<S>(crashed: S) -> Self
    where
        S: sim::Subject<Call = C, History = H, Live: 'static> + Send + Sync + 'static,
    {
        Erased(Box::new(crashed))
    }
}

/// The object-safe part of [`sim::Subject`].
trait AnyCrashed<C, H>: Send + Sync {
    fn workload(&self, seed: u64) -> Vec<C>;
    fn run(&self, sim: &Sim, calls: &[C]) -> Result<H, Failure>;
    fn recover(&self, sim: &Sim, history: &H, point: &CrashPoint) -> Result<Box<dyn Any>, Failure>;
    fn probe(&self, live: Box<dyn Any>, seed: u64) -> Result<H, Failure>;
    fn op_name(&self, history: &H, op: u64) -> String;
}

impl<C, H, S> AnyCrashed<C, H> for S
where
    S: sim::Subject<Call = C, History = H, Live: 'static> + Send + Sync,
{
    fn workload(&self, seed: u64) -> Vec<C> {
        sim::Subject::workload(self, seed)
    }

    fn run(&self, sim: &Sim, calls: &[C]) -> Result<H, Failure> {
        sim::Subject::run(self, sim, calls)
    }

    fn recover(&self, sim: &Sim, history: &H, point: &CrashPoint) -> Result<Box<dyn Any>, Failure> {
        Ok(Box::new(sim::Subject::recover(self, sim, history, point)?))
    }

    fn probe(&self, live: Box<dyn Any>, seed: u64) -> Result<H, Failure> {
        let live = live.downcast().expect("what this subject has recovered");
        sim::Subject::probe(self, *live, seed)
    }

    fn op_name(&self, history: &H, op: u64) -> String {
        sim::Subject::op_name(self, history, op)
    }
}

impl<C: Clone + Display + FromStr, H> sim::Subject for Erased<C, H> {
    type Call = C;
    type History = H;
    type Live = Box<dyn Any>;

    fn workload(&self, seed: u64) -> Vec<C> {
        self.0.workload(seed)
    }

    fn run(&self, sim: &Sim, calls: &[C]) -> Result<H, Failure> {
        self.0.run(sim, calls)
    }

    fn recover(&self, sim: &Sim, history: &H, point: &CrashPoint) -> Result<Box<dyn Any>, Failure> {
        self.0.recover(sim, history, point)
    }

    fn probe(&self, live: Box<dyn Any>, seed: u64) -> Result<H, Failure> {
        self.0.probe(live, seed)
    }

    fn op_name(&self, history: &H, op: u64) -> String {
        self.0.op_name(history, op)
    }
}

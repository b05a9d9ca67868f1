//! Crashed indexes without their types.
//!
//! Campaigns, mutants and the shrinking of failures are generic over the structure that they crash.
//! Through [`Erased`] they are compiled once, and not once for each index and kind of key.

use std::any::Any;
use std::fmt::Display;
use std::str::FromStr;

use evermap_pm::sim::{self, CrashPoint, Failure, Sim};

/// A crashed index of any type, with calls `C` and histories `H`.
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

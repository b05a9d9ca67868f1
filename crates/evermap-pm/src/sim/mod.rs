//! A crash simulator for persistent structures: record once, crash everywhere.
//!
//! A crash does not change what happened before it. So a structure runs its workload once, on a
//! [`Sim`], which records every store, flush and fence; and all contents that a crash may leave
//! behind are derived from that [`Trace`] afterwards:
//!
//! * A [`Model`] says how memory loses data: line by line if power fails, everything or nothing
//!   after some store if the process dies, page by page above the kernel's page cache.
//! * [`for_each_image`] runs through the crash points and builds the [`Image`]s.
//! * A [`campaign`] recovers a [`Subject`] from each image, verifies it, continues to use it, and
//!   crashes recoveries too. It reports violations, each with a [`Replay`] to repeat it.
//! * [`oracle`] knows what a map may hold after a crash.
//! * [`detect`] finds mistakes and waste that a recording shows without any crash.
//! * [`mutants`] drops or delays every flush and every fence, one at a time, and tears every
//!   commit: the tests of a structure should detect each of these mistakes.
//! * A [`schedule`] lets threads take turns in an order that can be repeated.
//! * A [`tier`] says how long the tests run.
//!
//! The assumptions of the simulator: accesses of all threads happen one after the other, in some
//! order that is consistent with each thread (weaker memory models are the domain of other tools);
//! read-modify-writes are not fences; a word of 8 bytes never tears. Structures must access
//! persistent bytes only through [`Medium`](crate::Medium).
//!
//! # Example
//!
//! Two counters that must never differ by more than one, each on a line of its own.
//!
//! ```
//! use evermap_pm::sim::{campaign, Config, CrashPoint, Failure, Sim, Subject};
//! use evermap_pm::medium::Note;
//! use evermap_pm::{Medium, PmU64};
//!
//! struct Counters {
//!     flushes: bool,
//! }
//!
//! fn counters(sim: &Sim) -> Result<[&PmU64; 2], String> {
//!     sim.grow(4096).map_err(|error| error.to_string())?;
//!     Ok([sim.at(0).ok_or("no space")?, sim.at(64).ok_or("no space")?])
//! }
//!
//! impl Counters {
//!     fn count(&self, sim: &Sim) -> Result<(), String> {
//!         for counter in counters(sim)? {
//!             sim.store(counter, sim.load(counter) + 1);
//!             if self.flushes {
//!                 sim.flush(counter);
//!             }
//!             sim.fence();
//!         }
//!         Ok(())
//!     }
//! }
//!
//! impl Subject for Counters {
//!     type Call = String;
//!     /// The value of the counters when the history began.
//!     type History = u64;
//!     type Live = (Sim, u64);
//!
//!     fn workload(&self, _seed: u64) -> Vec<String> {
//!         vec!["count".into(); 10]
//!     }
//!
//!     fn run(&self, sim: &Sim, calls: &[String]) -> Result<u64, Failure> {
//!         for op in 0..calls.len() as u64 {
//!             sim.note(Note::Begin(op));
//!             self.count(sim)?;
//!             sim.note(Note::End(op));
//!         }
//!         Ok(0)
//!     }
//!
//!     fn recover(
//!         &self,
//!         sim: &Sim,
//!         start: &u64,
//!         point: &CrashPoint,
//!     ) -> Result<Self::Live, Failure> {
//!         let [first, second] = counters(sim)?.map(|counter| sim.load(counter));
//!         // Recovery reverts a count that was only half done.
//!         if first != second {
//!             sim.store(counters(sim)?[0], second);
//!             sim.persist(counters(sim)?[0]);
//!         }
//!         let allowed = start + point.ended()..=start + point.begun();
//!         if !allowed.contains(&second) || first < second || first > second + 1 {
//!             return Err(format!("counted {first} and {second}, allowed {allowed:?}").into());
//!         }
//!         Ok((sim.clone(), second))
//!     }
//!
//!     fn probe(&self, (sim, start): Self::Live, _seed: u64) -> Result<u64, Failure> {
//!         sim.note(Note::Begin(0));
//!         self.count(&sim)?;
//!         sim.note(Note::End(0));
//!         Ok(start)
//!     }
//! }
//!
//! let config = Config { capacity: 4096, ..Config::default() };
//! campaign::run(&Counters { flushes: true }, &config, 0..1).assert_clean();
//! let report = campaign::run(&Counters { flushes: false }, &config, 0..1);
//! assert!(report.violations[0].message.contains("counted 0 and 0, allowed 1..=1"), "{report}");
//! ```

pub mod battery;
pub mod campaign;
mod choice;
mod config;
mod coverage;
mod crashes;
pub mod detect;
mod deviation;
mod durable;
mod frontier;
mod image;
#[cfg(test)]
mod litmus;
mod medium;
pub mod mutants;
mod mutation;
pub mod oracle;
mod panics;
mod recovery;
mod replay;
mod report;
pub mod rng;
pub mod schedule;
mod shrink;
mod subject;
mod tier;
mod trace;
mod undecided;

pub use config::{Config, Nested};
pub use coverage::{Pairs, Pruning};
pub use durable::{GrowthModel, Model};
pub use image::{CrashPoint, Image, ImageConfig, ImageStats, for_each_image};
pub use medium::{Access, Observer, Sim, unmarked};
pub use mutation::Mutation;
pub use panics::keep_panics_quiet;
pub use replay::Replay;
pub use report::{Report, Violation};
pub use schedule::Strategy;
pub use subject::{Failure, Subject};
pub use tier::{Tier, tier};
pub use trace::{Event, Op, Site, Span, Trace, TraceRecord, Word};

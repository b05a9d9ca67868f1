//! The interface of a structure under test.

use std::fmt::{self, Display};
use std::str::FromStr;

use super::image::CrashPoint;
use super::medium::Sim;

/// A structure under test.
///
/// It must be deterministic: the same calls, or the same memory, must lead to the same accesses.
/// Threads of [`Sim::in_parallel`] are; a workload with free-running threads still works, but its
/// violations may not replay.
pub trait Subject {
    /// One call of a workload. Its text form, which must be one line and parse to the same call, is
    /// stored in files of [replays](super::Replay). A workload without choices may use `String`.
    type Call: Clone + Display + FromStr;

    /// The calls of the structure's users and their results, usually a
    /// [`MapHistory`](super::oracle::MapHistory).
    type History;

    /// The open structure. It may own a clone of the medium.
    type Live;

    /// Returns the workload of `seed`. Shrinking omits calls, so none may depend on another.
    fn workload(&self, seed: u64) -> Vec<Self::Call>;

    /// Creates the structure on the empty medium `sim` and executes `calls`, noting the begin and
    /// the end of every operation. Crashes happen from the first access on, unless it calls
    /// [`Sim::checkpoint`] later.
    ///
    /// # Errors
    ///
    /// Any failure without a crash.
    fn run(&self, sim: &Sim, calls: &[Self::Call]) -> Result<Self::History, Failure>;

    /// Opens the structure that a crash at `point` left on `sim`, recovers it, and verifies that it
    /// holds what `history` allows. Notes no operations. If the crash came before the structure was
    /// complete, there may be nothing to open.
    ///
    /// # Errors
    ///
    /// The failure of the verification. A panic counts as well.
    fn recover(
        &self,
        sim: &Sim,
        history: &Self::History,
        point: &CrashPoint,
    ) -> Result<Self::Live, Failure>;

    /// Continues to use the recovered structure, depending on `seed`: changes it and verifies it.
    /// Returns the history since recovery, which begins with the state that was found then; its
    /// operations are numbered from zero again.
    ///
    /// # Errors
    ///
    /// The failure of the verification. A panic counts as well.
    fn probe(&self, live: Self::Live, seed: u64) -> Result<Self::History, Failure>;

    /// Describes an operation.
    fn op_name(&self, _history: &Self::History, op: u64) -> String {
        format!("operation {op}")
    }
}

/// A failed verification.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The rule that was violated.
    pub oracle: &'static str,
    /// A description of the failure.
    pub what: String,
}

impl Failure {
    /// Creates a failure of the rule `oracle`.
    pub fn new(oracle: &'static str, what: impl Into<String>) -> Self {
        Failure { oracle, what: what.into() }
    }
}

/// A failure of the rule for results of the structure.
impl From<String> for Failure {
    fn from(what: String) -> Self {
        Failure::new("answers", what)
    }
}

/// A failure of the rule for results of the structure.
impl From<&str> for Failure {
    fn from(what: &str) -> Self {
        what.to_owned().into()
    }
}

impl Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} [{}]", self.what, self.oracle)
    }
}

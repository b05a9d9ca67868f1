//! What a structure has to offer to be crashed.

use std::fmt::{self, Display};
use std::str::FromStr;

use super::image::CrashPoint;
use super::medium::Sim;

/// A structure under test.
///
/// Must be deterministic: the same calls, or the same memory, must lead to the same accesses. Threads of
/// [`Sim::in_parallel`] are; a workload with free-running threads still works, but its violations may not replay.
pub trait Subject {
    /// One call of a workload. As text, which must be one line and read back as the same, it stands in files of
    /// [replays](super::Replay). A workload without choices may use `String`.
    type Call: Clone + Display + FromStr;

    /// What the users of the structure asked and were told: usually a
    /// [`MapHistory`](super::oracle::MapHistory).
    type History;

    /// The open structure. It may own a clone of the medium.
    type Live;

    /// The workload of `seed`. Shrinking leaves calls out, so none may rely on another.
    fn workload(&self, seed: u64) -> Vec<Self::Call>;

    /// Builds the structure on the empty medium `sim` and carries out `calls`, noting the begin and the end of
    /// every operation. Crashes happen from the first access on, unless it calls [`Sim::checkpoint`] later.
    ///
    /// # Errors
    /// Whatever goes wrong without a crash, in words.
    fn run(&self, sim: &Sim, calls: &[Self::Call]) -> Result<Self::History, Failure>;

    /// Opens the structure that a crash at `point` left on `sim`, recovers it, and verifies that it holds what
    /// `history` allows. Notes no operations. Where the crash came before the structure was complete, there may
    /// be nothing to open.
    ///
    /// # Errors
    /// What is wrong, in words. A panic counts as well.
    fn recover(
        &self,
        sim: &Sim,
        history: &Self::History,
        point: &CrashPoint,
    ) -> Result<Self::Live, Failure>;

    /// Goes on using the recovered structure, as `seed` says: changes it, verifies it. Returns the history since
    /// recovery, which begins with the state that was found then; its operations are numbered from zero again.
    ///
    /// # Errors
    /// What is wrong, in words. A panic counts as well.
    fn probe(&self, live: Self::Live, seed: u64) -> Result<Self::History, Failure>;

    /// An operation in words.
    fn op_name(&self, _history: &Self::History, op: u64) -> String {
        format!("operation {op}")
    }
}

/// What is wrong, and who says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// By which rule it is wrong.
    pub oracle: &'static str,
    /// What, in words.
    pub what: String,
}

impl Failure {
    /// Something that the rule `oracle` does not allow.
    pub fn new(oracle: &'static str, what: impl Into<String>) -> Self {
        Failure { oracle, what: what.into() }
    }
}

/// Failure by what the structure itself answers.
impl From<String> for Failure {
    fn from(what: String) -> Self {
        Failure::new("answers", what)
    }
}

/// The same.
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

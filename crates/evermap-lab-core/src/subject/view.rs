//! The object-safe view of a table or store, and its named constructor.

use super::facts::{Counts, Place, Size};
use super::setup::Setup;
use super::work::{Reading, Work};
use crate::LabError;
use crate::workload::bytes::Speller;

/// A table or store that the driver can measure.
///
/// The type of the table is erased here, where a run of operations begins: the loop over the
/// operations is behind [`run`](Subject::run), so that no operation is called through a pointer.
pub trait Subject: Send + Sync {
    /// Returns the word that `key` is bound to.
    ///
    /// # Errors
    ///
    /// `Index`, and `WrongAnswer` if the value stands for no word.
    fn get(&self, key: u64) -> Result<Option<u64>, LabError>;

    /// Does all of `work` under the subject's guard policy and checks every answer.
    ///
    /// # Errors
    ///
    /// `WrongAnswer` at the first wrong answer, `Index` if an operation fails.
    fn run(&self, work: Work<'_>) -> Result<(), LabError>;

    /// Looks up all keys of `work`, which must be present. Of each value it only checks the length,
    /// the first eight bytes and the last eight: a value that is lent is not read otherwise.
    /// Returns `false`, without any lookup, if the subject has no values that can be read like
    /// this.
    ///
    /// # Errors
    ///
    /// `WrongAnswer` at the first wrong answer, `Index` if an operation fails.
    fn read(&self, _work: Work<'_>, _reading: Reading) -> Result<bool, LabError> {
        Ok(false)
    }

    /// Does up to `pieces` pieces of growth that insertions would have to do soon; see
    /// [`Table::grow_ahead`](super::table::Table::grow_ahead).
    ///
    /// # Errors
    ///
    /// `Index`.
    fn grow_ahead(&self, _pieces: u64) -> Result<Option<u64>, LabError> {
        Ok(None)
    }

    /// Returns what writes keys as byte strings, if the subject takes byte strings.
    fn speller(&self) -> Option<Speller> {
        None
    }

    /// Returns `true` if the subject can scan.
    fn is_ordered(&self) -> bool;

    /// Returns the size; see [`Table::size`](super::table::Table::size).
    ///
    /// # Errors
    ///
    /// `Index`.
    fn size(&self) -> Result<Size, LabError>;

    /// Returns the counters; see [`Table::counts`](super::table::Table::counts).
    fn counts(&self) -> Option<Counts>;

    /// Returns where the subject is stored.
    fn place(&self) -> Place;
}

/// Builds an empty subject with this name.
pub type Factory = fn(&'static str, &Setup) -> Result<Box<dyn Subject>, LabError>;

/// A subject that can be built by name.
#[derive(Clone, Copy)]
pub struct Entry {
    /// The name on command lines and in reports.
    pub name: &'static str,
    /// One line about it.
    pub about: &'static str,
    /// Whether it is another project's, measured for comparison.
    pub rival: bool,
    /// Builds one with the name that it is given.
    pub factory: Factory,
}

impl Entry {
    /// Builds an empty subject.
    ///
    /// # Errors
    ///
    /// `Config` if the subject does not support the setup, `Index` if it cannot be created.
    pub fn build(&self, setup: &Setup) -> Result<Box<dyn Subject>, LabError> {
        (self.factory)(self.name, setup)
    }
}

//! The battery for ordered indexes.
//!
//! ```
//! use evermap_index::testkit::ordered::reference::MakeLockedTree;
//! evermap_index::ordered_conformance!(locked_tree, MakeLockedTree);
//! ```
//!
//! | part | what it asks |
//! |---|---|
//! | [`ranges`](model::ranges) | does the index answer as an ordered map of the standard library does, over byte strings that are hard to order, and show every range in both directions? |
//! | [`scans`](scans::scans) | does every scan beside writers show, in order and once, what was there throughout, and nothing that was absent throughout? |
//! | [`words`], [`histories`], [`storm`], [`growth`] | the [parts](super) for all indexes, with numbers and with words for keys |

use crate::ordered::OrderedIndex;
use evermap_pm::Result;

use super::{Config, Failure, concurrent};
use spelled::{MakeSpelled, Spelling};

pub mod model;
pub mod reference;
pub mod scans;
pub mod spelled;

#[cfg(test)]
mod planted_tests;

/// How to make an ordered index for the kit.
pub trait OrderedSubject: Sync {
    /// The index.
    type Index: OrderedIndex;

    /// An empty index, of a geometry so small that a few dozen keys make it split, merge or whatever it does.
    ///
    /// # Errors
    /// Whatever prevents it; the test fails then.
    fn fresh(&self) -> Result<Self::Index>;
}

/// Runs a part for all indexes with every spelling.
fn spelled<'s, S: OrderedSubject>(
    subject: &'s S,
    part: impl Fn(&MakeSpelled<'s, S>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    Failure::any(
        [Spelling::Numbers, Spelling::Words]
            .map(|spelling| part(&MakeSpelled { subject, spelling })),
    )
}

/// [`model`](super::model::model).
///
/// # Errors
/// As there.
pub fn words<S: OrderedSubject>(subject: &S, config: &Config) -> Result<(), Failure> {
    spelled(subject, |made| super::model::model::<u64, _>(made, config))
}

/// [`histories`](concurrent::histories).
///
/// # Errors
/// As there.
pub fn histories<S: OrderedSubject>(subject: &S, config: &Config) -> Result<(), Failure> {
    spelled(subject, |made| concurrent::histories::<u64, _>(made, config))
}

/// [`storm`](concurrent::storm).
///
/// # Errors
/// As there.
pub fn storm<S: OrderedSubject>(subject: &S, config: &Config) -> Result<(), Failure> {
    spelled(subject, |made| concurrent::storm::<u64, _>(made, config))
}

/// [`growth`](concurrent::growth).
///
/// # Errors
/// As there.
pub fn growth<S: OrderedSubject>(subject: &S, config: &Config) -> Result<(), Failure> {
    spelled(subject, |made| concurrent::growth::<u64, _>(made, config))
}

/// Declares a module of tests, one for each part of the [battery](self): `ordered_conformance!(name, subject)`.
#[macro_export]
macro_rules! ordered_conformance {
    ($name:ident, $subject:expr) => {
        #[cfg(test)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::ordered_conformance!(@parts $subject, {
                ranges => model::ranges, scans => scans::scans, words => words, histories => histories,
                storm => storm, growth => growth
            });
        }
    };
    (@parts $subject:expr, {$($name:ident => $($part:ident)::+),+}) => {
        $(
            #[test]
            fn $name() -> ::std::result::Result<(), $crate::testkit::Failure> {
                let config = $crate::testkit::Config::from_env();
                $crate::testkit::ordered::$($part)::+(&$subject, &config)
            }
        )+
    };
}

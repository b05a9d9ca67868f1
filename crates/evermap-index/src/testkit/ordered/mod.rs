//! The conformance kit for ordered indexes.
//!
//! ```
//! use evermap_index::testkit::ordered::reference::MakeLockedTree;
//! evermap_index::ordered_conformance!(locked_tree, MakeLockedTree);
//! ```
//!
//! | part | what it checks |
//! |---|---|
//! | [`ranges`](model::ranges) | results and scans against an ordered map |
//! | [`scans`](scans::scans) | scans that run concurrently with writers |
//! | [`words`], [`histories`], [`storm`], [`growth`] | the [parts](super) for all indexes |
//!
//! `ranges` uses byte strings that are hard to order, and scans every range in both directions.
//! `scans` checks that every scan shows what is present throughout, in order and once, and nothing
//! that is absent throughout. The parts for all indexes run with numbers and with words as keys.

use crate::ordered::OrderedIndex;
use evermap_pm::Result;

use super::erased::AnyOrderedSubject;
use super::{Config, Failure, Plain, concurrent};
use encoded::MakeEncoded;

pub mod encoded;
pub mod model;
pub mod overtaken;
pub mod reference;
pub mod scans;
pub mod trees;

#[cfg(test)]
mod planted_tests;

/// How to create an ordered index for the kit.
pub trait OrderedSubject: Sync {
    /// The type of the index.
    type Index: OrderedIndex;

    /// Creates an empty index that is so small that a few dozen keys cause every structural change.
    ///
    /// # Errors
    /// Any error that prevents it; the test fails then.
    fn fresh(&self) -> Result<Self::Index>;
}

/// Runs a part for all indexes, with numbers as keys and with words.
fn encoded<'s>(
    subject: &'s dyn AnyOrderedSubject,
    numbers: fn(&MakeEncoded<'s>, &Config) -> Result<(), Failure>,
    words: fn(&MakeEncoded<'s>, &Config) -> Result<(), Failure>,
    config: &Config,
) -> Result<(), Failure> {
    let subject = MakeEncoded(subject);
    Failure::any([numbers(&subject, config), words(&subject, config)])
}

/// Runs the part [`model`](super::model::model).
///
/// # Errors
/// See there.
pub fn words<S: OrderedSubject>(subject: &S, config: &Config) -> Result<(), Failure> {
    encoded(subject, super::model::model::<u64, _>, super::model::model::<Plain, _>, config)
}

/// Runs the part [`histories`](concurrent::histories).
///
/// # Errors
/// See there.
pub fn histories<S: OrderedSubject>(subject: &S, config: &Config) -> Result<(), Failure> {
    encoded(subject, concurrent::histories::<u64, _>, concurrent::histories::<Plain, _>, config)
}

/// Runs the part [`storm`](concurrent::storm).
///
/// # Errors
/// See there.
pub fn storm<S: OrderedSubject>(subject: &S, config: &Config) -> Result<(), Failure> {
    encoded(subject, concurrent::storm::<u64, _>, concurrent::storm::<Plain, _>, config)
}

/// Runs the part [`growth`](concurrent::growth).
///
/// # Errors
/// See there.
pub fn growth<S: OrderedSubject>(subject: &S, config: &Config) -> Result<(), Failure> {
    encoded(subject, concurrent::growth::<u64, _>, concurrent::growth::<Plain, _>, config)
}

/// Declares a module of tests, one for each part of the [kit](self): `ordered_conformance!(name,
/// subject)`.
#[macro_export]
macro_rules! ordered_conformance {
    ($name:ident, $subject:expr) => {
        #[cfg(test)]
        mod $name {
            #[allow(unused_imports)]
            use super::*;
            $crate::ordered_conformance!(@parts $subject, {
                ranges => model::ranges, scans => scans::scans, words => words,
                histories => histories, storm => storm, growth => growth
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

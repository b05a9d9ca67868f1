//! The words that persistent structures are made of.
//!
//! A persistent structure is a `#[repr(C)]` struct of [`PmU64`] and of other such structs. Because
//! every field is an atomic, a shared reference to one is sound while other threads write to it,
//! and remains sound when the memory is reused for another structure. Writing goes through a
//! [`Medium`](crate::Medium), which is the only code that may store. This makes it possible to
//! count flushes and to simulate crashes.
//!
//! There is deliberately only one word size. Racing atomic accesses of different sizes to the same
//! memory have no defined meaning, and a byte-sized persistent field would invite them.

use crate::explore::AtomicU64;

/// An 8-byte word in a region. It is loaded, stored, flushed and fenced through a
/// [`Medium`](crate::Medium).
#[repr(transparent)]
pub struct PmU64(AtomicU64);

impl PmU64 {
    /// Returns the atomic, for use by media.
    #[inline(always)]
    pub(crate) fn atomic(&self) -> &AtomicU64 {
        &self.0
    }
}

/// Structures that may be laid over the bytes of a region.
///
/// # Safety
///
/// An implementation guarantees that:
/// 1. it is `#[repr(C)]` or `#[repr(transparent)]` and consists only of [`PmU64`] and other `Pod`
///    types, without padding;
/// 2. therefore every bit pattern is a valid value, and shared references tolerate concurrent
///    changes.
pub unsafe trait Pod: Sized + 'static {}

// SAFETY: 1. transparent over one atomic word. 2. an atomic accepts every bit pattern and every
// race.
unsafe impl Pod for PmU64 {}

// SAFETY: an array has no padding between its elements, so the guarantees of `Pod` carry over.
unsafe impl<T: Pod, const N: usize> Pod for [T; N] {}

/// Declares structs of [`PmU64`] words that are [`Pod`], and proves their size and field types at
/// compile time.
///
/// ```
/// use evermap_pm::{pod, PmU64};
/// pod! {
///     /// A pair.
///     pub struct Pair: 16 {
///         /// The first word.
///         pub key: PmU64,
///         /// The second word.
///         pub word: PmU64,
///     }
/// }
/// ```
#[macro_export]
macro_rules! pod {
    (
        $(#[$attr:meta])*
        $vis:vis struct $name:ident $(<$(const $p:ident: usize),+>)? $(: $size:literal)? {
            $($(#[$fattr:meta])* $fvis:vis $field:ident: $ty:ty),+ $(,)?
        }
    ) => {
        $(#[$attr])*
        #[repr(C)]
        $vis struct $name $(<$(const $p: usize),+>)? {
            $($(#[$fattr])* $fvis $field: $ty),+
        }
        $(const _: () = assert!(core::mem::size_of::<$name>() == $size);)?
        // SAFETY: `repr(C)`, and the function below compiles only if every field is `Pod`. All
        // `Pod` types consist of 8-byte words, so `repr(C)` inserts no padding between them.
        unsafe impl $(<$(const $p: usize),+>)? $crate::Pod for $name $(<$($p),+>)? {}
        const _: () = {
            #[allow(dead_code)]
            fn every_field_is_pod $(<$(const $p: usize),+>)? () {
                fn pod<T: $crate::Pod>() {}
                $(pod::<$ty>();)+
            }
        };
    };
}

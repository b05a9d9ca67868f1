//! Keys, their order, and what they are bound to.
//!
//! Everything follows from a seed: keys are a bijection of their index, so they are distinct
//! without a table to check them against, and every phase visits them in another permutation, which
//! is computed place by place. The share of a thread is written before the clock starts, so
//! generating it costs no measured time.
//!
//! * [`keys`]: phases, keys, and the words that they are bound to;
//! * [`op`], [`stream`]: single operations, and those of one thread;
//! * [`mix`]: mixes of operations on popular and less popular keys, YCSB's among them;
//! * [`part`]: operations of one kind on some of the keys;
//! * [`zipf`]: what "popular" means;
//! * [`bytes`]: keys and values as byte strings.

pub mod bytes;
pub mod keys;
pub mod mix;
pub mod op;
pub mod part;
pub mod stream;
pub mod zipf;

pub use bytes::{KeyValueLengths, Lengths, Speller};
pub use keys::Permutation;
pub use keys::{MIXED_GROUP, Phase, Workload, version_of, word};
pub use mix::{Blend, Distribution, Mix};
pub use op::{Kind, Op, Writer};
pub use part::{Act, Part};
pub use stream::Stream;
pub use zipf::Zipf;

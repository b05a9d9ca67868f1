//! What the bindings of Evermap for other languages share.
//!
//! Other languages know no lifetimes. So what borrows in Rust *owns* here: a [`Held`] value keeps
//! its map and its file open, a [`Pairs`] walk too, and both may be used and dropped by any thread.
//!
//! | module | contents |
//! |---|---|
//! | `settings` | options by name and as text, as a program in another language writes them |
//! | `store` | handles of a file and its maps, and what must not happen while values are held |
//! | `held` | a value where it is stored, without a copy, for as long as it is wanted |
//! | `pairs` | walks and scans, a page of pairs at a time |

mod held;
mod pairs;
mod settings;
mod store;

pub use held::Held;
pub use pairs::{Page, Pairs, Walk};
pub use settings::{OPTIONS, Settings};
pub use store::{Fault, Result, Store, StoreMap};

//! What commands do with items, whichever protocol they came by: the operations of the cache, what
//! they count, and what log streams show of them. The protocols parse requests and format replies.

mod delete;
mod delta;
mod flush;
mod get;
mod store;
mod touch;

pub(in crate::protocol) use delete::{Delete, DeleteOutcome, Rest};
pub(in crate::protocol) use delta::{Counter, Delta, DeltaOutcome};
pub(in crate::protocol) use get::Get;
pub(in crate::protocol) use store::{Store, Verb, set_many};

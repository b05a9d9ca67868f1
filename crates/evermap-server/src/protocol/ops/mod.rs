//! What commands do with items, whichever protocol they came by: the operations of the cache, what
//! they count, and what log streams show of them. The protocols parse requests and format replies.

mod store;

pub(in crate::protocol) use store::{Store, Verb};

//! What the driver measures: the object-safe view of a table or store, and what it is asked to do.
//!
//! * [`view`]: [`Subject`], the trait that the driver uses, and [`Entry`], a named constructor;
//! * [`work`]: a run of operations and the answers that are right;
//! * [`facts`]: size, counters and location of a subject;
//! * [`setup`]: what a subject is built from;
//! * [`table`], [`store`]: tables of words and stores of byte strings as subjects.

pub mod facts;
pub mod setup;
pub mod store;
pub mod table;
pub mod view;
pub mod work;

pub use crate::error::Found;
pub use facts::{Counts, MediumKind, Place, Placement, Size, Survives};
pub use setup::{File, Setup, unique_path};
pub use store::{Store, Stored};
pub use table::{Measured, Table};
pub use view::{Entry, Factory, Subject};
pub use work::{Guards, Reading, Work};

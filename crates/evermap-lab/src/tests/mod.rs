//! What needs the driver, correct and faulty tables, and everything that can be measured.

mod ablated;
mod documents;
mod guards;
mod indexes;

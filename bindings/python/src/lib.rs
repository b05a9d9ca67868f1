//! Evermap for Python: the module `evermap._native`, which the package `evermap` completes.
//!
//! | module | contents |
//! |---|---|
//! | `errors` | exceptions, and which error of the store is which |
//! | `store` | a file, or a snapshot of one |
//! | `map` | operations on keys |
//! | `coding` | keys and values as bytes, and as objects of Python |
//! | `batch` | changes that happen together |
//! | `cursor` | walks and scans |
//! | `held` | values that are read without a copy |
//!
//! # The interpreter's lock
//!
//! A lookup or a put takes about as long as releasing and taking the lock, so those keep it. It is
//! released by what waits for a disk or for other threads (a store with a log, opening, closing,
//! snapshots, backups, checks), and by what takes longer: pages of scans, large values, and long
//! updates. Nothing here waits for the lock while it holds anything in the store but a guard.

use pyo3::prelude::*;

mod batch;
mod coding;
mod cursor;
mod errors;
mod held;
mod map;
mod store;

/// What the package is made of.
#[pymodule]
fn _native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<store::Store>()?;
    module.add_class::<map::Map>()?;
    module.add_class::<batch::Batch>()?;
    module.add_class::<cursor::Cursor>()?;
    module.add_class::<held::Held>()?;
    module.add_function(wrap_pyfunction!(store::restore, module)?)?;
    errors::add(module)
}

//! Exceptions.

use evermap::ErrorKind;
use evermap_bindings::Fault;
use pyo3::create_exception;
use pyo3::exceptions::{PyException, PyValueError};
use pyo3::prelude::*;

create_exception!(evermap, Error, PyException, "What a store cannot do, and what to do about it.");
create_exception!(evermap, NotFoundError, Error, "There is no file, or no map of this name.");
create_exception!(evermap, NoSpaceError, Error, "The disk, the file or a limit is full.");
create_exception!(evermap, DamagedError, Error, "Something in the file does not verify.");
create_exception!(evermap, CounterError, Error, "The value is no counter, or it would overflow.");
create_exception!(evermap, ConflictError, Error, "Others have changed what was read.");
create_exception!(
    evermap,
    HeldError,
    Error,
    "Values that were read without a copy are in the way."
);
create_exception!(evermap, NotOrderedError, Error, "The store was opened without `ordered`.");
create_exception!(evermap, ClosedError, Error, "The store was closed, or the map was dropped.");
create_exception!(evermap, InUseError, Error, "A process has the file open.");
create_exception!(
    evermap,
    ReadOnlyError,
    Error,
    "The store was opened read-only, or is a snapshot."
);
create_exception!(evermap, SuspectError, Error, "The file cannot be trusted: see `on_suspect`.");
create_exception!(evermap, ForkedError, Error, "The process was forked after the file was opened.");

/// Adds them to the module.
pub(crate) fn add(module: &Bound<'_, PyModule>) -> PyResult<()> {
    let py = module.py();
    module.add("Error", py.get_type::<Error>())?;
    module.add("NotFoundError", py.get_type::<NotFoundError>())?;
    module.add("NoSpaceError", py.get_type::<NoSpaceError>())?;
    module.add("DamagedError", py.get_type::<DamagedError>())?;
    module.add("CounterError", py.get_type::<CounterError>())?;
    module.add("ConflictError", py.get_type::<ConflictError>())?;
    module.add("HeldError", py.get_type::<HeldError>())?;
    module.add("NotOrderedError", py.get_type::<NotOrderedError>())?;
    module.add("ClosedError", py.get_type::<ClosedError>())?;
    module.add("InUseError", py.get_type::<InUseError>())?;
    module.add("ReadOnlyError", py.get_type::<ReadOnlyError>())?;
    module.add("SuspectError", py.get_type::<SuspectError>())?;
    module.add("ForkedError", py.get_type::<ForkedError>())
}

/// Returns the exception of a fault.
#[cold]
pub(crate) fn raised(fault: impl Into<Fault>) -> PyErr {
    let fault = fault.into();
    let text = fault.to_string();
    match fault.kind() {
        ErrorKind::InvalidInput | ErrorKind::Config => PyValueError::new_err(text),
        ErrorKind::NotFound => NotFoundError::new_err(text),
        ErrorKind::NoSpace => NoSpaceError::new_err(text),
        ErrorKind::Damaged => DamagedError::new_err(text),
        ErrorKind::Counter => CounterError::new_err(text),
        ErrorKind::Conflict => ConflictError::new_err(text),
        ErrorKind::WouldDeadlock | ErrorKind::HeldUp => HeldError::new_err(text),
        ErrorKind::NotOrdered => NotOrderedError::new_err(text),
        ErrorKind::Closed | ErrorKind::Dropped => ClosedError::new_err(text),
        ErrorKind::InUse => InUseError::new_err(text),
        ErrorKind::ReadOnly => ReadOnlyError::new_err(text),
        ErrorKind::Suspect => SuspectError::new_err(text),
        ErrorKind::Forked => ForkedError::new_err(text),
        _ => Error::new_err(text),
    }
}

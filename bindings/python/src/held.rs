//! Values that are read without a copy.

use std::ffi::{c_int, c_void};

use evermap_bindings as common;
use pyo3::exceptions::PyBufferError;
use pyo3::ffi;
use pyo3::prelude::*;

/// What a `memoryview` keeps alive, and with it the record.
#[pyclass(frozen, module = "evermap")]
pub(crate) struct Held(pub(crate) common::Held);

#[pymethods]
impl Held {
    /// Whether the bytes are those in the store, and not a copy.
    #[getter]
    fn borrowed(&self) -> bool {
        self.0.is_borrowed()
    }

    /// # Safety
    /// The interpreter calls this with a structure for it to fill.
    unsafe fn __getbuffer__(
        slf: Bound<'_, Self>,
        view: *mut ffi::Py_buffer,
        flags: c_int,
    ) -> PyResult<()> {
        if view.is_null() {
            return Err(PyBufferError::new_err("there is no buffer to fill"));
        }
        let bytes = slf.get().0.bytes();
        let (start, len) = (bytes.as_ptr().cast_mut().cast::<c_void>(), bytes.len() as isize);
        const READ_ONLY: c_int = 1;
        // SAFETY: the bytes are there, unchanged, until `slf` is dropped, to which the buffer has a
        // reference; and it says that nobody may write to them.
        let failed =
            unsafe { ffi::PyBuffer_FillInfo(view, slf.as_ptr(), start, len, READ_ONLY, flags) };
        if failed != 0 { Err(PyErr::fetch(slf.py())) } else { Ok(()) }
    }

    /// # Safety
    /// The interpreter calls this once for each buffer, and drops the reference to `self` itself.
    unsafe fn __releasebuffer__(&self, _view: *mut ffi::Py_buffer) {}
}

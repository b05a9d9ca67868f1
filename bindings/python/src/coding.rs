//! Keys and values as bytes, and as objects of Python.

use std::borrow::Cow;
use std::cell::RefCell;

use evermap::cache::UnreadRecord;
use pyo3::buffer::PyBuffer;
use pyo3::exceptions::{PyTypeError, PyUnicodeDecodeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};

use crate::errors::raised;

/// The capacity up to which a buffer is kept, bytes.
const BUFFER_KEPT: usize = 32 << 10;

thread_local! {
    /// Where text is copied to, before it becomes an object.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// What keys, or values, are in Python.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Coding {
    Bytes,
    /// `str`, stored as UTF-8.
    Text,
}

impl Coding {
    pub(crate) fn new(is_text: bool) -> Self {
        if is_text { Coding::Text } else { Coding::Bytes }
    }

    /// Returns the bytes of an object: where they are, if they cannot change there.
    #[inline]
    pub(crate) fn encode<'o>(
        self,
        object: &'o Bound<'_, PyAny>,
        what: &str,
    ) -> PyResult<Cow<'o, [u8]>> {
        match self {
            Coding::Bytes => match object.cast::<PyBytes>() {
                Ok(bytes) => Ok(Cow::Borrowed(bytes.as_bytes())),
                Err(_) => other_bytes(object, what),
            },
            Coding::Text => match object.cast::<PyString>() {
                Ok(text) => Ok(Cow::Borrowed(text.to_str()?.as_bytes())),
                Err(_) => Err(not_of_type(object, what, "str")),
            },
        }
    }

    /// Returns the object of the value of a record: `bytes` are copied to where they stay. Runs no
    /// code of Python, because there is a guard.
    #[inline]
    pub(crate) fn read<'py>(
        self,
        py: Python<'py>,
        record: &UnreadRecord<'_>,
    ) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Coding::Bytes => {
                let copy = |out: &mut [u8]| record.copy_to(out).map_err(raised);
                PyBytes::new_with(py, record.value_len(), copy).map(Bound::into_any)
            }
            Coding::Text => BUFFER.with_borrow_mut(|buffer| {
                buffer.clear();
                record.append_to(buffer).map_err(raised)?;
                let text = self.decode(py, buffer);
                if buffer.capacity() > BUFFER_KEPT {
                    *buffer = Vec::new();
                }
                text
            }),
        }
    }

    /// Returns the object of some bytes.
    #[inline]
    pub(crate) fn decode<'py>(self, py: Python<'py>, bytes: &[u8]) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Coding::Bytes => Ok(PyBytes::new(py, bytes).into_any()),
            Coding::Text => match std::str::from_utf8(bytes) {
                Ok(text) => Ok(PyString::new(py, text).into_any()),
                Err(error) => Err(PyUnicodeDecodeError::new_err_from_utf8(py, bytes, error)),
            },
        }
    }
}

/// Returns a copy of the bytes of anything else that has bytes.
#[cold]
fn other_bytes(object: &Bound<'_, PyAny>, what: &str) -> PyResult<Cow<'static, [u8]>> {
    let buffer = PyBuffer::<u8>::get(object).map_err(|_| not_of_type(object, what, "bytes"))?;
    Ok(Cow::Owned(buffer.to_vec(object.py())?))
}

#[cold]
fn not_of_type(object: &Bound<'_, PyAny>, what: &str, wanted: &str) -> PyErr {
    let found = object.get_type();
    let found = found.name().map_or_else(|_| "another type".to_owned(), |name| name.to_string());
    let hint = match (wanted, found.as_str()) {
        ("bytes", "str") => format!("; open the store with {what}s=str"),
        ("str", "bytes") => format!("; open the store with {what}s=bytes"),
        _ => String::new(),
    };
    PyTypeError::new_err(format!("a {what} is {wanted} here, not {found}{hint}"))
}

//! Values of rows. Numbers take no Python object.

use pyo3::prelude::*;
use pyo3::types::{PyFloat, PyInt};

/// A value in its stored form.
#[derive(Default)]
pub enum Value {
    /// A row that was deleted or does not exist: `None` in Python.
    #[default]
    Absent,
    Int(i64),
    Float(f64),
    /// Everything else: bytes, strings, documents, and integers of more than 64 bits.
    Object(Py<PyAny>),
}

impl Value {
    pub fn from_python(value: &Bound<'_, PyAny>) -> Self {
        if value.is_none() {
            return Self::Absent;
        }
        // Only the classes themselves: a subclass, as `bool`, is read as the object that it is.
        if value.is_exact_instance_of::<PyInt>() {
            if let Ok(number) = value.extract() {
                return Self::Int(number);
            }
        } else if let Ok(number) = value.downcast_exact::<PyFloat>() {
            return Self::Float(number.value());
        }
        Self::Object(value.clone().unbind())
    }

    pub fn to_python(&self, py: Python<'_>) -> Py<PyAny> {
        match self {
            Self::Absent => py.None(),
            Self::Int(number) => PyInt::new(py, *number).into_any().unbind(),
            Self::Float(number) => PyFloat::new(py, *number).into_any().unbind(),
            Self::Object(value) => value.clone_ref(py),
        }
    }

    pub fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }
}

//! Rows of Headrace's state stores in memory, and the hash of keys.
//!
//! Each class has a counterpart in Python, which is the reference: both give the same results for
//! the same calls (`headrace.state.native`).

use pyo3::prelude::*;

mod murmur2;
mod row_table;
mod rows;
mod timed_rows;
mod timed_table;
mod value;

/// Return Kafka's 32-bit murmur2 hash of a key.
#[pyfunction]
#[pyo3(name = "murmur2")]
fn hash_of_key(data: &[u8]) -> i32 {
    murmur2::murmur2(data)
}

#[pymodule]
fn headrace_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_function(wrap_pyfunction!(hash_of_key, module)?)?;
    module.add_class::<timed_rows::TimedRows>()?;
    module.add_class::<rows::Rows>()?;
    module.add_function(wrap_pyfunction!(rows::timestamped_rows, module)?)?;
    Ok(())
}

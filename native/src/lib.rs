//! Rows of Headrace's state stores in memory.
//!
//! Each class has a counterpart in Python, which is the reference: both give the same results for
//! the same calls (`headrace.state.native`).

use pyo3::prelude::*;

mod row_table;
mod rows;
mod timed_rows;
mod timed_table;
mod value;

#[pymodule]
fn headrace_native(module: &Bound<'_, PyModule>) -> PyResult<()> {
    module.add("__version__", env!("CARGO_PKG_VERSION"))?;
    module.add_class::<timed_rows::TimedRows>()?;
    module.add_class::<rows::Rows>()?;
    module.add_function(wrap_pyfunction!(rows::timestamped_rows, module)?)?;
    Ok(())
}

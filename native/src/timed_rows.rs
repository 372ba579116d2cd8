//! The class `TimedRows`: rows of window stores, session stores and sides of joins.
//!
//! It is a mapping of the dirty rows in the order of their first writes, as the dictionary `dirty`
//! of `headrace.state.timed.TimedBuffer`, which it replaces. It also has the rows that are in memory
//! as they are on disk, and the rows of a key by their times.
//!
//! No method calls into Python while it borrows the rows. Values are dropped after that, too,
//! because this can run Python code.

use pyo3::exceptions::{PyKeyError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySet, PyTuple};

use crate::timed_table::{Known, Row, TimedTable, Times};
use crate::value::Value;

const TIME_BYTES: usize = 8;

/// Value and timestamp, or None.
type Entry = Option<(PyObject, i64)>;
type Item = (Py<PyBytes>, (PyObject, i64));
/// Row key, encoded value and timestamp.
type Change = (Py<PyBytes>, Option<PyObject>, i64);

#[pyclass(module = "headrace_native", mapping)]
pub struct TimedRows {
    table: TimedTable<Value>,
    /// Bytes of the second time, or of the number, in a row key.
    second_bytes: usize,
}

impl TimedRows {
    fn split<'a>(&self, row_key: &'a [u8]) -> PyResult<(&'a [u8], Times)> {
        let size = row_key.len().checked_sub(TIME_BYTES + self.second_bytes);
        let (key, suffix) = row_key
            .split_at(size.ok_or_else(|| PyValueError::new_err("a row key must have times"))?);
        let (time, second) = suffix.split_at(TIME_BYTES);
        Ok((key, Times::new(number(time), number(second))))
    }

    fn row_key(&self, py: Python<'_>, key: &[u8], times: Times) -> PyResult<Py<PyBytes>> {
        let size = key.len() + TIME_BYTES + self.second_bytes;
        let row_key = PyBytes::new_with(py, size, |bytes| {
            let (head, suffix) = bytes.split_at_mut(key.len());
            let (time, second) = suffix.split_at_mut(TIME_BYTES);
            head.copy_from_slice(key);
            time.copy_from_slice(&times.time.to_be_bytes());
            second.copy_from_slice(&times.second.to_be_bytes()[TIME_BYTES - self.second_bytes..]);
            Ok(())
        })?;
        Ok(row_key.unbind())
    }
}

fn number(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0, |number, &byte| number << 8 | u64::from(byte))
}

/// A time as an unsigned number; no row has a time before 1970.
fn unsigned(time: i64) -> u64 {
    time.max(0) as u64
}

fn stored(value: &Bound<'_, PyAny>) -> Option<Value> {
    Some(Value::from_python(value)).filter(|value| !value.is_absent())
}

fn object(py: Python<'_>, value: Option<&Value>) -> PyObject {
    value.map_or_else(|| py.None(), |value| value.to_python(py))
}

fn entry(py: Python<'_>, row: &Row<Value>) -> (PyObject, i64) {
    (object(py, row.value.as_ref()), row.timestamp)
}

#[pymethods]
impl TimedRows {
    #[new]
    fn new(second_bytes: usize) -> PyResult<Self> {
        if second_bytes > TIME_BYTES {
            return Err(PyValueError::new_err("a number must have at most 8 bytes"));
        }
        Ok(Self {
            table: TimedTable::new(),
            second_bytes,
        })
    }

    /// Number of clean rows, and of keys without dirty rows.
    #[getter]
    fn clean_count(&self) -> usize {
        self.table.clean_count()
    }

    fn __len__(&self) -> usize {
        self.table.dirty_count()
    }

    fn __contains__(&self, row_key: &[u8]) -> PyResult<bool> {
        let (key, times) = self.split(row_key)?;
        Ok(self.table.dirty_row(key, times).is_some())
    }

    fn get(&self, py: Python<'_>, row_key: &[u8]) -> PyResult<Entry> {
        let (key, times) = self.split(row_key)?;
        Ok(self.table.dirty_row(key, times).map(|row| entry(py, row)))
    }

    fn __getitem__(&self, py: Python<'_>, row_key: &[u8]) -> PyResult<(PyObject, i64)> {
        let missing = || PyKeyError::new_err(PyBytes::new(py, row_key).unbind());
        self.get(py, row_key)?.ok_or_else(missing)
    }

    fn __setitem__(
        slf: &Bound<'_, Self>,
        row_key: &[u8],
        entry: (Bound<'_, PyAny>, i64),
    ) -> PyResult<()> {
        let (value, timestamp) = entry;
        let value = stored(&value);
        let mut rows = slf.borrow_mut();
        let (key, times) = rows.split(row_key)?;
        let former = rows.table.write(key, times, timestamp, value);
        drop(rows);
        drop(former);
        Ok(())
    }

    fn __delitem__(slf: &Bound<'_, Self>, row_key: &[u8]) -> PyResult<()> {
        let mut rows = slf.borrow_mut();
        let (key, times) = rows.split(row_key)?;
        let forgotten = rows.table.forget(key, times);
        drop(rows);
        let py = slf.py();
        match forgotten {
            Some(_) => Ok(()),
            None => Err(PyKeyError::new_err(PyBytes::new(py, row_key).unbind())),
        }
    }

    fn __iter__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        let rows = self.table.dirty_rows();
        let keys = rows.map(|(key, row)| self.row_key(py, key, row.times));
        let keys = PyList::new(py, keys.collect::<PyResult<Vec<_>>>()?)?;
        Ok(keys.try_iter()?.into_any())
    }

    /// Return an iterator over the dirty row keys, the latest first.
    fn __reversed__(slf: Bound<'_, Self>) -> LatestKeys {
        let next = slf.borrow().table.write_count();
        LatestKeys {
            rows: slf.unbind(),
            next,
        }
    }

    fn items(&self, py: Python<'_>) -> PyResult<Vec<Item>> {
        let rows = self.table.dirty_rows();
        rows.map(|(key, row)| Ok((self.row_key(py, key, row.times)?, entry(py, row))))
            .collect()
    }

    /// Forget all rows; then nothing is known about the rows on disk.
    fn clear(slf: &Bound<'_, Self>) {
        let former = slf.borrow_mut().table.clear();
        drop(former);
    }

    /// Note that there are no rows on disk from a time on.
    fn lower_floor(&mut self, time: i64) {
        self.table.lower_floor(unsigned(time));
    }

    /// Return the entry of a row; None if it has to be read from disk.
    fn known(&self, py: Python<'_>, row_key: &[u8]) -> PyResult<Entry> {
        let (key, times) = self.split(row_key)?;
        Ok(match self.table.get(key, times) {
            Known::Row(row) => Some(entry(py, row)),
            Known::Missing => Some((py.None(), -1)),
            Known::Unknown => None,
        })
    }

    /// Write a row in its stored form.
    fn add(
        slf: &Bound<'_, Self>,
        key: &[u8],
        time: i64,
        second: u64,
        timestamp: i64,
        value: &Bound<'_, PyAny>,
    ) {
        let times = Times::new(unsigned(time), second);
        let value = stored(value);
        let former = slf.borrow_mut().table.write(key, times, timestamp, value);
        drop(former);
    }

    /// Add a row as read from disk.
    fn add_read(
        slf: &Bound<'_, Self>,
        row_key: &[u8],
        timestamp: i64,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let value = stored(value);
        let mut rows = slf.borrow_mut();
        let (key, times) = rows.split(row_key)?;
        let former = rows.table.add_read(key, times, timestamp, value);
        drop(rows);
        drop(former);
        Ok(())
    }

    /// Note that all rows of a key from `start` to its floor, exclusive, were added.
    fn finish_read(&mut self, key: &[u8], start: i64, floor: u64) {
        self.table.finish_read(key, unsigned(start), floor);
    }

    /// Return the floor of a key if it is after `start`, else None.
    fn floor_after(&self, key: &[u8], start: i64) -> Option<u64> {
        self.table.between(key, unsigned(start), 0).err()
    }

    /// Return timestamps and values of a key's rows; None if some have to be read from disk.
    fn between<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        start: i64,
        end: i64,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let Ok(rows) = self.table.between(key, unsigned(start), unsigned(end)) else {
            return Ok(None);
        };
        let list = PyList::empty(py);
        for row in rows {
            if let Some(value) = &row.value {
                list.append((row.timestamp, value.to_python(py)))?;
            }
        }
        Ok(Some(list))
    }

    /// Return time, timestamp and value of a key's rows in reverse order; see `between`.
    fn latest_first<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        start: i64,
        end: i64,
    ) -> PyResult<Option<Bound<'py, PyList>>> {
        let Ok(rows) = self.table.between(key, unsigned(start), unsigned(end)) else {
            return Ok(None);
        };
        let list = PyList::empty(py);
        for row in rows.iter().rev() {
            if let Some(value) = &row.value {
                list.append((row.times.time, row.timestamp, value.to_python(py)))?;
            }
        }
        Ok(Some(list))
    }

    /// Delete up to `count` latest rows of a key at a time, which are all in memory.
    fn delete_last(slf: &Bound<'_, Self>, key: &[u8], time: i64, count: usize) {
        let former = slf
            .borrow_mut()
            .table
            .delete_last(key, unsigned(time), count);
        drop(former);
    }

    /// Return the earliest time of the dirty rows from `horizon` on.
    fn oldest_dirty(&self, horizon: i64) -> Option<u64> {
        self.table.oldest_dirty(unsigned(horizon))
    }

    /// Return the changelog records of the dirty rows, in the order of their first writes.
    ///
    /// With `keeps_bytes`, a value that is bytes is encoded already.
    fn delta(
        slf: &Bound<'_, Self>,
        encode: &Bound<'_, PyAny>,
        keeps_bytes: bool,
    ) -> PyResult<Vec<Change>> {
        let py = slf.py();
        let mut changes = Vec::new();
        {
            let rows = slf.borrow();
            changes.reserve(rows.table.dirty_count());
            for (key, row) in rows.table.dirty_rows() {
                let value = row.value.as_ref().map(|value| value.to_python(py));
                changes.push((rows.row_key(py, key, row.times)?, value, row.timestamp));
            }
        }
        for (_, value, _) in &mut changes {
            if let Some(decoded) = value {
                if !(keeps_bytes && decoded.bind(py).is_exact_instance_of::<PyBytes>()) {
                    *value = Some(encode.call1((&*decoded,))?.unbind());
                }
            }
        }
        Ok(changes)
    }

    /// Return the keys of the dirty rows that are on disk, as far as that is known.
    fn stored_keys<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PySet>> {
        let rows = self.table.dirty_rows();
        let stored = rows.filter(|(_, row)| row.is_stored());
        let keys = stored.map(|(key, row)| self.row_key(py, key, row.times));
        PySet::new(py, keys.collect::<PyResult<Vec<_>>>()?)
    }

    /// Make the dirty rows clean, and remove some rows before `horizon`.
    fn committed(slf: &Bound<'_, Self>, horizon: i64) {
        let dropped = slf.borrow_mut().table.committed(unsigned(horizon));
        drop(dropped);
    }

    /// Evict clean rows until at most `entries` rows and keys remain.
    fn shrink(slf: &Bound<'_, Self>, entries: usize, horizon: i64) {
        let dropped = slf.borrow_mut().table.shrink(entries, unsigned(horizon));
        drop(dropped);
    }

    /// Return some of the keys, and the values of their last rows.
    fn sample<'py>(&self, py: Python<'py>, most: usize) -> PyResult<Bound<'py, PyList>> {
        let list = PyList::empty(py);
        for (key, row) in self.table.sample(most) {
            let value = object(py, row.value.as_ref());
            list.append(PyTuple::new(
                py,
                [PyBytes::new(py, key).into_any(), value.into_bound(py)],
            )?)?;
        }
        Ok(list)
    }
}

/// Iterator over the dirty row keys, the latest first.
#[pyclass(module = "headrace_native")]
pub struct LatestKeys {
    rows: Py<TimedRows>,
    next: usize,
}

#[pymethods]
impl LatestKeys {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__(&mut self, py: Python<'_>) -> PyResult<Option<Py<PyBytes>>> {
        let rows = self.rows.borrow(py);
        while self.next > 0 {
            self.next -= 1;
            if let Some((key, row)) = rows.table.written(self.next) {
                return rows.row_key(py, key, row.times).map(Some);
            }
        }
        Ok(None)
    }
}

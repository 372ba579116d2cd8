//! The rows of a store without times, for Python: `Rows`.
//!
//! Its counterparts in Python are the dictionaries of `headrace.state.buffer.Buffer`, and the
//! pending updates of a table (`headrace.topology.compile.update`).
//!
//! No borrow of the class is held while Python code may run: neither during a call, nor while
//! values are dropped, because a finalizer may read the same rows.

use pyo3::exceptions::{PyAssertionError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyTuple};

use crate::row_table::{NONE, RowTable, Slot};
use crate::value::Value;

/// A change of a row that is not yet forwarded.
struct Update {
    slot: Slot,
    /// The record's key, and its headers.
    key: Py<PyAny>,
    headers: Py<PyAny>,
    /// The value that was forwarded last, if children read it.
    old: Value,
}

/// Rows of a store: cached and written.
#[pyclass(module = "headrace_native")]
pub struct Rows {
    table: RowTable<Value>,
    updates: Vec<Update>,
    keeps_old_values: bool,
    /// Whether a row that is not cached does not exist.
    has_all_rows: bool,
    /// Number of rows that were read from disk.
    misses: u64,
    /// Returns the bytes of a row on disk, or None.
    read_stored: Py<PyAny>,
    /// Decodes a value; None where values are stored as bytes.
    decode: Option<Py<PyAny>>,
    /// How values that are integers are encoded, if not by a function.
    integers: Option<IntegerForm>,
}

/// How a serde encodes integers.
#[derive(Clone, Copy)]
enum IntegerForm {
    Decimal,
    BigEndian,
}

impl IntegerForm {
    fn encode<'py>(self, py: Python<'py>, number: i64) -> Bound<'py, PyBytes> {
        match self {
            Self::Decimal => PyBytes::new(py, itoa(number, &mut [0; 20])),
            Self::BigEndian => PyBytes::new(py, &number.to_be_bytes()),
        }
    }
}

/// Return the decimal digits of a number, which are at the end of `buffer`.
fn itoa(number: i64, buffer: &mut [u8; 20]) -> &[u8] {
    let mut rest = number.unsigned_abs();
    let mut start = buffer.len();
    loop {
        start -= 1;
        buffer[start] = b'0' + (rest % 10) as u8;
        rest /= 10;
        if rest == 0 {
            break;
        }
    }
    if number < 0 {
        start -= 1;
        buffer[start] = b'-';
    }
    &buffer[start..]
}

/// What a write replaces. It is dropped after the borrow of the rows has ended.
type Replaced = (Value, Option<(Py<PyAny>, Py<PyAny>)>);

impl Rows {
    /// Call `use_row` with the row of a key, which is read from disk if need be.
    fn with_row<T>(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyBytes>,
        use_row: impl FnOnce(&mut Rows, Slot) -> T,
    ) -> PyResult<T> {
        let bytes = key.as_bytes();
        {
            let mut guard = slf.try_borrow_mut()?;
            let rows = &mut *guard;
            if let Some(slot) = rows.table.find(bytes) {
                return Ok(use_row(rows, slot));
            }
            if rows.has_all_rows {
                let slot = rows.table.add_read(bytes, Value::Absent, -1, true);
                return Ok(use_row(rows, slot));
            }
        }
        let stored = Self::read_from_disk(slf, key)?;
        let mut guard = slf.try_borrow_mut()?;
        let rows = &mut *guard;
        // The functions that were called may have read the same row.
        let slot = rows.table.find(bytes).unwrap_or_else(|| match stored {
            Some((value, timestamp)) => rows.table.add_read(bytes, value, timestamp, false),
            None => rows.table.add_read(bytes, Value::Absent, -1, true),
        });
        Ok(use_row(rows, slot))
    }

    fn read_from_disk(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyBytes>,
    ) -> PyResult<Option<(Value, i64)>> {
        let py = slf.py();
        let (read_stored, decode) = {
            let mut rows = slf.try_borrow_mut()?;
            rows.misses += 1;
            (
                rows.read_stored.clone_ref(py),
                rows.decode.as_ref().map(|decode| decode.clone_ref(py)),
            )
        };
        let stored = read_stored.bind(py).call1((key,))?;
        if stored.is_none() {
            return Ok(None);
        }
        let stored = stored.downcast_into::<PyBytes>()?;
        let Some((timestamp, data)) = stored.as_bytes().split_first_chunk() else {
            return Err(PyAssertionError::new_err(format!(
                "{:?}",
                stored.as_bytes()
            )));
        };
        let data = PyBytes::new(py, data).into_any();
        let value = match decode {
            Some(decode) => decode.bind(py).call1((data,))?,
            None => data,
        };
        Ok(Some((
            Value::from_python(&value),
            i64::from_be_bytes(*timestamp),
        )))
    }

    /// Add to the number in a row. If the sum is no longer a 64-bit integer, return the old value.
    fn add_fast(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyBytes>,
        number: i64,
        timestamp: i64,
        record: Option<(Py<PyAny>, Py<PyAny>)>,
    ) -> PyResult<Result<(i64, i64), Py<PyAny>>> {
        let added = Self::with_row(slf, key, |rows, slot| {
            let row = rows.table.row(slot);
            let (sum, later) = match row.value {
                Value::Absent => (Some(number), timestamp),
                Value::Int(old) => (old.checked_add(number), timestamp.max(row.timestamp)),
                _ => (None, timestamp),
            };
            let Some(sum) = sum else {
                return Err(row.value.to_python(slf.py()));
            };
            let replaced = rows.table.write_at(slot, Value::Int(sum), later);
            let dropped = match record {
                Some((key, headers)) => rows.note(slot, replaced, key, headers),
                None => (replaced, None),
            };
            Ok((sum, later, dropped))
        })?;
        Ok(added.map(|(sum, later, _)| (sum, later)))
    }

    fn write_row(&mut self, key: &[u8], value: Value, timestamp: i64) -> (Slot, Value) {
        self.table.write(key, value, timestamp)
    }

    /// Return the later of a record's timestamp and the row's; a deleted row has none.
    fn later(&mut self, key: &[u8], timestamp: i64) -> i64 {
        match self.table.find_again(key) {
            Some(slot) if !self.table.row(slot).value.is_absent() => {
                timestamp.max(self.table.row(slot).timestamp)
            }
            _ => timestamp,
        }
    }

    /// Note that a row's change is to be forwarded; `replaced` is the value before it.
    fn note(
        &mut self,
        slot: Slot,
        replaced: Value,
        key: Py<PyAny>,
        headers: Py<PyAny>,
    ) -> Replaced {
        let index = self.table.row(slot).pending;
        if let Some(update) = self.updates.get_mut(index as usize) {
            let key = std::mem::replace(&mut update.key, key);
            let headers = std::mem::replace(&mut update.headers, headers);
            return (replaced, Some((key, headers)));
        }
        self.table.row_mut(slot).pending = self.updates.len() as u32;
        let (old, dropped) = match self.keeps_old_values {
            true => (replaced, Value::Absent),
            false => (Value::Absent, replaced),
        };
        self.updates.push(Update {
            slot,
            key,
            headers,
            old,
        });
        (dropped, None)
    }

    fn keys<'py>(&self, py: Python<'py>, slots: &[Slot]) -> Vec<Bound<'py, PyBytes>> {
        slots
            .iter()
            .map(|slot| PyBytes::new(py, self.table.row(*slot).key()))
            .collect()
    }
}

#[pymethods]
impl Rows {
    #[new]
    /// Args:
    ///     read_stored: returns the bytes of a row on disk, or None.
    ///     decode: decodes a value; None if values are stored as bytes.
    ///     integers: how integers are encoded: "decimal", "big_endian", or None for `encode`.
    #[pyo3(signature = (read_stored, decode, integers))]
    fn new(
        read_stored: Py<PyAny>,
        decode: Option<Py<PyAny>>,
        integers: Option<&str>,
    ) -> PyResult<Self> {
        let integers = match integers {
            None => None,
            Some("decimal") => Some(IntegerForm::Decimal),
            Some("big_endian") => Some(IntegerForm::BigEndian),
            Some(other) => return Err(PyValueError::new_err(format!("integers={other:?}"))),
        };
        Ok(Self {
            table: RowTable::default(),
            updates: Vec::new(),
            keeps_old_values: false,
            has_all_rows: false,
            misses: 0,
            read_stored,
            decode,
            integers,
        })
    }

    /// Whether a row that is not cached does not exist, because the disk had no rows.
    #[getter]
    fn has_all_rows(&self) -> bool {
        self.has_all_rows
    }

    /// Number of rows that were read from disk.
    #[getter]
    fn misses(&self) -> u64 {
        self.misses
    }

    #[setter]
    fn set_has_all_rows(&mut self, has_all_rows: bool) {
        self.has_all_rows = has_all_rows;
    }

    /// Keep the value that was forwarded last with each pending update.
    fn keep_old_values(&mut self) {
        self.keeps_old_values = true;
    }

    // Reads and writes of single rows.

    /// Return the value of a row in stored form, or None.
    fn get(slf: &Bound<'_, Self>, key: &Bound<'_, PyBytes>) -> PyResult<Py<PyAny>> {
        Self::with_row(slf, key, |rows, slot| {
            rows.table.row(slot).value.to_python(slf.py())
        })
    }

    /// Return the value of a row in stored form, and its timestamp.
    fn read(slf: &Bound<'_, Self>, key: &Bound<'_, PyBytes>) -> PyResult<(Py<PyAny>, i64)> {
        Self::with_row(slf, key, |rows, slot| {
            let row = rows.table.row(slot);
            (row.value.to_python(slf.py()), row.timestamp)
        })
    }

    /// Write a row; its value is in stored form, and None deletes it.
    fn write(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyBytes>,
        value: &Bound<'_, PyAny>,
        timestamp: i64,
    ) -> PyResult<()> {
        let value = Value::from_python(value);
        let _replaced = slf
            .try_borrow_mut()?
            .write_row(key.as_bytes(), value, timestamp);
        Ok(())
    }

    /// `write` with the later of the timestamp and the row's; return it.
    fn write_later(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyBytes>,
        value: &Bound<'_, PyAny>,
        timestamp: i64,
    ) -> PyResult<i64> {
        let (bytes, value) = (key.as_bytes(), Value::from_python(value));
        let (later, _replaced) = {
            let mut rows = slf.try_borrow_mut()?;
            let later = rows.later(bytes, timestamp);
            (later, rows.write_row(bytes, value, later))
        };
        Ok(later)
    }

    /// `write`, and note that the change is to be forwarded at the next flush.
    fn update(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyBytes>,
        value: &Bound<'_, PyAny>,
        timestamp: i64,
        record_key: Py<PyAny>,
        headers: Py<PyAny>,
    ) -> PyResult<()> {
        let value = Value::from_python(value);
        let _replaced = {
            let mut rows = slf.try_borrow_mut()?;
            let (slot, replaced) = rows.write_row(key.as_bytes(), value, timestamp);
            rows.note(slot, replaced, record_key, headers)
        };
        Ok(())
    }

    /// `write_later`, and note that the change is to be forwarded at the next flush.
    fn update_later(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyBytes>,
        value: &Bound<'_, PyAny>,
        timestamp: i64,
        record_key: Py<PyAny>,
        headers: Py<PyAny>,
    ) -> PyResult<()> {
        let (bytes, value) = (key.as_bytes(), Value::from_python(value));
        let _replaced = {
            let mut rows = slf.try_borrow_mut()?;
            let later = rows.later(bytes, timestamp);
            let (slot, replaced) = rows.write_row(bytes, value, later);
            rows.note(slot, replaced, record_key, headers)
        };
        Ok(())
    }

    /// Add to the number in a row, or to 0 if there is none, like `write_later`; return the sum and
    /// its timestamp.
    fn add<'py>(
        slf: &Bound<'py, Self>,
        key: &Bound<'py, PyBytes>,
        number: i64,
        timestamp: i64,
    ) -> PyResult<(Bound<'py, PyAny>, i64)> {
        let sum = match Self::add_fast(slf, key, number, timestamp, None)? {
            Ok((sum, later)) => return Ok((sum.into_pyobject(slf.py())?.into_any(), later)),
            Err(old) => old.into_bound(slf.py()).add(number)?,
        };
        let later = Self::write_later(slf, key, &sum, timestamp)?;
        Ok((sum, later))
    }

    /// `add`, and note that the change is to be forwarded at the next flush.
    fn add_update(
        slf: &Bound<'_, Self>,
        key: &Bound<'_, PyBytes>,
        number: i64,
        timestamp: i64,
        record_key: Py<PyAny>,
        headers: Py<PyAny>,
    ) -> PyResult<()> {
        let py = slf.py();
        let record = (record_key.clone_ref(py), headers.clone_ref(py));
        match Self::add_fast(slf, key, number, timestamp, Some(record))? {
            Ok(_) => Ok(()),
            Err(old) => {
                let sum = old.into_bound(py).add(number)?;
                Self::update_later(slf, key, &sum, timestamp, record_key, headers)
            }
        }
    }

    /// Undo the write of a row.
    fn drop_write(slf: &Bound<'_, Self>, key: &[u8]) -> PyResult<()> {
        let _dropped = {
            let mut guard = slf.try_borrow_mut()?;
            let rows = &mut *guard;
            let written = rows
                .table
                .find(key)
                .filter(|slot| rows.table.row(*slot).is_written());
            match written {
                Some(slot) => {
                    rows.has_all_rows &= rows.table.row(slot).is_new();
                    rows.table.drop_write(slot)
                }
                None => Value::Absent,
            }
        };
        Ok(())
    }

    /// Whether a row was written since the last commit.
    fn is_written(&mut self, key: &[u8]) -> bool {
        self.table
            .find(key)
            .is_some_and(|slot| self.table.row(slot).is_written())
    }

    /// Whether it is known that a row is not on disk.
    fn is_new(&mut self, key: &[u8]) -> bool {
        self.table
            .find(key)
            .is_some_and(|slot| self.table.row(slot).is_new())
    }

    // Pending updates.

    /// Number of updates that are not yet forwarded.
    fn pending(&self) -> usize {
        self.updates.len()
    }

    /// Return an iterator over the updates in the order of the first changes, and remove them.
    fn take(slf: &Bound<'_, Self>) -> PyResult<Updates> {
        let mut guard = slf.try_borrow_mut()?;
        let rows = &mut *guard;
        for update in &rows.updates {
            rows.table.row_mut(update.slot).pending = NONE;
        }
        let updates = std::mem::take(&mut rows.updates);
        Ok(Updates {
            rows: slf.clone().unbind(),
            updates: updates.into_iter(),
        })
    }

    // The commit.

    /// Number of rows written since the last commit.
    fn written(&self) -> usize {
        self.table.written()
    }

    /// Return key, stored value and timestamp of the written rows, in the order of the first
    /// writes.
    fn changes(&self, py: Python<'_>) -> Vec<(Py<PyBytes>, Py<PyAny>, i64)> {
        let change = |slot| {
            let row = self.table.row(slot);
            (
                PyBytes::new(py, row.key()).unbind(),
                row.value.to_python(py),
                row.timestamp,
            )
        };
        self.table.in_order().map(change).collect()
    }

    /// `changes` with encoded values.
    ///
    /// Args:
    ///     encode: encodes a value.
    ///     is_encoded: whether values that are bytes are encoded already.
    fn delta<'py>(
        slf: &Bound<'py, Self>,
        encode: &Bound<'py, PyAny>,
        is_encoded: bool,
    ) -> PyResult<Bound<'py, PyList>> {
        let py = slf.py();
        let changes: Vec<_> = {
            let rows = slf.try_borrow()?;
            let change = |slot| {
                let row = rows.table.row(slot);
                let (data, is_done) = match (&row.value, rows.integers) {
                    (Value::Int(number), Some(form)) => (form.encode(py, *number).into_any(), true),
                    (Value::Absent, _) => (py.None().into_bound(py), true),
                    (value, _) => (value.to_python(py).into_bound(py), false),
                };
                (PyBytes::new(py, row.key()), data, row.timestamp, is_done)
            };
            rows.table.in_order().map(change).collect()
        };
        let mut encoded = Vec::with_capacity(changes.len());
        for (key, value, timestamp, is_done) in changes {
            let is_done = is_done || is_encoded && value.is_exact_instance_of::<PyBytes>();
            let data = if is_done {
                value
            } else {
                encode.call1((value,))?
            };
            encoded.push((key, data, timestamp).into_pyobject(py)?);
        }
        PyList::new(py, encoded)
    }

    /// Make the written rows cached rows, after the disk has them.
    fn committed(&mut self) {
        self.table.committed();
    }

    /// Remove all rows and pending updates.
    fn discard(slf: &Bound<'_, Self>) -> PyResult<()> {
        let _dropped = {
            let mut rows = slf.try_borrow_mut()?;
            rows.has_all_rows = false;
            (std::mem::take(&mut rows.updates), rows.table.clear())
        };
        Ok(())
    }

    /// Return the keys of the written rows between two keys, by key; `end` is exclusive.
    #[pyo3(signature = (start, end))]
    fn written_keys<'py>(
        &mut self,
        py: Python<'py>,
        start: Option<&[u8]>,
        end: Option<&[u8]>,
    ) -> Vec<Bound<'py, PyBytes>> {
        let slots = self.table.by_key(start, end).to_vec();
        self.keys(py, &slots)
    }

    // The memory.

    /// Number of cached rows.
    fn cached(&self) -> usize {
        self.table.cached()
    }

    /// Evict cached rows until `count` are left.
    fn evict(slf: &Bound<'_, Self>, count: usize) -> PyResult<()> {
        let _evicted = {
            let mut rows = slf.try_borrow_mut()?;
            rows.has_all_rows &= rows.table.cached() <= count;
            rows.table.evict(count)
        };
        Ok(())
    }

    /// Return key and stored value of up to `count` rows: the rows written last.
    fn written_sample(&self, py: Python<'_>, count: usize) -> Vec<(Py<PyBytes>, Py<PyAny>)> {
        let slots: Vec<Slot> = self.table.in_order().rev().take(count).collect();
        self.sampled(py, &slots)
    }

    /// Return key and stored value of up to `count` cached rows.
    fn cached_sample(&self, py: Python<'_>, count: usize) -> Vec<(Py<PyBytes>, Py<PyAny>)> {
        self.sampled(py, &self.table.sample_cached(count))
    }
}

impl Rows {
    fn sampled(&self, py: Python<'_>, slots: &[Slot]) -> Vec<(Py<PyBytes>, Py<PyAny>)> {
        let sample = |slot: &Slot| {
            let row = self.table.row(*slot);
            (
                PyBytes::new(py, row.key()).unbind(),
                row.value.to_python(py),
            )
        };
        slots.iter().map(sample).collect()
    }
}

/// Iterator over pending updates: row key, record's key, new value, old value, timestamp, headers.
///
/// The new value is read from the row when the iterator reaches it.
#[pyclass(module = "headrace_native")]
pub struct Updates {
    rows: Py<Rows>,
    updates: std::vec::IntoIter<Update>,
}

#[pymethods]
impl Updates {
    fn __iter__(slf: PyRef<'_, Self>) -> PyRef<'_, Self> {
        slf
    }

    fn __next__<'py>(&mut self, py: Python<'py>) -> PyResult<Option<Bound<'py, PyTuple>>> {
        let Some(Update {
            slot,
            key,
            headers,
            old,
        }) = self.updates.next()
        else {
            return Ok(None);
        };
        let (row_key, value, timestamp) = {
            let rows = self.rows.try_borrow(py)?;
            let row = rows.table.row(slot);
            (
                PyBytes::new(py, row.key()),
                row.value.to_python(py),
                row.timestamp,
            )
        };
        let old = old.to_python(py);
        (row_key, key, value, old, timestamp, headers)
            .into_pyobject(py)
            .map(Some)
    }
}

/// Return the rows to write to disk: each value after its timestamp, as in Kafka Streams.
#[pyfunction]
pub fn timestamped_rows<'py>(
    py: Python<'py>,
    changes: &Bound<'py, PyList>,
) -> PyResult<Bound<'py, PyList>> {
    let mut rows = Vec::with_capacity(changes.len());
    for change in changes.iter() {
        let (key, value, timestamp): (Bound<'_, PyAny>, Option<Bound<'_, PyBytes>>, i64) =
            change.extract()?;
        let row = match value {
            None => None,
            Some(value) => {
                let value = value.as_bytes();
                Some(PyBytes::new_with(py, 8 + value.len(), |row| {
                    row[..8].copy_from_slice(&timestamp.to_be_bytes());
                    row[8..].copy_from_slice(value);
                    Ok(())
                })?)
            }
        };
        rows.push((key, row).into_pyobject(py)?);
    }
    PyList::new(py, rows)
}

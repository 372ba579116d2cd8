//! Rows by key and times, as far as they are in memory.
//!
//! This module knows nothing of Python and does not look into values. The rows of a key are sorted
//! by their times. A row is *dirty* if it was written since the last commit, and *clean* if it is
//! as on disk. A row without a value is a deletion if it is dirty, and known not to exist if it is
//! clean.
//!
//! Each key has a floor: all of its rows from that time on are in memory, so a row that is not here
//! does not exist. A key that is not here has the common floor. Evicting the clean rows of a key
//! raises only its own floor. If such floors take too much memory, the keys without rows are
//! removed, and the common floor is raised to theirs.

use ahash::RandomState;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry;

/// Place of a row that is not in the list of dirty rows.
const CLEAN: u32 = u32::MAX;
/// `shrink` limits the keys without rows to this fraction of the entries.
const EMPTY_KEYS_DIVISOR: usize = 4;
const SWEEP_MIN: usize = 1_000;

/// The times of a row: its time, then the number or the other time that follows it in the row key.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct Times {
    pub time: u64,
    pub second: u64,
}

impl Times {
    pub fn new(time: u64, second: u64) -> Self {
        Self { time, second }
    }

    /// The first possible times of a time.
    fn first_at(time: u64) -> Self {
        Self::new(time, 0)
    }
}

#[derive(Debug)]
pub struct Row<V> {
    pub times: Times,
    pub timestamp: i64,
    pub value: Option<V>,
    /// Index in `TimedTable::dirty`, or `CLEAN`.
    place: u32,
    /// Whether the row is on disk.
    is_stored: bool,
}

impl<V> Row<V> {
    fn is_dirty(&self) -> bool {
        self.place != CLEAN
    }

    pub fn is_stored(&self) -> bool {
        self.is_stored
    }
}

#[derive(Debug)]
struct KeyRows<V> {
    key: Box<[u8]>,
    hash: u64,
    rows: Vec<Row<V>>,
    /// Number of dirty rows among them.
    dirty_count: usize,
    floor: u64,
}

impl<V> KeyRows<V> {
    /// Index of the first row that is not before `times`.
    fn index_of(&self, times: Times) -> usize {
        match self.rows.last() {
            Some(last) if last.times < times => self.rows.len(),
            _ => self.rows.partition_point(|row| row.times < times),
        }
    }

    fn find(&self, times: Times) -> Option<usize> {
        let index = self.index_of(times);
        (self.rows.get(index)?.times == times).then_some(index)
    }
}

/// What is known of a row.
#[derive(Debug, Eq, PartialEq)]
pub enum Known<R> {
    Row(R),
    /// The row does not exist, or was deleted.
    Missing,
    /// It has to be read from disk.
    Unknown,
}

/// Rows of a key, or the floor up to which they have to be read from disk.
pub type Rows<'a, V> = Result<&'a [Row<V>], u64>;

#[derive(Debug)]
pub struct TimedTable<V> {
    keys: Vec<KeyRows<V>>,
    index: HashTable<u32>,
    hasher: RandomState,
    /// The dirty rows in the order of their first writes; None for a row that was forgotten.
    dirty: Vec<Option<(u32, Times)>>,
    dirty_count: usize,
    /// Number of keys with dirty rows.
    dirty_key_count: usize,
    row_count: usize,
    /// The common floor.
    floor: u64,
    /// Index of the key at which the next eviction starts.
    hand: usize,
    sweep_count: usize,
}

impl<V> Default for TimedTable<V> {
    fn default() -> Self {
        Self::new()
    }
}

impl<V> TimedTable<V> {
    /// Create a table in which nothing is known about the rows on disk.
    pub fn new() -> Self {
        Self {
            keys: Vec::new(),
            index: HashTable::new(),
            hasher: RandomState::new(),
            dirty: Vec::new(),
            dirty_count: 0,
            dirty_key_count: 0,
            row_count: 0,
            floor: u64::MAX,
            hand: 0,
            sweep_count: SWEEP_MIN,
        }
    }

    /// Number of clean rows, and of keys without dirty rows.
    pub fn clean_count(&self) -> usize {
        self.row_count - self.dirty_count + self.keys.len() - self.dirty_key_count
    }

    pub fn dirty_count(&self) -> usize {
        self.dirty_count
    }

    /// Length of the list of first writes, forgotten rows included.
    pub fn write_count(&self) -> usize {
        self.dirty.len()
    }

    /// Note that there are no rows on disk from a time on.
    pub fn lower_floor(&mut self, floor: u64) {
        self.floor = self.floor.min(floor);
        for rows in &mut self.keys {
            rows.floor = rows.floor.min(floor);
        }
    }

    fn find_key(&self, key: &[u8]) -> Option<usize> {
        let hash = self.hasher.hash_one(key);
        self.index
            .find(hash, |&slot| *self.keys[slot as usize].key == *key)
            .map(|&slot| slot as usize)
    }

    fn key_slot(&mut self, key: &[u8]) -> usize {
        let hash = self.hasher.hash_one(key);
        let keys = &mut self.keys;
        let entry = self.index.entry(
            hash,
            |&slot| *keys[slot as usize].key == *key,
            |&slot| keys[slot as usize].hash,
        );
        match entry {
            Entry::Occupied(found) => *found.get() as usize,
            Entry::Vacant(vacant) => {
                let slot = keys.len();
                vacant.insert(slot as u32);
                keys.push(KeyRows {
                    key: key.into(),
                    hash,
                    rows: Vec::new(),
                    dirty_count: 0,
                    floor: self.floor,
                });
                slot
            }
        }
    }

    /// Write a row, or delete it with the value None; return its former value.
    pub fn write(
        &mut self,
        key: &[u8],
        times: Times,
        timestamp: i64,
        value: Option<V>,
    ) -> Option<V> {
        let slot = self.key_slot(key);
        let rows = &mut self.keys[slot];
        let index = rows.index_of(times);
        let place = self.dirty.len() as u32;
        if let Some(row) = rows.rows.get_mut(index).filter(|row| row.times == times) {
            row.timestamp = timestamp;
            let former = std::mem::replace(&mut row.value, value);
            if !row.is_dirty() {
                row.place = place;
                self.add_dirty(slot, times);
            }
            return former;
        }
        let row = Row {
            times,
            timestamp,
            value,
            place,
            is_stored: false,
        };
        rows.rows.insert(index, row);
        self.row_count += 1;
        self.add_dirty(slot, times);
        None
    }

    fn add_dirty(&mut self, slot: usize, times: Times) {
        self.dirty.push(Some((slot as u32, times)));
        self.dirty_count += 1;
        let rows = &mut self.keys[slot];
        self.dirty_key_count += usize::from(rows.dirty_count == 0);
        rows.dirty_count += 1;
    }

    /// Forget the write of a row, whether it is on disk or not; return its value.
    pub fn forget(&mut self, key: &[u8], times: Times) -> Option<Row<V>> {
        let slot = self.find_key(key)?;
        let index = self.keys[slot].find(times)?;
        if !self.keys[slot].rows[index].is_dirty() {
            return None;
        }
        let rows = &mut self.keys[slot];
        let row = rows.rows.remove(index);
        rows.dirty_count -= 1;
        self.dirty_key_count -= usize::from(rows.dirty_count == 0);
        if row.is_stored {
            // The row on disk is not known any more.
            rows.floor = rows.floor.max(times.time + 1);
        }
        self.dirty[row.place as usize] = None;
        self.dirty_count -= 1;
        self.row_count -= 1;
        Some(row)
    }

    pub fn get(&self, key: &[u8], times: Times) -> Known<&Row<V>> {
        let (found, floor) = match self.find_key(key) {
            None => (None, self.floor),
            Some(slot) => {
                let rows = &self.keys[slot];
                (rows.find(times).map(|i| &rows.rows[i]), rows.floor)
            }
        };
        match found {
            Some(row) if row.value.is_some() => Known::Row(row),
            Some(_) => Known::Missing,
            None if times.time >= floor => Known::Missing,
            None => Known::Unknown,
        }
    }

    /// Return a dirty row; its value is None if it was deleted.
    pub fn dirty_row(&self, key: &[u8], times: Times) -> Option<&Row<V>> {
        let rows = &self.keys[self.find_key(key)?];
        let row = &rows.rows[rows.find(times)?];
        row.is_dirty().then_some(row)
    }

    /// Return the rows of a key by their times, rows without a value included.
    ///
    /// Both bounds are inclusive. If there may be more rows on disk from `start` on, return the
    /// floor before which they are.
    pub fn between(&self, key: &[u8], start: u64, end: u64) -> Rows<'_, V> {
        let Some(slot) = self.find_key(key) else {
            return if start < self.floor {
                Err(self.floor)
            } else {
                Ok(&[])
            };
        };
        let rows = &self.keys[slot];
        if start < rows.floor {
            return Err(rows.floor);
        }
        Ok(&rows.rows[range_of(rows, start, end)])
    }

    /// Add a row as read from disk, unless it was read or written before; return what is dropped.
    pub fn add_read(
        &mut self,
        key: &[u8],
        times: Times,
        timestamp: i64,
        value: Option<V>,
    ) -> Option<V> {
        let slot = self.key_slot(key);
        let rows = &mut self.keys[slot];
        let index = rows.index_of(times);
        let is_stored = value.is_some();
        match rows.rows.get_mut(index).filter(|row| row.times == times) {
            Some(row) => {
                row.is_stored |= is_stored;
                if row.is_dirty() {
                    return value;
                }
                row.timestamp = timestamp;
                std::mem::replace(&mut row.value, value)
            }
            None => {
                let row = Row {
                    times,
                    timestamp,
                    value,
                    place: CLEAN,
                    is_stored,
                };
                rows.rows.insert(index, row);
                self.row_count += 1;
                None
            }
        }
    }

    /// Note that all rows of a key between two times were added, the second exclusive.
    pub fn finish_read(&mut self, key: &[u8], start: u64, floor: u64) {
        let slot = self.key_slot(key);
        let rows = &mut self.keys[slot];
        if rows.floor <= floor {
            rows.floor = rows.floor.min(start);
        }
    }

    /// Delete up to `count` latest rows of a key at a time; return their values.
    ///
    /// All rows of the key at that time must be in memory.
    pub fn delete_last(&mut self, key: &[u8], time: u64, count: usize) -> Vec<V> {
        let Some(slot) = self.find_key(key) else {
            return Vec::new();
        };
        let range = range_of(&self.keys[slot], time, time);
        let found = self.keys[slot].rows[range]
            .iter()
            .rev()
            .filter(|row| row.value.is_some())
            .take(count)
            .map(|row| row.times)
            .collect::<Vec<_>>();
        let deleted = found.into_iter().rev();
        deleted
            .filter_map(|times| self.write(key, times, time as i64, None))
            .collect()
    }

    /// Return the dirty row that was the first one with this number to be written, with its key.
    pub fn written(&self, number: usize) -> Option<(&[u8], &Row<V>)> {
        let (slot, times) = (*self.dirty.get(number)?)?;
        let rows = &self.keys[slot as usize];
        Some((&rows.key, &rows.rows[rows.find(times)?]))
    }

    /// Return the dirty rows with their keys, in the order of their first writes.
    pub fn dirty_rows(&self) -> impl DoubleEndedIterator<Item = (&[u8], &Row<V>)> {
        (0..self.dirty.len()).filter_map(|number| self.written(number))
    }

    /// Return the earliest time of the dirty rows from `horizon` on.
    pub fn oldest_dirty(&self, horizon: u64) -> Option<u64> {
        let times = self.dirty.iter().flatten().map(|(_, times)| times.time);
        times.filter(|&time| time >= horizon).min()
    }

    /// Make the dirty rows clean, and remove rows before `horizon`; return the dropped rows.
    pub fn committed(&mut self, horizon: u64) -> Vec<Row<V>> {
        let mut dropped = Vec::new();
        for (slot, times) in std::mem::take(&mut self.dirty).into_iter().flatten() {
            let rows = &mut self.keys[slot as usize];
            rows.dirty_count = 0;
            let Some(index) = rows.find(times) else {
                continue;
            };
            let row = &mut rows.rows[index];
            row.place = CLEAN;
            row.is_stored = row.value.is_some();
            if !row.is_stored && times.time >= rows.floor {
                dropped.push(rows.rows.remove(index));
            }
        }
        self.dirty_count = 0;
        self.dirty_key_count = 0;
        self.row_count -= dropped.len();
        if self.clean_count() >= self.sweep_count {
            dropped.append(&mut self.sweep(horizon));
        }
        dropped
    }

    /// Remove clean rows before `horizon`, and the keys that are not needed any more.
    pub fn sweep(&mut self, horizon: u64) -> Vec<Row<V>> {
        let mut dropped = Vec::new();
        for rows in &mut self.keys {
            if rows
                .rows
                .first()
                .is_some_and(|row| row.times.time < horizon)
            {
                let expired = rows.index_of(Times::first_at(horizon));
                take_clean(rows, expired, &mut dropped);
            }
        }
        self.row_count -= dropped.len();
        // Empty keys remain while the common floor is above the horizon, to avoid reads.
        let common_floor = self.floor;
        self.remove_keys(|rows| {
            rows.rows.is_empty() && common_floor <= horizon && rows.floor <= horizon
        });
        self.sweep_count = SWEEP_MIN.max(2 * self.clean_count());
        dropped
    }

    /// Evict clean rows until at most `entries` of them, and of keys, remain; return the dropped rows.
    pub fn shrink(&mut self, entries: usize, horizon: u64) -> Vec<Row<V>> {
        let mut dropped = self.sweep(horizon);
        if self.clean_count() <= entries {
            return dropped;
        }
        for _ in 0..self.keys.len() {
            if self.clean_count() <= entries {
                break;
            }
            let before = dropped.len();
            self.hand %= self.keys.len();
            let rows = &mut self.keys[self.hand];
            self.hand += 1;
            take_clean(rows, rows.rows.len(), &mut dropped);
            if let Some(last) = dropped[before..].last() {
                rows.floor = rows.floor.max(last.times.time + 1);
            }
            self.row_count -= dropped.len() - before;
        }
        self.remove_empty_keys(entries);
        dropped
    }

    /// Forget all rows; then nothing is known about the rows on disk.
    pub fn clear(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Return the values of some clean or dirty rows, the latest keys first.
    pub fn sample(&self, most: usize) -> impl Iterator<Item = (&[u8], &Row<V>)> {
        let with_rows = self.keys.iter().rev().filter(|rows| !rows.rows.is_empty());
        with_rows
            .take(most)
            .filter_map(|rows| Some((&*rows.key, rows.rows.last()?)))
    }

    /// Replace the floors of the surplus of keys without rows, the lowest first, by the common one.
    fn remove_empty_keys(&mut self, entries: usize) {
        let empty = self.keys.iter().filter(|rows| rows.rows.is_empty());
        let mut floors = empty.map(|rows| rows.floor).collect::<Vec<_>>();
        let over = self.clean_count().saturating_sub(entries);
        let surplus = over.max(floors.len().saturating_sub(entries / EMPTY_KEYS_DIVISOR));
        if surplus == 0 || floors.is_empty() {
            return;
        }
        floors.sort_unstable();
        let highest = floors[surplus.min(floors.len()) - 1];
        self.floor = self.floor.max(highest);
        self.remove_keys(|rows| rows.rows.is_empty() && rows.floor <= highest);
    }

    fn remove_keys(&mut self, is_removed: impl Fn(&KeyRows<V>) -> bool) {
        let mut slot = 0;
        while slot < self.keys.len() {
            if is_removed(&self.keys[slot]) {
                self.remove_key(slot);
            } else {
                slot += 1;
            }
        }
    }

    /// Remove a key without rows; the last key takes its slot.
    fn remove_key(&mut self, slot: usize) {
        let last = self.keys.len() - 1;
        self.unlink(slot);
        if slot != last {
            self.unlink(last);
        }
        self.keys.swap_remove(slot);
        if slot == last {
            return;
        }
        let moved = &self.keys[slot];
        for row in moved.rows.iter().filter(|row| row.is_dirty()) {
            self.dirty[row.place as usize] = Some((slot as u32, row.times));
        }
        let keys = &self.keys;
        self.index
            .insert_unique(moved.hash, slot as u32, |&slot| keys[slot as usize].hash);
    }

    fn unlink(&mut self, slot: usize) {
        let hash = self.keys[slot].hash;
        if let Ok(found) = self.index.find_entry(hash, |&other| other as usize == slot) {
            found.remove();
        }
    }
}

fn range_of<V>(rows: &KeyRows<V>, start: u64, end: u64) -> std::ops::Range<usize> {
    let low = match rows.rows.first() {
        Some(first) if first.times.time >= start => 0,
        _ => rows.index_of(Times::first_at(start)),
    };
    let high = match end.checked_add(1) {
        Some(after) => rows.index_of(Times::first_at(after)),
        None => rows.rows.len(),
    };
    low..high.max(low)
}

/// Move the clean rows before an index to `dropped`.
fn take_clean<V>(rows: &mut KeyRows<V>, end: usize, dropped: &mut Vec<Row<V>>) {
    if rows.rows[..end].iter().all(|row| !row.is_dirty()) {
        dropped.extend(rows.rows.drain(..end));
        return;
    }
    let mut index = 0;
    for _ in 0..end {
        if rows.rows[index].is_dirty() {
            index += 1;
        } else {
            dropped.push(rows.rows.remove(index));
        }
    }
}

//! Rows by key, with the order of the writes since the last commit.
//!
//! This module knows nothing of Python and does not look into values. A row is *written* if it has
//! changed since the last commit, and *cached* if it was read from disk or committed. A row can be
//! both: `committed` makes each written row a cached row. Cached rows are evicted by a clock hand,
//! which passes over a row that was used since the hand was there last.

use ahash::RandomState;
use hashbrown::HashTable;

/// Index of a row in the table; valid until the row is removed.
pub type Slot = u32;

/// Instead of an index where there is none.
pub const NONE: u32 = u32::MAX;

const INLINE_BYTES: usize = 22;
/// Maximum number of new keys that are inserted one by one into the sorted keys.
const INSERTED_KEYS_MAX: usize = 16;

/// A key. Short keys are within the row, which saves a cache miss for each read.
#[derive(Debug)]
enum Key {
    Inline(u8, [u8; INLINE_BYTES]),
    Heap(Box<[u8]>),
}

impl Key {
    fn new(bytes: &[u8]) -> Self {
        if bytes.len() > INLINE_BYTES {
            return Self::Heap(bytes.into());
        }
        let mut inline = [0; INLINE_BYTES];
        inline[..bytes.len()].copy_from_slice(bytes);
        Self::Inline(bytes.len() as u8, inline)
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Self::Inline(length, inline) => &inline[..*length as usize],
            Self::Heap(bytes) => bytes,
        }
    }
}

/// A row of the table.
#[derive(Debug)]
pub struct Row<V> {
    key: Key,
    hash: u64,
    pub value: V,
    pub timestamp: i64,
    /// Position in `RowTable::order`, or `NONE` for a row that is not written.
    order_index: u32,
    /// Index of a pending update of the row, which the owner of the table keeps, or `NONE`.
    pub pending: u32,
    is_cached: bool,
    /// Whether it is known that there is no such row on disk.
    is_new: bool,
    is_used: bool,
    is_free: bool,
}

impl<V> Row<V> {
    pub fn key(&self) -> &[u8] {
        self.key.bytes()
    }

    pub fn is_written(&self) -> bool {
        self.order_index != NONE
    }

    pub fn is_new(&self) -> bool {
        self.is_new
    }
}

/// Rows of a store.
pub struct RowTable<V> {
    hasher: RandomState,
    slots: HashTable<Slot>,
    rows: Vec<Row<V>>,
    free: Vec<Slot>,
    /// The written rows in the order of their first writes. A row is at its own `order_index`;
    /// other mentions of it are left from dropped writes.
    order: Vec<Slot>,
    written: usize,
    /// The written rows up to `order[sorted_to]`, by key.
    sorted: Vec<Slot>,
    sorted_to: usize,
    cached: usize,
    hand: usize,
    /// The row that was found last.
    last: Slot,
}

impl<V: Default> Default for RowTable<V> {
    fn default() -> Self {
        Self {
            hasher: RandomState::new(),
            slots: HashTable::new(),
            rows: Vec::new(),
            free: Vec::new(),
            order: Vec::new(),
            written: 0,
            sorted: Vec::new(),
            sorted_to: 0,
            cached: 0,
            hand: 0,
            last: NONE,
        }
    }
}

impl<V: Default> RowTable<V> {
    /// Number of rows written since the last commit.
    pub fn written(&self) -> usize {
        self.written
    }

    /// Number of rows that were read from disk or committed.
    pub fn cached(&self) -> usize {
        self.cached
    }

    pub fn row(&self, slot: Slot) -> &Row<V> {
        &self.rows[slot as usize]
    }

    pub fn row_mut(&mut self, slot: Slot) -> &mut Row<V> {
        &mut self.rows[slot as usize]
    }

    /// Find a row, and remember it for `find_again`.
    pub fn find(&mut self, key: &[u8]) -> Option<Slot> {
        let hash = self.hasher.hash_one(key);
        let rows = &self.rows;
        let is_key = |slot: &Slot| {
            let row = &rows[*slot as usize];
            row.hash == hash && row.key.bytes() == key
        };
        let slot = *self.slots.find(hash, is_key)?;
        self.last = slot;
        self.rows[slot as usize].is_used = true;
        Some(slot)
    }

    /// `find` for a key that was probably found last, without another hash.
    pub fn find_again(&mut self, key: &[u8]) -> Option<Slot> {
        match self.rows.get(self.last as usize) {
            Some(row) if !row.is_free && row.key.bytes() == key => Some(self.last),
            _ => self.find(key),
        }
    }

    /// Add a row that was read from disk, or the knowledge that there is none. It must not be
    /// in the table.
    pub fn add_read(&mut self, key: &[u8], value: V, timestamp: i64, is_new: bool) -> Slot {
        let slot = self.add(key, value, timestamp);
        let row = &mut self.rows[slot as usize];
        row.is_cached = true;
        row.is_new = is_new;
        self.cached += 1;
        slot
    }

    /// Write a row; return the value that it replaces, which the caller drops.
    pub fn write(&mut self, key: &[u8], value: V, timestamp: i64) -> (Slot, V) {
        let slot = match self.find_again(key) {
            Some(slot) => slot,
            None => self.add(key, V::default(), -1),
        };
        (slot, self.write_at(slot, value, timestamp))
    }

    /// `write` for a known row.
    pub fn write_at(&mut self, slot: Slot, value: V, timestamp: i64) -> V {
        let row = &mut self.rows[slot as usize];
        row.timestamp = timestamp;
        if row.order_index == NONE {
            row.order_index = self.order.len() as u32;
            self.order.push(slot);
            self.written += 1;
        }
        std::mem::replace(&mut row.value, value)
    }

    /// Undo the write of a row: the next read finds what is on disk. Returns the written value.
    pub fn drop_write(&mut self, slot: Slot) -> V {
        let row = &self.rows[slot as usize];
        if (row.order_index as usize) < self.sorted_to {
            let index = self.sorted_index(self.rows[slot as usize].key.bytes());
            self.sorted.remove(index);
        }
        self.written -= 1;
        let row = &mut self.rows[slot as usize];
        row.order_index = NONE;
        let value = if row.is_cached && row.is_new {
            row.timestamp = -1;
            std::mem::take(&mut row.value)
        } else {
            self.remove(slot)
        };
        self.compact_order();
        value
    }

    /// Yield the written rows in the order of their first writes.
    pub fn in_order(&self) -> impl DoubleEndedIterator<Item = Slot> + '_ {
        let is_written =
            |(index, slot): &(usize, Slot)| self.row(*slot).order_index as usize == *index;
        let mentions = self.order.iter().copied().enumerate();
        mentions.filter(is_written).map(|(_, slot)| slot)
    }

    /// Return the written rows between two keys, by key; `end` is exclusive.
    pub fn by_key(&mut self, start: Option<&[u8]>, end: Option<&[u8]>) -> &[Slot] {
        self.sort_new();
        let low = start.map_or(0, |key| self.sorted_index(key));
        let high = end.map_or(self.sorted.len(), |key| self.sorted_index(key));
        &self.sorted[low..high.max(low)]
    }

    /// Make the written rows cached rows, after the disk has them.
    pub fn committed(&mut self) {
        for index in 0..self.order.len() {
            let row = &mut self.rows[self.order[index] as usize];
            if row.order_index as usize != index {
                continue;
            }
            row.order_index = NONE;
            row.is_new = false;
            if !row.is_cached {
                row.is_cached = true;
                self.cached += 1;
            }
        }
        self.forget_order();
    }

    /// Remove all rows; return them, for the caller to drop.
    pub fn clear(&mut self) -> Vec<Row<V>> {
        self.forget_order();
        self.slots.clear();
        self.free.clear();
        self.cached = 0;
        self.hand = 0;
        self.last = NONE;
        std::mem::take(&mut self.rows)
    }

    /// Evict cached rows until `count` are left; return their values. A written row stays.
    pub fn evict(&mut self, count: usize) -> Vec<V> {
        let mut evicted = Vec::new();
        while self.cached > count {
            self.hand = if self.hand + 1 < self.rows.len() {
                self.hand + 1
            } else {
                0
            };
            let slot = self.hand as Slot;
            let row = &mut self.rows[self.hand];
            if row.is_free || !row.is_cached {
                continue;
            }
            if row.is_used {
                row.is_used = false;
                continue;
            }
            if row.is_written() {
                row.is_cached = false;
                row.is_new = false;
                self.cached -= 1;
            } else {
                evicted.push(self.remove(slot));
            }
        }
        evicted
    }

    /// Return up to `count` cached rows from all parts of the table.
    pub fn sample_cached(&self, count: usize) -> Vec<Slot> {
        let step = (self.rows.len() / count.max(1)).max(1);
        let is_cached = |slot: &Slot| self.row(*slot).is_cached;
        let from_all = (0..self.rows.len()).step_by(step).map(|slot| slot as Slot);
        let found: Vec<Slot> = from_all.filter(is_cached).take(count).collect();
        if !found.is_empty() {
            return found;
        }
        (0..self.rows.len() as Slot)
            .filter(is_cached)
            .take(count)
            .collect()
    }

    fn add(&mut self, key: &[u8], value: V, timestamp: i64) -> Slot {
        let row = Row {
            key: Key::new(key),
            hash: self.hasher.hash_one(key),
            value,
            timestamp,
            order_index: NONE,
            pending: NONE,
            is_cached: false,
            is_new: false,
            is_used: false,
            is_free: false,
        };
        let hash = row.hash;
        let slot = match self.free.pop() {
            Some(slot) => {
                self.rows[slot as usize] = row;
                slot
            }
            None => {
                self.rows.push(row);
                (self.rows.len() - 1) as Slot
            }
        };
        let rows = &self.rows;
        self.slots
            .insert_unique(hash, slot, |slot| rows[*slot as usize].hash);
        self.last = slot;
        slot
    }

    fn remove(&mut self, slot: Slot) -> V {
        let row = &mut self.rows[slot as usize];
        row.is_free = true;
        row.key = Key::new(b"");
        if row.is_cached {
            row.is_cached = false;
            self.cached -= 1;
        }
        let (hash, value) = (row.hash, std::mem::take(&mut row.value));
        if let Ok(entry) = self.slots.find_entry(hash, |other| *other == slot) {
            entry.remove();
        }
        self.free.push(slot);
        value
    }

    /// Return how many of the sorted rows are before `key`.
    fn sorted_index(&self, key: &[u8]) -> usize {
        self.sorted
            .partition_point(|slot| self.rows[*slot as usize].key.bytes() < key)
    }

    fn sort_new(&mut self) {
        let is_written =
            |index: &usize| self.row(self.order[*index]).order_index as usize == *index;
        let new: Vec<Slot> = (self.sorted_to..self.order.len())
            .filter(is_written)
            .map(|index| self.order[index])
            .collect();
        self.sorted_to = self.order.len();
        if new.len() <= INSERTED_KEYS_MAX {
            for slot in new {
                let index = self.sorted_index(self.rows[slot as usize].key.bytes());
                self.sorted.insert(index, slot);
            }
        } else {
            self.sorted.extend(new);
            let rows = &self.rows;
            let key = |slot: &Slot| rows[*slot as usize].key.bytes();
            self.sorted
                .sort_by(|first, second| key(first).cmp(key(second)));
        }
    }

    /// Remove what dropped writes have left in `order`, once it is most of it.
    fn compact_order(&mut self) {
        if self.order.len() < 64 || self.order.len() < 2 * self.written {
            return;
        }
        let is_sorted = self.sorted_to == self.order.len();
        let order: Vec<Slot> = self.in_order().collect();
        for (index, slot) in order.iter().enumerate() {
            self.rows[*slot as usize].order_index = index as u32;
        }
        self.order = order;
        if is_sorted {
            self.sorted_to = self.order.len();
        } else {
            self.sorted.clear();
            self.sorted_to = 0;
        }
    }

    fn forget_order(&mut self) {
        self.order.clear();
        self.sorted.clear();
        self.sorted_to = 0;
        self.written = 0;
    }
}

//! `TimedTable` against sorted maps, over random histories.

#[path = "../src/timed_table.rs"]
#[allow(dead_code)]
mod timed_table;

use std::collections::BTreeMap;

use timed_table::{Known, TimedTable, Times};

/// Draws of a linear congruential generator: the tests need no more randomness than this.
struct Draws(u64);

impl Draws {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self
            .0
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        (self.0 >> 33) % limit
    }

    fn key(&mut self) -> Vec<u8> {
        let number = self.below(8);
        vec![b'k'; number as usize * 7]
    }

    fn times(&mut self) -> Times {
        Times::new(self.below(20), self.below(3))
    }
}

type Rows = BTreeMap<(Vec<u8>, Times), Option<i64>>;

/// A table, and the same rows on disk and in a sorted map of writes.
#[derive(Default)]
struct Model {
    table: TimedTable<i64>,
    disk: Rows,
    /// The dirty rows, with the numbers of their first writes.
    dirty: BTreeMap<(Vec<u8>, Times), (usize, Option<i64>)>,
    writes: usize,
}

impl Model {
    fn write(&mut self, key: Vec<u8>, times: Times, value: Option<i64>) {
        self.table.write(&key, times, 0, value);
        let number = self.writes;
        self.writes += 1;
        self.dirty.entry((key, times)).or_insert((number, value)).1 = value;
    }

    fn forget(&mut self, key: Vec<u8>, times: Times) {
        let row = self.table.forget(&key, times);
        assert_eq!(row.is_some(), self.dirty.remove(&(key, times)).is_some());
    }

    fn commit(&mut self, horizon: u64) {
        self.table.committed(horizon);
        for (row_key, (_, value)) in std::mem::take(&mut self.dirty) {
            match value {
                Some(_) => self.disk.insert(row_key, value),
                None => self.disk.remove(&row_key),
            };
        }
        assert_eq!(self.table.dirty_count(), 0);
    }

    fn current(&self, key: &[u8], times: Times) -> Option<i64> {
        let row_key = (key.to_vec(), times);
        match self.dirty.get(&row_key) {
            Some((_, value)) => *value,
            None => self.disk.get(&row_key).copied().flatten(),
        }
    }

    /// Read the rows of a key as the owner of a table does it.
    fn between(&mut self, key: &[u8], start: u64, end: u64) -> Vec<(Times, i64)> {
        if let Err(floor) = self.table.between(key, start, end) {
            for ((other, times), value) in &self.disk {
                if other == key && (start..floor).contains(&times.time) {
                    self.table.add_read(key, *times, 0, *value);
                }
            }
            self.table.finish_read(key, start, floor);
        }
        let rows = self.table.between(key, start, end).expect("they were read");
        rows.iter()
            .filter_map(|row| Some((row.times, row.value?)))
            .collect()
    }

    fn require_same(&mut self, draws: &mut Draws) {
        let (key, times) = (draws.key(), draws.times());
        let current = self.current(&key, times);
        match self.table.get(&key, times) {
            Known::Row(row) => assert_eq!(row.value, current),
            Known::Missing => assert_eq!(current, None),
            Known::Unknown => {}
        }
        let mut expected = self
            .dirty
            .iter()
            .map(|((key, times), (number, value))| (*number, key.clone(), *times, *value))
            .collect::<Vec<_>>();
        expected.sort();
        let dirty = self.table.dirty_rows();
        let found = dirty.map(|(key, row)| (key.to_vec(), row.times, row.value));
        let expected = expected
            .into_iter()
            .map(|(_, key, times, value)| (key, times, value));
        assert!(found.eq(expected));
        assert_eq!(self.table.dirty_count(), self.dirty.len());
    }
}

#[test]
fn rows_are_as_in_sorted_maps() {
    for seed in 0..300 {
        let mut draws = Draws(seed);
        let mut model = Model::default();
        let mut horizon = 0;
        for _ in 0..200 {
            let (key, times) = (draws.key(), draws.times());
            match draws.below(10) {
                0..4 => {
                    let value = Some(draws.below(100) as i64).filter(|value| *value > 20);
                    model.write(key, times, value);
                }
                4 => model.forget(key, times),
                5 => model.commit(horizon),
                6 => {
                    let limit = draws.below(30) as usize;
                    model.table.shrink(limit, horizon);
                }
                7 if draws.below(4) == 0 => horizon += 1,
                _ => {
                    let start = times.time.max(horizon);
                    let end = start + draws.below(10);
                    let expected = (start..=end)
                        .flat_map(|time| (0..3).map(move |second| Times::new(time, second)))
                        .filter_map(|times| Some((times, model.current(&key, times)?)))
                        .collect::<Vec<_>>();
                    assert_eq!(model.between(&key, start, end), expected);
                }
            }
            // Rows before the horizon may be known not to exist while they are on disk.
            model.disk.retain(|(_, times), _| times.time >= horizon);
            if horizon == 0 {
                model.require_same(&mut draws);
            }
        }
    }
}

#[test]
fn a_table_fits_its_limit_after_the_commit() {
    let mut draws = Draws(7);
    let mut model = Model::default();
    for _ in 0..500 {
        let (key, times) = (draws.key(), draws.times());
        model.write(key, times, Some(1));
    }
    model.table.shrink(0, 0);
    assert_eq!(model.table.clean_count(), 0);
    assert_eq!(model.table.dirty_count(), model.dirty.len());
    model.commit(0);
    assert!(model.table.clean_count() > 10);
    model.table.shrink(10, 0);
    assert!(model.table.clean_count() <= 10);
}

#[test]
fn rows_without_a_floor_are_unknown_until_it_is_lowered() {
    let mut table = TimedTable::<i64>::new();
    let times = Times::new(5, 0);
    assert!(matches!(table.get(b"k", times), Known::Unknown));
    table.lower_floor(5);
    assert!(matches!(table.get(b"k", times), Known::Missing));
    assert!(matches!(table.get(b"k", Times::new(4, 0)), Known::Unknown));
    assert_eq!(table.between(b"k", 4, 9).err(), Some(5));
    assert!(table.between(b"k", 5, 9).is_ok_and(<[_]>::is_empty));
}

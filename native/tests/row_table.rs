//! `RowTable` against ordered maps, over random histories.

#[path = "../src/row_table.rs"]
#[allow(dead_code)]
mod row_table;

use std::collections::HashMap;

use row_table::RowTable;

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
        let number = self.below(120);
        let mut key = vec![b'k'; (number % 3) as usize * 12];
        key.extend(number.to_string().bytes());
        if number == 0 { Vec::new() } else { key }
    }
}

#[derive(Default)]
struct Model {
    disk: HashMap<Vec<u8>, i64>,
    written: Vec<(Vec<u8>, i64)>,
}

impl Model {
    fn value(&self, key: &[u8]) -> Option<i64> {
        let written = self.written.iter().find(|(other, _)| other == key);
        written
            .map(|(_, value)| *value)
            .or_else(|| self.disk.get(key).copied())
    }

    fn write(&mut self, key: &[u8], value: i64) {
        match self.written.iter_mut().find(|(other, _)| other == key) {
            Some(row) => row.1 = value,
            None => self.written.push((key.to_vec(), value)),
        }
    }

    fn drop_write(&mut self, key: &[u8]) {
        self.written.retain(|(other, _)| other != key);
    }

    fn commit(&mut self) {
        self.disk.extend(self.written.drain(..));
    }
}

/// Read a row as the owner of a table does: what is not in it is read from disk.
fn read(table: &mut RowTable<Option<i64>>, model: &Model, key: &[u8]) -> Option<i64> {
    let slot = table.find(key).unwrap_or_else(|| {
        let stored = model.disk.get(key).copied();
        table.add_read(key, stored, 0, stored.is_none())
    });
    table.row(slot).value
}

fn check(table: &mut RowTable<Option<i64>>, model: &Model, draws: &mut Draws) {
    assert_eq!(table.written(), model.written.len());
    let rows: Vec<_> = table
        .in_order()
        .map(|slot| {
            (
                table.row(slot).key().to_vec(),
                table.row(slot).value.unwrap(),
            )
        })
        .collect();
    assert_eq!(rows, model.written);
    if draws.below(3) == 0 {
        let (start, end) = (draws.key(), draws.key());
        let mut expected: Vec<_> = model.written.iter().map(|(key, _)| key.clone()).collect();
        expected.retain(|key| *key >= start && *key < end);
        expected.sort();
        let slots = table.by_key(Some(&start), Some(&end)).to_vec();
        let found: Vec<_> = slots
            .iter()
            .map(|slot| table.row(*slot).key().to_vec())
            .collect();
        assert_eq!(found, expected);
    }
}

#[test]
fn reads_writes_and_orders_are_those_of_maps() {
    for seed in 0..40 {
        let (mut draws, mut model) = (Draws(seed), Model::default());
        let mut table = RowTable::<Option<i64>>::default();
        for step in 0..3_000 {
            let key = draws.key();
            match draws.below(100) {
                0..40 => assert_eq!(read(&mut table, &model, &key), model.value(&key)),
                40..70 => {
                    table.write(&key, Some(step), step);
                    model.write(&key, step);
                }
                70..80 => {
                    read(&mut table, &model, &key);
                    table.write(&key, Some(step), step);
                    model.write(&key, step);
                }
                80..92 => {
                    let slot = table
                        .find(&key)
                        .filter(|slot| table.row(*slot).is_written());
                    if let Some(slot) = slot {
                        assert_eq!(table.drop_write(slot), model.value(&key));
                        model.drop_write(&key);
                    }
                }
                92..96 => {
                    let count = draws.below(40) as usize;
                    table.evict(count);
                    assert!(table.cached() <= count);
                }
                96..99 => {
                    table.committed();
                    model.commit();
                }
                _ => {
                    table.clear();
                    model.written.clear();
                }
            }
            check(&mut table, &model, &mut draws);
        }
    }
}

#[test]
fn a_row_that_was_used_since_the_last_eviction_stays() {
    let mut table = RowTable::<u32>::default();
    for number in 0..100_u32 {
        table.add_read(&number.to_be_bytes(), number, 0, false);
    }
    table.find(&7_u32.to_be_bytes());
    table.evict(50);
    assert!(table.find(&7_u32.to_be_bytes()).is_some());
    assert_eq!(table.cached(), 50);
    table.evict(0);
    assert_eq!(table.cached(), 0);
}

#[test]
fn a_row_stays_new_until_it_is_committed() {
    let mut table = RowTable::<u32>::default();
    let slot = table.add_read(b"k", 0, -1, true);
    table.write_at(slot, 1, 5);
    assert!(table.row(slot).is_new());
    table.committed();
    assert!(!table.row(slot).is_new());
}

#[test]
fn a_write_after_an_eviction_does_not_reach_another_row() {
    let mut table = RowTable::<u32>::default();
    table.add_read(b"old", 1, 0, false);
    table.find(b"old");
    table.evict(0);
    table.write(b"new", 2, 0);
    assert!(table.find(b"old").is_none());
    let (slot, _) = table.write(b"old", 3, 0);
    assert_eq!(table.row(slot).value, 3);
    assert_eq!(table.written(), 2);
}

//! Layouts, and damage of single bits.

use std::sync::Arc;

use super::super::*;
use super::model::{Model, PAGE, UUID, add, options};
use super::simfs::{Disk, SimFs};

#[test]
fn a_record_has_the_lines_that_are_not_zero() {
    let mut state = vec![0; 3 * PAGE];
    state[2 * PAGE + 64] = 7;
    state[2 * PAGE + 63 * 64 + 1] = 9;
    let mut record = RecordBuilder::new();
    add(&mut record, &state, 2, 1 << 1 | 1 << 5 | 1 << 63);
    add(&mut record, &state, 0, 0);
    assert_eq!((record.pages(), record.log_bytes()), (1, 4096));
    assert_eq!(record.payload().len(), 24 + 2 * 64);
    assert_eq!(record.payload()[..8], 2_u64.to_le_bytes());
    assert_eq!(record.payload()[8..16], (1_u64 << 1 | 1 << 5 | 1 << 63).to_le_bytes());
    assert_eq!(record.payload()[16..24], (1_u64 << 1 | 1 << 63).to_le_bytes());
    assert_eq!((record.payload()[24], record.payload()[24 + 65]), (7, 9));
    record.clear();
    assert_eq!((record.pages(), record.payload().len()), (0, 0));
    // A header, a page and 62 of its lines take one block; one more line takes another.
    let full = vec![1; PAGE];
    add(&mut record, &full, 0, u64::MAX >> 2);
    assert_eq!(record.log_bytes(), 4096);
    add(&mut record, &full, 0, 1);
    assert_eq!(record.log_bytes(), 8192);
}

/// A log with some records after a checkpoint, and its states.
fn log() -> (SimFs, Model) {
    let fs = SimFs::new(Disk::default());
    let mut model = Model::new(11, 3);
    let first = model.last().clone();
    let log =
        RedoLog::create(Arc::new(fs.clone()), UUID, first.len() as u64, options(), |at, bytes| {
            bytes.copy_from_slice(&first[at as usize..][..bytes.len()]);
        });
    let log = log.unwrap();
    let mut record = RecordBuilder::new();
    for call in 0..8 {
        let region_len = model.change(&mut record);
        log.append(&record, region_len).unwrap();
        if call == 3 {
            log.checkpoint().unwrap();
        }
    }
    (fs, model)
}

/// Damages a bit at a time of the files whose names satisfy `of`. Returns how many were damaged,
/// and how many rebuildings said so.
fn damage(of: impl Fn(&str) -> bool, step: usize) -> (u64, u64) {
    let (fs, model) = log();
    let (mut damaged, mut noticed) = (0, 0);
    for name in fs.list().unwrap().into_iter().filter(|name| of(name)) {
        let file = fs.open(&name).unwrap().unwrap();
        for bit in (0..file.size().unwrap() as usize * 8).step_by(step) {
            let mut byte = [0];
            file.read_at(bit as u64 / 8, &mut byte).unwrap();
            file.write_at(bit as u64 / 8, &[byte[0] ^ 1 << (bit % 8)]).unwrap();
            let mut bytes = Vec::new();
            match rebuild(&fs, &mut bytes, None, &mut |_, _| {}) {
                // The last record may look torn.
                Ok(found) => {
                    assert!(found.sequence >= 7, "{name}, bit {bit}: state {}", found.sequence);
                    assert!(Some(&*bytes) == model.state(found.sequence), "{name}, bit {bit}");
                }
                Err(error) => {
                    assert!(is_about(&error.to_string(), &name), "{name}: {error}");
                    noticed += 1;
                }
            }
            file.write_at(bit as u64 / 8, &byte).unwrap();
            damaged += 1;
        }
    }
    (damaged, noticed)
}

/// Returns whether an error names what is damaged. A wrong sum is one of the image.
fn is_about(error: &str, name: &str) -> bool {
    match name {
        "sums" => error.contains("image"),
        _ if name.ends_with(".redo") => error.contains(".redo"),
        _ => error.contains(name),
    }
}

#[test]
fn damage_of_a_page_or_its_sum_is_noticed() {
    let (damaged, noticed) = damage(|name| name == "image", 97);
    assert!(damaged > 500 && noticed == damaged, "{noticed} of {damaged}");
    let (damaged, noticed) = damage(|name| name == "sums", 1);
    assert!(damaged > 90 && noticed == damaged, "{noticed} of {damaged}");
}

#[test]
fn damage_of_a_record_is_noticed() {
    let (damaged, noticed) = damage(|name| name.ends_with(".redo"), 61);
    assert!(damaged > 4_000 && noticed > 100, "{noticed} of {damaged}");
}

#[test]
fn one_slot_of_the_control_is_enough_or_noticed() {
    // The other slot is of the time before the checkpoint, whose segments may be in use again.
    let (damaged, _) = damage(|name| name == "control", 1);
    assert_eq!(damaged, 2 * 4096 * 8);
}

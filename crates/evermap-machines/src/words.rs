//! Keys that are bound to words, and what each step does to them.

use crate::subject::{Result, Subject, expect};

/// A step changes a key that was inserted this many steps before, and removes one that was inserted
/// twice as many steps before.
const AGE: u64 = 200;

/// Keys that are numbers, in any index, or behind a server. Each change may be made again.
pub(crate) trait Words {
    fn get(&self, key: u64) -> Result<Option<u64>>;
    fn insert(&self, key: u64, word: u64) -> Result<()>;
    fn update(&self, key: u64, word: u64) -> Result<()>;
    fn remove(&self, key: u64) -> Result<()>;
}

/// Step `n` inserts the key that `n` stands for, updates every third key when it is `AGE` steps
/// old, and removes every fourth one when it is twice as old.
pub(crate) struct Keys<'w, W, F> {
    pub(crate) words: &'w W,
    /// What completes a check.
    pub(crate) finish: F,
}

/// Returns the key of a step. Its neighbours in the order of keys are from all times.
fn key_of(step: u64) -> u64 {
    step.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) | 1 << 63
}

fn word_of(step: u64, version: u64) -> u64 {
    (step << 8 | version) & ((1 << 48) - 1) | 1 << 47
}

fn is_updated(step: u64) -> bool {
    step.is_multiple_of(3)
}

fn is_removed(step: u64) -> bool {
    step.is_multiple_of(4)
}

/// Returns what the key of `step` is bound to when the steps before `next` are done.
fn wanted(step: u64, next: u64) -> Option<u64> {
    let age = next.checked_sub(step + 1)?;
    if is_removed(step) && age >= 2 * AGE {
        return None;
    }
    Some(word_of(step, u64::from(is_updated(step) && age >= AGE)))
}

impl<W: Words, F: Fn() -> Result<()>> Subject for Keys<'_, W, F> {
    fn is_present(&self, step: u64) -> Result<bool> {
        Ok(self.words.get(key_of(step))?.is_some())
    }

    fn check(&self, next: u64) -> Result<()> {
        for step in 0..next + 8 {
            let found = self.words.get(key_of(step))?;
            let states = [wanted(step, next), wanted(step, next.saturating_sub(1))];
            // The last step has begun, and may have ended after its first part.
            let states = if step + 1 == next { [states[0]; 2] } else { states };
            expect(format!("the word of step {step} of {next}"), found, &states)?;
        }
        (self.finish)()
    }

    fn step(&self, step: u64) -> Result<()> {
        self.words.insert(key_of(step), word_of(step, 0))?;
        if let Some(old) = step.checked_sub(AGE)
            && is_updated(old)
        {
            self.words.update(key_of(old), word_of(old, 1))?;
        }
        if let Some(old) = step.checked_sub(2 * AGE)
            && is_removed(old)
        {
            self.words.remove(key_of(old))?;
        }
        Ok(())
    }
}

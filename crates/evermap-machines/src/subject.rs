//! What is changed step by step, checked, and changed again.

use std::error::Error;
use std::fmt::Display;
use std::time::Instant;

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Steps between two acknowledgements: a console takes a millisecond for a line.
pub(crate) const STEPS: u64 = 100;

/// What is changed step by step.
pub(crate) trait Subject {
    /// Returns whether the key that a step has stored is there.
    fn is_present(&self, step: u64) -> Result<bool>;

    /// Compares everything with what the steps before `next` have made. The last one of them may
    /// have been carried out in part.
    fn check(&self, next: u64) -> Result<()>;

    fn step(&self, step: u64) -> Result<()>;

    /// Called after every acknowledgement. What it does must leave everything as it is.
    fn tidy_up(&self, _step: u64) -> Result<()> {
        Ok(())
    }
}

/// Checks a subject that has been opened since `began`, and changes it until the machine is gone.
pub(crate) fn run(subject: &impl Subject, began: Instant) -> Result<()> {
    subject.is_present(1)?;
    println!("FIRST answer after {:.2} ms", began.elapsed().as_secs_f64() * 1e3);
    let next = first_missing(subject)?;
    subject.check(next)?;
    println!("CHECKED {next}");
    for step in next.. {
        subject.step(step)?;
        if (step + 1).is_multiple_of(STEPS) {
            println!("ACK {}", step + 1);
            subject.tidy_up(step)?;
        }
    }
    Ok(())
}

/// Returns the number of the first step that is not to be found. Of older keys some are removed,
/// but no two in a row.
fn first_missing(subject: &impl Subject) -> Result<u64> {
    let (mut next, mut gap) = (0, 0);
    for step in 0.. {
        match subject.is_present(step)? {
            true => (next, gap) = (step + 1, 0),
            false if gap > 8 => break,
            false => gap += 1,
        }
    }
    Ok(next)
}

/// Fails if what was found is not what is wanted.
pub(crate) fn expect<T: PartialEq + std::fmt::Debug>(
    what: impl Display,
    found: T,
    wanted: &[T],
) -> Result<()> {
    match wanted.contains(&found) {
        true => Ok(()),
        false => Err(format!("{what} is {found:?} and not one of {wanted:?}").into()),
    }
}

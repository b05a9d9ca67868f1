//! What is changed step by step, checked, and changed again.

use std::error::Error;
use std::fmt::Display;
use std::time::Instant;

use crate::moment::{self, Moment};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Steps between two acknowledgements: a console takes a millisecond for a line.
pub(crate) const STEPS: u64 = 100;

/// In the environment: up to which step a subject is filled, without acknowledgements.
const FILL: &str = "FILL";

/// What is changed step by step.
pub(crate) trait Subject {
    /// Returns whether the key that a step has stored is there.
    fn is_present(&self, step: u64) -> Result<bool>;

    /// Compares everything with what the steps before `next` have made. The last one of them may
    /// have been carried out in part.
    fn check(&self, next: u64) -> Result<()>;

    /// Makes a step. Its first part stores its key. It may be made again, if no later one was made.
    fn step(&self, step: u64) -> Result<()>;

    /// Called after every acknowledgement. What it does must leave everything as it is.
    fn tidy_up(&self, _step: u64) -> Result<()> {
        Ok(())
    }
}

/// Checks a subject that has been opened since `began`, and changes it until the machine is gone.
pub(crate) fn run(subject: &impl Subject, file: &str, began: Instant) -> Result<()> {
    subject.is_present(1)?;
    let ms = began.elapsed().as_secs_f64() * 1e3;
    let kib = std::fs::metadata(file)?.len() >> 10;
    println!("FIRST answer after {ms:.3} ms of {kib} KiB, {} page faults", faults());
    if let Ok(steps) = std::env::var(FILL) {
        return fill(subject, steps.parse()?);
    }
    moment::enter(Moment::Recovery);
    let next = first_missing(subject)?;
    subject.check(next)?;
    moment::enter(Moment::Use);
    println!("CHECKED {next}");
    // The last step may have been made in part.
    for step in next.saturating_sub(1).. {
        subject.step(step)?;
        if (step + 1).is_multiple_of(STEPS) {
            println!("ACK {}", step + 1);
            subject.tidy_up(step)?;
            moment::enter(Moment::Use);
        }
    }
    Ok(())
}

/// Returns whether a subject is only filled.
pub(crate) fn is_filled() -> bool {
    std::env::var_os(FILL).is_some()
}

fn fill(subject: &impl Subject, steps: u64) -> Result<()> {
    moment::enter(Moment::Use);
    (0..steps).try_for_each(|step| subject.step(step))?;
    println!("FILLED {steps}");
    loop {
        std::thread::park();
    }
}

/// Returns how often this process has touched a page that was not mapped yet.
fn faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let field = stat.rsplit(')').next().and_then(|rest| rest.split_ascii_whitespace().nth(7));
    field.and_then(|count| count.parse().ok()).unwrap_or(0)
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

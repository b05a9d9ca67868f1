//! What runs in a virtual machine whose power is cut: `tests/machines/run.sh` starts it.
//!
//! ```text
//! evermap-machines index NAME LEVEL FILE    an index of words
//! evermap-machines store INDEX LEVEL FILE   a store over an index, with maps, batches and an order
//! evermap-machines grant LEVEL FILE         whether the level is granted
//! ```
//!
//! The first two check everything that an earlier run has left in the file, say so in a line
//! `CHECKED`, and then change it until the machine is gone. Every change is a step with a number,
//! from which all that it does follows. A line `ACK n` says that the steps before `n` are done, so
//! they must be found again; of the next one, any part may be. What is wrong is said in a line
//! `WRONG`.

use std::error::Error;
use std::fmt::Display;
use std::time::Instant;

use evermap::Durability;

mod index;
mod store;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Steps between two acknowledgements: a console takes a millisecond for a line.
const STEPS: u64 = 100;

/// What is changed step by step.
trait Subject {
    /// Looks a key up.
    fn first_answer(&self) -> Result<()>;

    /// Returns the number of the first step whose beginning is not to be found.
    fn first_missing(&self) -> Result<u64>;

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
fn run(subject: &impl Subject, began: Instant) -> Result<()> {
    subject.first_answer()?;
    subject.first_answer()?;
    println!("FIRST answer after {:.2} ms", began.elapsed().as_secs_f64() * 1e3);
    let next = subject.first_missing()?;
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

/// Fails if what was found is not what is wanted.
fn expect<T: PartialEq + std::fmt::Debug>(
    what: impl Display,
    found: T,
    wanted: &[T],
) -> Result<()> {
    match wanted.contains(&found) {
        true => Ok(()),
        false => Err(format!("{what} is {found:?} and not one of {wanted:?}").into()),
    }
}

fn grant(level: Durability, file: &str) -> Result<()> {
    let db = evermap::Evermap::open(file, evermap::Options::new().durability(level))?;
    println!("GRANTED {} on {}", db.stat().durability, db.stat().file_system);
    Ok(db.close()?)
}

fn start(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["index", name, level, file] => index::run(name, level, file),
        ["store", index, level, file] => store::run(index.parse()?, level.parse()?, file),
        ["grant", level, file] => grant(level.parse()?, file),
        _ => {
            Err("usage: index NAME LEVEL FILE, store INDEX LEVEL FILE, or grant LEVEL FILE".into())
        }
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(error) = start(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        println!("WRONG {error}");
        std::process::exit(1);
    }
}

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

use evermap::Durability;

mod index;
mod store;
mod subject;

use subject::Result;

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

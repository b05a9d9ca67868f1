//! What runs in a virtual machine whose power is cut: `tests/machines/run.sh` starts it.
//!
//! ```text
//! evermap-machines index NAME LEVEL FILE    an index of words
//! evermap-machines store INDEX LEVEL FILE   a store over an index, with maps, batches and an order
//! evermap-machines server INDEX LEVEL FILE  the command `evermap serve`, and a client of it
//! evermap-machines grant LEVEL FILE         whether the level is granted
//! ```
//!
//! All but the last check everything that an earlier run has left in the file, say so in a line
//! `CHECKED`, and then change it until the machine is gone. Every change is a step with a number,
//! from which all that it does follows. A line `ACK n` says that the steps before `n` are done, so
//! they must be found again; of the next one, any part may be. What is wrong is said in a line
//! `WRONG`.

mod index;
mod moment;
mod mortal;
mod server;
mod store;
mod subject;
mod words;

use subject::Result;

fn grant(level: &str, file: &str) -> Result<()> {
    let pool = index::open(level, file)?;
    println!("GRANTED {}", pool.medium().granted());
    Ok(pool.close()?)
}

fn start(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["index", name, level, file] => index::run(name, level, file),
        ["store", index, level, file] => store::run(index.parse()?, level, file),
        ["server", index, level, file] => server::run(index, level, file),
        ["grant", level, file] => grant(level, file),
        _ => Err("usage: index|store|server NAME LEVEL FILE, or grant LEVEL FILE".into()),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(error) = start(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        println!("WRONG {error}");
        std::process::exit(1);
    }
}

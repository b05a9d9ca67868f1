//! Kills and loss of power of stores with a log.
//!
//! ```text
//! evermap-power work COPY FOLDER      changes a store until it is killed, or CHANGES are made
//! evermap-power backup COPY FOLDER TO writes a backup of it
//! evermap-power restore FROM TO       makes a store of a backup, or of the folder of a log
//! evermap-power copies STORE LEVEL    takes snapshots and backups of one that is being changed
//! evermap-power record IMAGES [SEED]  opens what a kernel may leave of a store on its disk
//! ```
//!
//! COPY is the working copy and FOLDER that of the log. Two threads change the store. Each change
//! follows from its number, and begins when the one before is acknowledged: so of each thread the
//! store must have the first changes, all that were acknowledged and at most one more. `work`
//! checks that first and says how many it has found (`CHECKED THREAD n`); then it says how many are
//! acknowledged (`ACK THREAD n`), each time, or once for PER_LINE of them. What is wrong is
//! said in a line `WRONG`. When the process or the machine ends, is [chosen](ends).

mod changes;
mod check;
mod copies;
mod ends;
mod fuse;
mod images;
mod result;
mod work;

use result::Result;
use work::{Place, Until};

/// Reads a number from the environment.
fn number(name: &str) -> Result<Option<u64>> {
    Ok(std::env::var(name).ok().map(|text| text.parse()).transpose()?)
}

fn start(arguments: &[&str]) -> Result<()> {
    match arguments {
        ["work", copy, folder] => {
            let per_line = number("PER_LINE")?.unwrap_or(1);
            work::run(&Place::new(*copy, *folder), &Until { changes: number("CHANGES")?, per_line })
        }
        ["backup", copy, folder, to] => work::backup(&Place::new(*copy, *folder), to.as_ref()),
        ["restore", from, to] => work::restore(from.as_ref(), to.as_ref()),
        ["copies", store, level] => copies::run(store.as_ref(), level.parse()?),
        ["record", images] => images::run(images.parse()?, 1),
        ["record", images, seed] => images::run(images.parse()?, seed.parse()?),
        _ => Err("usage: work COPY FOLDER, backup COPY FOLDER TO, restore FROM TO, copies STORE \
                  LEVEL, or record IMAGES [SEED]"
            .into()),
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let Err(error) = start(&arguments.iter().map(String::as_str).collect::<Vec<_>>()) {
        println!("WRONG {error}");
        std::process::exit(1);
    }
}

//! Checks of the source tree that neither the compiler nor `rustfmt` makes.
//!
//! | module | what it refuses |
//! |---|---|
//! | [`width`] | lines of Rust source that are longer than `max_width` in `rustfmt.toml` |
//! | [`words`] | words in comments and documents for which there is a usual one |
//! | [`circles`] | modules, or files, of one crate that import each other |
//! | [`links`] | links of documents to files, headings and names that do not exist |
//! | [`unused`] | public items that nothing names |
//! | [`manifests`] | crates that a registry would refuse |
//!
//! The checks run over this repository in `tests/tree.rs`, which also has budgets: of forced
//! inlining, of words a page, and of files that import each other.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

pub mod circles;
mod imports;
pub mod links;
pub mod manifests;
pub mod source;
pub mod unused;
pub mod width;
pub mod words;

/// A line that a check refuses.
#[derive(Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, relative to the root of the repository.
    pub path: PathBuf,
    /// Number of the line, from 1.
    pub line: usize,
    /// What is wrong and what to write instead.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.path.display(), self.line, self.message)
    }
}

/// Returns all files below `folder` with this extension, sorted. Skips `target` and hidden folders.
///
/// # Errors
///
/// Returns the first error of the file system.
pub fn files(folder: &Path, extension: &str) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![folder.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder)? {
            let entry = entry?;
            let (path, name) = (entry.path(), entry.file_name());
            let skipped = name == "target" || name.as_encoded_bytes().starts_with(b".");
            if entry.file_type()?.is_dir() {
                if !skipped {
                    folders.push(path);
                }
            } else if path.extension().is_some_and(|found| found == extension) {
                found.push(path);
            }
        }
    }
    found.sort();
    Ok(found)
}

//! The counts that documents quote are those of today.

use std::path::PathBuf;

use evermap_index::testkit::tier;

use crate::experiments::{Settings, counts, experiment};
use crate::testing::Kept;

/// The rows that are compared by default: counting all of them takes minutes.
const SOME: [&str; 4] = ["dash-lh", "nv-tree", "fp-tree", "hikv-sync"];

fn document() -> PathBuf {
    [env!("CARGO_MANIFEST_DIR"), "../../docs/measured/counts.md"].iter().collect()
}

/// Returns the lines of the section with this title.
fn section<'t>(text: &'t str, title: &str) -> impl Iterator<Item = &'t str> {
    let heading = format!("## {title}");
    let lines = text.lines().skip_while(move |line| *line != heading);
    lines.skip(1).take_while(|line| !line.starts_with("## "))
}

#[test]
fn quoted_counts_are_counted_again() {
    let some = SOME.map(str::to_owned).to_vec();
    let settings = Settings { indexes: tier().choose(Some(some), None), ..Settings::default() };
    let counted = experiment(counts::NAME).unwrap().run(&settings, &mut Kept::default()).unwrap();
    let text = std::fs::read_to_string(document()).unwrap();
    assert!(!counted.tables.is_empty());
    for grid in &counted.tables {
        // The heading, the rule, and the rows that were counted.
        for line in grid.markdown().lines() {
            let is_quoted = section(&text, &grid.title).any(|quoted| quoted == line);
            assert!(is_quoted, "docs/measured/counts.md lacks, under {:?}:\n{line}", grid.title);
        }
    }
}

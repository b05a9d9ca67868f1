//! Which lines of code differ between two files, and how many make something durable.

use std::fmt;
use std::path::Path;

/// The lines of code that differ between the table before its conversion and after it.
pub(super) struct Difference {
    /// Lines of code before.
    pub(super) before: usize,
    /// Lines that were removed or changed (`-`), and that were added or have replaced those (`+`),
    /// in the order of the files.
    pub(super) changes: Vec<(char, String)>,
    /// How many of the latter are in `impl Persistent`, to create, open, visit and check the table.
    pub(super) opening: usize,
    /// How many of the others make something durable.
    pub(super) durable: usize,
}

impl Difference {
    /// Returns the number of lines with this sign.
    pub(super) fn count(&self, sign: char) -> usize {
        self.changes.iter().filter(|change| change.0 == sign).count()
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (removed, added) = (self.count('-'), self.count('+'));
        write!(
            f,
            "{} lines before, {removed} of them changed or removed, and {added} in their place or \
             added: {} that make something durable, {} that create, open, visit and check the \
             table, and {} for its place in a pool",
            self.before,
            self.durable,
            self.opening,
            added - self.durable - self.opening
        )
    }
}

/// Compares the files of this example.
pub(super) fn of_example() -> Difference {
    let [before, after] = [include_str!("before.rs"), include_str!("after.rs")].map(code_of);
    let changes = changes(&before, &after);
    let opening = after.iter().position(|line| line.starts_with("impl<M: Medium> Persistent"));
    let (changed, opening) = after.split_at(opening.unwrap_or(after.len()));
    let durable = changed.iter().filter(|line| makes_durable(line)).count();
    Difference { before: before.len(), changes, opening: opening.len(), durable }
}

/// Returns whether a line flushes, fences, persists or calls a function of `recipe`.
fn makes_durable(line: &str) -> bool {
    const CALLS: [&str; 10] = [
        "flush",
        "fence",
        "persist",
        "commit",
        "commit_marked",
        "exchange_marked",
        "help",
        "resume",
        "Preparation::new",
        "include",
    ];
    let calls = |name: &&str| {
        let before = line.split_once(&format!("{name}(")).map(|(before, _)| before);
        before.is_some_and(|before| {
            !before.ends_with(|last: char| last.is_alphanumeric() || last == '_')
        })
    };
    // The fence of a processor has an ordering, and makes nothing durable.
    !line.contains("fn ") && !line.contains("Ordering::") && CALLS.iter().any(calls)
}

/// An index that is made persistent by the conditions of RECIPE.
#[cfg_attr(not(test), expect(dead_code, reason = "only the tests compare it with the page"))]
pub(super) struct Converted {
    pub(super) name: &'static str,
    /// Its folder among the crates.
    pub(super) folder: &'static str,
}

#[cfg_attr(not(test), expect(dead_code, reason = "only the tests compare it with the page"))]
impl Converted {
    pub(super) const ALL: [Converted; 6] = [
        Converted { name: "P-CLHT", folder: "evermap-index/src/hash/clht" },
        Converted { name: "P-ART", folder: "evermap-index/src/ordered/art" },
        Converted { name: "P-HOT", folder: "evermap-papers/src/hot" },
        Converted { name: "P-BwTree", folder: "evermap-papers/src/bwtree" },
        Converted { name: "P-Masstree", folder: "evermap-papers/src/masstree" },
        Converted { name: "FAST & FAIR", folder: "evermap-papers/src/fast_fair" },
    ];

    /// Returns its number of lines of code, without tests and planted mistakes, and how many of
    /// them make something durable.
    pub(super) fn count(&self) -> (usize, usize) {
        let crates = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/.."));
        let files = std::fs::read_dir(crates.join(self.folder)).expect("the folder of an index");
        let (mut all, mut durable) = (0, 0);
        for file in files.map(|file| file.expect("an entry of a folder").path()) {
            let is_other = ["tests", "mistakes"]
                .map(Some)
                .contains(&file.file_stem().and_then(|name| name.to_str()));
            if is_other || !file.is_file() {
                continue;
            }
            let source = std::fs::read_to_string(&file).expect("a source file");
            let source = source.split("\n#[cfg(test)]\nmod tests {").next().unwrap_or("");
            let code = code_of(source);
            all += code.len();
            durable += code.iter().filter(|line| makes_durable(line)).count();
        }
        (all, durable)
    }
}

/// Returns the lines that are code: no comments, nothing empty, nothing of the imports.
fn code_of(source: &str) -> Vec<&str> {
    let is_code = |line: &&str| {
        let line = line.trim();
        !line.is_empty() && !line.starts_with("//") && !line.starts_with("use ")
    };
    source.lines().filter(is_code).map(str::trim_end).collect()
}

/// Returns the fewest removals and additions that turn one list of lines into the other.
fn changes(before: &[&str], after: &[&str]) -> Vec<(char, String)> {
    // The length of the longest common subsequence of what begins at each pair of lines.
    let mut common = vec![vec![0u32; after.len() + 1]; before.len() + 1];
    for (at, old) in before.iter().enumerate().rev() {
        for (to, new) in after.iter().enumerate().rev() {
            common[at][to] = match old.trim() == new.trim() {
                true => common[at + 1][to + 1] + 1,
                false => common[at + 1][to].max(common[at][to + 1]),
            };
        }
    }
    let (mut at, mut to, mut changes) = (0, 0, Vec::new());
    while at < before.len() || to < after.len() {
        let both = at < before.len() && to < after.len();
        if both && before[at].trim() == after[to].trim() {
            (at, to) = (at + 1, to + 1);
        } else if to == after.len() || both && common[at + 1][to] >= common[at][to + 1] {
            changes.push(('-', before[at].to_owned()));
            at += 1;
        } else {
            changes.push(('+', after[to].to_owned()));
            to += 1;
        }
    }
    changes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fewest_changes_are_found() {
        let signs = |before: &str, after: &str| -> String {
            let [before, after] = [before, after].map(|text| text.split(' ').collect::<Vec<_>>());
            changes(&before, &after).iter().map(|(sign, line)| format!("{sign}{line}")).collect()
        };
        assert_eq!(signs("a b c", "a b c"), "");
        assert_eq!(signs("a b c", "a c d"), "-b+d");
        assert_eq!(signs("a b", "x a y b"), "+x+y");
        assert_eq!(signs("a b a c", "b a b c"), "-a+b");
        assert_eq!(code_of("use a;\n// b\n\n    c // d\n"), ["    c // d"]);
    }
}

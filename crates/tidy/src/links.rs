//! Links of documents to files and headings of this repository.
//!
//! A link whose text is one name in code, such as `` [`commit`](ops/commit.rs) ``, also promises
//! that the file has that name: documents that lead through the source stay right when it changes.

use std::path::{Component, Path, PathBuf};

/// A link in a document.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Link<'t> {
    /// Number of the line, from 1.
    pub line: usize,
    /// The text that is shown.
    pub text: &'t str,
    /// The path to the file, relative to the document; empty for the document itself.
    pub path: &'t str,
    /// The heading, as the part of an address after `#`; empty for the whole file.
    pub heading: &'t str,
}

/// Returns the links to files of the repository, except those in blocks of code.
pub fn links(text: &str) -> Vec<Link<'_>> {
    let mut found = Vec::new();
    for (index, line) in prose(text) {
        let mut rest = line;
        while let Some(end) = rest.find("](") {
            let shown = &rest[rest[..end].rfind('[').map_or(end, |start| start + 1)..end];
            rest = &rest[end + 2..];
            let target = &rest[..rest.find(')').unwrap_or(rest.len())];
            if !target.contains("://") && !target.contains(char::is_whitespace) {
                let (path, heading) = target.split_once('#').unwrap_or((target, ""));
                found.push(Link { line: index + 1, text: shown, path, heading });
            }
        }
    }
    found
}

/// Returns the headings of a document, as links name them.
pub fn headings(text: &str) -> Vec<String> {
    let headings = prose(text).filter(|(_, line)| line.starts_with('#'));
    headings.map(|(_, line)| anchor(line.trim_start_matches('#').trim())).collect()
}

/// Returns the lines outside of blocks of code, with their indices.
fn prose(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut in_code = false;
    text.lines().enumerate().filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        !in_code && !is_fence
    })
}

/// Returns the part of an address by which a heading is linked to.
fn anchor(heading: &str) -> String {
    let kept = |found: &char| found.is_alphanumeric() || matches!(found, ' ' | '-' | '_');
    heading.to_lowercase().chars().filter(kept).map(|it| if it == ' ' { '-' } else { it }).collect()
}

/// Returns the name in code that a link to Rust source shows, if it shows nothing else.
pub fn promised_name<'t>(link: &Link<'t>) -> Option<&'t str> {
    let name = link.text.strip_prefix('`')?.strip_suffix('`')?;
    let is_name = |part: &str| {
        !part.is_empty() && part.chars().all(|it| it.is_ascii_alphanumeric() || it == '_')
    };
    (link.path.ends_with(".rs") && is_name(name)).then_some(name)
}

/// Returns `true` if `text` has `name` as a whole word.
pub fn has_word(text: &str, name: &str) -> bool {
    text.split(|found: char| !found.is_alphanumeric() && found != '_').any(|word| word == name)
}

/// Returns the path that `link` leads to, from a document in `folder`, without `..`.
pub fn resolve(folder: &Path, link: &str) -> PathBuf {
    let mut path = PathBuf::new();
    for part in folder.join(link).components() {
        match part {
            Component::ParentDir => drop(path.pop()),
            Component::CurDir => {}
            part => path.push(part),
        }
    }
    path
}

/// Returns the documents below `docs/` that a line names, as comments and scripts do.
pub fn named_documents(line: &str) -> impl Iterator<Item = &str> {
    let is_path = |found: char| found.is_ascii_alphanumeric() || "/._-".contains(found);
    line.split(move |found| !is_path(found))
        .map(|word| word.trim_end_matches('.'))
        .filter(|word| word.starts_with("docs/") && word.ends_with(".md"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_to_files_are_found_and_others_are_not() {
        let text = "See [the page](a.md#one-two) and [`f`](../b.rs).\n```\n[no](c.md)\n```\n\
                    [web](https://example.org)\n";
        let page = Link { line: 1, text: "the page", path: "a.md", heading: "one-two" };
        let name = Link { line: 1, text: "`f`", path: "../b.rs", heading: "" };
        assert_eq!(links(text), [page, name]);
        assert_eq!((promised_name(&page), promised_name(&name)), (None, Some("f")));
    }

    #[test]
    fn headings_are_linked_to_in_lower_case_without_punctuation() {
        let text = "# The `first` hour\n```\n# no\n```\n## What, if? A-b\n";
        assert_eq!(headings(text), ["the-first-hour", "what-if-a-b"]);
    }

    #[test]
    fn paths_are_resolved_from_the_folder_of_the_document() {
        let resolved = resolve(Path::new("docs/use"), "../../README.md");
        assert_eq!(resolved, Path::new("README.md"));
    }

    #[test]
    fn documents_are_named_in_comments() {
        let line = "//! see `docs/design/dash.md`, and docs/README.md.";
        let named: Vec<_> = named_documents(line).collect();
        assert_eq!(named, ["docs/design/dash.md", "docs/README.md"]);
        assert_eq!(named_documents("https://docs.rs/a/docs.md").count(), 0);
    }

    #[test]
    fn names_are_whole_words() {
        assert!(has_word("fn commit(", "commit"));
        assert!(!has_word("fn commit_all(", "commit"));
    }
}

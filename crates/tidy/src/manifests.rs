//! What a registry asks of the crates that are published, and what cargo does not check before it
//! uploads them.

/// The most keywords that a crate may have, and the most characters of one.
const KEYWORDS_MAX: usize = 5;
const KEYWORD_MAX: usize = 20;

/// Returns `true` unless the manifest says that the crate is not published.
pub fn is_published(manifest: &str) -> bool {
    !manifest.lines().any(|line| line.trim() == "publish = false")
}

/// Returns what the manifest of a published crate lacks.
pub fn problems(manifest: &str) -> Vec<String> {
    let mut found = Vec::new();
    for key in ["description", "keywords", "categories"] {
        if value(manifest, key).is_none() {
            found.push(format!("has no {key}"));
        }
    }
    for key in ["version", "edition", "rust-version", "license", "repository"] {
        if value(manifest, &format!("{key}.workspace")) != Some("true") {
            found.push(format!("does not take {key} from the workspace"));
        }
    }
    let keywords = strings(value(manifest, "keywords").unwrap_or_default());
    if keywords.len() > KEYWORDS_MAX {
        found.push(format!("has more than {KEYWORDS_MAX} keywords"));
    }
    for keyword in keywords.iter().filter(|word| !is_keyword(word)) {
        found.push(format!("{keyword:?} is no keyword of a registry"));
    }
    found
}

/// Returns the names of the crates that a user of this crate needs, too: all but those for tests.
pub fn dependencies(manifest: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut wanted = false;
    for line in manifest.lines().map(str::trim) {
        if let Some(table) = line.strip_prefix('[') {
            wanted = table.contains("dependencies]") && !table.contains("dev-dependencies]");
        } else if wanted && !line.starts_with('#') {
            found.extend(line.split(['.', ' ', '=']).next().filter(|name| !name.is_empty()));
        }
    }
    found
}

/// Returns what follows `key = ` in the first table, which is that of the package.
fn value<'a>(manifest: &'a str, key: &str) -> Option<&'a str> {
    let package = manifest.split("\n[").next()?;
    package
        .lines()
        .find_map(|line| line.strip_prefix(key)?.trim_start().strip_prefix('='))
        .map(str::trim)
}

/// Returns the strings of a list in one line.
fn strings(list: &str) -> Vec<&str> {
    list.split('"').skip(1).step_by(2).collect()
}

fn is_keyword(word: &str) -> bool {
    let allowed = |found: char| found.is_ascii_alphanumeric() || "_-+".contains(found);
    word.len() <= KEYWORD_MAX
        && word.starts_with(|first: char| first.is_ascii_alphanumeric())
        && word.chars().all(allowed)
}

#[cfg(test)]
mod tests {
    use super::*;

    const WHOLE: &str = r#"[package]
name = "map"
description = "A map"
version.workspace = true
edition.workspace = true
rust-version.workspace = true
license.workspace = true
repository.workspace = true
keywords = ["map", "wait-free"]
categories = ["concurrency"]

[dependencies]
# The words.
one.workspace = true
two = { version = "1", optional = true }

[target.'cfg(unix)'.dependencies]
three = "1"

[dev-dependencies]
four = "1"
"#;

    #[test]
    fn a_whole_manifest_lacks_nothing() {
        assert_eq!(problems(WHOLE), [""; 0]);
        assert_eq!(dependencies(WHOLE), ["one", "two", "three"]);
        assert!(is_published(WHOLE));
        assert!(!is_published("[package]\npublish = false\n"));
    }

    #[test]
    fn what_is_missing_or_refused_is_named() {
        let without = |line: &str| problems(&WHOLE.replace(line, ""));
        assert_eq!(without("description = \"A map\"\n"), ["has no description"]);
        assert_eq!(without("license.workspace = true\n").len(), 1);
        let with = |keywords: &str| problems(&WHOLE.replace("\"map\", \"wait-free\"", keywords));
        assert_eq!(with("\"a\", \"b\", \"c\", \"d\", \"e\", \"f\""), ["has more than 5 keywords"]);
        assert_eq!(with("\"a b\""), ["\"a b\" is no keyword of a registry"]);
        assert_eq!(with("\"a-word-that-is-too-long\"").len(), 1);
    }
}

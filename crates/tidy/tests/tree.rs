//! The checks, over this repository.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use tidy::{Finding, circles, files, links, source, width, words};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the path below the root, and the text, of each file with this extension.
fn texts(extension: &str) -> Vec<(PathBuf, String)> {
    let root = root();
    let read = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap();
        (path.strip_prefix(&root).unwrap().to_owned(), text)
    };
    files(&root, extension).unwrap().into_iter().map(read).collect()
}

#[track_caller]
fn assert_none(findings: &[Finding]) {
    let mut told = String::new();
    for finding in findings {
        writeln!(told, "{finding}").unwrap();
    }
    assert!(findings.is_empty(), "{} findings:\n{told}", findings.len());
}

#[test]
fn lines_keep_to_the_width() {
    let settings = fs::read_to_string(root().join("rustfmt.toml")).unwrap();
    let max = width::max_width(&settings).unwrap();
    let mut findings = Vec::new();
    for (path, text) in texts("rs") {
        findings.extend(width::too_long(&text, max).map(|line| Finding {
            path: path.clone(),
            line,
            message: format!("longer than {max} characters"),
        }));
    }
    assert_none(&findings);
}

#[test]
fn comments_and_documents_use_usual_words() {
    let mut findings = Vec::new();
    let mut check = |path: &Path, line: usize, text: &str| {
        findings.extend(words::refused(text).map(|(phrase, instead)| Finding {
            path: path.to_owned(),
            line,
            message: format!("{phrase:?}: write {instead}"),
        }));
    };
    // The list itself holds them all.
    let list = Path::new("crates/tidy/src/words.rs");
    for (path, text) in texts("rs").into_iter().filter(|(path, _)| path != list) {
        for (index, line) in source::lines(&text).iter().enumerate() {
            check(&path, index + 1, &line.comment);
            check(&path, index + 1, &line.literals);
        }
    }
    for (path, text) in texts("md") {
        for (index, line) in text.lines().enumerate() {
            check(&path, index + 1, line);
        }
    }
    assert_none(&findings);
}

#[test]
fn links_lead_to_files_headings_and_names_that_exist() {
    let mut findings = Vec::new();
    // Documents of the source are part of its documentation, whose links rustdoc checks.
    let documents = texts("md").into_iter().filter(|(path, _)| !is_in_src(path));
    for (path, text) in documents {
        for link in links::links(&text) {
            if let Some(message) = problem_of(&path, &text, &link) {
                findings.push(Finding { path: path.clone(), line: link.line, message });
            }
        }
    }
    assert_none(&findings);
}

fn is_in_src(path: &Path) -> bool {
    path.components().any(|part| part.as_os_str() == "src")
}

/// Returns what is wrong with a link of the document `path`.
fn problem_of(path: &Path, text: &str, link: &links::Link<'_>) -> Option<String> {
    let target = match link.path {
        "" => path.to_owned(),
        other => links::resolve(path.parent().expect("a file"), other),
    };
    let full = root().join(&target);
    if !full.exists() {
        return Some(format!("there is no {}", target.display()));
    }
    if !link.heading.is_empty() && target.extension().is_some_and(|found| found == "md") {
        let there = if link.path.is_empty() { text.to_owned() } else { read(&full) };
        if !links::headings(&there).iter().any(|heading| heading == link.heading) {
            return Some(format!("{} has no heading #{}", target.display(), link.heading));
        }
    }
    let name = links::promised_name(link).filter(|name| !links::has_word(&read(&full), name));
    name.map(|name| format!("{} has no {name}", target.display()))
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap()
}

#[test]
fn comments_and_scripts_name_documents_that_exist() {
    let mut findings = Vec::new();
    // Its tests have examples of both.
    let own = Path::new("crates/tidy");
    for extension in ["rs", "py", "sh", "toml", "yml", "yaml"] {
        for (path, text) in texts(extension).into_iter().filter(|(path, _)| !path.starts_with(own))
        {
            for (index, line) in text.lines().enumerate() {
                findings.extend(
                    links::named_documents(line)
                        .filter(|document| !root().join(document).exists())
                        .map(|document| Finding {
                            path: path.clone(),
                            line: index + 1,
                            message: format!("there is no {document}"),
                        }),
                );
            }
        }
    }
    assert_none(&findings);
}

/// Circles that are known, by crate, with the reason why they stay.
const KNOWN: [(&str, &[&str]); 2] = [
    // An error names kinds of indexes, and the primary index returns errors.
    ("evermap", &["error", "index"]),
    // Methods of `Map` and `Evermap` are divided by what they do: every operation needs the file
    // and the map, and both offer every operation.
    ("evermap", &["batch", "db", "maintenance", "map", "ops", "options", "ordered"]),
];

#[test]
fn modules_import_each_other_in_one_direction() {
    let (mut told, mut known) = (String::new(), 0);
    for entry in fs::read_dir(root().join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().display().to_string();
        for circle in circles::of_crate(&folder.join("src")).unwrap() {
            match KNOWN.iter().any(|(of, modules)| *of == name && circle.modules == *modules) {
                true => known += 1,
                false => writeln!(told, "{name}: {}", circle.imports).unwrap(),
            }
        }
    }
    assert!(told.is_empty(), "modules that import each other:\n{told}");
    assert_eq!(known, KNOWN.len(), "a known circle is no more: remove it from the list");
}

/// Crates that are checked by files, each with the circles that are known, with the reason why they
/// stay.
const BY_FILES: [(&str, &[&[&str]]); 1] = [
    // Methods of the trait `Cache` have implementations for caches that offer no better one.
    ("evermap-server", &[&["cache.rs", "cache/size_class.rs"]]),
];

#[test]
fn files_import_each_other_in_one_direction() {
    let mut told = String::new();
    for (name, known) in BY_FILES {
        let src = root().join("crates").join(name).join("src");
        let mut found = circles::of_files(&src).unwrap();
        let all = found.len();
        found.retain(|circle| !known.iter().any(|files| circle.modules == *files));
        for circle in &found {
            writeln!(told, "{name}: {}", circle.imports).unwrap();
        }
        assert_eq!(all - found.len(), known.len(), "{name}: a known circle is no more");
    }
    assert!(told.is_empty(), "files that import each other:\n{told}");
}

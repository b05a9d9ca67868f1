//! The checks, over this repository.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use tidy::{Finding, circles, files, links, manifests, source, unused, width, words};

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
    ("evermap", &["batch", "close", "db", "maintenance", "map", "ops", "options", "ordered"]),
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

/// The largest number of files of a circle in each other crate that has any: what there is today,
/// so that none grows. Most are a module with its parts: a type in `mod.rs`, whose methods and
/// fields stand in files beside it.
const LARGEST_CIRCLES: [(&str, usize); 6] = [
    // The operations of a map, and what they need of each other: see `KNOWN`.
    ("evermap", 26),
    // The commands, and what `main.rs` has for all of them.
    ("evermap-cli", 7),
    ("evermap-index", 7),
    ("evermap-lab", 2),
    ("evermap-papers", 7),
    ("evermap-pm", 5),
];

#[test]
fn circles_of_files_keep_to_their_budget() {
    let mut findings = Vec::new();
    for folder in crates().filter(|name| !BY_FILES.iter().any(|(of, _)| of == name)) {
        let src = root().join("crates").join(&folder).join("src");
        let largest = LARGEST_CIRCLES.iter().find(|(name, _)| *name == folder);
        let most = largest.map_or(0, |(_, files)| *files);
        let found = circles::of_files(&src).unwrap();
        findings.extend(found.iter().filter(|circle| circle.modules.len() > most).map(|circle| {
            let files = circle.modules.len();
            format!("{folder}: {files} files, {most} are allowed: {}\n", circle.imports)
        }));
    }
    assert!(findings.is_empty(), "files that import each other:\n{}", findings.concat());
}

/// Returns the names of the folders with crates.
fn crates() -> impl Iterator<Item = String> {
    let folders = fs::read_dir(root().join("crates")).unwrap();
    folders.map(|entry| entry.unwrap().file_name().display().to_string())
}

#[test]
fn public_items_are_used() {
    let sources = texts("rs");
    let mut words = unused::Words::default();
    sources.iter().for_each(|(_, text)| words.add(text));
    let mut findings = Vec::new();
    for (path, text) in sources.iter().filter(|(path, _)| is_in_src(path)) {
        findings.extend(words.unused_items(text).into_iter().map(|(line, name)| Finding {
            path: path.clone(),
            line,
            message: format!("nothing names {name}: remove it, or show its use in an example"),
        }));
    }
    assert_none(&findings);
}

/// How often each crate forces inlining, at most. The compiler's own choice is the rule: an
/// attribute needs a measurement that shows what it gains.
const FORCED_INLINES: [(&str, usize); 8] = [
    ("evermap", 4),
    ("evermap-index", 273),
    ("evermap-lab", 89),
    ("evermap-lab-core", 15),
    ("evermap-lab-indexes", 29),
    ("evermap-papers", 412),
    ("evermap-pm", 94),
    ("evermap-volatile", 58),
];

#[test]
fn inlining_is_forced_only_as_often_as_the_budget_says() {
    let attribute = format!("#[inline({})]", "always");
    let mut counts = std::collections::BTreeMap::<String, usize>::new();
    for (path, text) in texts("rs").iter().filter(|(path, _)| is_in_src(path)) {
        let of = path.iter().nth(1).expect("below crates/").display().to_string();
        *counts.entry(of).or_default() += text.matches(&attribute).count();
    }
    for (name, count) in counts {
        let budget = FORCED_INLINES.iter().find(|(of, _)| *of == name).map_or(0, |(_, most)| *most);
        assert!(count <= budget, "{name} forces inlining {count} times, {budget} are allowed");
    }
}

/// The most words that a document may have. What is longer is two documents.
const WORDS_MAX: usize = 5000;

#[test]
fn documents_are_not_too_long() {
    let long = |(path, text): (PathBuf, String)| {
        let words = text.split_whitespace().count();
        let message = format!("{words} words, {WORDS_MAX} are allowed: divide it");
        (words > WORDS_MAX).then_some(Finding { path, line: 1, message })
    };
    assert_none(&texts("md").into_iter().filter_map(long).collect::<Vec<_>>());
}

#[test]
fn crates_that_are_published_can_be() {
    let manifest = |name: &str| read(&root().join("crates").join(name).join("Cargo.toml"));
    let own = Vec::from_iter(crates());
    let mut told = String::new();
    for name in own.iter().filter(|name| manifests::is_published(&manifest(name))) {
        let text = manifest(name);
        for problem in manifests::problems(&text) {
            writeln!(told, "{name} {problem}").unwrap();
        }
        for file in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            if !root().join("crates").join(name).join(file).exists() {
                writeln!(told, "{name} has no {file}").unwrap();
            }
        }
        for needed in manifests::dependencies(&text) {
            if own.iter().any(|own| own == needed) && !manifests::is_published(&manifest(needed)) {
                writeln!(told, "{name} needs {needed}, which is not published").unwrap();
            }
        }
    }
    assert!(told.is_empty(), "crates that a registry would refuse:\n{told}");
}

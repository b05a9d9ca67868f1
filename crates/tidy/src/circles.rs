//! Modules of one crate that import each other.
//!
//! The unit is a top-level module: a file or a folder below `src`. Within a folder, files are one
//! subject and may know each other, unless a crate is checked [by files](of_files). Code for tests,
//! and imports behind a `cfg`, are not counted.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::Path;

use crate::{files, imports, source};

/// For each module, the modules that it imports, with the file that does.
type Imports = BTreeMap<String, BTreeMap<String, String>>;

/// A set of modules of which each imports each, perhaps through others.
#[derive(Debug, PartialEq, Eq)]
pub struct Circle {
    /// Their names, sorted.
    pub modules: Vec<String>,
    /// Which imports which, and in which file.
    pub imports: String,
}

/// Returns the circles between the top-level modules of the crate at `src`.
///
/// # Errors
///
/// Returns the first error of the file system.
pub fn of_crate(src: &Path) -> io::Result<Vec<Circle>> {
    Ok(circles(&imports(&texts(src)?)))
}

/// Returns the circles between the files of the crate at `src`.
///
/// # Errors
///
/// Returns the first error of the file system.
pub fn of_files(src: &Path) -> io::Result<Vec<Circle>> {
    let texts = texts(src)?;
    let tests = all_test_files(&texts);
    let code = |(file, text): &(String, String)| (file.clone(), production(text));
    let texts: Vec<_> = texts.iter().filter(|(file, _)| !is_test(file, &tests)).map(code).collect();
    Ok(circles(&imports::of_files(&texts)))
}

/// Returns the files below `src`, with what they hold.
fn texts(src: &Path) -> io::Result<Vec<(String, String)>> {
    let mut texts = Vec::new();
    for path in files(src, "rs")? {
        let name = path.strip_prefix(src).unwrap_or(&path).display().to_string();
        texts.push((name, fs::read_to_string(&path)?));
    }
    Ok(texts)
}

fn all_test_files(texts: &[(String, String)]) -> BTreeSet<String> {
    texts.iter().flat_map(|(file, text)| test_files(file, text)).collect()
}

/// Returns what the modules import. `texts` are the names of files below `src`, and what they hold.
fn imports(texts: &[(String, String)]) -> Imports {
    let modules: BTreeSet<&str> = texts.iter().filter_map(|(file, _)| module_of(file)).collect();
    let root = texts.iter().find(|(file, _)| file == "lib.rs");
    let exported = root.map(|(_, text)| exports(text)).unwrap_or_default();
    let tests = all_test_files(texts);

    let mut imports = Imports::new();
    for (file, text) in texts {
        let Some(module) = module_of(file).filter(|_| !is_test(file, &tests)) else { continue };
        for name in names_at_root(&production(text), depth_of(file)) {
            let name = exported.get(&name).unwrap_or(&name);
            if name != module && modules.contains(name.as_str()) {
                let from = imports.entry(module.to_owned()).or_default();
                from.entry(name.clone()).or_insert_with(|| file.clone());
            }
        }
    }
    imports
}

/// Returns the top-level module that a file belongs to, if any.
fn module_of(file: &str) -> Option<&str> {
    let first = file.split('/').next()?;
    let name = first.strip_suffix(".rs").unwrap_or(first);
    (!matches!(name, "lib" | "main" | "bin")).then_some(name)
}

/// Returns how many times `super::` leads from a file's module to the root.
fn depth_of(file: &str) -> usize {
    file.split('/').count() - usize::from(file.ends_with("/mod.rs"))
}

/// Returns the files of the modules that this file declares for tests only.
fn test_files(file: &str, text: &str) -> Vec<String> {
    let folder = match file.strip_suffix("/mod.rs") {
        Some(folder) => format!("{folder}/"),
        None if matches!(file, "lib.rs" | "main.rs") => String::new(),
        None => format!("{}/", file.trim_end_matches(".rs")),
    };
    let lines: Vec<&str> = text.lines().map(str::trim).collect();
    let for_tests = |cfg: &str| ["test", "\"sim\""].iter().any(|what| cfg.contains(what));
    let is_declared = |cfg: &str| cfg.starts_with("#[cfg(") && for_tests(cfg);
    let declared = lines.windows(2).filter(|pair| is_declared(pair[0]));
    let names = declared.filter_map(|pair| {
        pair[1].trim_start_matches("pub ").strip_prefix("mod ")?.strip_suffix(';')
    });
    names
        .flat_map(|name| [format!("{folder}{name}.rs"), format!("{folder}{name}/mod.rs")])
        .collect()
}

/// Returns `true` if a file is one of `tests`, or part of a module that is.
fn is_test(file: &str, tests: &BTreeSet<String>) -> bool {
    let folders = tests.iter().filter_map(|test| test.strip_suffix("mod.rs"));
    tests.contains(file) || folders.into_iter().any(|folder| file.starts_with(folder))
}

/// Returns the code of a file up to its test module, without what follows a `cfg` attribute.
fn production(text: &str) -> String {
    let mut code = String::new();
    let mut behind_cfg = false;
    for line in source::lines(text) {
        let trimmed = line.code.trim();
        if behind_cfg && trimmed.starts_with("mod ") && trimmed.ends_with('{') {
            break;
        }
        if !behind_cfg {
            code.push_str(trimmed);
            code.push(' ');
        }
        // A statement behind a `cfg` ends with its first semicolon or its first line.
        behind_cfg = trimmed.starts_with("#[cfg(") || behind_cfg && trimmed.is_empty();
    }
    code
}

/// Returns the names right below the root of the crate that paths in this code begin with.
fn names_at_root(code: &str, depth: usize) -> BTreeSet<String> {
    let up = "super::".repeat(depth);
    let mut names = BTreeSet::new();
    for prefix in ["crate::", up.as_str()] {
        for (at, _) in code.match_indices(prefix) {
            let before = code[..at].chars().next_back();
            if before.is_some_and(|found| found.is_alphanumeric() || found == '_' || found == ':') {
                continue;
            }
            names.extend(first_names(&code[at + prefix.len()..]));
        }
    }
    names
}

/// Returns the first name of a path, or of each path in a group in braces.
fn first_names(path: &str) -> Vec<String> {
    let Some(group) = path.strip_prefix('{') else { return vec![name_at(path)] };
    let (mut names, mut depth, mut at_start) = (Vec::new(), 0, true);
    for (at, found) in group.char_indices() {
        match found {
            '{' => depth += 1,
            '}' if depth == 0 => break,
            '}' => depth -= 1,
            ',' if depth == 0 => at_start = true,
            ' ' => {}
            _ if at_start => {
                names.push(name_at(&group[at..]));
                at_start = false;
            }
            _ => {}
        }
    }
    names
}

fn name_at(text: &str) -> String {
    text.chars().take_while(|found| found.is_alphanumeric() || *found == '_').collect()
}

/// Returns the module behind each name that `lib.rs` exports.
fn exports(root: &str) -> BTreeMap<String, String> {
    let mut exports = BTreeMap::new();
    for statement in production(root).split(';') {
        let Some((_, path)) = statement.split_once("use ") else { continue };
        let Some((module, names)) = path.split_once("::") else { continue };
        for name in names.split(|found: char| !found.is_alphanumeric() && found != '_') {
            exports.insert(name.to_owned(), module.to_owned());
        }
    }
    exports
}

fn circles(imports: &Imports) -> Vec<Circle> {
    let reach: BTreeMap<&str, BTreeSet<&str>> =
        imports.keys().map(|module| (module.as_str(), reachable(imports, module))).collect();
    let together = |a: &str, b: &str| {
        let reaches =
            |from: &str, to: &str| reach.get(from).is_some_and(|found| found.contains(to));
        reaches(a, b) && reaches(b, a)
    };
    let (mut found, mut seen) = (Vec::new(), BTreeSet::new());
    for &module in reach.keys() {
        let circle: Vec<&str> =
            reach.keys().copied().filter(|other| together(module, other)).collect();
        if !circle.is_empty() && seen.insert(circle.clone()) {
            let modules = circle.iter().map(|&module| module.to_owned()).collect();
            found.push(Circle { modules, imports: describe(imports, &circle) });
        }
    }
    found
}

fn reachable<'a>(imports: &'a Imports, module: &str) -> BTreeSet<&'a str> {
    let (mut found, mut open) = (BTreeSet::new(), vec![module.to_owned()]);
    while let Some(module) = open.pop() {
        for name in imports.get(&module).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(name.as_str()) {
                open.push(name.clone());
            }
        }
    }
    found
}

fn describe(imports: &Imports, circle: &[&str]) -> String {
    let mut edges = Vec::new();
    for &module in circle {
        for (other, file) in &imports[module] {
            if circle.contains(&other.as_str()) {
                edges.push(format!("{module} -> {other} ({file})"));
            }
        }
    }
    edges.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(files: &[(&str, &str)]) -> Vec<Circle> {
        let own = |(file, text): &(&str, &str)| ((*file).to_owned(), (*text).to_owned());
        circles(&imports(&files.iter().map(own).collect::<Vec<_>>()))
    }

    #[test]
    fn modules_that_import_each_other_are_found() {
        let circle = found(&[("a.rs", "use crate::b::B;"), ("b/mod.rs", "use super::a::A;")]);
        let imports = "a -> b (a.rs), b -> a (b/mod.rs)".to_owned();
        assert_eq!(circle, [Circle { modules: vec!["a".into(), "b".into()], imports }]);
    }

    #[test]
    fn one_direction_is_no_circle() {
        let files =
            [("a.rs", "use crate::{b::{B, c}, d};"), ("b.rs", "use crate::d;"), ("d.rs", "")];
        assert!(found(&files).is_empty());
    }

    #[test]
    fn a_circle_may_lead_through_others_and_through_exports() {
        let root = "mod a; mod b;\npub use c::{C, D};";
        let files = [
            ("lib.rs", root),
            ("a.rs", "use crate::{\n    b,\n};"),
            ("b.rs", "fn f() { crate::C::new() }"),
            ("c/mod.rs", ""),
            ("c/deep.rs", "use super::super::a::A;"),
        ];
        assert_eq!(found(&files).len(), 1);
    }

    #[test]
    fn tests_and_features_may_look_back() {
        let a = "use crate::b;\n#[cfg(test)]\nmod tests;";
        let b = "#[cfg(feature = \"x\")]\nuse crate::a;\nfn f() {}\n\
                 #[cfg(test)]\nmod tests {\n use crate::a;\n}";
        assert!(found(&[("a.rs", a), ("a/tests.rs", "use crate::b;"), ("b.rs", b)]).is_empty());
        let tests = [("a/tests/mod.rs", "mod deep;"), ("a/tests/deep.rs", "use crate::b;")];
        assert!(found(&[[("a.rs", a), ("b.rs", b)], tests].concat()).is_empty());
        let kit = [("a.rs", "#[cfg(feature = \"testkit\")]\npub mod kit;"), ("a/kit.rs", "")];
        assert_eq!(test_files(kit[0].0, kit[0].1), ["a/kit.rs", "a/kit/mod.rs"]);
        // What a feature adds is code like any other.
        assert!(test_files("lib.rs", "#[cfg(feature = \"level\")]\npub mod level;").is_empty());
    }
}

//! Which files of a crate import from which, as far as `use` declarations and paths from `crate`,
//! `super` and `self` tell. A name that a module exports for another one leads to the file that has
//! it.

use std::collections::{BTreeMap, BTreeSet};

/// The path of a module or an item from the root of the crate.
type Path = Vec<String>;

/// The modules of a crate, by their paths.
#[derive(Default)]
struct Crate(BTreeMap<Path, Module>);

#[derive(Default)]
struct Module {
    file: String,
    /// Where the names that it imports come from; `None`: from another crate.
    names: BTreeMap<String, Option<Path>>,
    /// What it uses.
    uses: BTreeSet<Path>,
}

/// Returns for each file the files that it imports from, each with the path of an item there.
///
/// `texts` are the names of files below `src`, and their code without that of tests.
pub(crate) fn of_files(texts: &[(String, String)]) -> BTreeMap<String, BTreeMap<String, String>> {
    let mut modules = Crate::default();
    for (file, _) in texts {
        let module = Module { file: file.clone(), ..Module::default() };
        modules.0.insert(path_of(file), module);
    }
    for (file, code) in texts {
        modules.read(&path_of(file), code);
    }
    let mut imports = BTreeMap::new();
    for module in modules.0.values() {
        let from: &mut BTreeMap<_, _> = imports.entry(module.file.clone()).or_default();
        for path in &module.uses {
            match modules.file_of(path, 8) {
                Some(file) if file != module.file => {
                    from.entry(file.to_owned()).or_insert_with(|| path.join("::"));
                }
                _ => {}
            }
        }
    }
    imports
}

/// Returns the path of the module in a file.
fn path_of(file: &str) -> Path {
    let name = file.trim_end_matches(".rs");
    let name = name.strip_suffix("/mod").unwrap_or(name);
    match name {
        "lib" | "main" | "mod" => Path::new(),
        _ => name.split('/').map(str::to_owned).collect(),
    }
}

impl Crate {
    /// Notes what the module at `path` imports and uses.
    fn read(&mut self, path: &Path, code: &str) {
        let (mut names, mut uses) = (BTreeMap::new(), BTreeSet::new());
        let (declarations, body) = split(code);
        let words: BTreeSet<&str> = body.split(|found| !is_of_name(found)).collect();
        for (declaration, exports) in declarations {
            for (imported, name) in expand(declaration) {
                let target = self.absolute(path, &imported);
                // Who only passes a name on does not use it.
                if let Some(target) = &target
                    && (!exports || words.contains(name.as_str()))
                {
                    uses.insert(target.clone());
                }
                names.insert(name, target);
            }
        }
        for (at, _) in body.match_indices("::") {
            let begin = body[..at].rfind(|found| !is_of_name(found)).map_or(0, |before| before + 1);
            if body[..begin].ends_with("::") || body[..begin].ends_with('$') {
                continue;
            }
            let rest = &body[begin..];
            let end = rest.find(|found| !is_of_name(found) && found != ':').unwrap_or(rest.len());
            let segments: Path = rest[..end]
                .split("::")
                .filter(|word| !word.is_empty())
                .map(str::to_owned)
                .collect();
            uses.extend(self.absolute(path, &segments));
        }
        if let Some(module) = self.0.get_mut(path) {
            (module.names, module.uses) = (names, uses);
        }
    }

    /// Returns a path that a module writes, from the root of the crate; `None` if it leads to
    /// another crate, or begins with a name of the module itself.
    fn absolute(&self, module: &Path, path: &[String]) -> Option<Path> {
        let (first, rest) = path.split_first()?;
        let mut from = module.clone();
        let mut rest = rest;
        match first.as_str() {
            "crate" => from.clear(),
            "self" => {}
            "super" => {
                from.pop()?;
                while let Some(("super", after)) = rest.split_first().map(|(a, b)| (a.as_str(), b))
                {
                    from.pop()?;
                    rest = after;
                }
            }
            name => {
                from.push(name.to_owned());
                self.0.get(&from)?;
            }
        }
        from.extend(rest.iter().cloned());
        Some(from)
    }

    /// Returns the file of an item, following at most `steps` exports.
    fn file_of(&self, path: &[String], steps: usize) -> Option<&str> {
        let depth = (0..=path.len()).rev().find(|&depth| self.0.contains_key(&path[..depth]))?;
        let module = &self.0[&path[..depth]];
        let exported = path.get(depth).and_then(|name| module.names.get(name));
        match exported {
            Some(target) if steps > 0 => {
                let target = [target.as_ref()?, &path[depth + 1..]].concat();
                self.file_of(&target, steps - 1)
            }
            _ => Some(&module.file),
        }
    }
}

fn is_of_name(found: char) -> bool {
    found.is_alphanumeric() || found == '_'
}

/// Splits code into the trees of its `use` declarations, each with whether it exports the names,
/// and the rest.
fn split(code: &str) -> (Vec<(&str, bool)>, String) {
    let (mut declarations, mut body, mut rest) = (Vec::new(), String::new(), code);
    while let Some(at) = rest.find("use ") {
        let before = &rest[..at];
        let begins = before.chars().next_back().is_none_or(|found| !is_of_name(found));
        let Some(end) = rest[at..].find(';').filter(|_| begins) else {
            body.push_str(&rest[..at + 4]);
            rest = &rest[at + 4..];
            continue;
        };
        let exports = before.trim_end().rsplit(['}', ';', '{']).next();
        declarations.push((&rest[at + 4..at + end], exports.is_some_and(|it| it.contains("pub"))));
        body.push_str(before);
        rest = &rest[at + end..];
    }
    body.push_str(rest);
    (declarations, body)
}

/// Returns each path in the tree of a `use` declaration, with the name that it gets.
fn expand(tree: &str) -> Vec<(Path, String)> {
    let tree = tree.trim();
    let Some((prefix, group)) = tree.split_once('{') else {
        let (path, alias) = tree.split_once(" as ").map_or((tree, None), |(a, b)| (a, Some(b)));
        let mut path: Path = path.split("::").map(|name| name.trim().to_owned()).collect();
        let last = path.last().cloned().unwrap_or_default();
        if last == "self" || last == "*" {
            path.pop();
        }
        let name = path.last().cloned().filter(|_| last == "self").unwrap_or(last);
        return vec![(path, alias.map_or(name, |alias| alias.trim().to_owned()))];
    };
    let group = group.strip_suffix('}').unwrap_or(group);
    let (mut found, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, character) in group.char_indices().chain([(group.len(), ',')]) {
        match character {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let part = group[start..at].trim();
                if !part.is_empty() {
                    found.extend(expand(&format!("{prefix}{part}")));
                }
                start = at + 1;
            }
            _ => {}
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn imports(files: &[(&str, &str)], of: &str) -> Vec<(String, String)> {
        let own = |(file, text): &(&str, &str)| ((*file).to_owned(), (*text).to_owned());
        let texts: Vec<_> = files.iter().map(own).collect();
        of_files(&texts).remove(of).unwrap().into_iter().collect()
    }

    #[test]
    fn paths_lead_to_the_file_that_has_the_name() {
        let files = [
            ("lib.rs", "mod a; mod b; pub use b::deep::Deep;"),
            ("a.rs", "use crate::{Deep, b::{self, Facade as F}}; use std::fmt; fn f() {}"),
            ("b/mod.rs", "mod deep; mod facade; pub use facade::Facade; use deep::Deep;"),
            ("b/deep.rs", "fn f() { super::super::a::f(); super::g() }"),
            ("b/facade.rs", "use super::Deep; pub(super) struct Facade;"),
        ];
        let of = |file| imports(&files, file).into_iter().map(|(to, _)| to).collect::<Vec<_>>();
        assert_eq!(of("a.rs"), ["b/deep.rs", "b/facade.rs", "b/mod.rs"]);
        assert_eq!(of("b/mod.rs"), ["b/deep.rs"], "a name that is only passed on");
        assert_eq!(of("b/deep.rs"), ["a.rs", "b/mod.rs"]);
        assert_eq!(of("b/facade.rs"), ["b/deep.rs"]);
        assert!(of("lib.rs").is_empty());
    }

    #[test]
    fn trees_of_use_declarations() {
        let path = |text: &str| text.split("::").map(str::to_owned).collect::<Path>();
        let found = expand("crate::{a::{self, B, c::*}, d as e}");
        let names = found.iter().map(|(_, name)| name.as_str()).collect::<Vec<_>>();
        assert_eq!(names, ["a", "B", "*", "e"]);
        let paths = found.into_iter().map(|(path, _)| path).collect::<Vec<_>>();
        assert_eq!(paths, ["crate::a", "crate::a::B", "crate::a::c", "crate::d"].map(path));
    }
}

//! Public items that nothing uses.
//!
//! The compiler reports unused items only if they are private: whatever is public could be used by
//! another crate. Here all crates are known.

use std::collections::HashMap;

use crate::source;

/// How often each word stands in the code of a tree, examples in documentation included.
#[derive(Default)]
pub struct Words(HashMap<String, usize>);

impl Words {
    /// Counts the words of a file.
    pub fn add(&mut self, text: &str) {
        let mut in_example = false;
        for line in source::lines(text) {
            self.add_words(&line.code);
            if line.comment.starts_with("```") {
                in_example = !in_example;
            } else if in_example {
                self.add_words(&line.comment);
            }
        }
    }

    fn add_words(&mut self, code: &str) {
        let words = code.split(|c: char| !is_of_word(c)).filter(|word| !word.is_empty());
        words.for_each(|word| *self.0.entry(word.to_owned()).or_default() += 1);
    }

    /// Returns the line and the name of each public item of a file that is named nowhere but where
    /// it is defined. Items whose names are common words can be missed.
    pub fn unused_items(&self, text: &str) -> Vec<(usize, String)> {
        let named = |(at, line): (usize, source::Line)| {
            let name = public_item(&line.code)?;
            (self.0.get(name) == Some(&1)).then(|| (at + 1, name.to_owned()))
        };
        source::lines(text).into_iter().enumerate().filter_map(named).collect()
    }
}

fn is_of_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Returns the name of the item that a line makes public, if it is one that has a name of its own.
fn public_item(code: &str) -> Option<&str> {
    let mut words = code.trim_start().strip_prefix("pub ")?.split_whitespace();
    let kinds = ["fn", "struct", "enum", "trait", "type", "static", "union"];
    let name = loop {
        match words.next()? {
            // Of a constant, or of a function that is also constant.
            "const" => match words.next()? {
                "fn" => break words.next()?,
                "unsafe" => {}
                name => break name,
            },
            kind if kinds.contains(&kind) => break words.next()?,
            "unsafe" | "async" | "extern" => {}
            _ => return None,
        }
    };
    name.split(|c: char| !is_of_word(c)).next().filter(|name| !name.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn items_are_found_by_their_names() {
        for (code, name) in [
            ("    pub fn used<T>(x: T) {", Some("used")),
            ("pub const fn at(x: u8) -> u8 {", Some("at")),
            ("pub const MAX: u64 = 1;", Some("MAX")),
            ("pub unsafe fn raw() {}", Some("raw")),
            ("pub struct Pair<A, B>(A, B);", Some("Pair")),
            ("pub use other::Thing;", None),
            ("pub mod inner;", None),
            ("pub(crate) fn within() {}", None),
            ("fn private() {}", None),
        ] {
            assert_eq!(public_item(code), name, "{code}");
        }
    }

    #[test]
    fn only_what_is_named_elsewhere_is_used() {
        let one = "pub fn called() {}\npub fn left() {}\n/// ```\n/// shown();\n/// ```\n\
                   pub fn shown() {}\n// left\n";
        let mut words = Words::default();
        words.add(one);
        words.add("fn main() { called(); let text = \"left\"; }");
        assert_eq!(words.unused_items(one), [(2, "left".to_owned())]);
    }
}

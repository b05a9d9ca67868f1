//! Rust source, taken apart as far as the checks need it.

/// The parts of a line of Rust source.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Line {
    /// The code, without comments; string literals are left out.
    pub code: String,
    /// The text of the comment, without its marks.
    pub comment: String,
    /// The text of string literals.
    pub literals: String,
}

/// What the scanner is inside of, at the beginning of a line.
#[derive(Clone, Copy)]
enum Inside {
    Code,
    /// `/* ... */`, which may be nested this deep.
    Comment(u32),
    /// A string literal.
    Text,
    /// A raw string literal with this number of `#`.
    Raw(usize),
}

/// Splits source into lines and each line into code, comment and string literals.
///
/// Knows comments, nested block comments, strings, raw strings and characters: no macros, and no
/// tokens beyond these.
pub fn lines(text: &str) -> Vec<Line> {
    let mut inside = Inside::Code;
    text.lines().map(|line| split(line, &mut inside)).collect()
}

fn split(line: &str, inside: &mut Inside) -> Line {
    let mut parts = Line::default();
    let chars: Vec<char> = line.chars().collect();
    let starts = |at: usize, what: &str| {
        what.chars().enumerate().all(|(offset, wanted)| chars.get(at + offset) == Some(&wanted))
    };
    let mut at = 0;
    while at < chars.len() {
        match *inside {
            Inside::Comment(depth) if starts(at, "*/") => {
                *inside = if depth == 1 { Inside::Code } else { Inside::Comment(depth - 1) };
                at += 2;
            }
            Inside::Comment(depth) if starts(at, "/*") => {
                *inside = Inside::Comment(depth + 1);
                at += 2;
            }
            Inside::Comment(_) => {
                parts.comment.push(chars[at]);
                at += 1;
            }
            Inside::Text if chars[at] == '\\' => at += 2,
            Inside::Text if chars[at] == '"' => {
                *inside = Inside::Code;
                at += 1;
            }
            Inside::Raw(hashes) if starts(at, &format!("\"{}", "#".repeat(hashes))) => {
                *inside = Inside::Code;
                at += 1 + hashes;
            }
            Inside::Text | Inside::Raw(_) => {
                parts.literals.push(chars[at]);
                at += 1;
            }
            Inside::Code if starts(at, "//") => {
                let comment: String = chars[at..].iter().collect();
                parts.comment.push_str(comment.trim_start_matches(['/', '!']).trim());
                break;
            }
            Inside::Code if starts(at, "/*") => {
                *inside = Inside::Comment(1);
                at += 2;
            }
            Inside::Code if chars[at] == '"' => {
                *inside = Inside::Text;
                at += 1;
            }
            Inside::Code if raw_hashes(&chars[at..]).is_some() => {
                let hashes = raw_hashes(&chars[at..]).unwrap_or(0);
                *inside = Inside::Raw(hashes);
                at += 2 + hashes;
            }
            // A character, not a lifetime: the closing quote is one or two characters away.
            Inside::Code if chars[at] == '\'' && chars.get(at + 1) == Some(&'\\') => {
                let rest = chars[at + 2..].iter().skip(1).position(|&found| found == '\'');
                at += rest.map_or(1, |offset| offset + 4);
            }
            Inside::Code if chars[at] == '\'' && chars.get(at + 2) == Some(&'\'') => at += 3,
            Inside::Code => {
                parts.code.push(chars[at]);
                at += 1;
            }
        }
    }
    parts
}

/// Returns the number of `#` if a raw string literal begins here.
fn raw_hashes(chars: &[char]) -> Option<usize> {
    let rest = chars.strip_prefix(&['r'])?;
    let hashes = rest.iter().take_while(|&&found| found == '#').count();
    (rest.get(hashes) == Some(&'"')).then_some(hashes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn only(text: &str) -> Line {
        lines(text).remove(0)
    }

    #[test]
    fn comments_and_code_are_apart() {
        let line = only("let a = 1; // why\n");
        assert_eq!((line.code.as_str(), line.comment.as_str()), ("let a = 1; ", "why"));
        assert_eq!(only("//! page").comment, "page");
        assert_eq!(only("a /* b /* c */ d */ e").code, "a  e");
    }

    #[test]
    fn strings_are_no_comments() {
        let line = only(r#"let a = "x // y \" z"; b"#);
        assert_eq!(line.comment, "");
        assert_eq!(line.code, "let a = ; b");
        assert_eq!(line.literals, "x // y  z");
        assert_eq!(only("let a = r#\"// \" \"#; b").code, "let a = ; b");
    }

    #[test]
    fn characters_are_no_strings() {
        assert_eq!(only("match c { '\"' => 1, '\\'' => 2, '\\\\' => 3, }").literals, "");
        assert_eq!(only("fn a<'a>(b: &'a str) // c").comment, "c");
    }

    #[test]
    fn what_begins_on_one_line_goes_on_in_the_next() {
        let lines = lines("a /* b\nc */ d \"e\nf\" g");
        assert_eq!(lines[1].comment, "c ");
        assert_eq!(lines[2].literals, "f");
        assert_eq!(lines[2].code, " g");
    }
}

//! The width of lines.
//!
//! `rustfmt` wraps code, but neither comments nor string literals.

/// Returns the numbers of the lines, from 1, that have more than `max` characters.
///
/// A line that consists of one word apart from its comment marks cannot be wrapped and is skipped:
/// addresses and link targets.
pub fn too_long(text: &str, max: usize) -> impl Iterator<Item = usize> {
    let refused = move |line: &str| {
        let words = line.split_whitespace().filter(|word| !matches!(*word, "//" | "///" | "//!"));
        line.chars().count() > max && words.count() > 1
    };
    text.lines().enumerate().filter(move |(_, line)| refused(line)).map(|(index, _)| index + 1)
}

/// Returns the value of `max_width` in the text of a `rustfmt.toml`.
pub fn max_width(settings: &str) -> Option<usize> {
    let value = settings.lines().find_map(|line| line.strip_prefix("max_width"))?;
    value.trim_start_matches([' ', '=']).trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_beyond_the_width_are_refused() {
        let text = "// four\n// 10 chars\n// 11 charss\n";
        assert_eq!(too_long(text, 11).collect::<Vec<_>>(), [3]);
        assert_eq!(too_long(text, 100).count(), 0);
    }

    #[test]
    fn characters_count_and_not_bytes() {
        assert_eq!(too_long("// ääää ää", 10).count(), 0);
    }

    #[test]
    fn a_single_word_may_be_longer() {
        assert_eq!(too_long("/// https://example.org/very/long\n", 10).count(), 0);
        assert_eq!(too_long("/// see https://example.org/very/long\n", 10).count(), 1);
    }

    #[test]
    fn the_width_is_that_of_rustfmt() {
        assert_eq!(max_width("edition = 1\nmax_width = 90\n"), Some(90));
        assert_eq!(max_width("edition = 1\n"), None);
    }
}

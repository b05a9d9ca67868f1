//! Words of comments and documents.
//!
//! The project writes the plain English of the standard library's documentation, and the terms of
//! its field. Each entry of [`REFUSED`] was once used here for something that has a usual name.

/// A phrase, in lower case, and what to write instead.
///
/// A phrase matches whole words, whatever their case and whatever white space is between them.
pub const REFUSED: &[(&str, &str)] = &[
    ("whoever", "\"the caller\", \"a reader\", \"the thread that\""),
    ("whosoever", "\"any thread that\""),
    ("somebody", "\"another thread\", \"the caller\""),
    ("somebody's", "\"another thread's\""),
    ("so many", "\"the number of\", \"up to N\""),
    ("lest", "\"so that ... not\""),
    ("whence", "\"from which\""),
    ("hither", "\"here\""),
    ("thither", "\"there\""),
    ("for then", "\"because\""),
    ("be rid of", "\"remove\", \"drop\""),
    ("get rid of", "\"remove\""),
    ("in vain", "\"without effect\""),
    ("ask after", "\"ask for\""),
    ("asks after", "\"asks for\""),
    ("see off", "\"wait for\""),
    ("seen off", "\"waited for\""),
    ("a stranger", "\"an unrelated ...\""),
    ("mended", "\"repaired\", \"fixed\""),
    ("mends", "\"repairs\""),
    ("mend", "\"repair\", \"fix\""),
    ("aught", "\"anything\""),
    ("naught", "\"nothing\""),
];

/// Returns the refused phrases that occur in `text`, with what to write instead.
pub fn refused(text: &str) -> impl Iterator<Item = (&'static str, &'static str)> {
    let words = words_of(text);
    REFUSED.iter().copied().filter(move |(phrase, _)| {
        let phrase: Vec<&str> = phrase.split(' ').collect();
        words.windows(phrase.len()).any(|window| window == phrase)
    })
}

/// Returns the words of a text in lower case, without what surrounds them.
fn words_of(text: &str) -> Vec<String> {
    let inner = |found: char| found.is_alphanumeric() || found == '\'' || found == '_';
    let words = text.split(|found| !inner(found)).filter(|word| !word.is_empty());
    words.map(str::to_lowercase).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn phrases(text: &str) -> Vec<&'static str> {
        refused(text).map(|(phrase, _)| phrase).collect()
    }

    #[test]
    fn whole_words_are_refused_in_any_case() {
        assert_eq!(phrases("Whoever reads this."), ["whoever"]);
        assert_eq!(phrases("The number of keys, so  many."), ["so many"]);
        assert!(phrases("amended, recommend, and at least").is_empty());
    }

    #[test]
    fn names_in_code_are_no_words() {
        assert!(phrases("`mend_all`").is_empty());
    }

    #[test]
    fn phrases_are_in_lower_case() {
        for (phrase, _) in REFUSED {
            assert_eq!(words_of(phrase).join(" "), *phrase);
        }
    }
}

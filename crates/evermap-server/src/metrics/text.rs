//! The text format of Prometheus.

use std::fmt::{Display, Write};

/// The media type of the format.
pub(super) const MEDIA_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// What a metric counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Type {
    /// A number that only grows, until the server restarts.
    Counter,
    /// A number that grows and shrinks.
    Gauge,
    /// Counters of durations below some limits, their sum and their number.
    Histogram,
}

/// A text under construction.
#[derive(Default)]
pub(super) struct Text(String);

impl Text {
    /// Begins a family: its samples must follow directly.
    pub(super) fn family(&mut self, name: &str, kind: Type, help: &str) -> Family<'_> {
        let kind = match kind {
            Type::Counter => "counter",
            Type::Gauge => "gauge",
            Type::Histogram => "histogram",
        };
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.append(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        Family { text: self, name: name.to_owned() }
    }

    /// Adds a family of one sample without labels.
    pub(super) fn single(&mut self, name: &str, kind: Type, help: &str, value: impl Display) {
        self.family(name, kind, help).sample(&[], value);
    }

    pub(super) fn into_string(self) -> String {
        self.0
    }

    fn append(&mut self, text: std::fmt::Arguments<'_>) {
        self.0.write_fmt(text).expect("writing to a string cannot fail");
    }
}

/// A family of samples of one name.
pub(super) struct Family<'t> {
    text: &'t mut Text,
    name: String,
}

/// The name and value of a label.
pub(super) type Label<'l> = (&'l str, &'l str);

impl Family<'_> {
    /// Adds a sample.
    pub(super) fn sample(&mut self, labels: &[Label<'_>], value: impl Display) {
        self.sample_of("", labels, value);
    }

    /// Adds a sample whose name has a suffix, as those of a histogram.
    pub(super) fn sample_of(&mut self, suffix: &str, labels: &[Label<'_>], value: impl Display) {
        self.text.append(format_args!("{}{suffix}", self.name));
        for (i, (name, value)) in labels.iter().enumerate() {
            let before = if i == 0 { '{' } else { ',' };
            let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            self.text.append(format_args!("{before}{name}=\"{value}\""));
        }
        let end = if labels.is_empty() { "" } else { "}" };
        self.text.append(format_args!("{end} {value}\n"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_labels_and_help_texts_are_escaped() {
        let mut text = Text::default();
        let mut family = text.family("a_total", Type::Counter, "one\ntwo \\ \"three\"");
        family.sample(&[("x", "a\"b\\c\nd"), ("y", "")], 1);
        family.sample(&[], 2.5);
        text.single("b", Type::Gauge, "", 3);
        let expected = "# HELP a_total one\\ntwo \\\\ \"three\"\n# TYPE a_total counter\n\
                        a_total{x=\"a\\\"b\\\\c\\nd\",y=\"\"} 1\na_total 2.5\n\
                        # HELP b \n# TYPE b gauge\nb 3\n";
        assert_eq!(text.into_string(), expected);
    }
}

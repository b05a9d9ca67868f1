//! Reading lines of limited length from input of any length.

use std::io::{self, BufRead, Read};

/// The result of reading a line.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line {
    /// A line, which ended with a line feed or with the input. The buffer contains it without the
    /// line feed.
    Complete,
    /// A line that is too long. It was skipped.
    TooLong,
    /// The end of the input.
    End,
}

/// Splits an input into lines.
pub(crate) struct Lines<R> {
    input: R,
    /// The maximum length of a line, in bytes.
    max: u64,
    /// The number of lines that were read.
    number: u64,
}

impl<R: BufRead> Lines<R> {
    pub(crate) fn new(input: R, max: u64) -> Self {
        Lines { input, max, number: 0 }
    }

    /// Returns the number of the line that was read last. The first line has number 1.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Returns the input.
    pub(crate) fn input(&self) -> &R {
        &self.input
    }

    /// Reads the next line into `line`, which gets at most one byte more than the maximum length.
    ///
    /// # Errors
    /// The errors of the input.
    pub(crate) fn next(&mut self, line: &mut Vec<u8>) -> io::Result<Line> {
        line.clear();
        let limit = self.max.saturating_add(1);
        if self.input.by_ref().take(limit).read_until(b'\n', line)? == 0 {
            return Ok(Line::End);
        }
        self.number += 1;
        if line.last() == Some(&b'\n') {
            line.pop();
        } else if line.len() as u64 > self.max {
            self.input.skip_until(b'\n')?;
            return Ok(Line::TooLong);
        }
        Ok(Line::Complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_end_at_line_feeds() {
        let input = io::BufReader::with_capacity(3, &b"\nabcd\nabcde\nabcdef\n\xff\nlast"[..]);
        let (mut lines, mut line) = (Lines::new(input, 4), Vec::new());
        for (number, expected) in
            [Some(&b""[..]), Some(b"abcd"), None, None, Some(b"\xff"), Some(b"last")]
                .into_iter()
                .enumerate()
        {
            let next = lines.next(&mut line).unwrap();
            match expected {
                Some(expected) => assert_eq!((next, &line[..]), (Line::Complete, expected)),
                None => assert_eq!(next, Line::TooLong),
            }
            assert_eq!(lines.number(), number as u64 + 1);
        }
        assert_eq!(lines.next(&mut line).unwrap(), Line::End);
        assert_eq!(lines.next(&mut line).unwrap(), Line::End);
    }

    #[test]
    fn the_last_line_can_be_too_long() {
        let (mut lines, mut line) = (Lines::new(&b"abcde"[..], 4), Vec::new());
        assert_eq!(lines.next(&mut line).unwrap(), Line::TooLong);
        assert_eq!(lines.next(&mut line).unwrap(), Line::End);
    }
}

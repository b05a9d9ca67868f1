//! The users and passwords that a server accepts.

use std::fmt::{self, Debug};
use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::sync::{PoisonError, RwLock};

use subtle::{Choice, ConstantTimeEq};

/// The users and passwords of a file, which can be read again while the server runs.
///
/// Each line of the file is `user:password`. The password is everything after the first colon, so
/// it may contain colons and spaces; the user may contain neither spaces nor colons. Empty lines
/// and lines that begin with `#` are ignored. A user can have several passwords, one on each line,
/// so that passwords can be replaced while clients still use the old ones.
///
/// memcached reads the same files, but only the first eight lines of them, and knows no comments.
///
/// No part of a line is ever in a message about it.
pub struct Credentials {
    path: Option<PathBuf>,
    entries: RwLock<Vec<Entry>>,
}

/// One line.
struct Entry {
    user: Box<[u8]>,
    password: Box<[u8]>,
}

/// The reason why a file of credentials cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {problem}", path.display())]
pub struct CredentialsError {
    path: PathBuf,
    problem: Problem,
}

/// What is wrong with the content of a file.
#[derive(Debug, thiserror::Error)]
enum Problem {
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("line {line}: {what}")]
    Line { line: usize, what: &'static str },
    #[error("the file has no line with a user and a password")]
    NoEntry,
    #[error("the file has more than {FILE_MAX} bytes")]
    TooLarge,
}

/// The maximum size of a file, in bytes. It is not meant for a large number of users: each check
/// looks at every line.
const FILE_MAX: usize = 64 << 10;
/// The maximum length of a user and of a password, in bytes.
const WORD_MAX: usize = 255;

impl Credentials {
    /// Reads the file at `path`.
    ///
    /// # Errors
    ///
    /// If the file cannot be read, or has a line without a user and a password, or no line at all.
    /// The error names the file and the number of the line.
    pub fn load(path: impl Into<PathBuf>) -> Result<Self, CredentialsError> {
        let path = path.into();
        let entries = read(&path).map_err(|problem| CredentialsError::new(&path, problem))?;
        Ok(Credentials { path: Some(path), entries: RwLock::new(entries) })
    }

    /// Creates credentials from the content of a file, without a file.
    ///
    /// # Errors
    ///
    /// As [`load`](Credentials::load).
    pub fn from_text(text: &[u8]) -> Result<Self, CredentialsError> {
        let entries =
            parse(text).map_err(|problem| CredentialsError::new(Path::new("text"), problem))?;
        Ok(Credentials { path: None, entries: RwLock::new(entries) })
    }

    /// Reads the file again. Later checks use its new content; clients that have authenticated
    /// before are not affected. Without a file, nothing happens.
    ///
    /// # Errors
    ///
    /// As [`load`](Credentials::load). The credentials are unchanged in that case.
    pub fn reload(&self) -> Result<(), CredentialsError> {
        let Some(path) = &self.path else { return Ok(()) };
        let entries = read(path).map_err(|problem| CredentialsError::new(path, problem))?;
        // The old entries are dropped without the lock.
        let old = {
            let mut current = self.entries.write().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *current, entries)
        };
        drop(old);
        Ok(())
    }

    /// Returns `true` if the file has a line with this user and password.
    ///
    /// Compares with every line, and the bytes of users and passwords in constant time, so that the
    /// time that a client measures depends on the lengths only. O(n) in the number of lines.
    pub fn verify(&self, user: &[u8], password: &[u8]) -> bool {
        let entries = self.entries.read().unwrap_or_else(PoisonError::into_inner);
        let none = Choice::from(0);
        let found = entries.iter().fold(none, |found, entry| {
            found | entry.user.ct_eq(user) & entry.password.ct_eq(password)
        });
        found.into()
    }

    /// Returns the file, if there is one.
    pub fn path(&self) -> Option<&Path> {
        self.path.as_deref()
    }

    /// Returns the number of lines with a user and a password.
    pub fn lines(&self) -> usize {
        self.entries.read().unwrap_or_else(PoisonError::into_inner).len()
    }
}

impl Debug for Credentials {
    /// Shows the file, and no user or password.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Credentials").field("path", &self.path).finish_non_exhaustive()
    }
}

impl CredentialsError {
    fn new(path: &Path, problem: Problem) -> Self {
        CredentialsError { path: path.to_owned(), problem }
    }
}

/// Reads a file, up to the maximum size.
fn read(path: &Path) -> Result<Vec<Entry>, Problem> {
    let mut text = Vec::new();
    File::open(path)?.take(FILE_MAX as u64 + 1).read_to_end(&mut text)?;
    parse(&text)
}

fn parse(text: &[u8]) -> Result<Vec<Entry>, Problem> {
    if text.len() > FILE_MAX {
        return Err(Problem::TooLarge);
    }
    let mut entries = Vec::new();
    for (at, line) in text.split(|&byte| byte == b'\n').enumerate() {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() || line.starts_with(b"#") {
            continue;
        }
        entries.push(entry(line).map_err(|what| Problem::Line { line: at + 1, what })?);
    }
    if entries.is_empty() { Err(Problem::NoEntry) } else { Ok(entries) }
}

/// Parses one line. Fails with a description that contains no part of the line.
fn entry(line: &[u8]) -> Result<Entry, &'static str> {
    let colon = line.iter().position(|&byte| byte == b':');
    let (user, password) = match colon {
        Some(at) => (&line[..at], &line[at + 1..]),
        None => return Err("there is no colon between a user and a password"),
    };
    match (user.len(), password.len()) {
        (0, _) => Err("the user is empty"),
        (_, 0) => Err("the password is empty"),
        (1..=WORD_MAX, 1..=WORD_MAX) => match () {
            // Neither protocol could send it.
            () if line.contains(&0) => Err("the line contains a zero byte"),
            () if user.contains(&b' ') => Err("the user contains a space"),
            () => Ok(Entry { user: user.into(), password: password.into() }),
        },
        _ => Err("the user or the password has more than 255 bytes"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(text: &str) -> Credentials {
        Credentials::from_text(text.as_bytes()).unwrap()
    }

    #[test]
    fn only_the_passwords_of_a_user_are_accepted() {
        let known = credentials("# staff\nann:one\r\n\nbob:t:w o\nann:three");
        for (user, password, verified) in [
            ("ann", "one", true),
            ("ann", "three", true),
            ("bob", "t:w o", true),
            ("bob", "t", false),
            ("bob", "one", false),
            ("ann", "t:w o", false),
            ("ann", "", false),
            ("ann", "on", false),
            ("ann", "one\r", false),
            ("an", "one", false),
            ("Ann", "one", false),
            ("", "", false),
            ("# staff", "", false),
        ] {
            let found = known.verify(user.as_bytes(), password.as_bytes());
            assert_eq!(found, verified, "{user:?} {password:?}");
        }
        assert_eq!(known.lines(), 3);
    }

    #[test]
    fn the_error_names_the_line_and_not_what_is_on_it() {
        let long = "x".repeat(256);
        for (text, error) in [
            ("", "text: the file has no line with a user and a password"),
            ("# secret:secret\n\n", "text: the file has no line with a user and a password"),
            ("a:b\nsecret", "text: line 2: there is no colon between a user and a password"),
            (":secret", "text: line 1: the user is empty"),
            ("secret:", "text: line 1: the password is empty"),
            ("#\nse cret:secret", "text: line 2: the user contains a space"),
            ("secret:se\0cret", "text: line 1: the line contains a zero byte"),
            (
                &format!("secret:{long}"),
                "text: line 1: the user or the password has more than 255 bytes",
            ),
            (
                &format!("{long}:secret"),
                "text: line 1: the user or the password has more than 255 bytes",
            ),
            (&"a:b\n".repeat(FILE_MAX), "text: the file has more than 65536 bytes"),
        ] {
            let found = Credentials::from_text(text.as_bytes()).unwrap_err();
            assert_eq!(found.to_string(), error);
            assert!(!format!("{found:?}").contains("secret"));
        }
        let known = credentials("secret:secret");
        assert!(!format!("{known:?}").contains("secret"));
    }

    #[test]
    fn a_broken_file_keeps_what_was_loaded_before() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("users");
        let missing = Credentials::load(&path).unwrap_err().to_string();
        assert!(missing.starts_with(&path.display().to_string()), "{missing}");

        std::fs::write(&path, "ann:one\n").unwrap();
        let known = Credentials::load(&path).unwrap();
        assert_eq!(known.path(), Some(&*path));
        for broken in ["", "ann:two\nbroken\n"] {
            std::fs::write(&path, broken).unwrap();
            known.reload().unwrap_err();
            assert!(known.verify(b"ann", b"one") && !known.verify(b"ann", b"two"));
        }
        std::fs::remove_file(&path).unwrap();
        known.reload().unwrap_err();
        assert!(known.verify(b"ann", b"one"));

        std::fs::write(&path, "ann:two\n").unwrap();
        known.reload().unwrap();
        assert!(known.verify(b"ann", b"two") && !known.verify(b"ann", b"one"));
        credentials("a:b").reload().unwrap();
    }
}

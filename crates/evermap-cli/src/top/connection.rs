//! A connection to the server that is watched.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// The time that the server has to accept a connection, and for each part of a reply.
const TIMEOUT: Duration = Duration::from_secs(5);
/// The maximum length of a line of a reply, in bytes.
const LINE_MAX: u64 = 64 << 10;
/// The maximum number of lines of a reply.
const LINES_MAX: usize = 1 << 16;

/// The statistics of one reply, by name.
pub(super) type Stats = std::collections::BTreeMap<String, String>;

/// A connection over which statistics are requested.
pub(super) struct Connection {
    stream: BufReader<Box<dyn Stream>>,
    /// Whether the server has not replied anything yet.
    is_new: bool,
    is_encrypted: bool,
}

/// A stream to a server.
pub(super) trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

impl Connection {
    /// Connects to a host and port, or to the path of a unix socket, which contains a slash.
    pub(super) fn open(address: &str) -> io::Result<Self> {
        if !address.contains('/') {
            return Ok(Self::new(Box::new(connect(address)?), false));
        }
        let stream = UnixStream::connect(address)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Self::new(Box::new(stream), false))
    }

    /// Connects to a host and port, and talks to it through what `encrypt` returns.
    #[cfg(feature = "tls")]
    pub(super) fn open_with(
        address: &str,
        encrypt: impl FnOnce(TcpStream) -> io::Result<Box<dyn Stream>>,
    ) -> io::Result<Self> {
        Ok(Self::new(encrypt(connect(address)?)?, true))
    }

    fn new(stream: Box<dyn Stream>, is_encrypted: bool) -> Self {
        Connection { stream: BufReader::new(stream), is_new: true, is_encrypted }
    }

    /// Sends a name and a password, with a space between them.
    pub(super) fn authenticate(&mut self, credentials: &str) -> io::Result<()> {
        // As memcached: the first command stores them, under any key.
        self.send(&format!("set auth 0 0 {}\r\n{credentials}\r\n", credentials.len()))?;
        match self.line()?.as_str() {
            // Without `--auth-file`, the server has stored an item.
            "STORED" => Ok(()),
            "CLIENT_ERROR authentication failure" => Err(io::Error::new(
                ErrorKind::PermissionDenied,
                "the server does not accept the user or the password",
            )),
            line => Err(unexpected(line)),
        }
    }

    fn send(&mut self, request: &str) -> io::Result<()> {
        let stream = self.stream.get_mut();
        stream.write_all(request.as_bytes())?;
        // An encrypted stream may keep what it could not send yet.
        stream.flush()
    }

    /// Requests statistics. Returns `None` if the server does not know the command.
    pub(super) fn stats(&mut self, command: &str) -> io::Result<Option<Stats>> {
        self.send(&format!("{command}\r\n"))?;
        let mut stats = Stats::new();
        for _ in 0..LINES_MAX {
            let line = self.line()?;
            let words = line.strip_prefix("STAT ").and_then(|line| line.split_once(' '));
            match words {
                Some((name, value)) => {
                    stats.insert(name.to_owned(), value.to_owned());
                }
                None if line == "END" => return Ok(Some(stats)),
                // A statistic without a value.
                None if line.starts_with("STAT ") => {}
                None if line.starts_with("CLIENT_ERROR unauthenticated") => {
                    let text = "the server requires authentication; use --auth-file";
                    return Err(io::Error::new(ErrorKind::PermissionDenied, text));
                }
                None if line.starts_with("ERROR") || line.starts_with("CLIENT_ERROR") => {
                    return Ok(None);
                }
                None => return Err(unexpected(&line)),
            }
        }
        Err(invalid("the reply has too many lines"))
    }

    /// Reads a line without its end. Characters that could control a terminal are replaced.
    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let len = (&mut self.stream).take(LINE_MAX).read_until(b'\n', &mut line).map_err(timed)?;
        if line.last() != Some(&b'\n') {
            let text = match len {
                // A server that expects a handshake does not understand the request.
                _ if self.is_new && !self.is_encrypted => {
                    "the server closed the connection; if it uses TLS, use --tls"
                }
                0 => "the server closed the connection",
                _ => "a line is cut",
            };
            return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
        }
        self.is_new = false;
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches(['\r', '\n']);
        Ok(text.replace(|found: char| found.is_control(), "?"))
    }
}

/// Explains that the time for an answer is over.
fn timed(error: io::Error) -> io::Error {
    match error.kind() {
        ErrorKind::WouldBlock => io::Error::new(ErrorKind::TimedOut, "the server does not answer"),
        _ => error,
    }
}

fn unexpected(line: &str) -> io::Error {
    invalid(&format!("the server replied \"{line}\""))
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, text)
}

/// Connects to the first address of a host that accepts.
fn connect(address: &str) -> io::Result<TcpStream> {
    let mut result = Err(invalid("the host has no address"));
    for address in address.to_socket_addrs()? {
        result = TcpStream::connect_timeout(&address, TIMEOUT);
        if result.is_ok() {
            break;
        }
    }
    let stream = result?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    Ok(stream)
}

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
pub(super) struct Connection(BufReader<Box<dyn Stream>>);

trait Stream: Read + Write + Send {}

impl<T: Read + Write + Send> Stream for T {}

impl Connection {
    /// Connects to a host and port, or to the path of a unix socket, which contains a slash.
    pub(super) fn open(address: &str) -> io::Result<Self> {
        let stream: Box<dyn Stream> = if address.contains('/') {
            let stream = UnixStream::connect(address)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            Box::new(stream)
        } else {
            let stream = connect(address)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(TIMEOUT))?;
            stream.set_write_timeout(Some(TIMEOUT))?;
            Box::new(stream)
        };
        Ok(Connection(BufReader::new(stream)))
    }

    /// Requests statistics. Returns `None` if the server does not know the command.
    pub(super) fn stats(&mut self, command: &str) -> io::Result<Option<Stats>> {
        self.0.get_mut().write_all(format!("{command}\r\n").as_bytes())?;
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
                    let text = "the server requires authentication, which `top` does not support";
                    return Err(io::Error::new(ErrorKind::PermissionDenied, text));
                }
                None if line.starts_with("ERROR") || line.starts_with("CLIENT_ERROR") => {
                    return Ok(None);
                }
                None => return Err(invalid(&format!("the server replied \"{line}\""))),
            }
        }
        Err(invalid("the reply has too many lines"))
    }

    /// Reads a line without its end. Characters that could control a terminal are replaced.
    fn line(&mut self) -> io::Result<String> {
        let mut line = Vec::new();
        let len = (&mut self.0).take(LINE_MAX).read_until(b'\n', &mut line)?;
        if line.last() != Some(&b'\n') {
            let text = if len == 0 { "the server closed the connection" } else { "a line is cut" };
            return Err(io::Error::new(ErrorKind::UnexpectedEof, text));
        }
        let text = String::from_utf8_lossy(&line);
        let text = text.trim_end_matches(['\r', '\n']);
        Ok(text.replace(|found: char| found.is_control(), "?"))
    }
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
    result
}

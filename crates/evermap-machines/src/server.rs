//! The command `evermap serve`, used by a client.

use std::cell::RefCell;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, Command};
use std::time::{Duration, Instant};

use crate::subject::{self, Result, expect};
use crate::words::{Keys, Words};

/// In the current folder.
const SOCKET: &str = "socket";

/// Starts a server over a file, checks what it has, and changes it.
pub(crate) fn run(index: &str, level: &str, file: &str) -> Result<()> {
    let began = Instant::now();
    let options = ["--index", index, "--ordered", "persistent", "--socket", SOCKET];
    let mut server = Command::new("evermap");
    server.args(["serve", "--durability", level, "--path", file, "--threads", "2"]).args(options);
    if level == "log" {
        // Small, so that there are checkpoints all the time.
        server.args(["--checkpoint", "128K"]);
    }
    let client = Client::connect(&mut server.spawn()?)?;
    let finish = || client.finish(level);
    subject::run(&Keys { words: &client, finish }, file, began)
}

/// A connection that speaks memcached's text protocol.
struct Client(RefCell<BufReader<UnixStream>>);

impl Client {
    /// Connects to a server as soon as it listens.
    fn connect(server: &mut Child) -> Result<Self> {
        loop {
            if let Ok(stream) = UnixStream::connect(SOCKET) {
                return Ok(Client(RefCell::new(BufReader::new(stream))));
            }
            if let Some(status) = server.try_wait()? {
                return Err(format!("the server has ended with {status}").into());
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Sends a request, and returns the first line of the reply.
    fn ask(&self, request: &[u8]) -> Result<String> {
        self.0.borrow_mut().get_mut().write_all(request)?;
        self.line()
    }

    fn line(&self) -> Result<String> {
        let mut line = String::new();
        self.0.borrow_mut().read_line(&mut line)?;
        line.strip_suffix("\r\n").map(Into::into).ok_or_else(|| "the server is gone".into())
    }

    fn set(&self, key: u64, word: u64) -> Result<()> {
        let value = value_of(word);
        let mut request = format!("set {key:016x} 0 0 {}\r\n", value.len()).into_bytes();
        request.extend_from_slice(&value);
        request.extend_from_slice(b"\r\n");
        expect("the reply to a set", self.ask(&request)?.as_str(), &["STORED"])
    }

    fn statistic(&self, name: &str) -> Result<String> {
        let mut line = self.ask(b"stats\r\n")?;
        let mut found = None;
        while line != "END" {
            if let Some(value) = line.strip_prefix(&format!("STAT {name} ")) {
                found = Some(value.to_owned());
            }
            line = self.line()?;
        }
        found.ok_or_else(|| format!("there is no statistic {name}").into())
    }

    /// Waits for the sweep in the background, and checks that nothing was found to be wrong.
    fn finish(&self, level: &str) -> Result<()> {
        expect("the level", self.statistic("evermap_durability")?.as_str(), &[level])?;
        loop {
            let state = self.statistic("evermap_sweep")?;
            match state.split('_').next() {
                Some("pending" | "running") => std::thread::sleep(Duration::from_millis(5)),
                Some("done" | "not") => break,
                _ => return Err(format!("the sweep: {state}").into()),
            }
        }
        expect("the damage", self.statistic("evermap_damage_met")?.as_str(), &["0"])
    }
}

/// Returns a value of up to 1,000 bytes, which tells what it belongs to.
fn value_of(word: u64) -> Vec<u8> {
    let unit = format!("{word:016x}; ").into_bytes();
    unit.iter().copied().cycle().take((word >> 8) as usize * 7 % 976 + 24).collect()
}

/// Returns the word that a whole value belongs to.
fn word_of(value: &[u8]) -> Result<u64> {
    let digits = value.get(..16).and_then(|digits| std::str::from_utf8(digits).ok());
    let word = digits.and_then(|digits| u64::from_str_radix(digits, 16).ok());
    match word.filter(|&word| value_of(word) == value) {
        Some(word) => Ok(word),
        None => Err(format!("a value is torn: {}", value.escape_ascii()).into()),
    }
}

impl Words for Client {
    fn get(&self, key: u64) -> Result<Option<u64>> {
        let header = self.ask(format!("get {key:016x}\r\n").as_bytes())?;
        if header == "END" {
            return Ok(None);
        }
        let bytes = header.strip_prefix(&format!("VALUE {key:016x} 0 "));
        let bytes = bytes.ok_or_else(|| format!("the reply to a get is {header:?}"))?;
        let mut value = vec![0; bytes.parse()?];
        self.0.borrow_mut().read_exact(&mut value)?;
        expect("the end of a value", self.line()?.as_str(), &[""])?;
        expect("the end of a reply", self.line()?.as_str(), &["END"])?;
        Ok(Some(word_of(&value)?))
    }

    fn insert(&self, key: u64, word: u64) -> Result<()> {
        self.set(key, word)
    }

    fn update(&self, key: u64, word: u64) -> Result<()> {
        self.set(key, word)
    }

    fn remove(&self, key: u64) -> Result<()> {
        let reply = self.ask(format!("delete {key:016x}\r\n").as_bytes())?;
        expect("the reply to a delete", reply.as_str(), &["DELETED", "NOT_FOUND"])
    }
}

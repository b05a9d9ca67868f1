//! The options, as they are written.

use std::ffi::OsString;
use std::num::NonZero;
use std::path::PathBuf;

use evermap_server::protocol::{Binding, Restricted};
use evermap_server::server::{ITEM_SIZE_LIMIT, ITEM_SIZE_MIN, THREADS_MAX};
use lexopt::{Arg, Parser};

use super::help;
use super::tuning::Tuning;
use super::wrong::{Wrong, number};
use crate::serve::options::{PORT, parse_mode};

/// What the arguments ask for.
pub(super) enum Action {
    /// To print a text.
    Print(String),
    Serve(Box<Options>),
}

/// Which port to listen on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Port {
    /// None.
    Off,
    /// One that the system chooses.
    Any,
    Number(NonZero<u16>),
}

/// The options, with memcached's defaults.
#[derive(Debug)]
pub(super) struct Options {
    pub(super) port: Port,
    /// Whether the port was given, and not assumed.
    pub(super) port_given: bool,
    /// The values of `-l`, separated.
    pub(super) listen: Vec<String>,
    pub(super) socket: Option<PathBuf>,
    pub(super) socket_mode: u32,
    /// The memory limit in bytes, or `None` for no limit.
    pub(super) memory: Option<u64>,
    /// Whether items are removed to make space for others.
    pub(super) evict: bool,
    pub(super) max_connections: usize,
    pub(super) threads: usize,
    pub(super) reads_per_turn: Option<usize>,
    pub(super) backlog: u32,
    pub(super) item_size_max: usize,
    pub(super) file: Option<PathBuf>,
    pub(super) user: Option<String>,
    pub(super) pid_file: Option<PathBuf>,
    pub(super) daemonize: bool,
    pub(super) lock_memory: bool,
    pub(super) core_dumps: bool,
    pub(super) verbosity: u32,
    pub(super) binding: Binding,
    pub(super) shutdown_command: bool,
    /// The commands that are refused.
    pub(super) refused: Vec<Restricted>,
    pub(super) sasl: bool,
    pub(super) auth_file: Option<PathBuf>,
    pub(super) tls: bool,
    /// The character after the prefix of a key, if statistics are kept for each prefix.
    pub(super) prefix_delimiter: Option<char>,
    pub(super) tuning: Tuning,
    /// Options that were given and have no effect.
    without_effect: Vec<&'static str>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            port: Port::Number(NonZero::new(PORT).unwrap_or(NonZero::<u16>::MIN)),
            port_given: false,
            listen: Vec::new(),
            socket: None,
            socket_mode: 0o700,
            memory: Some(64 << 20),
            evict: true,
            max_connections: 1024,
            threads: 4,
            reads_per_turn: None,
            backlog: 1024,
            item_size_max: 1 << 20,
            file: None,
            user: None,
            pid_file: None,
            daemonize: false,
            lock_memory: false,
            core_dumps: false,
            verbosity: 0,
            binding: Binding::Auto,
            shutdown_command: false,
            refused: Vec::new(),
            sasl: false,
            auth_file: None,
            tls: false,
            prefix_delimiter: None,
            tuning: Tuning::default(),
            without_effect: Vec::new(),
        }
    }
}

/// The variable that names the file of passwords for SASL, as in builds of memcached that have a
/// password file of their own.
const PASSWORD_VARIABLE: &str = "MEMCACHED_SASL_PWDB";

/// The long names, and the letters that mean the same.
const LONG: [(&str, char); 38] = [
    ("auth-file", 'Y'),
    ("conn-limit", 'c'),
    ("daemon", 'd'),
    ("disable-cas", 'C'),
    ("disable-dumping", 'X'),
    ("disable-evictions", 'M'),
    ("disable-flush-all", 'F'),
    ("disable-watch", 'W'),
    ("enable-coredumps", 'r'),
    ("enable-largepages", 'L'),
    ("enable-sasl", 'S'),
    ("enable-shutdown", 'A'),
    ("enable-ssl", 'Z'),
    ("extended", 'o'),
    ("help", 'h'),
    ("license", 'i'),
    ("listen", 'l'),
    ("listen-backlog", 'b'),
    ("lock-memory", 'k'),
    ("max-item-size", 'I'),
    ("max-reqs-per-event", 'R'),
    ("memory-file", 'e'),
    ("memory-limit", 'm'),
    ("napi-ids", 'N'),
    ("napi_ids", 'N'),
    ("pidfile", 'P'),
    ("port", 'p'),
    ("prefix-delimiter", 'D'),
    ("protocol", 'B'),
    ("slab-growth-factor", 'f'),
    ("slab-min-size", 'n'),
    ("threads", 't'),
    ("udp-port", 'U'),
    ("unix-mask", 'a'),
    ("unix-socket", 's'),
    ("user", 'u'),
    ("version", 'V'),
    ("enable-detail", 'D'),
];

/// Parses arguments, without the name of the program.
pub(super) fn parse(arguments: impl Iterator<Item = OsString>) -> Result<Action, Wrong> {
    let mut parser = Parser::from_args(arguments);
    let mut options = Options::default();
    while let Some(argument) = parser.next().map_err(wrong)? {
        let letter = match argument {
            Arg::Short(letter) => letter,
            // The only option whose value may be left out, and only in this form.
            Arg::Long("verbose") => {
                options.be_verbose(parser.optional_value())?;
                continue;
            }
            Arg::Long(name) => {
                let found = LONG.iter().find(|(long, _)| *long == name);
                found.ok_or_else(|| Wrong(format!("there is no option --{name}; -h lists them")))?.1
            }
            Arg::Value(value) => {
                let value = value.to_string_lossy();
                return Err(Wrong(format!("\"{value}\" belongs to no option; -h lists them")));
            }
        };
        if let Some(text) = help::text_of(letter) {
            return Ok(Action::Print(text));
        }
        options.set(letter, &mut parser)?;
    }
    if options.sasl && options.auth_file.is_none() {
        options.auth_file = std::env::var_os(PASSWORD_VARIABLE).map(PathBuf::from);
    }
    options.check()?;
    Ok(Action::Serve(Box::new(options)))
}

fn wrong(error: lexopt::Error) -> Wrong {
    Wrong(format!("{error}; -h lists the options"))
}

impl Options {
    /// Sets what an option says.
    fn set(&mut self, letter: char, parser: &mut Parser) -> Result<(), Wrong> {
        match letter {
            'p' => {
                self.port = port(&text(parser)?)?;
                self.port_given = true;
            }
            'l' => self.listen.extend(text(parser)?.split([',', ';']).map(str::to_owned)),
            's' => self.socket = Some(parser.value().map_err(wrong)?.into()),
            'a' => {
                self.socket_mode =
                    parse_mode(&text(parser)?).map_err(|error| Wrong(format!("-a: {error}")))?;
            }
            'U' => refuse_udp(&text(parser)?)?,
            'm' => self.memory = memory_limit(&text(parser)?)?,
            'M' => self.evict = false,
            'c' => self.max_connections = number('c', &text(parser)?, 1, 1 << 30)?,
            't' => self.threads = number('t', &text(parser)?, 1, THREADS_MAX)?,
            'R' => self.reads_per_turn = Some(number('R', &text(parser)?, 1, usize::MAX)?),
            'b' => self.backlog = number('b', &text(parser)?, 1, i32::MAX as u32)?,
            'I' => self.item_size_max = item_size(&text(parser)?)?,
            'e' => self.file = Some(parser.value().map_err(wrong)?.into()),
            'u' => self.user = Some(text(parser)?),
            'P' => self.pid_file = Some(parser.value().map_err(wrong)?.into()),
            'd' => self.daemonize = true,
            'k' => self.lock_memory = true,
            'r' => self.core_dumps = true,
            'v' => self.verbosity += 1,
            'B' => self.binding = binding(&text(parser)?)?,
            'A' => self.shutdown_command = true,
            'F' => self.refused.push(Restricted::FlushAll),
            'X' => self.refused.push(Restricted::Dump),
            'W' => self.refused.push(Restricted::Watch),
            'S' => self.sasl = true,
            'Y' => self.auth_file = Some(parser.value().map_err(wrong)?.into()),
            'Z' => self.tls = true,
            'D' => self.prefix_delimiter = Some(delimiter(&text(parser)?)?),
            'o' => self.tuning.add(&text(parser)?)?,
            'C' => self.without_effect.push("-C"),
            'L' => self.without_effect.push("-L"),
            'f' => self.set_growth_factor(&text(parser)?)?,
            'n' => self.set_chunk_size(&text(parser)?)?,
            'N' => {
                number::<u32>('N', &text(parser)?, 0, u32::MAX)?;
                self.without_effect.push("-N");
            }
            other => return Err(Wrong(format!("there is no option -{other}; -h lists them"))),
        }
        Ok(())
    }

    /// `-vv` and `--verbose=2` mean the same.
    fn be_verbose(&mut self, level: Option<OsString>) -> Result<(), Wrong> {
        match level {
            None => self.verbosity += 1,
            Some(level) => self.verbosity = number("-verbose", &level.to_string_lossy(), 0, 3)?,
        }
        Ok(())
    }

    fn set_growth_factor(&mut self, text: &str) -> Result<(), Wrong> {
        match text.parse::<f64>() {
            Ok(factor) if factor > 1.0 && factor.is_finite() => {}
            _ => return Err(Wrong(format!("-f {text}: the factor must be greater than 1"))),
        }
        self.tuning.report("growth_factor", text);
        self.without_effect.push("-f");
        Ok(())
    }

    fn set_chunk_size(&mut self, text: &str) -> Result<(), Wrong> {
        number::<u32>('n', text, 1, u32::MAX)?;
        self.tuning.report("chunk_size", text);
        self.without_effect.push("-n");
        Ok(())
    }

    /// Checks options against each other.
    fn check(&self) -> Result<(), Wrong> {
        // A limit below two of the largest items could hold one at a time.
        if self.memory.is_some_and(|memory| self.item_size_max as u64 > memory / 2) {
            return Err(Wrong("-I: an item may have at most half of the memory of -m".into()));
        }
        if self.tls && !self.tuning.has_certificate() {
            return Err(Wrong("-Z needs -o ssl_chain_cert=FILE and -o ssl_key=FILE".into()));
        }
        if self.sasl && self.auth_file.is_none() {
            return Err(Wrong(format!(
                "-S needs a file of user:password lines: -Y FILE, or {PASSWORD_VARIABLE}=FILE in \
                 the environment"
            )));
        }
        if self.auth_file.is_some() && self.sasl && self.binding == Binding::Ascii {
            return Err(Wrong("-S is for the binary protocol, which -B ascii excludes".into()));
        }
        if self.port == Port::Off && self.listen.is_empty() && self.socket.is_none() {
            return Err(Wrong("-p 0 leaves nothing to listen on: add -l or -s".into()));
        }
        Ok(())
    }

    /// Returns what has to be said once about the options: which of them have no effect.
    pub(super) fn notes(&self) -> Vec<String> {
        let mut names: Vec<&str> = self.without_effect.clone();
        names.extend(self.tuning.without_effect());
        names.dedup();
        match names.is_empty() {
            true => Vec::new(),
            false => vec![format!(
                "without effect, because this server has no slabs, no flash tier and no threads \
                 for its lists: {}",
                names.join(", ")
            )],
        }
    }
}

/// Returns the value of an option as text.
fn text(parser: &mut Parser) -> Result<String, Wrong> {
    let value = parser.value().map_err(wrong)?;
    value
        .into_string()
        .map_err(|value| Wrong(format!("\"{}\" is not valid UTF-8", value.to_string_lossy())))
}

fn port(text: &str) -> Result<Port, Wrong> {
    if text == "-1" {
        return Ok(Port::Any);
    }
    let number = number::<u16>('p', text, 0, u16::MAX)?;
    Ok(NonZero::new(number).map_or(Port::Off, Port::Number))
}

/// Accepts that there is no UDP.
fn refuse_udp(text: &str) -> Result<(), Wrong> {
    match number::<u16>('U', text, 0, u16::MAX)? {
        0 => Ok(()),
        port => Err(Wrong(format!(
            "-U {port}: there is no UDP here: anyone can forge the sender of a datagram, and in \
             2018 such servers were made to flood others with replies; memcached has it off by \
             default since then"
        ))),
    }
}

/// Parses a number of megabytes. 0 stands for no limit.
fn memory_limit(text: &str) -> Result<Option<u64>, Wrong> {
    const MEGABYTES_MAX: u64 = u64::MAX >> 20;
    let megabytes = text.parse::<u64>().ok().filter(|&megabytes| megabytes <= MEGABYTES_MAX);
    match megabytes {
        Some(0) => Ok(None),
        Some(megabytes) => Ok(Some(megabytes << 20)),
        None => Err(Wrong(format!("-m {text}: must be a number of megabytes"))),
    }
}

fn item_size(text: &str) -> Result<usize, Wrong> {
    let lower = text.to_ascii_lowercase();
    let units = [('k', 10), ('m', 20), ('g', 30)];
    let found = units.iter().find_map(|&(unit, shift)| Some((lower.strip_suffix(unit)?, shift)));
    let (digits, shift) = found.unwrap_or((&lower, 0));
    let size = digits.parse::<usize>().ok().and_then(|size| size.checked_mul(1 << shift));
    size.filter(|size| (ITEM_SIZE_MIN..=ITEM_SIZE_LIMIT).contains(size)).ok_or_else(|| {
        let (min, max) = (ITEM_SIZE_MIN >> 10, ITEM_SIZE_LIMIT >> 20);
        Wrong(format!("-I {text}: must be a size from {min}k to {max}m"))
    })
}

fn binding(text: &str) -> Result<Binding, Wrong> {
    match text {
        "auto" => Ok(Binding::Auto),
        "ascii" => Ok(Binding::Ascii),
        "binary" => Ok(Binding::Binary),
        _ => Err(Wrong(format!("-B {text}: must be auto, ascii or binary"))),
    }
}

fn delimiter(text: &str) -> Result<char, Wrong> {
    let mut characters = text.chars();
    match (characters.next(), characters.next()) {
        (Some(character), None) if character.is_ascii() => Ok(character),
        _ => Err(Wrong(format!("-D {text}: must be one character"))),
    }
}

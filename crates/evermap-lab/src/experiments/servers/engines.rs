//! The engines of a memcached server beside each other, as in section 6 of the paper on
//! relativistic hash tables: through sockets, and called directly.
//!
//! On loopback a server spends most of its time in the kernel, so the engines are also called
//! without it: there their differences show, and what the lock costs when several threads want it.

use std::net::SocketAddr;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use evermap_lab_engines::{NAMES, engine};
use evermap_pm::sim::rng::Rng;
use evermap_server::cache::{Cache, CacheError, StoreMode, StoreRequest};
use evermap_server::{Config as ServerConfig, Server as CacheServer};

use super::load::{Act, Client, Items, KEY_BYTES, Ran, measure};
use super::process::{MEMCACHED, Program, Server};
use super::{CONFIDENCE, Directory, EVERMAP, is_missing, survives};
use crate::LabError;
use crate::driver::results::summary;
use crate::driver::workers::Workers;
use crate::driver::{Config, turns};
use crate::experiments::definition::Experiment;
use crate::experiments::settings::{Scale, Setting, Settings};
use crate::report::interval::{median, median_interval};
use crate::report::{Figure, Grid, Output, Record, Report, counted};
use crate::workload::Lengths;

pub(in crate::experiments) const ENGINES: Experiment = Experiment {
    name: NAME,
    about: "a memcached server over one lock, DDDS, a relativistic table and Evermap's map",
    takes: &[Setting::KEYS, Setting::ROUNDS, Setting::THREADS, Setting::VALUE_BYTES],
    run: engines,
};

const NAME: &str = "engines";

/// The engine that ratios are to, as in the paper.
const ONE_LOCK: &str = "one-lock";
/// The connections of each client.
const CONNECTIONS: usize = 4;
/// The threads of the server in the paper.
const SERVER_THREADS: usize = 12;
/// The clients of the paper's figure, whose points are 1 to 12.
const CLIENTS: [usize; 4] = [1, 2, 4, 12];
/// The threads that call an engine directly.
const CALLERS: [usize; 3] = [1, 2, 12];
/// The operations that a thread does between two looks at the clock.
const BATCH: u64 = 64;

/// What clients do.
const ACTS: [(&str, Act); 5] = [
    ("get", Act::Get { pipelined: 1 }),
    ("set", Act::Set { pipelined: 1 }),
    ("get, 16 at once", Act::Get { pipelined: 16 }),
    ("get of 50 keys", Act::MultiGet { keys: 50 }),
    ("get of one hot key", Act::Hot),
];

/// What threads call.
const CALLS: [(&str, Call); 4] = [
    ("direct get", Call::Get),
    ("direct set", Call::Set),
    ("direct get of 50 keys", Call::MultiGet),
    ("direct get of one hot key", Call::Hot),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Call {
    Get,
    Set,
    MultiGet,
    Hot,
}

/// Serves one engine until the process is killed: what the experiment starts as child processes.
///
/// # Errors
///
/// `Config` for an engine or an address that does not exist, `Index` if the server cannot start.
pub fn serve_engine(name: &str, address: &str, threads: usize) -> Result<(), LabError> {
    let made = engine(name).ok_or_else(|| {
        LabError::Config(format!("unknown engine `{name}`; known are: {}", NAMES.join(", ")))
    })?;
    let cache = made.map_err(|error| LabError::index(NAME, error))?;
    let listen: SocketAddr =
        address.parse().map_err(|error| LabError::Config(format!("`{address}`: {error}")))?;
    let config = ServerConfig { listen, threads, ..ServerConfig::default() };
    let server = CacheServer::start(cache, config).map_err(|error| LabError::index(NAME, error))?;
    server.join();
    Ok(())
}

/// A number of clients or callers that do one thing, for each contender.
struct Cell {
    phase: &'static str,
    threads: usize,
    act: Either,
}

#[derive(Clone, Copy)]
enum Either {
    Sockets(Act),
    Direct(Call),
}

/// Returns what is measured: the paper's `get` and `set` by all numbers of clients, the rest by a
/// middle one.
fn cells(most: usize) -> Vec<Cell> {
    let mut all = Vec::new();
    for (phase, act) in ACTS {
        let single = matches!(act, Act::Get { pipelined: 1 } | Act::Set { pipelined: 1 });
        let counts = if single { &CLIENTS[..] } else { &CLIENTS[2..3] };
        let clients = counts.iter().filter(|&&clients| clients <= most);
        all.extend(clients.map(|&threads| Cell { phase, threads, act: Either::Sockets(act) }));
    }
    for (phase, call) in CALLS {
        let callers = CALLERS.iter().filter(|&&callers| callers <= most);
        all.extend(callers.map(|&threads| Cell { phase, threads, act: Either::Direct(call) }));
    }
    all
}

/// One contender, with the records of every cell, round by round.
struct Contender {
    name: &'static str,
    server: Server,
    cache: Option<Arc<dyn Cache>>,
    rounds: Vec<Vec<Record>>,
}

fn engines(settings: &Settings, out: &mut dyn Output) -> Result<Report, LabError> {
    let scale = Scale { keys: 100_000, rounds: 7, quick_keys: 1000, quick_rounds: 1 };
    let config = settings.config(NAME, &[], scale);
    let most = settings.threads.unwrap_or(if settings.quick { 4 } else { CLIENTS[3] });
    if most == 0 || config.rounds == 0 {
        return Err(LabError::Config("there must be at least one client and one round".into()));
    }
    let values = settings.value_bytes.unwrap_or(Lengths::Fixed(100));
    let items = Items { keys: config.keys, value_bytes: values.bounds().1 as usize };
    let length = Duration::from_millis(if settings.quick { 5 } else { 500 });
    let own: PathBuf = settings.program.clone().ok_or_else(|| {
        LabError::Config("the path of this program is unknown, so it cannot be a server".into())
    })?;
    let mut programs: Vec<_> = NAMES.map(|name| Program::engine(name, &own)).to_vec();
    programs.extend(Program::find(Some(&own)));
    let missing = [EVERMAP, MEMCACHED].into_iter().filter(|&name| is_missing(&programs, name));
    let notes = missing.map(|name| format!("{name} is not here, so it is left out")).collect();
    let directory = Directory::create(settings, config.keys, values)?;
    let cells = cells(most);
    let measured = measure_all(&programs, &cells, &config, &items, length, &directory.0, out)?;
    Ok(Report {
        experiment: NAME,
        title: "engines of a memcached server".into(),
        about: format!(
            "{} keys of {KEY_BYTES} bytes, values of {} bytes; {CONNECTIONS} connections for each \
             client thread, {SERVER_THREADS} threads of the server, {} processors for both, {} \
             of {} ms, seed {}",
            items.keys,
            items.value_bytes,
            Settings::processors(),
            counted(config.rounds, "round"),
            length.as_millis(),
            config.seed,
        ),
        figures: figures(&measured, &cells),
        tables: tables(&measured, &cells),
        notes,
        ..Report::default()
    })
}

fn measure_all(
    programs: &[Program],
    cells: &[Cell],
    config: &Config,
    items: &Items,
    length: Duration,
    directory: &Path,
    out: &mut dyn Output,
) -> Result<Vec<Contender>, LabError> {
    let mut contenders = Vec::new();
    for program in programs {
        let server = program.start(directory, SERVER_THREADS)?;
        Client::connect(&server, 1)?.fill(items)?;
        let cache = engine(program.name)
            .transpose()
            .map_err(|error| LabError::index(program.name, error))?;
        if let Some(cache) = &cache {
            fill(&**cache, items).map_err(|error| LabError::index(program.name, error))?;
        }
        contenders.push(Contender { name: program.name, server, cache, rounds: Vec::new() });
    }
    out.begin((contenders.len() * config.rounds) as u64);
    for round in 0..config.rounds {
        for at in turns(contenders.len(), config.seed, round) {
            let contender = &mut contenders[at];
            out.step(&format!("{NAME}: {}, round {}", contender.name, round + 1));
            config.quiet.wait(out);
            let mut records = Vec::new();
            for cell in cells {
                let is_void = |record: &Option<Record>| record.as_ref().is_some_and(|it| it.void);
                let once = |_: &mut dyn Output| contender.once(cell, config, items, length, round);
                if let (Some(record), _) = config.quiet.measure(out, once, is_void)? {
                    out.record(&record)?;
                    records.push(record);
                }
            }
            contender.rounds.push(records);
        }
    }
    for contender in &contenders {
        for cell in cells {
            let records: Vec<_> = contender.of(cell).cloned().collect();
            if !records.is_empty() {
                out.record(&summary(&records))?;
            }
        }
    }
    Ok(contenders)
}

impl Contender {
    /// Returns the records of a cell.
    fn of(&self, cell: &Cell) -> impl Iterator<Item = &Record> {
        let is_it = |one: &&Record| one.phase == cell.phase && one.threads == cell.threads;
        self.rounds.iter().filter_map(move |round| round.iter().find(is_it))
    }

    /// Measures a cell once. Returns `None` for a direct call of what is only a server.
    fn once(
        &self,
        cell: &Cell,
        config: &Config,
        items: &Items,
        length: Duration,
        round: usize,
    ) -> Result<Option<Record>, LabError> {
        let seed = config.seed + round as u64;
        let (ran, cpu) = match (cell.act, &self.cache) {
            (Either::Sockets(act), _) => {
                let ran = self.through_sockets(act, cell.threads, items, length, seed)?;
                let cpu = ran.server.user + ran.server.system;
                (ran, cpu)
            }
            (Either::Direct(_), None) => return Ok(None),
            (Either::Direct(call), Some(cache)) => {
                direct(self.name, cache, call, cell.threads, items, length, seed)?
            }
        };
        let mut record = Record {
            experiment: NAME,
            index: self.name.into(),
            threads: cell.threads,
            keys: items.keys,
            phase: cell.phase.into(),
            round: Some(round),
            ops: ran.ops,
            survives: survives(self.name),
            value_bytes: Some(items.value_bytes.to_string()),
            seed: config.seed,
            foreign_cpu: ran.foreign,
            void: config.quiet.is_exceeded(ran.foreign),
            ..Record::default()
        };
        record.time(ran.seconds, cpu);
        Ok(Some(record))
    }

    fn through_sockets(
        &self,
        act: Act,
        clients: usize,
        items: &Items,
        length: Duration,
        seed: u64,
    ) -> Result<Ran, LabError> {
        let connect = |_| Client::connect(&self.server, CONNECTIONS);
        let clients: Vec<_> = (0..clients).map(connect).collect::<Result<_, _>>()?;
        measure(&self.server, || {
            std::thread::scope(|threads| {
                let mut started = Vec::new();
                for (number, mut client) in clients.into_iter().enumerate() {
                    let mut random = Rng::new(seed << 8 | number as u64);
                    let busy = move || client.keep_busy(items, act, &mut random, length);
                    let thread = std::thread::Builder::new().spawn_scoped(threads, busy);
                    let action = "start a thread";
                    let io = |source| LabError::Io { action, path: None, source };
                    started.push(thread.map_err(io)?);
                }
                let ended = started.into_iter().map(|one| one.join());
                ended.map(|ops| ops.unwrap_or(Err(LabError::Panicked))).sum()
            })
        })
    }
}

/// Stores every item.
fn fill(cache: &dyn Cache, items: &Items) -> Result<(), CacheError> {
    (0..items.keys).try_for_each(|number| store(cache, items, number))
}

fn store(cache: &dyn Cache, items: &Items, number: u64) -> Result<(), CacheError> {
    let request = StoreRequest::new(StoreMode::Set);
    cache.store(&key_of(number), &items.value(number), &request).map(|_| ())
}

fn key_of(number: u64) -> [u8; 20] {
    let mut key = *b"key:0000000000000000";
    for (at, digit) in key[4..].iter_mut().enumerate() {
        let nibble = (number >> (60 - 4 * at) & 15) as u8;
        *digit = if nibble < 10 { b'0' + nibble } else { b'a' + nibble - 10 };
    }
    key
}

/// Calls an engine in several threads. Returns what was done, and the processor time in seconds.
fn direct(
    name: &'static str,
    cache: &Arc<dyn Cache>,
    call: Call,
    callers: usize,
    items: &Items,
    length: Duration,
    seed: u64,
) -> Result<(Ran, f64), LabError> {
    let workers = Workers::start(callers)?;
    let (cache, items) = (cache.clone(), *items);
    let race = workers.race(move |thread, _| {
        let mut random = Rng::new(seed << 8 | thread as u64);
        let (begin, mut ops) = (Instant::now(), 0);
        let mut reply = Vec::new();
        while begin.elapsed() < length {
            for _ in 0..BATCH {
                let done = act(&*cache, call, &items, &mut random, &mut reply);
                ops += done.map_err(|error| LabError::index(name, error))?;
            }
        }
        Ok(ops)
    })?;
    let ops = race.results.iter().sum();
    let foreign = race.used.foreign_share();
    let server = super::process::Cpu::default();
    Ok((Ran { ops, seconds: race.seconds, server, foreign }, race.used.own))
}

/// Calls an engine once. Returns the number of items. Values are copied, as they are to a reply.
fn act(
    cache: &dyn Cache,
    call: Call,
    items: &Items,
    random: &mut Rng,
    reply: &mut Vec<u8>,
) -> Result<u64, CacheError> {
    const MANY: usize = 50;
    let mut number = || random.below(items.keys);
    match call {
        Call::Set => store(cache, items, number()).map(|()| 1),
        Call::Get => look_up(cache, &[&key_of(number())], items, reply),
        Call::Hot => look_up(cache, &[&key_of(0)], items, reply),
        Call::MultiGet => {
            let spelled = [(); MANY].map(|()| key_of(number()));
            let keys: [&[u8]; MANY] = std::array::from_fn(|at| &spelled[at][..]);
            look_up(cache, &keys, items, reply)
        }
    }
}

fn look_up(
    cache: &dyn Cache,
    keys: &[&[u8]],
    items: &Items,
    reply: &mut Vec<u8>,
) -> Result<u64, CacheError> {
    reply.clear();
    let mut found = 0;
    cache.get_many(keys, &mut |_, item| {
        found += 1;
        item.value.append_to(reply)?;
        Ok(ControlFlow::Continue(()))
    })?;
    if found == keys.len() && reply.len() == found * items.value_bytes {
        return Ok(found as u64);
    }
    Err(CacheError::Other(format!("{found} of {} items, {} bytes", keys.len(), reply.len())))
}

/// A figure of a record.
type Measure = fn(&Record) -> Option<f64>;

fn tables(measured: &[Contender], cells: &[Cell]) -> Vec<Grid> {
    let figures: [(&str, Measure); 2] = [
        ("thousand items a second", |record| record.mops.map(|mops| mops * 1e3)),
        ("processor time of the server or the callers, ns for an item", |one| one.cpu_ns_per_op),
    ];
    let mut tables = Vec::new();
    for (title, figure) in figures {
        let title = format!("{title}: median, and the range that holds the true one");
        let columns: Vec<_> = measured.iter().map(|one| one.name).collect();
        let mut grid = Grid::new(&title, &columns);
        for cell in cells {
            let row = measured.iter().map(|one| {
                let values = one.of(cell).filter_map(|one| Some((figure(one)?, one.void)));
                super::cell(values, 0)
            });
            grid.push(row_of(cell), row.collect());
        }
        tables.push(grid);
    }
    let others: Vec<_> = measured.iter().filter(|one| one.name != ONE_LOCK).collect();
    let columns: Vec<_> = others.iter().map(|one| one.name).collect();
    let mut grid = Grid::new("items a second, to one lock's, within rounds", &columns);
    for cell in cells {
        let row = others.iter().map(|one| {
            let ratios = ratios(measured, one, cell);
            super::cell(ratios.into_iter(), 2)
        });
        grid.push(row_of(cell), row.collect());
    }
    tables.push(grid);
    tables
}

fn row_of(cell: &Cell) -> String {
    let who = match (cell.act, cell.threads) {
        (Either::Sockets(_), 1) => "client",
        (Either::Sockets(_), _) => "clients",
        (Either::Direct(_), 1) => "thread",
        (Either::Direct(_), _) => "threads",
    };
    format!("{}, {} {who}", cell.phase, cell.threads)
}

/// Returns the speed of a contender, to that of one lock in the same round, and whether one of both
/// is void.
fn ratios(measured: &[Contender], one: &Contender, cell: &Cell) -> Vec<(f64, bool)> {
    let Some(lock) = measured.iter().find(|one| one.name == ONE_LOCK) else { return Vec::new() };
    let pairs = one.of(cell).zip(lock.of(cell));
    pairs.filter_map(|(one, lock)| Some((one.mops? / lock.mops?, one.void || lock.void))).collect()
}

/// Rows 9 and 10 of the paper's claims.
fn figures(measured: &[Contender], cells: &[Cell]) -> Vec<Figure> {
    let figure = |phase: &str, paper: &str| {
        let rp = measured.iter().find(|one| one.name == "rp");
        let most = cells.iter().filter(|cell| cell.phase == phase).max_by_key(|one| one.threads);
        let here = most.zip(rp).and_then(|(cell, rp)| {
            let all = ratios(measured, rp, cell);
            let values: Vec<_> = all.iter().map(|one| one.0).collect();
            let middle = median(&values)?;
            let range = median_interval(&values, CONFIDENCE);
            let range = range.map(|it| format!(" ({:.2} to {:.2})", it.low, it.high));
            Some(format!("{middle:.2}{}, {}", range.unwrap_or_default(), row_of(cell)))
        });
        let what = format!("rp / one lock, {phase}");
        Figure { what, paper: paper.to_owned(), here }
    };
    vec![
        figure("get", "1.46 at 12 clients, 24 processors (figure 8)"),
        figure("set", "marginally below 1 (figure 8)"),
        figure("direct get", "not in the paper"),
        figure("direct set", "not in the paper"),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_those_of_the_clients() {
        for number in [0, 1, 0xabcd_ef01_2345_6789, u64::MAX] {
            assert_eq!(key_of(number), format!("key:{number:016x}").as_bytes());
        }
    }

    #[test]
    fn unknown_engines_are_refused() {
        let text = serve_engine("slab", "127.0.0.1:0", 1).unwrap_err().to_string();
        assert!(text.contains("unknown engine `slab`; known are: one-lock, ddds"), "{text}");
    }

    /// Each call finds what it looks for, and a lookup that does not is an error.
    #[test]
    fn calls_are_checked() {
        let items = Items { keys: 100, value_bytes: 10 };
        for name in NAMES {
            let cache = engine(name).unwrap().unwrap();
            fill(&*cache, &items).unwrap();
            for (_, call) in CALLS {
                let (ran, _) =
                    direct(name, &cache, call, 2, &items, Duration::from_millis(1), 1).unwrap();
                assert!(ran.ops >= BATCH, "{name}, {call:?}");
            }
            cache.delete(&key_of(0)).unwrap();
            let missed = direct(name, &cache, Call::Hot, 1, &items, Duration::from_millis(1), 1);
            assert!(missed.is_err_and(|error| error.to_string().contains("0 of 1 items")));
        }
    }
}

//! Sums and counts are right, whenever the process is killed.
//!
//! Threads of a child process add to counters, exchange, append, transfer between accounts, store
//! records that expire, purge and flush, until it is killed. Beside the store, the child keeps a
//! ledger in another file: what each thread is about to do, and what was acknowledged. The parent
//! compares. There are a few kills by default, otherwise the number in `EVERMAP_CONSERVATION`, over
//! every index.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::RwLock;
use std::time::Duration;

use std::io::{BufRead, BufReader};

use crate::common::{self, Random, child};
use crate::ordered::scan_agrees;
use evermap::{Batch, IndexKind, Map, MapOptions, Meta, Options, Order, counter};
use evermap_pm::PmU64;
use evermap_pm::medium::{Mapped, MappedOptions, Medium};

const ACCOUNTS: usize = 5;
/// Maps between which batches transfer.
const SIDES: [&str; 2] = ["this side", "that side"];
/// The number of threads whose operations are counted.
const THREADS: usize = 3;
/// What each of them counts: additions to counters, exchanges of counters, pieces appended to logs,
/// and puts of keys that have expired.
const THINGS: usize = 8;
const KINDS: [&str; THINGS] = ["add", "add", "exchange", "exchange", "log", "log", "key", "key"];
/// The number of CAS ids that each thread records.
const IDS: usize = 60_000;
/// The number of pieces since the last flush after which a thread stops appending.
const LONGEST_LOG: u64 = 150;

/// A flush was announced, and has not begun.
const ANNOUNCED: u64 = 1;
/// The canary was stored, and is present until the flush happens.
const FLUSHING: u64 = 2;
const CANARY: &[u8] = b"canary";

/// What the threads of the child do, and what was acknowledged.
struct Ledger(Mapped);

impl Ledger {
    const TALLIES: usize = 1;
    const NOTES: usize = Self::TALLIES + THREADS * THINGS * 3;
    const CELLS: usize = Self::NOTES + (1 + 2 * IDS) * (THREADS + 2);

    fn open(path: &Path) -> Ledger {
        let options = MappedOptions { create: true, capacity: 64 << 20, ..Default::default() };
        let medium = Mapped::open(path, &options).unwrap();
        medium.grow((Self::CELLS as u64 * 8).next_multiple_of(4096)).unwrap();
        Ledger(medium)
    }

    fn cell(&self, at: usize) -> &PmU64 {
        &self.0.slice(0, Self::CELLS as u64).unwrap()[at]
    }

    fn get(&self, at: usize) -> u64 {
        self.0.load(self.cell(at))
    }

    fn set(&self, at: usize, value: u64) {
        self.0.store(self.cell(at), value);
    }

    fn flush_state(&self) -> u64 {
        self.get(0)
    }

    fn tally(&self, thread: usize, thing: usize) -> Tally<'_> {
        Tally { ledger: self, at: Self::TALLIES + (thread * THINGS + thing) * 3 }
    }

    /// Starts counting again, because everything from before is gone.
    fn begin_anew(&self) {
        for thread in 0..THREADS {
            for thing in 0..THINGS {
                self.tally(thread, thing).begin_anew();
            }
        }
    }

    /// Records what was stored under a CAS id.
    fn note(&self, thread: usize, cas: Option<u64>, key: &[u8], value: &[u8]) {
        let count_at = Self::NOTES + (1 + 2 * IDS) * thread;
        let count = self.get(count_at) as usize;
        if let (Some(cas), true) = (cas, count < IDS) {
            self.set(count_at + 1 + 2 * count, cas);
            self.set(count_at + 2 + 2 * count, print_of(key, value));
            self.set(count_at, count as u64 + 1);
        }
    }

    /// Returns the recorded CAS ids, and removes them.
    fn notes(&self) -> Vec<(u64, u64)> {
        let mut notes = Vec::new();
        for thread in 0..THREADS + 2 {
            let count_at = Self::NOTES + (1 + 2 * IDS) * thread;
            for note in 0..self.get(count_at) as usize {
                let at = count_at + 1 + 2 * note;
                notes.push((self.get(at), self.get(at + 1)));
            }
            self.set(count_at, 0);
        }
        notes
    }
}

/// The counts of one kind of operation of one thread.
#[derive(Clone, Copy)]
struct Tally<'l> {
    ledger: &'l Ledger,
    at: usize,
}

impl Tally<'_> {
    /// The part that a flush has removed.
    fn base(self) -> u64 {
        self.ledger.get(self.at)
    }

    /// Announced.
    fn issued(self) -> u64 {
        self.ledger.get(self.at + 1)
    }

    /// Acknowledged.
    fn acknowledged(self) -> u64 {
        self.ledger.get(self.at + 2)
    }

    fn issue(self, amount: u64) -> u64 {
        self.ledger.set(self.at + 1, self.issued() + amount);
        self.issued()
    }

    /// The announced operation was refused.
    fn withdraw(self) {
        self.ledger.set(self.at + 1, self.acknowledged());
    }

    fn acknowledge(self) {
        self.ledger.set(self.at + 2, self.issued());
    }

    fn begin_anew(self) {
        self.acknowledge();
        self.ledger.set(self.at, self.issued());
    }
}

/// Returns a fingerprint of a value.
fn print_of(key: &[u8], value: &[u8]) -> u64 {
    let bytes = key.iter().chain(b"=").chain(value);
    bytes.fold(0xcbf2_9ce4_8422_2325, |print, &byte| {
        (print ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

fn account(number: usize) -> Vec<u8> {
    format!("account {number}").into_bytes()
}

/// Returns the key for a kind of operation; some keys are shared by all threads.
fn place_of(thread: usize, thing: usize) -> Vec<u8> {
    match KINDS[thing] {
        "key" => format!("key {thing} of {thread}").into_bytes(),
        kind => format!("{kind} {thing}").into_bytes(),
    }
}

fn options(index: IndexKind) -> Options {
    let options = Options::new().index(index).capacity(1 << 30).extent_size(64 << 10);
    options.lock_wait(Duration::from_secs(60)).ordered(Order::Persistent)
}

/// Opens the map that the threads work on: the default one, or that of this name.
fn open(path: &Path, index: IndexKind, name: &str) -> Map {
    let store = common::open_file(path, options(index)).unwrap();
    if name.is_empty() { store } else { store.db().map(name, MapOptions::new()).unwrap() }
}

/// Creates and drops another map of the same file.
fn make_and_drop(map: &Map) {
    for round in 0u64.. {
        let passing = map.db().map("passing", MapOptions::new()).unwrap();
        for number in 0..round % 300 {
            passing.put(&number.to_le_bytes(), &[7; 100]).unwrap();
        }
        assert!(map.db().drop_map("passing").unwrap());
    }
}

/// The child.
#[test]
fn work_until_killed() {
    let Some(argument) = child::asked_for("conservation::work_until_killed") else { return };
    let mut argument = argument.split('\n');
    let mut word = || argument.next().unwrap();
    let (map, ledger, seed) = (word(), word(), word().parse::<u64>().unwrap());
    let (index, name) = (word().parse().unwrap(), word());
    let map = open(map.as_ref(), index, name);
    SIDES.iter().for_each(|side| drop(map.db().map(side, MapOptions::new()).unwrap()));
    let ledger = &Ledger::open(ledger.as_ref());
    // Held for writing while a flush resets the counts.
    let tallying = &RwLock::new(());
    std::thread::scope(|threads| {
        let map = &map;
        for me in 0..THREADS {
            threads.spawn(move || {
                tally_things(map, ledger, tallying, me, Random::new(seed + me as u64))
            });
        }
        for me in THREADS..THREADS + 2 {
            threads.spawn(move || transfer(map, ledger, me, Random::new(seed + me as u64)));
        }
        threads.spawn(move || flush(map, ledger, tallying, Random::new(seed + 10)));
        if !name.is_empty() {
            threads.spawn(move || make_and_drop(map));
        }
        threads.spawn(move || {
            let names: Vec<_> = (0..ACCOUNTS).map(account).collect();
            loop {
                map.db().purge().unwrap();
                assert_eq!(sum_of(map, &names), 0, "a part of a transfer was visible");
            }
        });
        // Only now, so that there is something to lose in each round, however busy the machine is.
        let records = || map.stat().next_cas;
        let first = records();
        while records() < first + 1000 {
            std::thread::sleep(Duration::from_millis(1));
        }
        println!("ready");
    });
}

fn sum_of(map: &Map, names: &[Vec<u8>]) -> i64 {
    let mut sum = 0;
    map.get_together(names, |_, item| {
        sum += counter(item.unwrap().value).expect("a counter");
        ControlFlow::Continue(())
    })
    .unwrap();
    sum
}

fn tally_things(map: &Map, ledger: &Ledger, tallying: &RwLock<()>, me: usize, mut random: Random) {
    loop {
        let _tallying = tallying.read().unwrap();
        let thing = random.below(THINGS as u64) as usize;
        let (tally, place) = (ledger.tally(me, thing), place_of(me, thing));
        let forever = Meta::default();
        match KINDS[thing] {
            "add" => {
                let amount = 1 + random.below(9);
                tally.issue(amount);
                map.fetch_add(&place, amount as i64).unwrap();
                tally.acknowledge();
            }
            "exchange" => {
                let seen = map.get_with(&place, |item| (counter(item.value).unwrap(), item.cas));
                let seen = seen.unwrap();
                let value = (seen.map_or(0, |(value, _)| value) + 1).to_le_bytes();
                tally.issue(1);
                let outcome = match seen {
                    None => map.set(&place).meta(forever).try_insert(&value),
                    Some((_, cas)) => map.set(&place).meta(forever).compare_exchange(cas, &value),
                };
                match outcome.unwrap().stored() {
                    None => tally.withdraw(),
                    Some(cas) => {
                        tally.acknowledge();
                        ledger.note(me, Some(cas), &place, &value);
                    }
                }
            }
            "log" if tally.issued() - tally.base() < LONGEST_LOG => {
                let piece = tally.issue(1) << 8 | me as u64;
                map.append(&place, &piece.to_le_bytes()).unwrap();
                tally.acknowledge();
            }
            "log" => {}
            _ => {
                // First a record that has expired already, so that a purge removes the key.
                let version = tally.issue(1);
                map.set(&place).meta(common::meta(0, 1)).put(b"old").unwrap();
                if random.below(2) == 0 {
                    std::thread::yield_now();
                }
                let value = version.to_le_bytes();
                let cas = map.set(&place).meta(forever).put(&value).unwrap();
                tally.acknowledge();
                ledger.note(me, Some(cas), &place, &value);
            }
        }
    }
}

fn transfer(map: &Map, ledger: &Ledger, me: usize, mut random: Random) {
    loop {
        let from = random.below(ACCOUNTS as u64) as usize;
        let to = (from + 1 + random.below(ACCOUNTS as u64 - 1) as usize) % ACCOUNTS;
        let (from, to, amount) = (account(from), account(to), random.below(1000) as i64);
        let mut batch = Batch::new();
        if random.below(4) == 0 {
            // From one map to another: neither is ever flushed.
            batch.in_map(SIDES[0]).add(&from, -amount).in_map(SIDES[1]).add(&to, amount);
            assert!(map.apply(&batch).unwrap().is_done());
            continue;
        }
        if random.below(2) == 0 {
            batch.add(&from, -amount).add(&to, amount);
            // Keys that are inserted, removed and expire change the structure of the index.
            let key = format!("mortal {}", random.below(2_000)).into_bytes();
            match random.below(3) {
                0 => batch.remove(&key),
                _ => batch.put_with(&key, &amount.to_le_bytes(), Meta::expiring(Duration::ZERO)),
            };
            assert!(map.apply(&batch).unwrap().is_done());
            continue;
        }
        let see = |key: &[u8]| {
            let seen = map.get_with(key, |item| (counter(item.value).unwrap(), item.cas)).unwrap();
            (seen.map(|(_, cas)| cas), seen.map_or(0, |(value, _)| value))
        };
        let ((here, less), (there, more)) = (see(&from), see(&to));
        let (less, more) = ((less - amount).to_le_bytes(), (more + amount).to_le_bytes());
        batch.expect(&from, here).expect(&to, there).put(&from, &less).put(&to, &more);
        if let evermap::Applied::Done(outcomes) = map.apply(&batch).unwrap() {
            ledger.note(me, outcomes[0].stored(), &from, &less);
            ledger.note(me, outcomes[1].stored(), &to, &more);
        }
    }
}

fn flush(map: &Map, ledger: &Ledger, tallying: &RwLock<()>, mut random: Random) {
    loop {
        std::thread::sleep(Duration::from_millis(random.below(60)));
        let _nobody = tallying.write().unwrap();
        ledger.set(0, ANNOUNCED);
        map.put(CANARY, b"alive").unwrap();
        ledger.set(0, FLUSHING);
        map.clear().unwrap();
        ledger.begin_anew();
        ledger.set(0, 0);
    }
}

/// Records what was stored under each CAS id in all rounds.
type Ids = HashMap<u64, u64>;

fn know(ids: &mut Ids, cas: u64, print: u64) {
    let known = *ids.entry(cas).or_insert(print);
    assert_eq!(known, print, "CAS id {cas} was assigned to two values");
}

/// Compares the contents with what was announced and acknowledged, and starts again.
fn settle(map: &Map, ledger: &Ledger, ids: &mut Ids) {
    let canary = map.contains(CANARY).unwrap();
    match ledger.flush_state() {
        0 => assert!(!canary, "a flushed record came back"),
        // It is flushed, and so is everything before it.
        FLUSHING if !canary => ledger.begin_anew(),
        _ => {}
    }
    ledger.set(0, 0);
    map.delete(CANARY).unwrap();
    let names: Vec<_> = (0..ACCOUNTS).map(account).collect();
    assert_eq!(sum_of(map, &names), 0, "a part of a transfer is present");
    let sides = SIDES.map(|side| sum_of(&map.db().map(side, MapOptions::new()).unwrap(), &names));
    assert_eq!(sides[0] + sides[1], 0, "one side of a transfer is present");
    for (thing, kind) in KINDS.into_iter().enumerate() {
        let tallies: Vec<_> = (0..THREADS).map(|thread| ledger.tally(thread, thing)).collect();
        match kind {
            "add" | "exchange" => {
                let least: u64 = tallies.iter().map(|t| t.acknowledged() - t.base()).sum();
                let most: u64 = tallies.iter().map(|t| t.issued() - t.base()).sum();
                let value = map.get(&place_of(0, thing)).unwrap();
                let value = value.map_or(0, |value| counter(&value).unwrap()) as u64;
                assert!((least..=most).contains(&value), "{kind}: {least} <= {value} <= {most}");
            }
            "log" => {
                let log = map.get(&place_of(0, thing)).unwrap().unwrap_or_default();
                let mut pieces = BTreeMap::new();
                for piece in log.chunks(8) {
                    let piece = u64::from_le_bytes(piece.try_into().expect("whole pieces"));
                    *pieces.entry(((piece & 0xff) as usize, piece >> 8)).or_insert(0) += 1;
                }
                for (thread, tally) in tallies.iter().enumerate() {
                    for number in tally.base() + 1..=tally.issued() {
                        let times = pieces.remove(&(thread, number)).unwrap_or(0);
                        let sure = number <= tally.acknowledged();
                        assert!(times == 1 || times == 0 && !sure, "{times} times: {number}");
                    }
                }
                assert!(pieces.is_empty(), "never appended, or flushed: {pieces:?}");
            }
            _ => {
                for (thread, tally) in tallies.iter().enumerate() {
                    let found = map.get(&place_of(thread, thing)).unwrap();
                    let found = found.map(|value| counter(&value).unwrap() as u64);
                    let (acknowledged, issued) = (tally.acknowledged(), tally.issued());
                    let sure = Some(acknowledged).filter(|&version| version > tally.base());
                    let under_way = issued != acknowledged;
                    assert!(
                        found == sure || under_way && (found.is_none() || found == Some(issued)),
                        "{found:?} instead of {sure:?} or {issued}"
                    );
                }
            }
        }
        for thread in 0..THREADS {
            map.delete(&place_of(thread, thing)).unwrap();
        }
    }
    ledger.begin_anew();
    ledger.notes().into_iter().for_each(|(cas, print)| know(ids, cas, print));
    let now = evermap::Clock::system().now();
    let mut seen = HashMap::new();
    map.for_each(|item| {
        let item = item.unwrap();
        assert!(item.expires_at().is_none_or(|at| at > now), "expired, but present");
        assert_eq!(seen.insert(item.cas, item.key.to_vec()), None, "one CAS id for two records");
        know(ids, item.cas, print_of(item.key, item.value));
        ControlFlow::Continue(())
    })
    .unwrap();
    scan_agrees(map).unwrap();
}

fn kill_again_and_again(index: IndexKind, name: &str, kills: u64) {
    let directory = tempfile::tempdir().unwrap();
    let (path, ledger) = (directory.path().join("map"), directory.path().join("ledger"));
    let mut ids = Ids::new();
    let mut random = Random::new(kills);
    for round in 0..kills {
        let argument =
            format!("{}\n{}\n{round}\n{index}\n{name}", path.display(), ledger.display());
        let mut process = child::start("conservation::work_until_killed", argument);
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "ready"), "the child ended");
        std::thread::sleep(Duration::from_millis(10 + random.below(250)));
        assert!(process.try_wait().unwrap().is_none(), "the child ended before it was killed");
        process.kill().unwrap();
        process.wait().unwrap();
        let map = open(&path, index, name);
        let ledger = Ledger::open(&ledger);
        settle(&map, &ledger, &mut ids);
        if round % 3 == 2 {
            let report = map.db().check(true).unwrap();
            assert!(report.is_sound(), "{report}");
            assert!(map.records().exact);
        }
    }
    assert!(ids.len() as u64 > kills * 100, "{} CAS ids in {kills} rounds", ids.len());
}

#[test]
fn nothing_is_lost_or_done_twice_across_kills() {
    match std::env::var("EVERMAP_CONSERVATION") {
        Err(_) => {
            kill_again_and_again(common::index(), "", 6);
            kill_again_and_again(common::index(), "named", 6);
        }
        Ok(kills) => {
            let kills = kills.parse().expect("EVERMAP_CONSERVATION: a number of kills");
            for index in common::every_index() {
                kill_again_and_again(index, "", kills);
                kill_again_and_again(index, "named", kills);
            }
        }
    }
}

//! A model of more processors than this machine has: who has a cache line, and who waits for it.
//!
//! A processor that stores to a line, or executes a locked instruction on it, must have it to
//! itself; one that only reads it needs a copy, and loses that when another processor stores. So a
//! line that all readers store to is a server with one queue, and a lookup visits it as often as it
//! stores there. The rest of a lookup happens in every processor at the same time. That is a closed
//! network of queues, which is computed by its mean values. Nothing else is modelled: neither the
//! bandwidth of memory, nor threads that share a core, nor the distance between sockets.
//!
//! What a visit costs is measured here, between two processors. All curves start at the speed of
//! one reader that was measured here.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

use crate::LabError;
use crate::driver::workers::Workers;
use crate::experiments::queues::throughput;
use crate::machine;

/// The numbers of readers of the model's figures.
pub(super) const READERS: [usize; 7] = [1, 2, 4, 8, 16, 32, 64];
/// What a line takes from one processor to another if this machine cannot tell, in nanoseconds.
const USUAL_NS: f64 = 100.0;

/// A table as the model sees it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Modelled {
    /// Nanoseconds of a lookup by the only reader.
    pub(super) alone_ns: f64,
    /// The lines that all threads use.
    pub(super) line: Line,
    /// The share of the time in which readers are excluded.
    pub(super) excluded: f64,
}

/// What lookups do to a line that other processors store to.
#[derive(Clone, Copy, Debug)]
pub(super) enum Line {
    /// There is none.
    None,
    /// Each lookup stores to it this often.
    Stored(f64),
    /// Each lookup reads it this often, while one writer stores to it at this rate, per second. The
    /// only reader was measured while it was stored to at the rate `measured`.
    Read { loads: f64, stores: f64, measured: f64 },
}

impl Modelled {
    /// Returns million lookups a second, of `readers` readers with a processor each, if a line
    /// takes `transfer_ns` from one to another.
    pub(super) fn mops(&self, readers: usize, transfer_ns: f64) -> f64 {
        let n = readers as f64;
        let per_ns = match self.line {
            Line::None => n / self.alone_ns,
            Line::Stored(visits) => {
                // The reader that was there last has the line still.
                let demand = visits * transfer_ns * (n - 1.0) / n;
                throughput(readers, self.alone_ns, &[demand])
            }
            Line::Read { loads, stores, measured } => {
                let alone = think(self.alone_ns, loads, measured / 1e9, transfer_ns);
                balance(n, alone, loads, stores / 1e9, transfer_ns)
            }
        };
        per_ns * 1e3 * (1.0 - self.excluded)
    }
}

/// Returns what a reader takes beside a line that one writer stores to `stores` times a nanosecond,
/// if the only reader takes `alone` in all.
fn think(alone: f64, loads: f64, stores: f64, transfer: f64) -> f64 {
    let (mut low, mut high) = (0.0, alone);
    for _ in 0..60 {
        let middle = (low + high) / 2.0;
        if 1.0 / balance(1.0, middle, loads, stores, transfer) < alone {
            low = middle;
        } else {
            high = middle;
        }
    }
    (low + high) / 2.0
}

/// Approximate mean value analysis of two kinds of customers (after Schweitzer): `n` readers and
/// one writer.
fn balance(n: f64, think: f64, loads: f64, stores: f64, transfer: f64) -> f64 {
    if stores <= 0.0 {
        return n / think;
    }
    let writer_thinks = (1.0 / stores - transfer).max(0.0);
    let (mut waits, mut writer_waits) = (0.0, transfer);
    let mut written = stores;
    for _ in 0..500 {
        let cycle = think + waits;
        // A copy is gone if there was a store since this reader's last load.
        let gone = 1.0 - (-written * cycle / loads).exp();
        let demand = loads * gone * transfer;
        let readers_there = n * waits / cycle;
        let writers_there = written * writer_waits;
        let new = demand * (1.0 + readers_there * (n - 1.0) / n + writers_there);
        // Damped, because each side's wait depends on the other's.
        waits += (new - waits) / 4.0;
        writer_waits += (transfer * (1.0 + readers_there) - writer_waits) / 4.0;
        written = 1.0 / (writer_thinks + writer_waits);
    }
    n / (think + waits)
}

/// What a line takes from one processor to another, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Transfer {
    pub(super) ns: f64,
    pub(super) measured: bool,
}

/// Measures for about `length` how long two processors take to hand a line over: the least of many
/// attempts.
pub(super) fn transfer(length: Duration) -> Result<Transfer, LabError> {
    let usual = Transfer { ns: USUAL_NS, measured: false };
    if machine::processors().len() < 2 {
        return Ok(usual);
    }
    let line = Arc::new(Padded(AtomicU64::new(0)));
    let race = Workers::start(2)?.race(move |thread, _| {
        Ok(if thread == 0 { hand_over(&line.0, length) } else { hand_back(&line.0) })
    })?;
    let least = race.results.iter().copied().fold(f64::INFINITY, f64::min);
    Ok(if least.is_finite() { Transfer { ns: least, measured: true } } else { usual })
}

/// The number that ends the exchange.
const END: u64 = u64::MAX;

/// Waits until the line has this number. Returns `false` if the exchange has ended.
fn wait_for(line: &AtomicU64, turn: u64) -> bool {
    loop {
        match line.load(Acquire) {
            END => return false,
            number if number == turn => return true,
            _ => std::hint::spin_loop(),
        }
    }
}

/// Has the even turns until `length` is over. Returns the least nanoseconds of a turn.
fn hand_over(line: &AtomicU64, length: Duration) -> f64 {
    const TURNS: u64 = 200;
    let (begin, mut least, mut turn) = (Instant::now(), f64::INFINITY, 0);
    while begin.elapsed() < length {
        let began = Instant::now();
        for _ in 0..TURNS {
            wait_for(line, turn);
            line.store(turn + 1, Release);
            turn += 2;
        }
        // Between two turns of this thread there is one of the other.
        least = least.min(began.elapsed().as_nanos() as f64 / (2 * TURNS) as f64);
    }
    // Only in this thread's turn, or the other one might overwrite it.
    wait_for(line, turn);
    line.store(END, Release);
    least
}

/// Has the odd turns.
fn hand_back(line: &AtomicU64) -> f64 {
    let mut turn = 1;
    while wait_for(line, turn) {
        line.store(turn + 1, Release);
        turn += 2;
    }
    f64::INFINITY
}

#[repr(align(128))]
struct Padded(AtomicU64);

#[cfg(test)]
mod tests {
    use super::*;

    fn table(line: Line) -> Modelled {
        Modelled { alone_ns: 100.0, line, excluded: 0.0 }
    }

    fn written(stores: f64) -> Line {
        Line::Read { loads: 1.0, stores, measured: stores }
    }

    fn speeds(line: Line) -> Vec<f64> {
        READERS.iter().map(|&readers| table(line).mops(readers, 50.0)).collect()
    }

    #[test]
    fn all_begin_with_what_was_measured() {
        for line in [Line::None, Line::Stored(2.0), written(5e6)] {
            let one = speeds(line)[0];
            assert!((one - 10.0).abs() < 0.01, "{line:?}: {one}");
            let half = Modelled { excluded: 0.5, ..table(line) };
            assert!((half.mops(4, 50.0) * 2.0 - table(line).mops(4, 50.0)).abs() < 1e-9);
        }
    }

    #[test]
    fn what_shares_no_line_grows_with_the_readers() {
        for (readers, mops) in READERS.iter().zip(speeds(Line::None)) {
            assert!((mops - 10.0 * *readers as f64).abs() < 1e-9);
        }
    }

    /// The server is always busy: one lookup for each two transfers.
    #[test]
    fn what_all_store_to_limits_them() {
        let speeds = speeds(Line::Stored(2.0));
        assert!(speeds[6] < 1e3 / 100.0 * 1.03 && speeds[6] > 9.0, "{speeds:?}");
        assert!(speeds.iter().all(|&mops| mops < 2.0 * speeds[0]), "{speeds:?}");
    }

    #[test]
    fn what_one_writes_and_all_read_is_in_between() {
        let stored = speeds(Line::Stored(2.0));
        let read = speeds(written(5e6));
        let free = speeds(Line::None);
        for at in 2..READERS.len() {
            assert!(stored[at] < read[at] && read[at] < free[at], "{read:?}");
            assert!(read[at] > read[at - 1], "{read:?}");
        }
        // With fewer stores than were measured, readers are faster than they were.
        let fewer = table(Line::Read { loads: 1.0, stores: 5e4, measured: 5e6 });
        assert!(fewer.mops(16, 50.0) > read[4] && fewer.mops(1, 50.0) > 10.0);
        // A line that is never written is never away.
        let quiet = table(written(0.0)).mops(16, 50.0);
        assert!((quiet - free[4]).abs() < 1e-6);
    }

    #[test]
    fn a_line_is_handed_over() {
        let found = transfer(Duration::from_millis(5)).unwrap();
        assert!(found.ns > 0.0 && found.ns.is_finite());
    }
}

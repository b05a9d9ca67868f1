//! A leaderboard: `cargo run -p evermap --example leaderboard [FILE]`.
//!
//! One map has the score of each player, another the players in the order of their scores. A batch
//! changes both, and a total, together or not at all, on condition that the score is still the one
//! that was read. Scans of the ordered map give the best players, and the neighbours of one.
//!
//! Kill it while it runs, and start it again: the scores still add up to the total.

use std::thread;

use evermap::{Batch, Evermap, KeyRange, Map, MapOptions, Options, Order, counter};

const PLAYERS: [&str; 6] = ["ann", "bob", "cid", "dora", "eve", "fritz"];
/// The games that each of the threads counts.
const GAMES: u64 = 1000;
const THREADS: u64 = 3;

struct Board {
    db: Evermap,
    scores: Map,
    ranks: Map,
}

/// Returns the key of a player in the order of ranks. Keys are compared byte by byte, so numbers
/// are big-endian; their bits are inverted because the highest score comes first.
fn rank_key(score: i64, player: &str) -> Vec<u8> {
    [&(!score).to_be_bytes()[..], player.as_bytes()].concat()
}

/// Returns the score and the player of such a key.
fn of_rank_key(key: &[u8]) -> Option<(i64, String)> {
    let (score, player) = key.split_first_chunk::<8>()?;
    Some((!i64::from_be_bytes(*score), String::from_utf8(player.to_vec()).ok()?))
}

impl Board {
    fn open(path: &str) -> evermap::Result<Self> {
        let db = Evermap::open(path, Options::new().ordered(Order::Persistent))?;
        let scores = db.map("scores", MapOptions::new())?;
        let ranks = db.map("ranks", MapOptions::new())?;
        Ok(Board { db, scores, ranks })
    }

    /// Adds points to the score of a player.
    fn win(&self, player: &str, points: i64) -> evermap::Result<()> {
        loop {
            let read = self.scores.get_with(player, |item| (item.cas, counter(item.value)))?;
            let cas = read.map(|(cas, _)| cas);
            let old = read.and_then(|(_, score)| score).unwrap_or(0);
            let mut batch = Batch::new();
            batch.add("total", points);
            batch.in_map("scores").expect(player, cas).add(player, points);
            batch
                .in_map("ranks")
                .remove(rank_key(old, player))
                .put(rank_key(old + points, player), "");
            if self.db.apply(&batch)?.is_done() {
                return Ok(());
            }
            // Another thread has changed the score in between.
        }
    }

    /// Returns the best players.
    fn best(&self, limit: u64) -> evermap::Result<Vec<(i64, String)>> {
        let ranks = self.ranks.scan(..)?.limit(limit);
        ranks.filter_map(|pair| pair.map(|(key, _)| of_rank_key(&key)).transpose()).collect()
    }

    /// Returns the player who is just ahead of a player.
    fn ahead_of(&self, player: &str) -> evermap::Result<Option<(i64, String)>> {
        let Some(score) = self.scores.get(player)?.as_deref().and_then(counter) else {
            return Ok(None);
        };
        let before = KeyRange::from(..rank_key(score, player));
        let last = self.ranks.scan(before)?.reverse().limit(1).next().transpose()?;
        Ok(last.and_then(|(key, _)| of_rank_key(&key)))
    }
}

fn main() -> evermap::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm/evermap-leaderboard.map".into());
    let board = Board::open(&path)?;
    println!("{} players were there before", board.scores.len());
    thread::scope(|scope| {
        let play = |thread| {
            let board = &board;
            scope.spawn(move || {
                (0..GAMES).try_for_each(|game| {
                    let player = PLAYERS[(game * (2 * thread + 3) / 7 % 6) as usize];
                    board.win(player, (game % (thread + 2)) as i64 + 1)
                })
            })
        };
        let threads: Vec<_> = (0..THREADS).map(play).collect();
        threads.into_iter().try_for_each(|thread| thread.join().expect("no panic"))
    })?;
    for (place, (score, player)) in board.best(3)?.into_iter().enumerate() {
        println!("{}. {player} with {score} points", place + 1);
    }
    println!("just ahead of eve: {:?}", board.ahead_of("eve")?);
    let sum: i64 = board.best(u64::MAX)?.iter().map(|(score, _)| score).sum();
    let total = board.db.default_map().fetch_add("total", 0)?;
    println!("the scores add up to the total: {}", sum == total);
    board.db.close()
}

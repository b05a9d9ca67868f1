//! Comparing a store with what its threads have done.

use std::ops::ControlFlow;

use evermap::{DamageMark, Evermap, MapOptions, counter};

use crate::changes::{
    ACCOUNTS, BETWEEN_BATCHES, Change, Contents, SECONDS, THREADS, account, mark,
};
use crate::result::Result;

/// The number of changes of each thread.
pub(crate) type Counts = [u64; THREADS];

/// Checks that the store has exactly the first changes of each thread, and at least those that were
/// `acknowledged`; that no transfer is there in part; and that nothing is damaged. Returns how many
/// changes it has.
pub(crate) fn check(db: &Evermap, acknowledged: Counts) -> Result<Counts> {
    let contents = contents_of(db)?;
    check_accounts(&contents)?;
    let mut counts = [0; THREADS];
    for (thread, count) in counts.iter_mut().enumerate() {
        *count = changes_in(&contents, thread)?;
        if *count < acknowledged[thread] {
            let least = acknowledged[thread];
            return Err(format!("thread {thread}: {least} acknowledged, {count} found").into());
        }
    }
    check_order(db)?;
    let (report, stat) = (db.check(true)?, db.stat());
    match report.is_sound() && stat.damage == DamageMark::None {
        true => Ok(counts),
        false => Err(format!("{report}; {stat}").into()),
    }
}

/// Returns all records of all maps.
fn contents_of(db: &Evermap) -> Result<Contents> {
    let mut contents = Contents::new();
    let mut names = db.maps()?;
    names.push(String::new());
    for name in names {
        let map = match name.is_empty() {
            true => db.default_map(),
            false => db.map(&name, MapOptions::new())?,
        };
        let mut failed = None;
        map.for_each(|item| {
            match item {
                Err(error) => failed = Some(error),
                Ok(item) => {
                    let key = String::from_utf8_lossy(item.key).into_owned();
                    let record = (item.value.to_vec(), item.expires_at());
                    contents.insert((name.clone(), key), record);
                }
            }
            ControlFlow::Continue(())
        })?;
        failed.map_or(Ok(()), Err)?;
    }
    Ok(contents)
}

fn check_accounts(contents: &Contents) -> Result<()> {
    let mut sum = 0;
    for number in 0..ACCOUNTS {
        let map = if number % 2 == 0 { "" } else { SECONDS };
        if let Some((value, _)) = contents.get(&(map.to_owned(), account(number))) {
            sum += counter(value).ok_or("an account is no counter")?;
        }
    }
    match sum {
        0 => Ok(()),
        _ => Err(format!("the accounts add up to {sum}").into()),
    }
}

/// Returns how many changes of a thread there are: with exactly those, its records are as found.
fn changes_in(contents: &Contents, thread: usize) -> Result<u64> {
    let owner = |(map, key): &(String, String)| {
        key.starts_with(&format!("{thread} ")) || *map == format!("passing {thread}")
    };
    let found: Contents = contents
        .iter()
        .filter(|(place, _)| owner(place))
        .map(|(place, record)| (place.clone(), record.clone()))
        .collect();
    let batch = found.get(&(String::new(), mark(thread)));
    let batch = batch.map(|(value, _)| u64::from_le_bytes(value[..8].try_into().expect("8 bytes")));
    let least = batch.map_or(0, |batch| batch + 1);
    let mut wanted = Contents::new();
    for number in 0..least {
        Change::new(thread, number).note(&mut wanted);
    }
    let mut differences = String::new();
    for count in least..=least + BETWEEN_BATCHES {
        if wanted == found {
            return Ok(count);
        }
        differences += &format!("; after {count}: {}", difference(&wanted, &found));
        Change::new(thread, count).note(&mut wanted);
    }
    Err(format!("thread {thread} has not its first changes{differences}").into())
}

/// Describes the first record in which the two differ.
fn difference(wanted: &Contents, found: &Contents) -> String {
    let places = wanted.keys().chain(found.keys());
    let differs = |place: &&(String, String)| wanted.get(place) != found.get(place);
    let Some(place) = places.into_iter().find(differs) else { return String::new() };
    let of = |contents: &Contents| match contents.get(place) {
        None => "nothing".to_owned(),
        Some((value, expiry)) => format!("{} until {expiry:?}", value.escape_ascii()),
    };
    format!("{place:?} is {} and not {}", of(found), of(wanted))
}

/// Checks that the order has the keys of the index.
fn check_order(db: &Evermap) -> Result<()> {
    let map = db.default_map();
    let (walked, scanned) = (map.iter().count(), map.scan(..)?.count());
    match walked == scanned {
        true => Ok(()),
        false => Err(format!("{scanned} keys in order, and {walked} in all").into()),
    }
}

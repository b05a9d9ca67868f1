//! Tables of Rust types: `cargo run -p evermap --example typed [FILE]`, with the feature `serde`.
//!
//! Readings of sensors, by sensor and time, and the sensors. Keys are tuples, whose order is that
//! of their elements, so the readings of one sensor are a range. A batch stores a reading and
//! changes its sensor together.
//!
//! Kill it while it runs, and start it again: each sensor has counted exactly its readings.

use evermap::{Batch, Evermap, MapOptions, Options, Order, TypedMap};
use serde::{Deserialize, Serialize};

/// The number of readings that each run adds to each sensor.
const READINGS: u64 = 500;
/// The seconds between two of them.
const INTERVAL: u64 = 60;

#[derive(Serialize, Deserialize, Default)]
struct Sensor {
    room: String,
    readings: u64,
    highest: Option<f32>,
}

#[derive(Serialize, Deserialize)]
struct Reading {
    celsius: f32,
    battery: Option<u8>,
}

struct Tables {
    db: Evermap,
    sensors: TypedMap<u32, Sensor>,
    /// By sensor and seconds.
    readings: TypedMap<(u32, u64), Reading>,
}

impl Tables {
    fn open(path: &str) -> evermap::Result<Self> {
        let db = Evermap::open(path, Options::new().ordered(Order::Persistent))?;
        let sensors = db.map("sensors", MapOptions::new())?.typed();
        let readings = db.map("readings", MapOptions::new())?.typed();
        Ok(Tables { db, sensors, readings })
    }

    /// Stores a reading and counts it: both or neither. One thread does this, so the sensor cannot
    /// change in between; others would add a condition, as the example `leaderboard` does.
    fn add(&self, id: u32, at: u64, reading: &Reading) -> evermap::Result<()> {
        let mut sensor = self.sensors.get(&id)?.unwrap_or_default();
        sensor.readings += 1;
        sensor.highest = Some(sensor.highest.unwrap_or(f32::MIN).max(reading.celsius));
        let mut batch = Batch::new();
        self.sensors.put_in(&mut batch, &id, &sensor)?;
        self.readings.put_in(&mut batch, &(id, at), reading)?;
        assert!(self.db.apply(&batch)?.is_done(), "a batch without conditions");
        Ok(())
    }

    /// Returns when a sensor was read last.
    fn last(&self, id: u32) -> evermap::Result<Option<u64>> {
        let last = self.readings.prefix(&(id,))?.reverse().next().transpose()?;
        Ok(last.map(|((_, at), _)| at))
    }

    /// Returns the mean temperature in a time.
    fn mean(&self, id: u32, times: std::ops::Range<u64>) -> evermap::Result<f32> {
        let (mut sum, mut count) = (0.0, 0.0);
        for pair in self.readings.range((id, times.start)..(id, times.end))? {
            sum += pair?.1.celsius;
            count += 1.0;
        }
        Ok(sum / count)
    }
}

fn main() -> evermap::Result<()> {
    let path = std::env::args().nth(1).unwrap_or_else(|| "/dev/shm/evermap-typed.map".into());
    let tables = Tables::open(&path)?;
    println!("{} readings were there before", tables.readings.len());
    for (id, room) in [(7, "kitchen"), (70, "attic")] {
        // The first run stores it; later runs leave it as it is.
        let sensor = Sensor { room: room.to_owned(), ..Sensor::default() };
        let _outcome = tables.sensors.try_insert(&id, &sensor)?;
        let start = tables.last(id)?.map_or(0, |at| at + INTERVAL);
        for number in 0..READINGS {
            let celsius = 20.0 + (number % 48) as f32 / 16.0 + id as f32 / 10.0;
            let battery = (number % 100 == 0).then_some(90);
            tables.add(id, start + number * INTERVAL, &Reading { celsius, battery })?;
        }
    }
    for pair in tables.sensors.range(..)? {
        let (id, sensor) = pair?;
        println!(
            "sensor {id}, {}: {:.1} degrees in the first hour, at most {:.1}, last read after {} s",
            sensor.room,
            tables.mean(id, 0..3600)?,
            sensor.highest.unwrap_or_default(),
            tables.last(id)?.unwrap_or_default()
        );
        let stored = tables.readings.prefix(&(id,))?.count() as u64;
        println!("it has counted its readings: {}", stored == sensor.readings);
    }
    tables.db.close()
}

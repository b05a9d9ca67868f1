//! Damage that was found: a log of it in ordinary memory, and a mark in the file that outlives the
//! process.
//!
//! A region with the mark is never closed as clean, so that the next opening sweeps and verifies.
//! The mark goes away when [everything was verified](Region::clear_damage).

use std::collections::BTreeMap;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::Region;
use crate::medium::{Medium, Note};
use crate::sync::{Mutex, Rank};

/// From this number of damaged places on, it is not a few wrong bits: most of the contents may be
/// of another time.
pub const WIDESPREAD: usize = 256;

/// What widespread damage means, and how to see it.
pub const WIDE_DAMAGE: &str = "So is a file that was copied while a process was writing to it, \
                               and restored. `evermap check --deep --on-suspect salvage` describes \
                               the damage";

/// The number of places that are described.
const DESCRIBED: usize = 16;

/// The words of the mark. Any other word but 0 is one that was damaged itself, and means the first.
const FOUND: u64 = u64::from_le_bytes(*b"DAMAGED\0");
const FOUND_WIDELY: u64 = u64::from_le_bytes(*b"SUSPECT\0");

/// How much damage was found in a region since it was last verified as a whole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[cfg_attr(
    feature = "serde",
    derive(serde::Serialize, serde::Deserialize),
    serde(rename_all = "kebab-case")
)]
pub enum DamageMark {
    /// None.
    #[default]
    None,
    /// A few places.
    Found,
    /// [Many](WIDESPREAD) places.
    Widespread,
}

impl DamageMark {
    pub(super) fn decode(word: u64) -> Self {
        match word {
            0 => DamageMark::None,
            FOUND_WIDELY => DamageMark::Widespread,
            _ => DamageMark::Found,
        }
    }

    fn encode(self) -> u64 {
        match self {
            DamageMark::None => 0,
            DamageMark::Found => FOUND,
            DamageMark::Widespread => FOUND_WIDELY,
        }
    }
}

/// What is called with the description of damage when the mark rises.
pub type OnDamage = Box<dyn Fn(DamageMark, &str) + Send + Sync>;

/// The damage that was met since the region was opened.
pub(super) struct DamageLog {
    /// Descriptions of distinct places, by their offsets. At most [`WIDESPREAD`] places.
    places: Mutex<BTreeMap<u64, Option<Box<str>>>>,
    /// Places that were met when there were already that many.
    is_full: AtomicBool,
    met: AtomicU64,
    listener: Mutex<Option<OnDamage>>,
}

impl Default for DamageLog {
    fn default() -> Self {
        DamageLog {
            places: Mutex::ranked(Rank::Leaf, BTreeMap::new()),
            is_full: AtomicBool::new(false),
            met: AtomicU64::new(0),
            listener: Mutex::ranked(Rank::Leaf, None),
        }
    }
}

impl<M: Medium> Region<M> {
    /// Notes that the contents at `offset` do not verify, and [marks](DamageMark) the region,
    /// durably, if that is news. O(log n) in the number of damaged places, which is limited.
    #[cold]
    pub fn note_damage(&self, offset: u64, describe: impl FnOnce() -> String) {
        let log = &self.damage;
        log.met.fetch_add(1, Ordering::Relaxed);
        if log.is_full.load(Ordering::Relaxed) {
            return;
        }
        let mut places = log.places.lock().unwrap_or_else(PoisonError::into_inner);
        if places.contains_key(&offset) {
            return;
        }
        let text = describe();
        let kept = (places.len() < DESCRIBED).then(|| text.as_str().into());
        places.insert(offset, kept);
        let is_full = places.len() >= WIDESPREAD;
        drop(places);
        log.is_full.store(is_full, Ordering::Relaxed);
        let mark = if is_full { DamageMark::Widespread } else { DamageMark::Found };
        self.mark_damage(mark, &text);
    }

    /// Raises the mark of the region to `mark`, durably, and says why.
    pub fn mark_damage(&self, mark: DamageMark, why: &str) {
        let log = &self.damage;
        // Locked, so that of two threads one raises it.
        let listener = log.listener.lock().unwrap_or_else(PoisonError::into_inner);
        if mark <= self.damage_mark() {
            return;
        }
        self.store_damage_mark(mark);
        if let Some(listener) = &*listener {
            listener(mark, why);
        }
    }

    /// Calls `listener` whenever the [mark](DamageMark) of the region rises from now on. It must
    /// not use the region.
    pub fn on_damage(&self, listener: OnDamage) {
        *self.damage.listener.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
    }

    /// Returns the mark of the region.
    pub fn damage_mark(&self) -> DamageMark {
        DamageMark::decode(self.medium.load(&self.header().damage))
    }

    /// Takes the mark away: all contents were verified.
    pub fn clear_damage(&self) {
        if self.damage_mark() > DamageMark::None {
            self.store_damage_mark(DamageMark::None);
        }
    }

    pub(super) fn store_damage_mark(&self, mark: DamageMark) {
        // A forked child must not change the file.
        if self.ensure_writable().is_err() {
            return;
        }
        let (m, cell) = (&self.medium, &self.header().damage);
        m.store(cell, mark.encode());
        m.note(Note::Harmless("nothing is undone if it is lost: the damage is still there"));
        m.flush(cell);
        m.fence();
    }

    /// Returns how often damage was met since the region was opened.
    pub fn damage_met(&self) -> u64 {
        self.damage.met.load(Ordering::Relaxed)
    }

    /// Returns the number of distinct places that were found damaged since the region was opened,
    /// up to [`WIDESPREAD`], and descriptions of some of them.
    pub fn damaged_places(&self) -> (usize, Vec<String>) {
        let places = self.damage.places.lock().unwrap_or_else(PoisonError::into_inner);
        let described = places.values().flatten().map(|text| text.to_string()).collect();
        (places.len(), described)
    }
}

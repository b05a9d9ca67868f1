//! When groups are split.

use super::header::Groups;

/// The fill at which a round begins, if no group is nearly full before.
const FILL_MAX: f64 = 0.9;
/// By how much the groups that wait for their split become fuller during a round.
const ROUND: f64 = 0.02;
/// The fill below which chance does not make a group nearly full: growth would not help.
const CROWDED_LEAST: f64 = 0.5;

/// The pace of growth. None of it is in the file: a round that was interrupted goes on by the fill
/// alone.
///
/// "Fill" is that of the groups that wait for their split in a round. It depends on the records of
/// the table, and not on how far the round is. So a group is split for each part of a fiftieth by
/// which they become fuller, and the round ends before they are full; and if records are removed,
/// it waits.
pub(super) struct Pace {
    /// The fill at which the current or next round begins.
    begin: f64,
    /// The number of groups that there have to be before anything else is written, because one of
    /// them is full.
    needed: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { begin: FILL_MAX, needed: 0 }
    }
}

impl Pace {
    /// Returns whether groups have to be split before changes are written.
    pub(super) fn is_due(&self, groups: Groups, fill: f64) -> bool {
        let progress = ((fill - self.begin) / ROUND).clamp(0.0, 1.0);
        let due = groups.before() + (progress * groups.before() as f64).ceil() as u64;
        groups.count < due.max(self.needed)
    }

    /// Notes that a group is nearly full, so that the next round begins.
    pub(super) fn note_crowded(&mut self, fill: f64) {
        if fill > CROWDED_LEAST {
            self.begin = self.begin.min(fill);
        }
    }

    /// Notes that the group of keys with this hash is full, so that all before it have their turn,
    /// and then it: in this round, or in the next one if it was split already.
    pub(super) fn note_full(&mut self, groups: Groups, hash: u64) {
        let (group, before) = (groups.of(hash), groups.before());
        let waits = group < before && group >= groups.count - before;
        self.needed = if waits { before } else { 2 * before } + group + 1;
    }

    /// Notes that the round has ended.
    pub(super) fn end_round(&mut self) {
        self.begin = FILL_MAX;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(count: u64) -> Groups {
        Groups { base: 100, count }
    }

    /// Returns how many groups there are when no more are due, with records for this fill of 100
    /// groups.
    fn settled(pace: &Pace, mut count: u64, fill: f64) -> u64 {
        while pace.is_due(groups(count), fill * 100.0 / groups(count).before() as f64) {
            count += 1;
        }
        count
    }

    #[test]
    fn a_round_is_spread_over_a_fiftieth() {
        let pace = Pace::default();
        for (fill, count) in
            [(0.5, 100), (0.9, 100), (0.904_99, 125), (0.909_99, 150), (0.919_99, 200)]
        {
            assert_eq!(settled(&pace, 100, fill), count, "{fill}");
        }
        // What was split stays so.
        assert!(!pace.is_due(groups(150), 0.905) && pace.is_due(groups(150), 0.915));
        // The next round.
        assert_eq!(settled(&pace, 200, 2.0 * 0.909_99), 300);
    }

    #[test]
    fn a_group_that_is_nearly_full_begins_a_round() {
        let mut pace = Pace::default();
        pace.note_crowded(0.4);
        assert_eq!(settled(&pace, 100, 0.8), 100);
        pace.note_crowded(0.7);
        pace.note_crowded(0.8);
        assert_eq!(settled(&pace, 100, 0.709_99), 150);
        pace.end_round();
        assert_eq!(settled(&pace, 100, 0.709_99), 100);
    }

    #[test]
    fn a_full_group_has_its_turn() {
        // Of 130 groups 0 to 29 were split, into these and 100 to 129.
        for (hash, needed) in [(99, 200), (30, 131), (29, 230), (0, 201), (129, 330)] {
            let mut pace = Pace::default();
            pace.note_full(groups(130), hash);
            assert_eq!(pace.needed, needed, "{hash}");
            let now = groups(130).of(hash);
            let keys = (0..8).map(|n| now + 100 * n).filter(|&key| groups(130).of(key) == now);
            let keys: Vec<u64> = keys.collect();
            let is_split = |count| keys.iter().any(|&key| groups(count).of(key) != now);
            let count = settled(&pace, 130, 0.1);
            assert!(is_split(count) && !is_split(count - 1), "{hash}");
        }
    }
}

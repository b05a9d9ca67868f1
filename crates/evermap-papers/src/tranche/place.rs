//! Where a key is: computed from its hash and one word, without reading anything else.
//!
//! The table consists of `2^depth` *sets*. All keys that agree in the low `depth` bits of their
//! hashes, the number of the set, are in the groups of that set: `k` of them, `K <= k <= 2K`. The
//! table grows by *steps*. A step adds one group to each set, set after set, and moves to it the
//! share of each older group that makes all of them equally full: Larson's partial expansions of
//! linear hashing, with `K` of them in a doubling. When all sets have `2K` groups, each counts as
//! two sets of `K`, of the keys with 0 and with 1 in bit `depth` of their hashes. Nothing moves
//! then.
//!
//! ```text
//! groups of a set   0  1  2  3 | 4  5  .  .       K = 4, k = 6
//!                   K old ones   k-K new ones
//!
//! bit depth = 0     in the old group in which the key was when k was K
//! bit depth = 1     c = chosen by the hash among the K groups that the step to 2K will have added
//!        c <  k-K   in group K+c, for good
//!        c >= k-K   for the time being in any of the k groups with the same probability: from the
//!                   old group, for each new group n the key jumps to it with probability 1/(n+1)
//! ```
//!
//! So with `m` keys in a set, an old group has `m/2K` keys of the first kind, and a new one as many
//! of the second; to each group come `m(2K-k)/2Kk` of the third kind, `m/k` in all. A step from `k`
//! to `k+1` moves the keys with `c = k-K`, and those of the third kind that jump to the new group:
//! `1/(k+1)` of each group, and nothing between others. The jumps are those of "A Fast, Minimal
//! Memory, Consistent Hash Algorithm" (Lamping, Veach 2014).
//!
//! The number of a group is its place in the order of their creation, so the groups are one array
//! that grows at its end:
//!
//! ```text
//! group i of set s     i >= K    i * 2^depth + s
//!                      i <  K    (K + i) * 2^p + s - 2^p    bit p is the highest 1 of s
//!                                i                          s = 0
//! ```
//!
//! A table with less than `K` groups is one set. Its keys are placed by jumps from the first group.

use std::ops::Range;

use evermap_index::hash::hash_prefix::check_bits;

use super::image::{fingerprint, home_of};

/// The greatest depth.
pub const DEPTH_MAX: u32 = 29;

/// What placement depends on: constants of a kind of table.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Division {
    /// Binary logarithm of `K`, the least number of groups in a set. So it is the number of steps
    /// in a doubling: with more steps, all groups are more equally full, and each record is read
    /// more often.
    pub groups: u32,
    /// Binary logarithm of the number of [parts](Division::part) of a group.
    pub parts: u32,
    /// Binary logarithm of the number of tranches in a group.
    pub homes: u32,
}

impl Division {
    /// Returns the division of a table with groups of `group` tranches of `tranche` bytes.
    pub const fn of(tranche: usize, group: usize) -> Self {
        let homes = group.ilog2();
        // A part has some dozen pairs, or a hundred. With more parts a piece would take less time,
        // but all together more, and more of the insertions would do one.
        let (groups, parts) = match tranche {
            // For tests: few keys cause every change of structure. In the smallest, parts are
            // fractions of homes as with large tranches.
            _ if tranche * group <= 512 => (1, homes + 1),
            _ if tranche * group <= 1024 => (1, homes),
            ..=256 => (3, homes.saturating_sub(2)),
            257..=512 => (3, homes.saturating_sub(1)),
            513..=4096 => (4, homes + 1),
            _ => (5, homes + 4),
        };
        Division { groups, parts, homes }
    }

    /// Returns whether a [`State`] has enough bits.
    pub const fn is_possible(self) -> bool {
        self.least() <= 32 && (2 * self.least()) << self.parts <= 1 << 12
    }

    /// Returns `K`.
    #[inline(always)]
    pub const fn least(self) -> u64 {
        1 << self.groups
    }

    /// Returns the division with at least one home in a part.
    pub const fn of_homes(self) -> Self {
        let parts = if self.parts < self.homes { self.parts } else { self.homes };
        Division { parts, ..self }
    }

    /// Returns the homes of the keys in a part.
    pub fn homes_of(self, part: u64) -> Range<usize> {
        let first = (part << self.homes >> self.parts) as usize;
        first..first + (1 << self.homes.saturating_sub(self.parts))
    }

    /// Returns the bits of a fingerprint that say in which part of its home's keys a key is, and
    /// what they are in this part.
    #[inline(always)]
    pub fn fingerprints_of(self, part: u64) -> (u8, u8) {
        let more = self.parts.saturating_sub(self.homes);
        let bits = (part as u16) << (8 - more);
        (!(0xff_u16 >> more) as u8, bits as u8)
    }

    /// Returns the part of a group in which keys with this hash are: those of some consecutive
    /// homes, or a fraction of one home that the fingerprint chooses. What a part has moves in one
    /// piece of work. The part of a key is the same in every group.
    #[inline(always)]
    pub fn part(self, hash: u64) -> u64 {
        let home = home_of(hash, self.homes);
        match self.homes.checked_sub(self.parts) {
            Some(homes) => home >> homes,
            None => {
                let more = self.parts - self.homes;
                home << more | u64::from(fingerprint(hash)) >> (8 - more)
            }
        }
    }
}

/// How far the table has grown.
///
/// ```text
/// bit  0..12  moved     parts that the step has moved in the set in which it is, of k * parts
/// bit 12..18  groups    k: groups of a set that the step has not reached
/// bit 18..48  set       the set in which the step is, plus 2^depth
/// bit 48..64  check bits
/// ```
///
/// The sets before `set` have `groups + 1` groups. The parts of `set` move in the order of their
/// groups.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct State {
    /// Binary logarithm of the number of sets.
    pub depth: u32,
    /// See the type; 1 to `2K - 1`, and less than `K` only in a table of one set.
    pub groups: u64,
    /// See the type.
    pub set: u64,
    /// See the type.
    pub moved: u64,
}

impl State {
    const SALT: u64 = 0x5354_4154;

    /// Returns the state of a new table of `2^exponent` groups. Returns `None` if that is too many.
    pub fn new(exponent: u32, division: Division) -> Option<Self> {
        let depth = exponent.saturating_sub(division.groups);
        let state = State { depth, groups: 1 << (exponent - depth), set: 0, moved: 0 };
        (depth <= DEPTH_MAX).then_some(state)
    }

    /// Encodes the state in a word.
    pub fn encode(self) -> u64 {
        let fields = self.moved | self.groups << 12 | (self.set + (1 << self.depth)) << 18;
        fields | check_bits(fields, Self::SALT) << 48
    }

    /// Decodes a word. Returns `None` if it is no state.
    pub fn decode(word: u64, division: Division) -> Option<Self> {
        if word << 16 >> 34 == 0 {
            return None;
        }
        let state = Self::decode_unchecked(word);
        let least = if state.depth == 0 { 1 } else { division.least() };
        let possible = (least..2 * division.least()).contains(&state.groups)
            && state.moved < state.groups << division.parts;
        (possible && state.encode() == word).then_some(state)
    }

    /// Decodes a word that [`encode`](Self::encode) returned.
    #[inline(always)]
    pub fn decode_unchecked(word: u64) -> Self {
        let set = word << 16 >> 34;
        let depth = set.ilog2();
        let (moved, groups) = (word & 0xfff, word >> 12 & 0x3f);
        State { depth, groups, set: set - (1 << depth), moved }
    }

    /// Returns the number of groups of the table, with the one to which parts are moving.
    #[inline(always)]
    pub fn count(self) -> u64 {
        self.target() + u64::from(self.moved > 0)
    }

    /// Returns the number of the group that the step adds to `set`.
    #[inline(always)]
    pub fn target(self) -> u64 {
        (self.groups << self.depth) + self.set
    }

    /// Returns the state after the next part has moved. Returns `None` after the last possible one.
    pub fn advanced(self, division: Division) -> Option<Self> {
        let mut next = State { moved: self.moved + 1, ..self };
        if next.moved == self.groups << division.parts {
            next = State { set: self.set + 1, moved: 0, ..self };
        }
        if next.set >> next.depth != 0 {
            next = State { groups: self.groups + 1, set: 0, ..next };
        }
        if next.groups == 2 * division.least() {
            next = State { depth: self.depth + 1, groups: division.least(), ..next };
        }
        (next.depth <= DEPTH_MAX).then_some(next)
    }

    /// Returns the state before the last part has moved: the inverse of [`advanced`]. Returns
    /// `None` if there is one group.
    ///
    /// [`advanced`]: Self::advanced
    pub fn retreated(self, division: Division) -> Option<Self> {
        let mut last = self;
        if last.moved == 0 {
            if last.set == 0 {
                if last.groups == division.least() && last.depth > 0 {
                    last = State { depth: last.depth - 1, groups: 2 * last.groups, ..last };
                }
                last = State { groups: last.groups - 1, set: 1 << last.depth, ..last };
            }
            last = State { set: last.set - 1, moved: last.groups << division.parts, ..last };
        }
        (last.groups > 0).then(|| State { moved: last.moved - 1, ..last })
    }

    /// Returns the group and the part that move next.
    pub fn next_part(self, division: Division) -> (u64, u64) {
        let (place, part) = (self.moved >> division.parts, self.moved);
        (self.number(self.set, place, division), part & ((1 << division.parts) - 1))
    }

    /// Returns whether a key of `set` moves to the new group that the step adds to that: the same
    /// as that its [group](Self::group_of) is the new one afterwards, but most keys need not be
    /// placed for that.
    #[inline(always)]
    pub fn moves(self, hash: u64, division: Division) -> bool {
        let (least, new) = (division.least(), self.groups);
        if new < least {
            return self.place(hash, new + 1, division) == new;
        }
        let random = mixed(hash, self.depth);
        let chosen = chosen(random, division);
        // One condition, because half of the keys have this bit, and no processor predicts which.
        if (hash >> self.depth & 1 == 0) | (chosen < new - least) {
            return false;
        }
        // Where a key is that does not jump makes no difference.
        chosen == new - least || jumped(0, least, new + 1, random << division.groups) == new
    }

    /// Returns the group in which a key of `set` is that does not move to the new group, or that
    /// moves back from there.
    pub fn old_group_of(self, hash: u64, division: Division) -> u64 {
        self.number(self.set, self.place(hash, self.groups, division), division)
    }

    /// Returns the share of the new group's space that counts: that of the parts that have moved
    /// to it. 0 if there is no such group yet.
    pub fn share_moved(self, division: Division) -> f64 {
        self.moved as f64 / (self.groups << division.parts) as f64
    }

    /// Returns the set of keys with this hash.
    #[inline(always)]
    pub fn set_of(self, hash: u64) -> u64 {
        hash & ((1 << self.depth) - 1)
    }

    /// Returns the numbers of the groups of a set.
    pub fn groups_of(self, set: u64, division: Division) -> impl Iterator<Item = u64> {
        let more = set < self.set || (set == self.set && self.moved > 0);
        (0..self.groups + u64::from(more)).map(move |place| self.number(set, place, division))
    }

    /// Returns the number of the group of keys with this hash.
    #[inline(always)]
    pub fn group_of(self, hash: u64, division: Division) -> u64 {
        let set = self.set_of(hash);
        let place = if set == self.set && self.moved > 0 {
            self.place_within_step(hash, division)
        } else {
            self.place(hash, self.groups + u64::from(set < self.set), division)
        };
        self.number(set, place, division)
    }

    /// Returns the place of a key in the set in which the step is.
    #[cold]
    fn place_within_step(self, hash: u64, division: Division) -> u64 {
        let place = self.place(hash, self.groups, division);
        if (place << division.parts) + division.part(hash) < self.moved {
            self.place(hash, self.groups + 1, division)
        } else {
            place
        }
    }

    /// Returns the number of a group, from its set and its place there.
    #[inline(always)]
    fn number(self, set: u64, place: u64, division: Division) -> u64 {
        if place >= division.least() {
            return (place << self.depth) + set;
        }
        match set.checked_ilog2() {
            Some(highest) => ((division.least() + place) << highest) + set - (1 << highest),
            None => place,
        }
    }

    /// Returns the place of a key among `groups` groups of its set.
    #[inline(always)]
    fn place(self, hash: u64, groups: u64, division: Division) -> u64 {
        let least = division.least();
        if groups > least && hash >> self.depth & 1 == 1 {
            let random = mixed(hash, self.depth);
            let chosen = chosen(random, division);
            if chosen < groups - least {
                return least + chosen;
            }
            let old = self.old_place(hash, least, division);
            // Other bits than those that have chosen.
            return jumped(old, least, groups, random << division.groups);
        }
        self.old_place(hash, groups.min(least), division)
    }

    /// Returns the place of a key when its set had `groups` groups, at most `K`.
    #[inline(always)]
    fn old_place(self, hash: u64, groups: u64, division: Division) -> u64 {
        match self.set_of(hash).checked_ilog2() {
            Some(highest) => chosen(mixed(hash, highest), division),
            None => jumped(0, 1, groups, mixed(hash, DEPTH_MAX + 1)),
        }
    }
}

/// Returns bits that are independent of those for other depths.
#[inline(always)]
fn mixed(hash: u64, depth: u32) -> u64 {
    const ODD: u64 = 0x9e37_79b9_7f4a_7c15;
    const SALT: u64 = 0xd6e8_feb8_6659_fd93;
    let product = u128::from(hash ^ SALT.wrapping_mul(u64::from(depth) + 1)) * u128::from(ODD);
    product as u64 ^ (product >> 64) as u64
}

/// Returns the new group that a key chooses, 0 to `K - 1`.
#[inline(always)]
fn chosen(random: u64, division: Division) -> u64 {
    random >> 32 >> (32 - division.groups)
}

/// Returns the group in which a key is when `to` groups exist, if it was in `place` when `from`
/// did: it jumps to each new group `n` with probability `1/(n + 1)`. Expected O(log(to / from)).
#[inline(always)]
fn jumped(mut place: u64, from: u64, to: u64, mut random: u64) -> u64 {
    let mut existed = from;
    loop {
        // With u uniform in (0, 1], the key jumps next when floor(existed / u) + 1 groups exist:
        // so the probability that it stays until n exist is existed / n.
        let u = (random >> 32) + 1;
        if u * to <= existed << 32 {
            return place;
        }
        place = (existed << 32) / u;
        existed = place + 1;
        random = random.wrapping_mul(0xd134_2543_de82_ef95).wrapping_add(0x2545_f491_4f6c_dd1d);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use evermap_pm::sim::rng::Rng;

    use super::*;

    fn divisions() -> [Division; 6] {
        [(256, 2), (256, 4), (256, 16), (512, 16), (4096, 16), (32 << 10, 4)]
            .map(|(tranche, group)| Division::of(tranche, group))
    }

    fn first() -> State {
        State { depth: 0, groups: 1, set: 0, moved: 0 }
    }

    /// The states of a growing table, and for each the next one.
    fn states(division: Division) -> impl Iterator<Item = (State, State)> {
        let next = move |state: &State| state.advanced(division);
        std::iter::successors(Some(first()), next)
            .zip(std::iter::successors(first().advanced(division), next))
    }

    #[test]
    fn states_are_encoded_and_go_back() {
        for division in divisions() {
            assert_eq!(first().retreated(division), None);
            for (state, next) in states(division).take(30_000) {
                assert_eq!(State::decode(state.encode(), division), Some(state));
                assert_eq!(next.retreated(division), Some(state));
                let added = next.count() - state.count();
                assert_eq!(added, u64::from(state.moved == 0 && next.moved > 0));
            }
            for exponent in 0..=DEPTH_MAX + division.groups {
                let state = State::new(exponent, division).unwrap();
                assert_eq!((state.count(), state.moved), (1 << exponent, 0));
                assert_eq!(State::decode(state.encode(), division), Some(state));
            }
            assert_eq!(State::new(DEPTH_MAX + division.groups + 1, division), None);
            let least = division.least();
            let last = State {
                depth: DEPTH_MAX,
                groups: 2 * least - 1,
                set: (1 << DEPTH_MAX) - 1,
                moved: ((2 * least - 1) << division.parts) - 1,
            };
            assert_eq!(State::decode(last.encode(), division), Some(last));
            assert_eq!(last.advanced(division), None);
            let impossible = [
                State { groups: 0, ..first() },
                State { groups: 2 * least, ..first() },
                State { groups: least - 1, depth: 1, ..first() },
                State { moved: 1 << division.parts, ..first() },
            ];
            for state in impossible {
                assert_eq!(State::decode(state.encode(), division), None, "{state:?}");
            }
            assert_eq!(State::decode(0, division), None);
            assert_eq!(State::decode(first().encode() ^ 1 << 20, division), None);
        }
    }

    /// The sets divide the groups among them: each number up to the count belongs to one.
    #[test]
    fn every_group_belongs_to_one_set() {
        for division in divisions() {
            for (state, _) in states(division).step_by(7).take_while(|(s, _)| s.count() < 300) {
                let mut all = BTreeSet::new();
                for set in 0..1 << state.depth {
                    for group in state.groups_of(set, division) {
                        assert!(all.insert(group), "group {group} belongs to two: {state:?}");
                    }
                }
                assert_eq!(all.len() as u64, state.count());
                assert_eq!(all.last(), Some(&(state.count() - 1)));
            }
        }
    }

    /// From one state to the next, keys move from the next part to the new group only, and nothing
    /// moves when sets become two.
    #[test]
    fn keys_move_to_the_new_group_only() {
        for division in divisions() {
            let random = &mut Rng::new(7);
            let keys: Vec<u64> = (0..120).map(|_| random.draw()).collect();
            let (mut moves, most) = (0, (2 * division.least() + 6).max(24));
            for (state, next) in states(division).take_while(|(state, _)| state.count() < most) {
                let (source, part) = state.next_part(division);
                for &key in &keys {
                    let (from, to) = (state.group_of(key, division), next.group_of(key, division));
                    let set = state.set_of(key);
                    assert!(state.groups_of(set, division).any(|group| group == from));
                    if from != to {
                        assert_eq!((from, division.part(key)), (source, part), "{state:?}");
                        assert_eq!(to, state.target());
                        moves += 1;
                    }
                    if set == state.set {
                        let moves = State { moved: 0, set: set + 1, ..state };
                        let moves = moves.group_of(key, division) == state.target();
                        assert_eq!(state.moves(key, division), moves);
                        let old = State { moved: 0, ..state }.group_of(key, division);
                        assert_eq!(state.old_group_of(key, division), old);
                    }
                }
            }
            assert!(moves > 120, "{moves} moves");
        }
    }

    /// All groups are equally full between two steps of a set, and groups of sets that a step has
    /// reached have `1/(k+1)` less than others. The counts of 2^18 keys deviate from that as counts
    /// of chance do.
    #[test]
    fn groups_are_equally_full() {
        const KEYS: u64 = 1 << 18;
        for division in divisions() {
            let random = &mut Rng::new(u64::from(division.groups));
            let keys: Vec<u64> = (0..KEYS).map(|_| random.draw()).collect();
            let least = division.least();
            let steps = [(0, 1, 0), (0, least.div_ceil(2), 0), (0, least + 1, 0), (3, least, 0)];
            let more = [(3, least + 1, 5), (3, 2 * least - 1, 0), (2, least * 3 / 2, 2)];
            for (depth, groups, set) in steps.into_iter().chain(more) {
                let state = State { depth, groups, set, moved: 0 };
                let mut counts = vec![0u32; state.count() as usize];
                keys.iter().for_each(|&key| counts[state.group_of(key, division) as usize] += 1);
                for set in 0..1 << depth {
                    let of_set = groups + u64::from(set < state.set);
                    let expected = KEYS as f64 / ((of_set << depth) as f64);
                    let squares = state.groups_of(set, division).map(|group| {
                        let deviation = f64::from(counts[group as usize]) - expected;
                        // The count of a set varies too, but that is a smaller part.
                        assert!(deviation.abs() < 5.5 * expected.sqrt(), "{state:?} {counts:?}");
                        deviation * deviation / expected
                    });
                    let chi: f64 = squares.sum();
                    let (mean, deviation) = (of_set as f64, (2.0 * of_set as f64).sqrt());
                    assert!(chi < mean + 6.0 * deviation, "{chi} of {mean}: {state:?}");
                }
            }
        }
    }

    /// The home and the fingerprint of a key say nothing about its group: with any one home, and
    /// any one value of four bits of the fingerprint, the groups of a set are equally full.
    #[test]
    fn groups_are_independent_of_homes_and_fingerprints() {
        let division = Division::of(4096, 16);
        let state = State { depth: 1, groups: 24, set: 0, moved: 0 };
        let random = &mut Rng::new(3);
        let mut counts = vec![[[0u32; 16]; 2]; 48];
        for _ in 0..48 * 16 * 400 {
            let hash = random.draw();
            let group = &mut counts[state.group_of(hash, division) as usize];
            group[0][home_of(hash, 4) as usize] += 1;
            group[1][usize::from(fingerprint(hash) >> 4)] += 1;
        }
        for count in counts.as_flattened().as_flattened() {
            assert!((300..500).contains(count), "{count} of 400");
        }
    }

    #[test]
    fn parts_are_ranges_of_homes_or_fractions_of_them() {
        let random = &mut Rng::new(5);
        for division in divisions() {
            let mut parts = vec![0; 1 << division.parts];
            for _ in 0..parts.len() * 100 {
                let hash = random.draw();
                let part = division.part(hash);
                parts[part as usize] += 1;
                let home = home_of(hash, division.homes) as usize;
                assert!(division.homes_of(part).contains(&home));
                let (mask, bits) = division.fingerprints_of(part);
                assert_eq!(fingerprint(hash) & mask, bits);
            }
            assert!(parts.iter().all(|&count| (40..180).contains(&count)), "{parts:?}");
        }
    }
}

//! Additions of several records to a group, with two fences for all.

use evermap_index::recipe::share_line;
use evermap_pm::medium::Note;
use evermap_pm::{Medium, PmU64, Result};

use super::arrays::Group;
use super::geometry::Geometry;
use super::group::Groups;
use super::image::{Item, fingerprint, home, nth};
use super::layout::{COMMIT, Commit, Entry, Shape};

/// A tranche of the group.
#[derive(Clone, Copy)]
struct Tranche<'m> {
    number: usize,
    words: &'m [PmU64],
    /// What the tranche contains.
    before: Commit,
    /// What it will contain.
    after: Commit,
}

/// The place of a dead record that a new one takes.
struct Reused<'m> {
    tranche: usize,
    words: &'m [PmU64],
    at: usize,
    entry: Entry,
}

/// Records that are being added to a locked group: [`add`](Self::add) writes them where nothing is
/// visible, [`flush`](Self::flush) makes that durable, and [`commit`](Self::commit) makes them
/// visible. If the object is dropped before, nothing has changed.
pub(super) struct Additions<'m, M: Medium, G: Geometry> {
    groups: Groups<'m, M, G>,
    group: Group<'m>,
    /// Those that records were added to, or have passed.
    tranches: Vec<Tranche<'m>>,
    reused: Vec<Reused<'m>>,
}

impl<'m, M: Medium, G: Geometry> Additions<'m, M, G> {
    const WORDS_IN_LINE: usize = 8;

    pub(super) fn new(groups: Groups<'m, M, G>, group: Group<'m>) -> Self {
        Additions { groups, group, tranches: Vec::new(), reused: Vec::new() }
    }

    /// Adds a record to one of the first `steps` tranches at which a search for it arrives. Returns
    /// `false` if there is no room.
    pub(super) fn add(&mut self, item: &Item<'_>, steps: usize) -> Result<bool> {
        let home = home::<G>(item.hash);
        for step in 0..steps {
            let Some(at) = self.tranche(nth::<G>(home, step))? else { break };
            if self.add_to(at, item)? {
                for passed in 0..step {
                    if let Some(at) = self.tranche(nth::<G>(home, passed))? {
                        self.tranches[at].after = self.tranches[at].after.passed();
                    }
                }
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns where in `tranches` the tranche with this number is. Returns `None` if the group
    /// does not have it.
    fn tranche(&mut self, number: usize) -> Result<Option<usize>> {
        // Few: the homes of a part, and some behind them.
        if let Some(at) = self.tranches.iter().position(|tranche| tranche.number == number) {
            return Ok(Some(at));
        }
        let Some(words) = self.groups.tranche(self.group, number)? else { return Ok(None) };
        let before = self.groups.commit(words)?;
        self.tranches.push(Tranche { number, words, before, after: before });
        Ok(Some(self.tranches.len() - 1))
    }

    fn add_to(&mut self, tranche: usize, item: &Item<'_>) -> Result<bool> {
        let Tranche { number, words, before, after } = self.tranches[tranche];
        if after.has_room::<G>(item.payload.len()) {
            let (at, start) = (after.count, after.low - item.payload.len());
            let entry = Entry { start, kind: item.kind, dead: false };
            self.write(words, at, start, item);
            self.write_entry(words, at, entry);
            self.tranches[tranche].after = Commit { count: at + 1, low: start, ..after };
            return Ok(true);
        }
        if after.dead == 0 {
            return Ok(false);
        }
        let is_free = |at| !self.reused.iter().any(|it| (it.tranche, it.at) == (number, at));
        let dead = self.groups.dead(words, before, &item.wanted(), is_free)?;
        let Some((at, dead)) = dead else { return Ok(false) };
        self.write(words, at, dead.start, item);
        self.groups.0.flush(&words[dead.start..][..item.payload.len()]);
        let fingerprints = &words[Shape::<G>::fingerprint_word(at)];
        if !share_line(fingerprints, &words[Shape::<G>::entry_word(at)]) {
            self.groups.0.flush(fingerprints);
        }
        let entry = Entry { start: dead.start, kind: item.kind, dead: false };
        self.reused.push(Reused { tranche: number, words, at, entry });
        self.tranches[tranche].after.dead -= 1;
        Ok(true)
    }

    fn write(&self, tranche: &[PmU64], at: usize, start: usize, item: &Item<'_>) {
        let m = self.groups.0;
        for (cell, word) in tranche[start..].iter().zip(item.payload) {
            m.store(cell, m.load(word));
        }
        let cell = &tranche[Shape::<G>::fingerprint_word(at)];
        m.store(cell, self.groups.with_fingerprint(cell, at, item.hash));
        debug_assert_eq!((m.load(cell) >> (at % 8 * 8)) as u8, fingerprint(item.hash));
    }

    fn write_entry(&self, tranche: &[PmU64], at: usize, entry: Entry) {
        let cell = &tranche[Shape::<G>::entry_word(at)];
        self.groups.0.note(Note::Harmless(
            "torn, it is complete before it counts; of a dead record, one bit changes",
        ));
        self.groups.0.store(cell, self.groups.with_entry(cell, at, entry));
    }

    /// Returns the numbers of the tranches that change.
    pub(super) fn places(&self) -> impl Iterator<Item = usize> {
        self.tranches.iter().map(|tranche| tranche.number)
    }

    /// Flushes the records, without a fence. What is in the line of the word that commits it needs
    /// no flush: that line becomes durable in program order.
    pub(super) fn flush(&self) {
        let m = self.groups.0;
        for Tranche { words, before, after, .. } in &self.tranches {
            if after.count > before.count {
                m.flush(&words[after.low..before.low]);
                let strip =
                    Shape::<G>::fingerprint_word(before.count)..Shape::<G>::strip_end(after.count);
                if strip.end > Self::WORDS_IN_LINE {
                    m.flush(&words[strip.start.max(Self::WORDS_IN_LINE)..strip.end]);
                }
            }
        }
    }

    /// Makes the records visible, flushed without a fence. The caller has fenced the flushes of the
    /// records.
    pub(super) fn commit(self) {
        let m = self.groups.0;
        for Tranche { words, before, after, .. } in &self.tranches {
            if after.count > before.count {
                m.store(&words[COMMIT], after.encode());
                m.flush(&words[COMMIT]);
            } else if after != before {
                self.groups.set_commit(words, *after);
            }
        }
        for Reused { words, at, entry, .. } in &self.reused {
            self.write_entry(words, *at, *entry);
            m.flush(&words[Shape::<G>::entry_word(*at)]);
        }
    }
}

//! The operations of an index as data: their results by the specification, and their execution.

use std::collections::HashMap;
use std::fmt;

use evermap_pm::sync::Mutex;
use evermap_pm::{Guard, Result};

use super::delays::Operation;
use super::keys::Numbered;
use super::{Instance, Stats, chance};
use crate::{Action, Change, MutateMode};
use evermap_pm::sim::rng::Rng;

/// One operation on one key. Keys and words are identified by numbers; see [`Instance::word`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Call {
    /// The number of the key.
    pub key: u64,
    /// The operation.
    pub verb: Verb,
}

/// An operation, named as in [`Index`](crate::Index).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[allow(missing_docs)] // see the methods of `Index`
pub enum Verb {
    Get,
    Insert(u64),
    Update(u64),
    Upsert(u64),
    CompareExchange {
        expected: u64,
        new: u64,
    },
    Remove,
    RemoveIf(u64),
    /// A mutate whose closure returns `absent` or `present`, depending on what it is passed.
    Mutate {
        mode: MutateMode,
        absent: Action,
        present: Action,
    },
}

impl Verb {
    /// Returns the required result of the operation if the key is bound to `old`. This is the whole
    /// specification of a key. The result of a get is a change that changes nothing.
    pub fn apply(self, old: Option<u64>) -> Change {
        let new = match (self, old) {
            (Verb::Insert(word), None) => Some(word),
            (Verb::Upsert(word), _) => Some(word),
            (Verb::Update(word), Some(_)) => Some(word),
            (Verb::CompareExchange { expected, new }, Some(old)) if old == expected => Some(new),
            (Verb::Remove, _) => None,
            (Verb::RemoveIf(expected), Some(old)) if old == expected => None,
            (Verb::Mutate { present, .. }, Some(old)) => decided(present, Some(old)),
            (Verb::Mutate { mode: MutateMode::MayInsert, absent, .. }, None) => {
                decided(absent, None)
            }
            _ => old,
        };
        Change { old, new }
    }

    /// Returns the numbers of the words that the operation may put.
    fn puts(self) -> Vec<u64> {
        let put = |action| if let Action::Put(word) = action { Some(word) } else { None };
        match self {
            Verb::Get | Verb::Remove | Verb::RemoveIf(_) => Vec::new(),
            Verb::Insert(word) | Verb::Update(word) | Verb::Upsert(word) => vec![word],
            Verb::CompareExchange { new, .. } => vec![new],
            Verb::Mutate { absent, present, .. } => {
                let mut words: Vec<u64> = [absent, present].into_iter().filter_map(put).collect();
                words.dedup();
                words
            }
        }
    }

    /// Returns whether the operation may add its key.
    fn may_insert(self) -> bool {
        let absent = [Verb::Insert(0), Verb::Upsert(0)].map(|verb| std::mem::discriminant(&verb));
        absent.contains(&std::mem::discriminant(&self))
            || matches!(self, Verb::Mutate { mode: MutateMode::MayInsert, .. })
    }

    /// Returns what the closure of a mutate returns that does the same. `word_of` returns the word
    /// with a number.
    fn decision(self, word_of: impl Fn(u64) -> u64) -> Decision {
        let real = |action| match action {
            Action::Put(tag) => Action::Put(word_of(tag)),
            other => other,
        };
        let (only_if, absent, present) = match self {
            Verb::Get => (None, Action::Keep, Action::Keep),
            Verb::Insert(word) => (None, Action::Put(word), Action::Keep),
            Verb::Update(word) => (None, Action::Keep, Action::Put(word)),
            Verb::Upsert(word) => (None, Action::Put(word), Action::Put(word)),
            Verb::CompareExchange { expected, new } => {
                (Some(expected), Action::Keep, Action::Put(new))
            }
            Verb::Remove => (None, Action::Keep, Action::Remove),
            Verb::RemoveIf(expected) => (Some(expected), Action::Keep, Action::Remove),
            Verb::Mutate { mode: MutateMode::ExistingOnly, present, .. } => {
                (None, Action::Keep, present)
            }
            Verb::Mutate { absent, present, .. } => (None, absent, present),
        };
        let (absent, present) = (real(absent), real(present));
        Decision { only_if: only_if.map(&word_of), absent, present }
    }

    /// Returns a random verb. `current` is what the key is probably bound to, `grow` is the
    /// percentage of verbs that may add a key, and `word` makes the words to put.
    pub fn random(
        random: &mut Rng,
        current: Option<u64>,
        grow: u64,
        word: &mut impl FnMut(&mut Rng) -> u64,
    ) -> Self {
        let (fresh, other) = (word(random), word(random));
        let expected = match current {
            Some(current) if chance(random, 70) => current,
            _ => other,
        };
        let choice = random.below(5);
        if chance(random, 20) {
            Verb::Get
        } else if chance(random, grow) {
            let absent = *random.pick(&[Action::Keep, Action::Put(other), Action::Remove]);
            let present = *random.pick(&[Action::Keep, Action::Put(fresh), Action::Remove]);
            match choice {
                0 | 1 => Verb::Insert(fresh),
                2 | 3 => Verb::Upsert(fresh),
                _ => Verb::Mutate { mode: MutateMode::MayInsert, absent, present },
            }
        } else {
            let present = *random.pick(&[Action::Keep, Action::Put(fresh), Action::Remove]);
            let absent = Action::Put(fresh);
            match choice {
                0 => Verb::Update(fresh),
                1 => Verb::CompareExchange { expected, new: fresh },
                2 => Verb::Remove,
                3 => Verb::RemoveIf(expected),
                _ => Verb::Mutate { mode: MutateMode::ExistingOnly, absent, present },
            }
        }
    }
}

/// What a closure returns.
struct Decision {
    /// Keeps a key that is bound to another word.
    only_if: Option<u64>,
    absent: Action,
    present: Action,
}

impl Decision {
    fn of(&self, old: Option<u64>) -> Action {
        match old {
            None => self.absent,
            Some(word) if self.only_if.is_some_and(|only| only != word) => Action::Keep,
            Some(_) => self.present,
        }
    }
}

fn decided(action: Action, old: Option<u64>) -> Option<u64> {
    match action {
        Action::Keep => old,
        Action::Put(word) => Some(word),
        Action::Remove => None,
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = self.key;
        match self.verb {
            Verb::Get => write!(f, "get({key})"),
            Verb::Insert(word) => write!(f, "insert({key}, {word})"),
            Verb::Update(word) => write!(f, "update({key}, {word})"),
            Verb::Upsert(word) => write!(f, "upsert({key}, {word})"),
            Verb::CompareExchange { expected, new } => {
                write!(f, "compare_exchange({key}, {expected}, {new})")
            }
            Verb::Remove => write!(f, "remove({key})"),
            Verb::RemoveIf(word) => write!(f, "remove_if({key}, {word})"),
            Verb::Mutate { mode, absent, present } => {
                write!(f, "mutate({key}, {mode:?}, None => {absent:?}, Some(_) => {present:?})")
            }
        }
    }
}

/// A change or a word as text.
pub struct InWords<T>(pub T);

impl fmt::Display for InWords<Option<u64>> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(word) => write!(f, "{word}"),
            None => f.write_str("absent"),
        }
    }
}

impl fmt::Display for InWords<Change> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.changed() {
            write!(f, "{} became {}", InWords(self.0.old), InWords(self.0.new))
        } else {
            write!(f, "{}", InWords(self.0.old))
        }
    }
}

/// Executes calls on an instance, translates words to their numbers, and checks what must hold for
/// each call by itself. An error message describes a violation.
pub struct Driver<'a, K: Numbered> {
    instance: &'a dyn Instance<K>,
    records: &'a Records,
}

/// If words are records: the word of each number that is in the index or may be put into it.
#[derive(Default)]
pub struct Records(Mutex<HashMap<u64, u64>>);

/// The number of calls of a closure, and the word that it was passed last.
type Seen = (u32, Option<u64>);

/// A word that names no record.
const NO_RECORD: u64 = u64::MAX;

impl<'a, K: Numbered> Driver<'a, K> {
    /// Creates a driver of this instance.
    pub fn new(instance: &'a dyn Instance<K>, records: &'a Records) -> Self {
        Driver { instance, records }
    }

    /// Executes `call`. Returns `None` if the index had no space.
    pub fn call(&self, call: &Call) -> Result<Option<Change>, String> {
        let _operation = Operation::begin();
        let owned = K::owned(call.key, self.instance.seed());
        let key = K::lend(&owned);
        let guard = self.instance.pin();
        let mut made = Vec::new();
        let result = self.on_words(key, call.verb, &mut made, &guard);
        let (change, seen) = match result {
            Ok(done) => done,
            Err(error) => {
                made.iter().for_each(|&(_, word)| self.discard(word));
                return if error.is_no_space() { Ok(None) } else { Err(format!("error: {error}")) };
            }
        };
        let in_numbers = Change {
            old: change.old.map(|word| self.instance.tag(word)),
            new: change.new.map(|word| self.instance.tag(word)),
        };
        for (_, word) in made {
            if change.new != Some(word) {
                self.discard(word);
            }
        }
        if let Some(old) = change.old
            && change.changed()
        {
            self.forget(old);
            self.instance.retire(old, &guard);
        }
        let expected = match (call.verb, change.old) {
            (Verb::Mutate { mode: MutateMode::ExistingOnly, .. }, None) => (0, None),
            (Verb::Mutate { .. }, old) => (1, old),
            _ => (0, None),
        };
        if seen != expected {
            let ((times, shown), change) = (seen, InWords(in_numbers));
            return Err(format!(
                "the closure was called {times} times, passed {shown:?}: {change}"
            ));
        }
        Ok(Some(in_numbers))
    }

    /// Returns what `key` is bound to.
    pub fn get(&self, key: u64) -> Result<Option<u64>, String> {
        let call = Call { key, verb: Verb::Get };
        let answer = self.call(&call).map_err(|what| format!("{call}: {what}"))?;
        answer.map(|change| change.new).ok_or_else(|| format!("{call}: no space to read"))
    }

    /// Executes the operation on real words, and adds the numbers and words that it could put to
    /// `made`. Also returns how often the closure of a mutate was called, and what it was passed
    /// last.
    fn on_words(
        &self,
        key: K::Ref<'_>,
        verb: Verb,
        made: &mut Vec<(u64, u64)>,
        guard: &Guard<'_>,
    ) -> Result<(Change, Seen)> {
        let index = self.instance.index();
        let mut make = |tag| -> Result<u64> {
            // A closure may put the same word in both cases: that is a single record.
            if let Some(&(_, word)) = made.iter().find(|(other, _)| *other == tag) {
                return Ok(word);
            }
            let word = self.make(key, tag)?;
            made.push((tag, word));
            Ok(word)
        };
        let change = match verb {
            Verb::Get => {
                let word = index.get(key, guard)?;
                Change { old: word, new: word }
            }
            Verb::Insert(tag) => index.insert(key, make(tag)?, guard)?,
            Verb::Update(tag) => index.update(key, make(tag)?, guard)?,
            Verb::Upsert(tag) => index.upsert(key, make(tag)?, guard)?,
            Verb::CompareExchange { expected, new } => {
                index.compare_exchange(key, self.word_of(expected), make(new)?, guard)?
            }
            Verb::Remove => index.remove(key, guard)?,
            Verb::RemoveIf(expected) => index.remove_if(key, self.word_of(expected), guard)?,
            Verb::Mutate { mode, absent, present } => {
                let mut real = |action| -> Result<Action> {
                    Ok(match action {
                        Action::Put(tag) => Action::Put(make(tag)?),
                        other => other,
                    })
                };
                let (absent, present) = (real(absent)?, real(present)?);
                let mut seen = (0, None);
                let change = index.mutate(key, mode, guard, &mut |old| {
                    seen = (seen.0 + 1, old);
                    if old.is_some() { present } else { absent }
                })?;
                return Ok((change, seen));
            }
        };
        Ok((change, (0, None)))
    }

    /// Executes calls as one `mutate_many`. A get is a change that changes nothing. The result of a
    /// call is `None` if the index had no space for it.
    pub fn change_many(&self, calls: &[Call]) -> Result<Vec<Option<Change>>, String> {
        let _operation = Operation::begin();
        let (index, seed) = (self.instance.index(), self.instance.seed());
        let owned: Vec<K::Owned> = calls.iter().map(|call| K::owned(call.key, seed)).collect();
        let keys: Vec<K::Ref<'_>> = owned.iter().map(K::lend).collect();
        let guard = self.instance.pin();
        let mut made = vec![Vec::new(); calls.len()];
        for ((call, &key), made) in calls.iter().zip(&keys).zip(&mut made) {
            for tag in call.verb.puts() {
                let word = self.make(key, tag).map_err(|error| format!("{call}: {error}"))?;
                made.push((tag, word));
            }
        }
        let decisions: Vec<_> = calls
            .iter()
            .zip(&made)
            .map(|(call, made)| call.verb.decision(|tag| self.word_in(made, tag)))
            .collect();
        let inserts = calls.iter().any(|call| call.verb.may_insert());
        let mode = if inserts { MutateMode::MayInsert } else { MutateMode::ExistingOnly };
        let mut seen: Vec<Seen> = vec![(0, None); calls.len()];
        let mut out: Vec<_> = calls.iter().map(|_| Ok(Change::default())).collect();
        let decide = &mut |at: usize, old| {
            seen[at] = (seen[at].0 + 1, old);
            decisions[at].of(old)
        };
        index.mutate_many(&keys, mode, &guard, decide, &mut out);
        let in_numbers = |change: Change| Change {
            old: change.old.map(|word| self.instance.tag(word)),
            new: change.new.map(|word| self.instance.tag(word)),
        };
        let mut changes = Vec::new();
        for ((call, out), seen) in calls.iter().zip(&out).zip(seen) {
            let allowed = match out {
                Ok(Change { old: None, .. }) if !inserts => (0, None),
                Ok(change) => (1, change.old),
                Err(error) if error.is_no_space() => (0, None),
                Err(error) => return Err(format!("{call}: {error}")),
            };
            let (times, passed) = seen;
            if times != allowed.0 {
                return Err(format!("{call}: the closure was called {times} times"));
            }
            if passed != allowed.1 {
                let (told, passed) = (InWords(allowed.1), InWords(passed));
                return Err(format!(
                    "{call}: told {told} as the old word, must return what it passed: {passed}"
                ));
            }
            changes.push(out.as_ref().ok().copied().map(in_numbers));
        }
        for (out, made) in out.into_iter().zip(made) {
            let change = out.unwrap_or_default();
            for (_, word) in made {
                if change.new != Some(word) {
                    self.discard(word);
                }
            }
            if let Some(old) = change.old.filter(|_| change.changed()) {
                self.forget(old);
                self.instance.retire(old, &guard);
            }
        }
        Ok(changes)
    }

    /// Returns the word that was made for a number, or else the one that is known for it.
    fn word_in(&self, made: &[(u64, u64)], tag: u64) -> u64 {
        match made.iter().find(|(other, _)| *other == tag) {
            Some(&(_, word)) => word,
            None => self.word_of(tag),
        }
    }

    /// Returns the results of `get_many`, called with a longer output than needed.
    pub fn get_many(&self, keys: &[u64]) -> Result<Vec<Option<u64>>, String> {
        const UNTOUCHED: Option<u64> = Some(0xdead_beef_dead_beef);
        let _operation = Operation::begin();
        let seed = self.instance.seed();
        let owned: Vec<K::Owned> = keys.iter().map(|&key| K::owned(key, seed)).collect();
        let refs: Vec<K::Ref<'_>> = owned.iter().map(K::lend).collect();
        let mut out = vec![UNTOUCHED; keys.len() + 3];
        let guard = self.instance.pin();
        self.instance.index().get_many(&refs, &mut out, &guard).map_err(|e| e.to_string())?;
        if out.split_off(keys.len()).iter().any(|&rest| rest != UNTOUCHED) {
            return Err("get_many wrote beyond the results of its keys".into());
        }
        Ok(out.into_iter().map(|word| word.map(|word| self.instance.tag(word))).collect())
    }

    /// Returns up to `limit` pairs that `for_each` shows, as slot keys and numbers of words.
    pub fn pairs(&self, limit: usize) -> Result<Vec<(u64, u64)>, String> {
        let _operation = Operation::begin();
        let guard = self.instance.pin();
        let mut shown = Vec::new();
        let mut over = false;
        let result = self.instance.index().for_each(&guard, &mut |slot_key, word| {
            over |= shown.len() == limit;
            shown.push((slot_key, self.instance.tag(word)));
            shown.len() < limit
        });
        result.map_err(|error| error.to_string())?;
        if over { Err("for_each continued after it was stopped".into()) } else { Ok(shown) }
    }

    /// Returns the pairs that `scan` shows unit by unit, with a guard for each unit.
    pub fn pairs_by_units(&self) -> Result<Vec<(u64, u64)>, String> {
        let mut shown = Vec::new();
        let mut from = Some(0);
        while let Some(here) = from {
            let _operation = Operation::begin();
            let guard = self.instance.pin();
            let mut each = |slot_key, word| shown.push((slot_key, self.instance.tag(word)));
            let (unit, next) = self.instance.scan(here, &guard, &mut each);
            unit.map_err(|error| error.to_string())?;
            from = next;
        }
        Ok(shown)
    }

    /// Returns the slot key under which `for_each` shows the key with this number.
    pub fn slot_key(&self, number: u64) -> u64 {
        let seed = self.instance.seed();
        let owned = K::owned(number, seed);
        K::slot_key(K::lend(&owned), K::hash(K::lend(&owned), seed))
    }

    /// Returns the statistics of the index.
    pub fn stats(&self) -> Result<Stats, String> {
        let guard = self.instance.pin();
        self.instance.index().stats(&guard).map_err(|error| error.to_string())
    }

    fn make(&self, key: K::Ref<'_>, tag: u64) -> Result<u64> {
        let word = self.instance.word(key, tag)?;
        // Before the word is published: from then on other threads may expect it.
        if K::WORDS_ARE_RECORDS {
            self.records.0.lock().expect("no panics while held").insert(tag, word);
        }
        Ok(word)
    }

    /// Returns the word with this number. Its block is not reused while the caller's guard lives,
    /// because it is removed here before it is retired.
    fn word_of(&self, tag: u64) -> u64 {
        if !K::WORDS_ARE_RECORDS {
            return tag;
        }
        let records = self.records.0.lock().expect("no panics while held");
        records.get(&tag).copied().unwrap_or(NO_RECORD)
    }

    fn forget(&self, word: u64) {
        if K::WORDS_ARE_RECORDS {
            let tag = self.instance.tag(word);
            self.records.0.lock().expect("no panics while held").remove(&tag);
        }
    }

    fn discard(&self, word: u64) {
        self.forget(word);
        self.instance.discard(word);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_specification() {
        let (absent, present) = (None, Some(1));
        let to = |verb: Verb, old| {
            let change = verb.apply(old);
            assert_eq!(change.old, old);
            change.new
        };
        assert_eq!(to(Verb::Get, present), Some(1));
        assert_eq!((to(Verb::Insert(2), absent), to(Verb::Insert(2), present)), (Some(2), Some(1)));
        assert_eq!((to(Verb::Update(2), absent), to(Verb::Update(2), present)), (None, Some(2)));
        assert_eq!((to(Verb::Upsert(2), absent), to(Verb::Upsert(2), present)), (Some(2), Some(2)));
        let swap = |expected| Verb::CompareExchange { expected, new: 2 };
        assert_eq!((to(swap(1), absent), to(swap(1), present)), (None, Some(2)));
        assert_eq!(to(swap(7), present), Some(1));
        assert_eq!((to(Verb::Remove, absent), to(Verb::Remove, present)), (None, None));
        assert_eq!(to(Verb::RemoveIf(1), present), None);
        assert_eq!(to(Verb::RemoveIf(7), present), Some(1));
        let mutate = |mode, absent, present| Verb::Mutate { mode, absent, present };
        let put = mutate(MutateMode::ExistingOnly, Action::Put(2), Action::Put(3));
        assert_eq!((to(put, absent), to(put, present)), (None, Some(3)));
        let put = mutate(MutateMode::MayInsert, Action::Put(2), Action::Remove);
        assert_eq!((to(put, absent), to(put, present)), (Some(2), None));
        let keep = mutate(MutateMode::MayInsert, Action::Remove, Action::Keep);
        assert_eq!((to(keep, absent), to(keep, present)), (None, Some(1)));
    }

    #[test]
    fn calls_read_like_code() {
        let verb = Verb::Mutate {
            mode: MutateMode::MayInsert,
            absent: Action::Put(4),
            present: Action::Remove,
        };
        assert_eq!(
            Call { key: 3, verb }.to_string(),
            "mutate(3, MayInsert, None => Put(4), Some(_) => Remove)"
        );
        assert_eq!(InWords(Change { old: None, new: Some(4) }).to_string(), "absent became 4");
    }
}

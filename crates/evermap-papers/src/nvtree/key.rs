//! Keys as the tree has them, and comparing them with what is searched for.

use std::cmp::Ordering;

use evermap_index::ordered::leaf::LeafRef;
use evermap_pm::{Medium, Result};

use super::layout::Rest;
use crate::search::{Search, Target};

/// A key of an entry, or one that separates two leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Brief {
    /// The first 16 bytes, as numbers that are ordered as the bytes are, padded with zeros.
    pub(super) head: [u64; 2],
    pub(super) rest: Rest,
}

impl Brief {
    /// Before all keys: of the first leaf.
    pub(super) const FIRST: Brief = Brief { head: [0; 2], rest: Rest::NONE };
    /// After all keys: where there is no leaf.
    pub(super) const END: Brief = Brief { head: [u64::MAX; 2], rest: Rest::END };

    /// Compares two keys.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn compare<M: Medium>(&self, m: &M, other: &Brief) -> Result<Ordering> {
        let heads = self.head.cmp(&other.head);
        if heads.is_ne() || self.rest == other.rest {
            return Ok(heads);
        }
        match (self.rest.block(), other.rest.block()) {
            (Some(one), Some(other)) => {
                Ok(LeafRef::at(m, one)?.compare_leaf(m, &LeafRef::at(m, other)?))
            }
            // Nothing is before everything, a shorter key before a longer one, and the end last:
            // so are the words.
            _ => Ok(self.rest.0.cmp(&other.rest.0)),
        }
    }

    /// Appends the key to `out`.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn append<M: Medium>(&self, m: &M, out: &mut Vec<u8>) -> Result<()> {
        match self.rest.block() {
            Some(block) => LeafRef::at(m, block)?.append_key(m, out),
            None => {
                let length = self.rest.length();
                let bytes = self.head.iter().flat_map(|word| word.to_be_bytes());
                out.extend(bytes.take(length));
            }
        }
        Ok(())
    }

    /// Returns the key, or `None` if there is none: see [`FIRST`](Self::FIRST).
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn key<M: Medium>(&self, m: &M) -> Result<Option<Vec<u8>>> {
        if self.rest == Rest::NONE {
            return Ok(None);
        }
        let mut key = Vec::new();
        self.append(m, &mut key)?;
        Ok(Some(key))
    }
}

impl Search<'_> {
    /// Returns `true` if the key is longer than entries have space for.
    pub(super) fn is_long(&self) -> bool {
        self.key.len() > Rest::INLINE
    }

    /// Returns the key as an entry has it, with the block of a key that is [long](Self::is_long).
    pub(super) fn brief(&self, block: Option<u64>) -> Brief {
        let rest = block.map_or_else(|| Rest::of_length(self.key.len()), Rest::of_block);
        Brief { head: self.head, rest }
    }

    /// Returns `true` if what is searched for can be in a leaf whose least key is `low`.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub(super) fn admits<M: Medium>(&self, m: &M, low: &Brief) -> Result<bool> {
        if self.head != low.head {
            return Ok(low.head < self.head);
        }
        match self.target {
            _ if low.rest == Rest::NONE => Ok(true),
            Target::Last => Ok(low.rest != Rest::END),
            target => Ok(target.admits(self.compare_rest(m, low.rest)?.reverse())),
        }
    }

    /// Compares the key with another one.
    ///
    /// # Errors
    /// `Damaged`.
    pub(super) fn compare<M: Medium>(&self, m: &M, other: &Brief) -> Result<Ordering> {
        match self.head.cmp(&other.head) {
            Ordering::Equal => self.compare_rest(m, other.rest),
            order => Ok(order),
        }
    }

    /// Compares the key with one that has the same first 16 bytes.
    fn compare_rest<M: Medium>(&self, m: &M, rest: Rest) -> Result<Ordering> {
        if rest == Rest::END {
            return Ok(Ordering::Less);
        }
        match rest.block() {
            Some(block) => Ok(LeafRef::at(m, block)?.compare(m, self.key).reverse()),
            None => Ok(self.key.len().cmp(&rest.length())),
        }
    }

    /// Returns `true` if an entry with the same first 16 bytes has this key.
    ///
    /// # Errors
    /// `Damaged`.
    #[inline]
    pub(super) fn is_rest<M: Medium>(&self, m: &M, rest: Rest) -> Result<bool> {
        match rest.block() {
            Some(block) if self.is_long() => Ok(LeafRef::at(m, block)?.is_of(m, self.key)),
            Some(_) => Ok(false),
            None => Ok(rest == Rest::of_length(self.key.len())),
        }
    }
}

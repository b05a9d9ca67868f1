//! Looking at a part of the index before a file is used that was not closed.
//!
//! After a kill, all pages are as the process has left them, and everything that the index names is
//! there. In a copy that was made while the process was writing, and that was restored over the
//! same file, the pages are of different times, and nothing in the identity of the file shows that.
//! But much of the index leads to nothing then.

use evermap_index::record::OFFSET_MASK;
use evermap_pm::Medium;

use crate::ops::read::Walk;
use crate::{Map, Result};

/// Fewer bad pages, or words, than these are single damages.
const LEAST_PAGES: u64 = 4;
const LEAST_WORDS: u64 = 64;
/// One bad one in this number is more than that.
const SHARE: u64 = 64;
/// The number of pages, and of words, that are looked at, unless the length of the file is reason
/// to look at all of them. With fewer words the least number would be more than the share; more
/// would delay the first answer.
const PAGES: u64 = 16;
const WORDS: u64 = LEAST_WORDS * SHARE;

impl<M: Medium> Map<M> {
    /// Returns `true` if much of the first pages of the index cannot be read, or leads to no block.
    /// If the file is [longer](evermap_pm::region::Region::is_longer_than_used) than it should be,
    /// all pages are looked at. To be called before the sweep. Reads no record.
    ///
    /// # Errors
    /// Those of the store; damage is what it looks for.
    pub(crate) fn is_widely_damaged(&self) -> Result<bool> {
        let (mut walk, mut pairs) = (Walk::new(self), Vec::new());
        let (mut pages, mut bad_pages, mut words, mut bad_words) = (0, 0, 0, 0);
        let is_whole = self.db.file.pool.region().is_longer_than_used();
        while is_whole || pages < PAGES && words < WORDS {
            let Some(_guard) = walk.next(&mut pairs)? else { break };
            pages += 1;
            bad_pages += u64::from(walk.take_error().is_err());
            words += pairs.len() as u64;
            // All records are older than this opening.
            let leads_nowhere = |word| {
                self.db.file.pool.old_block_size(word & OFFSET_MASK).is_none_or(|it| it == 0)
            };
            bad_words += pairs.iter().filter(|(_, word)| leads_nowhere(*word)).count() as u64;
        }
        let is_much = |bad: u64, of: u64, least: u64| bad >= least && bad * SHARE >= of;
        Ok(is_much(bad_pages, pages, LEAST_PAGES) || is_much(bad_words, words, LEAST_WORDS))
    }
}

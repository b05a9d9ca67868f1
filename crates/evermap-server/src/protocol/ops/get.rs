//! get, gets and mg, which may change an item or create it.

use crate::cache::{CacheError, Item, Marks, Update};
use crate::protocol::Context;
use crate::stats::Count;

/// A lookup that changes expiry and marks of the item, or creates it.
pub(in crate::protocol) struct Get<'a> {
    pub(in crate::protocol) key: &'a [u8],
    /// The absolute expiry of the empty item that is created if there is none.
    pub(in crate::protocol) create: Option<u32>,
    /// The CAS id that the client chose for that item; `None`: a new one.
    pub(in crate::protocol) new_cas: Option<u64>,
}

/// Returns the expiry and the marks that an item is to have, given whether it was created.
type Found<'f> = dyn FnMut(&Item<'_>, bool) -> Result<(u32, Marks), CacheError> + 'f;

impl Get<'_> {
    /// Looks the item up. Calls `found` with the item, and whether it was created, and gives it the
    /// expiry and the marks that `found` returns, unless it was created. Returns whether there is
    /// an item now.
    ///
    /// `found` is called again if another client was faster; only the last call counts.
    ///
    /// # Errors
    /// If the cache fails, or with the error that `found` returns.
    pub(in crate::protocol) fn execute(
        &self,
        found: &mut Found<'_>,
        context: &Context<'_>,
    ) -> Result<bool, CacheError> {
        let mut live = false;
        let cas = context.cache.update(self.key, &mut |item| {
            live = item.is_some();
            let Some(item) = item else { return Ok(self.create()) };
            context.fetched(self.key, Some(item));
            let (expiry, marks) = found(item, false)?;
            Ok(match (expiry, marks) == (item.expiry, item.marks) {
                true => Update::Keep,
                false => Update::Mark { expiry, marks },
            })
        })?;
        if live {
            return Ok(true);
        }
        context.fetched(self.key, None);
        let Some(cas) = cas else { return Ok(false) };
        let (marks, value) = (Marks::default(), &&[][..]);
        let item = Item { flags: 0, cas, expiry: 0, marks, fetched: false, idle: 0, value };
        found(&item, true)?;
        Ok(true)
    }

    /// The client that finds nothing creates an empty item and has won it.
    fn create(&self) -> Update {
        let Some(expiry) = self.create else { return Update::Keep };
        let marks = Marks { stale: false, won: true };
        Update::Put { value: Vec::new(), flags: 0, expiry, marks, cas: self.new_cas }
    }
}

impl Context<'_> {
    /// Counts keys that were looked up, `hits` of which were found.
    pub(in crate::protocol) fn looked_up(&self, keys: u64, hits: u64) {
        self.counters.add(Count::CmdGet, keys);
        self.counters.add(Count::GetHits, hits);
        self.counters.add(Count::GetMisses, keys - hits);
    }
}

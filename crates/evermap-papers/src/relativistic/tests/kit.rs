//! The tables in the conformance kit.

use std::marker::PhantomData;

use evermap_index::testkit::{Instance, Numbered, Subject};
use evermap_index::{Index, Key};
use evermap_pm::{Guard, Result};

use super::*;

/// Creates tables of a kind, so small that a few keys make them grow.
pub(super) struct Make<T> {
    config: Config,
    kind: PhantomData<fn() -> T>,
}

impl<T> Make<T> {
    pub(super) fn new(grow: Place, shrink: Place) -> Self {
        let config = Config {
            buckets: 4,
            buckets_min: 4,
            buckets_max: 1 << 16,
            stripes: 4,
            grow,
            shrink,
            policy: Some(Policy::default()),
        };
        Make { config, kind: PhantomData }
    }
}

impl<K, T> Subject<K> for Make<T>
where
    K: Numbered + for<'a> Key<Ref<'a> = u64>,
    T: Kind,
{
    type Instance = Words<K, T::Table<KeyHash<K>>>;

    fn fresh(&self) -> Result<Self::Instance> {
        T::create(domain(), KeyHash::new(0), self.config).map(Words::new)
    }
}

impl<K, T> Instance<K> for Words<K, T>
where
    K: for<'a> Key<Ref<'a> = u64>,
    T: ResizableTable<u64, u64>,
{
    fn index(&self) -> &dyn Index<K> {
        self
    }

    fn pin(&self) -> Guard<'_> {
        self.domain().pin()
    }

    /// The number of pairs that are counted is that of the pairs that are there.
    fn audit(&self) -> Vec<String> {
        let shown = pairs(self.table(), &self.domain().pin()).len() as u64;
        let counted = self.table().stats().pairs;
        if shown == counted {
            Vec::new()
        } else {
            vec![format!("{counted} pairs are counted, and {shown} are there")]
        }
    }
}

use Place::{New, Same};

evermap_index::conformance!(volatile rp, Make::<Relativistic>::new(New, New));
evermap_index::conformance!(volatile rp_paper, Make::<Relativistic>::new(New, Same), [u64]);
evermap_index::conformance!(volatile rp_in_place, Make::<Relativistic>::new(Same, Same), [
    u64,
    evermap_index::testkit::Plain
]);
evermap_index::conformance!(volatile rp_sorted, Make::<Sorted>::new(New, New));
evermap_index::conformance!(volatile rp_sorted_in_place, Make::<Sorted>::new(Same, Same), [u64]);
evermap_index::conformance!(volatile ddds, Make::<Moving>::new(New, New));
evermap_index::conformance!(volatile rwlock, Make::<Locking>::new(New, New));

//! The conformance kit.

use evermap_index::testkit::{Coarse, Instance, Numbered, Plain, Subject};
use evermap_index::{Index, Key};
use evermap_pm::{Guard, Result};

use super::words::VolatileWords;
use super::*;

struct Words<S>(VolatileWords<S>);

impl<K, S> Instance<K> for Words<S>
where
    K: for<'a> Key<Ref<'a> = u64>,
    S: BuildHasher + Send + Sync,
{
    fn index(&self) -> &dyn Index<K> {
        &self.0
    }

    fn pin(&self) -> Guard<'_> {
        self.0.map().domain().pin()
    }

    fn audit(&self) -> Vec<String> {
        self.0.map().audit()
    }
}

/// Creates maps with this hasher.
struct Make<S>(std::marker::PhantomData<fn() -> S>);

const fn make<S>() -> Make<S> {
    Make(std::marker::PhantomData)
}

impl<K, S> Subject<K> for Make<S>
where
    K: Numbered + for<'a> Key<Ref<'a> = u64>,
    S: BuildHasher + Default + Send + Sync,
{
    type Instance = Words<S>;

    fn fresh(&self) -> Result<Words<S>> {
        Ok(Words(VolatileWords::new(tiny())))
    }
}

evermap_index::conformance!(volatile well_hashed, make::<RandomState>(), [u64, Plain, Coarse]);
evermap_index::conformance!(volatile badly_hashed, make::<BuildWeak<4>>(), [u64]);
evermap_index::conformance!(volatile attacked, make::<BuildAttacked>(), [u64]);

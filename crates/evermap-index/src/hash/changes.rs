//! The methods of an index that make changes, in terms of a generic one.

/// Expands to the methods of [`Index`](crate::Index) that change a pair, for an index with a method
/// `apply` that is generic over the closure. So each method is compiled with its own closure, where
/// the trait's default methods would call it through a pointer.
#[macro_export]
macro_rules! changes_by_apply {
    () => {
        fn mutate(
            &self,
            key: K::Ref<'_>,
            mode: MutateMode,
            guard: &Guard<'_>,
            decide: &mut dyn FnMut(Option<u64>) -> Action,
        ) -> Result<Change> {
            self.apply(key, mode, guard, decide)
        }

        fn insert(&self, key: K::Ref<'_>, word: u64, guard: &Guard<'_>) -> Result<Change> {
            self.apply(key, MutateMode::MayInsert, guard, |old| match old {
                None => Action::Put(word),
                Some(_) => Action::Keep,
            })
        }

        fn update(&self, key: K::Ref<'_>, word: u64, guard: &Guard<'_>) -> Result<Change> {
            self.apply(key, MutateMode::ExistingOnly, guard, |_| Action::Put(word))
        }

        fn upsert(&self, key: K::Ref<'_>, word: u64, guard: &Guard<'_>) -> Result<Change> {
            self.apply(key, MutateMode::MayInsert, guard, |_| Action::Put(word))
        }

        fn remove(&self, key: K::Ref<'_>, guard: &Guard<'_>) -> Result<Change> {
            self.apply(key, MutateMode::ExistingOnly, guard, |_| Action::Remove)
        }
    };
}
